use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::edge::{Cors, Limits, Wire};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::setup::{MAX_REQUEST_BYTES, Setup, limits, until};

pub async fn connect(setup: &Setup) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub async fn post(
    sender: &mut SendRequest<Full<Bytes>>,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response<String> {
    sender.ready().await.unwrap();
    let mut request = Request::post(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
}

/// Sends raw bytes to the server, and returns the bytes that come until the server closes the connection.
async fn raw(setup: &Setup, data: &[u8]) -> String {
    let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    stream.write_all(data).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn plain_requests_are_answered_by_the_core() {
    let setup = Setup::start().await;
    let mut sender = connect(&setup).await;
    for (path, title) in [
        ("/v1/models/m:predict", "predict m latest"),
        ("/v1/models/m/versions/3:lookup?x=1", "lookup m 3"),
        ("/v1/models/m/labels/stable/tables/user:rows", "rows m stable user"),
        ("/v2/models/m/versions/1/infer", "infer m 1"),
    ] {
        let answer = post(&mut sender, path, &[("accept-encoding", "gzip, deflate, br")], "hello").await;
        assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, &*format!("core {title} 5 hello")));
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert!(answer.headers().contains_key("date") && answer.headers().contains_key("x-request-id"));
        assert_eq!((answer.headers().len(), answer.headers().contains_key("x-model-version")), (5, true));
    }
    let answer = post(&mut sender, "/v2/models/m/infer", &[("inference-header-content-length", "2")], "binary").await;
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    assert_eq!(answer.headers()["inference-header-content-length"], "4");
    let methods: Vec<_> = setup.server().statistics().subjects.iter().map(|one| one.method).collect();
    assert_eq!(methods.len(), 4, "{methods:?}");
    assert_eq!(setup.seen.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn other_requests_are_forwarded() {
    let setup = Setup::start().await;
    let mut sender = connect(&setup).await;
    let headers = [("x-embedding-server-seal", "forged"), ("connection", "x-hop"), ("x-hop", "1"), ("x-mine", "2")];
    let answer = post(&mut sender, "/v1/models/m:upsert?a=b", &headers, "body").await;
    assert_eq!(answer.body(), "reference POST /v1/models/m:upsert?a=b 4");
    assert_eq!(answer.headers()["x-from"], "reference");
    let seen = setup.seen.headers.lock().unwrap().clone();
    assert_eq!(seen["x-embedding-server-seal"], "");
    assert!(!seen.contains_key("x-hop") && seen["x-mine"] == "2" && seen["host"] == "localhost");
    let answer = post(&mut sender, "/v1/models/m:predict", &[], "search").await;
    assert_eq!((answer.status().as_u16(), setup.count(|s| s.forwarded.clone(), "http")), (500, 1));
}

#[tokio::test]
async fn rare_paths_and_bad_headers_are_answered_and_refused() {
    let setup = Setup::start().await;
    let mut sender = connect(&setup).await;
    for (path, body) in [
        ("/v1/models/m%2Fn:predict", "core predict m/n latest 1 x"),
        ("/V1/models/m/VERSIONS/00000000000000000000003:lookup", "core lookup m 3 1 x"),
        ("/v2/models/m/versions/%33/infer", "core infer m 3 1 x"),
    ] {
        assert_eq!(post(&mut sender, path, &[], "x").await.body(), body);
    }
    for (path, value, status, text) in [
        ("/v1/models/m/labels/:predict", "0", 400, "Malformed request: POST /v1/models/m/labels/:predict"),
        ("/v2/models/m/infer", "-1", 400, "Inference-Header-Content-Length: '-1' is not a length in bytes."),
    ] {
        let answer = post(&mut sender, path, &[("inference-header-content-length", value)], "x").await;
        assert_eq!((answer.status().as_u16(), answer.body()), (status, &format!("{{\"error\":\"{text}\"}}")));
    }
    assert_eq!(setup.count(|s| s.forwarded.clone(), "http"), 0);
}

#[tokio::test]
async fn large_bodies_are_answered_and_too_large_ones_are_refused() {
    let setup = Setup::start().await;
    let mut sender = connect(&setup).await;
    let answer = post(&mut sender, "/v1/models/m:predict", &[], vec![b'a'; 5 << 20]).await;
    assert!(answer.body().starts_with("core predict m latest 5242880 aaa"));
    let answer = post(&mut sender, "/v1/models/m:predict", &[], "bytes 5000000").await;
    assert_eq!(answer.body().len(), 5_000_000);
    let size = MAX_REQUEST_BYTES + 1;
    let answer = post(&mut sender, "/v1/models/m:predict", &[], vec![b'a'; size]).await;
    let text = format!("The body of {size} bytes is over the limit of {MAX_REQUEST_BYTES} bytes.");
    assert_eq!((answer.status().as_u16(), answer.body()), (413, &format!("{{\"error\":\"{text}\"}}")));
    assert_eq!(setup.server().statistics().bytes_in_flight, 0);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let setup = Setup::start().await;
    let one = |path: &str, body: &str, more: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-length: {}\r\n\r\n{body}", body.len())
    };
    let data = [
        one("/v1/models/m:predict", "first", ""),
        one("/v1/models/m:predict", "large", ""),
        one("/v1/other", "third", ""),
        one("/v1/models/m:predict", "last", "connection: close\r\n"),
    ];
    let answer = raw(&setup, data.concat().as_bytes()).await;
    let places =
        ["latest 5 first", "latest 5 large", "POST /v1/other 5", "latest 4 last"].map(|text| answer.find(text));
    assert!(places.is_sorted() && places[0].is_some(), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 4);
}

#[tokio::test]
async fn chunked_bodies_and_expect_are_taken() {
    let setup = Setup::start().await;
    let answer = raw(
        &setup,
        b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\
          connection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("core predict m latest 5 abcde"), "{answer}");
}

#[tokio::test]
async fn request_ids_and_cors_are_the_references() {
    let setup = Setup::with(limits(), |config| config.cors = Cors::Listed(vec!["https://a".into()])).await;
    let mut sender = connect(&setup).await;
    let path = "/v1/models/m:predict";
    let answer = post(&mut sender, path, &[("x-request-id", "own"), ("origin", "https://a")], "x").await;
    assert_eq!(answer.headers()["x-request-id"], "own");
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://a");
    let allowed = "Authorization, Content-Type, X-Request-Id, traceparent, tracestate, baggage";
    assert_eq!(answer.headers()["access-control-allow-headers"], allowed);
    assert_eq!(answer.headers()["vary"], "Origin");
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let answer = post(&mut sender, path, &[("traceparent", parent), ("origin", "https://b")], "x").await;
    assert_eq!(answer.headers()["x-request-id"], "0af7651916cd43dd8448eb211c80319c");
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
    let forwarded = post(&mut sender, "/v1/models/m:neighbors", &[("origin", "https://a")], "x").await;
    assert!(forwarded.body().starts_with("reference"), "{}", forwarded.body());
    assert_eq!(forwarded.headers()["access-control-allow-origin"], "https://a");
    assert_eq!(forwarded.headers()["vary"], "Origin");
    let num_forwarded = setup.seen.calls.load(SeqCst);
    for path in ["/v1/models/m:predict", "/v1/models", "/"] {
        sender.ready().await.unwrap();
        let asked = Request::options(path).header("host", "localhost").header("origin", "https://a");
        let answer = sender.send_request(asked.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["access-control-allow-origin"], "https://a");
    }
    assert_eq!(setup.seen.calls.load(SeqCst), num_forwarded);
}

#[tokio::test]
async fn faults_are_worded_as_the_reference_does() {
    let limits = Limits { http_timeout: Duration::from_millis(100), ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    let mut sender = connect(&setup).await;
    let path = "/v1/models/m:predict";
    let answer = post(&mut sender, path, &[("x-request-id", "id-1")], "panic").await;
    assert_eq!(answer.status(), 500);
    let text = r#"{"error":"Internal error; the server's log has the cause, request id id-1"}"#;
    assert_eq!((&answer.body()[..], &answer.headers()["x-request-id"]), (text, &"id-1".parse().unwrap()));
    let answer = post(&mut sender, path, &[], "sleep 300").await;
    assert_eq!(answer.status(), 504);
    assert_eq!(answer.body(), r#"{"error":"Timed out: the request took longer than 0.1 s."}"#);
    assert_eq!(answer.headers()["x-error-code"], "DEADLINE_EXCEEDED");
    std::fs::remove_file(setup.folder.join("http")).unwrap();
    let answer = post(&mut sender, "/other", &[], "x").await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(answer.headers()["x-error-code"], "UNAVAILABLE");
    let failures = || setup.server().statistics().failures.len();
    let before = failures();
    // A probe that comes while the server starts is told so, and is no failed request.
    assert_eq!((post(&mut sender, "/readyz", &[], "").await.status().as_u16(), failures()), (503, before));
    assert_eq!(post(&mut sender, path, &[], "x").await.status(), 200);
}

#[tokio::test]
async fn connections_to_the_reference_are_kept_and_its_restart_is_survived() {
    let setup = Setup::start().await;
    let mut sender = connect(&setup).await;
    for _ in 0..20 {
        assert_eq!(post(&mut sender, "/other", &[], "x").await.status(), 200);
    }
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let mut sender = connect(&setup).await;
    assert_eq!(post(&mut sender, "/other", &[], "x").await.status(), 200);
}

#[tokio::test]
async fn slow_heads_slow_bodies_and_idle_connections_end() {
    let setup = Setup::start().await;
    let partial = [
        ("", ""),
        ("POST /v1/models/m:predict HT", ""),
        ("POST /v1/models/m:predict HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab", "HTTP/1.1 408 "),
    ];
    for (data, wanted) in partial {
        let closed = tokio::time::timeout(Duration::from_secs(4), raw(&setup, data.as_bytes())).await;
        let answer = closed.expect("the server closes");
        assert!(answer.starts_with(wanted) && answer.is_empty() == wanted.is_empty(), "{data}: {answer}");
    }
    let mut sender = connect(&setup).await;
    assert_eq!(post(&mut sender, "/v1/models/m:predict", &[], "x").await.status(), 200);
    until("the idle connection is closed", || setup.count(|s| s.connections.clone(), "http") == 0).await;
    until("the client is told", || sender.is_closed()).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let setup = Setup::start().await;
    let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(70 << 10));
    let answer = raw(&setup, head.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_client_that_leaves_lets_go_of_the_reference() {
    let setup = Setup::start().await;
    let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    stream.write_all(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    until("the request arrives", || setup.seen.calls.load(SeqCst) == 1).await;
    drop(stream);
    until("the connection ends", || setup.count(|s| s.connections.clone(), "http") == 0).await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_still_sends() {
    let setup = Setup::start().await;
    for _ in 0..5 {
        let size = 3 << 20;
        let head = format!("POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
        let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..size >> 16 {
            stream.write_all(&[b'x'; 1 << 16]).await.unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("early"), "{answer}");
    }
}

#[tokio::test]
async fn a_request_has_one_host() {
    let setup = Setup::start().await;
    for (hosts, version, status) in
        [("", "1.1", 400), ("host: a\r\n", "1.1", 200), ("host: a\r\nhost: a\r\n", "1.1", 400), ("", "1.0", 200)]
    {
        let text = format!(
            "POST /v1/models/m:predict HTTP/{version}\r\n{hosts}connection: close\r\ncontent-length: 5\r\n\r\nhello"
        );
        let answer = raw(&setup, text.as_bytes()).await;
        assert!(answer[9..].starts_with(&status.to_string()), "{answer}");
    }
    assert_eq!(setup.count(|s| s.flooded.clone(), "malformed"), 2);
}

#[tokio::test]
async fn a_body_in_too_many_parts_is_refused() {
    let setup = Setup::start().await;
    for path in ["/v1/models/m:predict", "/elsewhere"] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let sent = [head.as_bytes(), &b"1\r\nx\r\n".repeat(6000)].concat();
        let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
        let _ = stream.write_all(&sent).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
    }
    assert_eq!(setup.count(|s| s.flooded.clone(), "parts"), 2);
}

#[tokio::test]
async fn requests_sent_ahead_wait_until_answers_are_read() {
    let setup = Setup::with(Limits { stall_timeout: Duration::from_secs(20), ..limits() }, |_| ()).await;
    let stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    let one = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: a\r\ncontent-length: 12\r\n\r\nbytes 300000";
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move { writer.write_all(&one.repeat(200)).await.map(|()| writer) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let answered: u64 = setup.server().statistics().subjects.iter().map(|one| one.counts.iter().sum::<u64>()).sum();
    assert!(answered < 100, "{answered}");
    let mut left: usize = 200 * 300_000;
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        let size = reader.read(&mut buffer).await.unwrap();
        assert!(size > 0, "{left}");
        left = left.saturating_sub(size);
    }
    drop(sending.await.unwrap().unwrap());
}

#[tokio::test]
async fn unfinished_heads_of_all_connections_are_bounded() {
    let limits = Limits { max_part_bytes: 30 << 10, head_timeout: Duration::from_secs(60), ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    let begun = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}", "y".repeat(20 << 10));
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        streams.push(stream);
        // Heads that arrive at the same time may both be too much.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    until("the flood is counted", || setup.count(|s| s.flooded.clone(), "unfinished") == 1).await;
    until("one is left", || setup.count(|s| s.connections.clone(), "http") == 1).await;
    for mut stream in streams {
        if stream.write_all(b"\r\n\r\n").await.is_ok() {
            let mut got = [0; 15];
            if stream.read_exact(&mut got).await.is_ok() {
                assert_eq!(&got, b"HTTP/1.1 200 OK");
                return;
            }
        }
    }
    panic!("no head was finished");
}

#[tokio::test]
async fn a_connection_waits_for_the_first_routes() {
    let setup = Setup::without_routes(limits(), |_| ()).await;
    let mut stream = tokio::net::TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    stream.write_all(b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(setup.count(|s| s.connections.clone(), "http"), 0);
    setup.server().change_routes(HashMap::default(), &[]);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer[..8], b"HTTP/1.1");
}
