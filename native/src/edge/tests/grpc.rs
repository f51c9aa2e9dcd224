use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::edge::{Limits, Wire};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::setup::{PREDICT, Setup, limits, until};

/// A path that the core forwards.
const METADATA: &str = "/tensorflow.serving.PredictionService/GetModelMetadata";

pub async fn connect(setup: &Setup) -> SendRequest<Bytes> {
    connect_to(setup, Wire::Grpc).await
}

async fn connect_to(setup: &Setup, wire: Wire) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(setup.address(wire)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    // With its default window, h2's client ends a connection after some hundred small unread answers, so the test uses
    // a larger window. Before the server's SETTINGS frame comes, it opens 100 streams at most, as hyper's client does.
    let (sender, connection) = h2::client::Builder::new()
        .initial_connection_window_size(4 << 20)
        .initial_max_send_streams(100)
        .handshake(stream)
        .await
        .unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

pub fn framed(message: &[u8]) -> Bytes {
    let size = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &size, message].concat().into()
}

pub fn request(path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::post(format!("http://localhost{path}"))
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

pub struct Reply {
    pub headers: HeaderMap,
    pub data: Bytes,
    pub trailers: HeaderMap,
}

impl Reply {
    pub fn status(&self) -> &str {
        let status = self.trailers.get("grpc-status").or(self.headers.get("grpc-status"));
        status.expect("a status").to_str().unwrap()
    }

    pub fn text(&self) -> &str {
        self.headers.get("grpc-message").map_or("", |text| text.to_str().unwrap())
    }

    pub fn message(&self) -> String {
        assert_eq!(u32::from_be_bytes(self.data[1..5].try_into().unwrap()) as usize, self.data.len() - 5);
        String::from_utf8(self.data[5..].to_vec()).unwrap()
    }
}

pub async fn read(response: h2::client::ResponseFuture) -> Result<Reply, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let mut data = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        data.extend_from_slice(&part);
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    Ok(Reply { headers: head.headers, data: data.into(), trailers })
}

pub async fn call(
    sender: &SendRequest<Bytes>,
    path: &str,
    headers: &[(&str, &str)],
    data: Bytes,
) -> Result<Reply, h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let (response, mut body) = sender.send_request(request(path, headers), false)?;
    body.send_data(data, true)?;
    read(response).await
}

#[tokio::test]
async fn a_small_message_is_answered_by_the_core() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let reply = call(&sender, PREDICT, &[("x-request-id", "one")], framed(b"hello")).await.unwrap();
    assert_eq!(reply.message(), "core Predict 5 hello");
    assert_eq!((reply.status(), &reply.headers["content-type"]), ("0", &"application/grpc".parse().unwrap()));
    assert_eq!(reply.headers["x-request-id"], "one");
    // Only Predict has a choice of encodings.
    let headers = [("x-tensor-encoding", "none"), ("grpc-timeout", "1S"), ("content-length", "7")];
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let reply = call(&sender, path, &headers, framed(b"hi")).await.unwrap();
    assert_eq!(reply.message(), "core ModelInfer 2 hi");
    assert!(!reply.headers.contains_key("x-request-id"));
    let subjects = setup.server().statistics().subjects;
    assert_eq!(subjects.len(), 2);
    let one = subjects.iter().find(|one| one.method == "Predict").unwrap();
    assert_eq!((one.api, &*one.model, one.version, &*one.signature, one.rows), ("grpc", "m", 7, "lookup", 3));
    assert_eq!((&one.counts, &one.run_counts), (&vec![0, 1, 0], &vec![0, 1, 0]));
    let gone = setup.server().retire("m", 7);
    assert_eq!((gone.subjects.len(), setup.server().statistics().subjects.len()), (2, 0));
}

#[tokio::test]
async fn a_request_chooses_the_encoding_of_its_answer() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    for (name, told) in
        [("values", "Values"), ("content", "Content"), ("float16", "Half(Float16)"), ("bfloat16", "Half(Bfloat16)")]
    {
        let reply = call(&sender, PREDICT, &[("x-tensor-encoding", name)], framed(b"encoding")).await.unwrap();
        assert_eq!(reply.message(), told);
    }
    for name in ["Float16", "", "int8"] {
        let reply = call(&sender, PREDICT, &[("x-tensor-encoding", name)], framed(b"encoding")).await.unwrap();
        let expected = format!(
            "The metadata \"x-tensor-encoding\" is \"{name}\"; expected one of values, content, float16, bfloat16."
        );
        assert_eq!((reply.status(), reply.text()), ("3", &*expected));
    }
}

#[tokio::test]
async fn a_message_in_many_frames_is_put_together() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut body) = sender.clone().send_request(request(PREDICT, &[]), false).unwrap();
    for byte in framed(b"hello") {
        body.send_data(vec![byte].into(), false).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(read(response).await.unwrap().message(), "core Predict 5 hello");
}

#[tokio::test]
async fn many_streams_get_their_own_answers() {
    // On a busy machine some requests wait in the server's queue for longer than the tests' default `max_queue`.
    let limits = Limits { max_queue: Duration::from_secs(60), ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..4 {
        let sender = connect(&setup).await;
        for number in 0..200 {
            let sender = sender.clone();
            tasks.spawn(async move {
                let verb = ["small", "large", "search"][number % 3];
                let message = format!("{verb} {connection}-{number}");
                let reply = call(&sender, PREDICT, &[], framed(message.as_bytes())).await.unwrap();
                let expected = match verb {
                    "search" => message.clone(),
                    _ => format!("core Predict {} {message}", message.len()),
                };
                assert_eq!((reply.message(), reply.status()), (expected, "0"));
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(setup.count(|s| s.declined.clone(), "search"), 4 * 66);
    assert_eq!(setup.count(|s| s.forwarded.clone(), "grpc"), 4 * 66);
    assert_eq!(setup.server().statistics().bytes_in_flight, 0);
}

#[tokio::test]
async fn large_messages_and_answers_pass() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut body) = sender.clone().send_request(request(PREDICT, &[]), false).unwrap();
    let mut data = framed(&vec![b'a'; 3 << 20]);
    while !data.is_empty() {
        body.reserve_capacity(data.len());
        let size = std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
        body.send_data(data.split_to(size.min(data.len())), data.is_empty()).unwrap();
    }
    assert!(read(response).await.unwrap().message().starts_with("core Predict 3145728 aaa"));
    let reply = call(&sender, PREDICT, &[], framed(b"bytes 5000000")).await.unwrap();
    assert_eq!(reply.message().len(), 5_000_000);
    assert_eq!(setup.server().statistics().bytes_in_flight, 0);
}

#[tokio::test]
async fn what_is_no_plain_message_is_refused() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (plain, mut compressed) = (framed(b"x"), framed(b"x").to_vec());
    compressed[0] = 1;
    let too_large = [&[0, 1, 0, 0, 0][..], &[7; 100]].concat();
    for (data, status) in [(&too_large[..], "8"), (b"abc", "13"), (&plain[..4], "13"), (b"\x02\0\0\0\x01x", "13")] {
        let reply = call(&sender, PREDICT, &[], Bytes::copy_from_slice(data)).await.unwrap();
        assert_eq!((reply.status(), reply.headers.contains_key("x-from")), (status, false), "{data:?}");
    }
    for (data, status) in [(Bytes::new(), "12"), (Bytes::from(compressed), "13")] {
        let refused = call(&sender, PREDICT, &[], data).await.unwrap();
        assert_eq!((refused.status(), refused.headers.contains_key("x-from")), (status, false));
    }
    for (header, status) in [(("grpc-encoding", "br"), "12"), (("grpc-timeout", "1 S"), "3")] {
        let reply = call(&sender, PREDICT, &[header], plain.clone()).await.unwrap();
        assert_eq!(reply.status(), status, "{header:?}");
        assert!(!reply.headers.contains_key("x-from"), "{header:?}");
    }
}

#[tokio::test]
async fn a_refusal_of_the_reference_comes_through_and_headers_of_ours_do_not() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let headers = [("x-embedding-server-seal", "forged"), ("x-embedding-server-other", "forged"), ("x-mine", "kept")];
    let reply = call(&sender, "/refuse", &headers, framed(b"")).await.unwrap();
    assert_eq!((reply.status(), reply.text()), ("3", "in the reference's words"));
    let seen = setup.seen.headers.lock().unwrap().clone();
    assert_eq!(seen["x-embedding-server-seal"], "");
    assert!(!seen.contains_key("x-embedding-server-other") && seen["x-mine"] == "kept");
    let error = call(&sender, "/reset", &[], framed(b"")).await.err().unwrap();
    assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn streams_are_forwarded_both_ways_as_they_come() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut up) = sender.clone().send_request(request("/echo", &[]), false).unwrap();
    let mut down = response.await.unwrap().into_body();
    for number in 0..20u8 {
        up.send_data(vec![number; 1000].into(), false).unwrap();
        let mut got = 0;
        while got < 1000 {
            let data = down.data().await.unwrap().unwrap();
            assert!(data.iter().all(|byte| *byte == number));
            down.flow_control().release_capacity(data.len()).unwrap();
            got += data.len();
        }
    }
    up.send_data(Bytes::new(), true).unwrap();
    assert!(down.data().await.is_none());
    assert_eq!(down.trailers().await.unwrap().unwrap()["x-trailer"], "kept");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_forwarded_call() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut body) = sender.clone().send_request(request("/hang", &[]), true).unwrap();
    until("the call arrives", || setup.seen.calls.load(SeqCst) == 1).await;
    body.send_reset(h2::Reason::CANCEL);
    drop(response);
    until("the reference is told", || setup.seen.resets.load(SeqCst) == 1).await;
    // The reference server must see a reset of the call, too, if the client closes the whole connection.
    let other = connect(&setup).await;
    let (response, body) = other.clone().send_request(request("/hang", &[]), false).unwrap();
    until("the call arrives", || setup.seen.calls.load(SeqCst) == 2).await;
    drop((response, body, other));
    until("the reference is told", || setup.seen.resets.load(SeqCst) == 2).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_back_the_reference() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, _up) = sender.clone().send_request(request("/flood", &[]), true).unwrap();
    let mut down = response.await.unwrap().into_body();
    // The number of messages that the reference has sent, and how often it was seen unchanged.
    let last = std::cell::Cell::new((0, 0));
    until("the reference is held back", || {
        let (before, times) = last.get();
        let sent = setup.seen.calls.load(SeqCst);
        last.set((sent, if sent == before { times + 1 } else { 0 }));
        sent > 1 && times >= 10
    })
    .await;
    let data = down.data().await.unwrap().unwrap();
    assert!(!data.is_empty());
}

#[tokio::test]
async fn a_reference_that_dies_is_unavailable_until_it_is_back() {
    let mut setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut up) = sender.clone().send_request(request("/echo", &[]), false).unwrap();
    up.send_data(Bytes::from_static(b"x"), false).unwrap();
    let mut down = response.await.unwrap().into_body();
    assert_eq!(down.data().await.unwrap().unwrap(), "x");
    setup.grpc_reference.take().unwrap().abort();
    assert!(down.data().await.is_none());
    assert_eq!(down.trailers().await.unwrap().unwrap()["grpc-status"], "14");
    let reply = call(&sender, "/echo", &[], framed(b"x")).await.unwrap();
    assert_eq!((reply.status(), &reply.headers["grpc-retry-pushback-ms"]), ("14", &"1000".parse().unwrap()));
    assert_eq!(setup.count(|s| s.upstream_failed.clone(), "grpc"), 2);
    let reply = call(&sender, PREDICT, &[], framed(b"still here")).await.unwrap();
    assert_eq!(reply.status(), "0");
    setup.start_grpc_reference();
    let reply = call(&sender, "/echo", &[], framed(b"x")).await.unwrap();
    assert_eq!((reply.status(), reply.message()), ("0", "x".into()));
}

#[tokio::test]
async fn a_panic_ends_one_request() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    for verb in [&b"panic"[..], &[&b"panic "[..], &[b'x'; 70 << 10]].concat()] {
        let reply = call(&sender, PREDICT, &[("x-request-id", "id-1")], framed(verb)).await.unwrap();
        assert_eq!(reply.status(), "13");
        assert_eq!(reply.text(), "Internal error; the server's log has the cause, request id id-1");
        assert_eq!(reply.headers["x-request-id"], "id-1");
    }
    assert_eq!(setup.server().statistics().panicked, 2);
    assert_eq!(call(&sender, PREDICT, &[], framed(b"x")).await.unwrap().status(), "0");
}

#[tokio::test]
async fn deadlines_and_a_full_queue_refuse_large_work() {
    let limits = Limits { max_queued_requests: 1, ..limits() };
    let setup = Setup::with(limits, |config| config.large_threads = 1).await;
    let sender = connect(&setup).await;
    let spawn = |message: &'static [u8], timeout: &'static str| {
        let sender = sender.clone();
        tokio::spawn(
            async move { call(&sender, PREDICT, &[("grpc-timeout", timeout)], framed(message)).await.unwrap() },
        )
    };
    let first = spawn(b"sleep 400", "5S");
    until("the first runs", || setup.words.num_running.load(SeqCst) == 1).await;
    let second = spawn(b"sleep 1", "50m");
    until("the second waits", || setup.server().statistics().queued == 1).await;
    let third = spawn(b"sleep 1", "5S").await.unwrap();
    assert_eq!(third.status(), "14");
    assert_eq!(third.text(), "The server is overloaded: 1 requests wait for a thread. Try again later.");
    assert_eq!(third.headers["grpc-retry-pushback-ms"], "1000");
    // A small request is answered at once, although large requests wait for a thread.
    assert_eq!(call(&sender, PREDICT, &[], framed(b"small")).await.unwrap().status(), "0");
    assert!(!first.is_finished());
    assert_eq!(first.await.unwrap().message(), "slept");
    let second = second.await.unwrap();
    assert_eq!((second.status(), second.text()), ("4", "The deadline passed before the request was answered."));
    let refused = setup.server().statistics().refused;
    let counted = |reason, count| (String::new(), reason, count);
    assert_eq!(refused, [counted("connections", 0), counted("deadline", 1), counted("idle", 0), counted("queue", 1)]);
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_and_then_the_client_is_cut() {
    let limits = Limits { max_owed_bytes: 1 << 20, ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    for (wire, name, path) in [(Wire::Grpc, "grpc", PREDICT), (Wire::Http, "http", "/v1/models/m:predict")] {
        let sender = connect_to(&setup, wire).await;
        let mut begun = Vec::new();
        for _ in 0..100 {
            let mut sender = sender.clone().ready().await.unwrap();
            begun.push(sender.send_request(request(path, &[]), false).unwrap());
        }
        // The server begins to read all requests before any of them has its body.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (_, body) in &mut begun {
            let message = if name == "grpc" { framed(b"bytes 300000") } else { Bytes::from_static(b"bytes 300000") };
            body.send_data(message, true).unwrap();
        }
        let most = std::cell::Cell::new(0);
        until("the client is cut", || {
            most.set(most.get().max(setup.server().statistics().bytes_in_flight));
            setup.count(|s| s.connections.clone(), name) == 0
        })
        .await;
        assert!((1 << 20..3 << 20).contains(&most.get()), "{name}: {}", most.get());
        assert_eq!(setup.count(|s| s.cut.clone(), name), 1);
        until("all is given back", || setup.server().statistics().bytes_in_flight == 0).await;
    }
}

#[tokio::test]
async fn a_body_that_stops_is_refused() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (response, mut body) = sender.clone().send_request(request(PREDICT, &[]), false).unwrap();
    body.send_data(framed(b"hello").slice(..6), false).unwrap();
    let reply = read(response).await.unwrap();
    let text = "The request body came too slowly: less than 1024 bytes in 1 s.";
    assert_eq!((reply.status(), reply.text()), ("4", text));
}

#[tokio::test]
async fn connections_beyond_the_limit_are_dropped() {
    let limits = Limits { max_connections: 2, ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    let (one, two) = (connect(&setup).await, connect(&setup).await);
    assert_eq!(call(&one, PREDICT, &[], framed(b"x")).await.unwrap().status(), "0");
    assert_eq!(call(&two, PREDICT, &[], framed(b"x")).await.unwrap().status(), "0");
    // Neither connection is idle: the server would close an idle one for a new one.
    let start_call = |sender: &SendRequest<Bytes>| {
        let (response, mut body) = sender.clone().send_request(request(PREDICT, &[]), false).unwrap();
        body.send_data(framed(b"hello").slice(..6), false).unwrap();
        (response, body)
    };
    let mut begun = Vec::new();
    for sender in [&one, &two] {
        let before = setup.server().statistics().bytes_in_flight;
        begun.push(start_call(sender));
        until("it is begun", || setup.server().statistics().bytes_in_flight > before).await;
    }
    let third = connect(&setup).await;
    assert!(call(&third, PREDICT, &[], framed(b"x")).await.is_err());
    let refused = setup.server().statistics().refused;
    assert!(refused.contains(&(String::new(), "connections", 1)), "{refused:?}");
    drop(begun);
    drop(one);
    until("there is room", || setup.count(|s| s.connections.clone(), "grpc") == 1).await;
    let fourth = connect(&setup).await;
    assert_eq!(call(&fourth, PREDICT, &[], framed(b"x")).await.unwrap().status(), "0");
}

#[tokio::test]
async fn what_is_no_grpc_is_told_so() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let get = Request::get(format!("http://localhost{PREDICT}")).version(http::Version::HTTP_2).body(()).unwrap();
    let mut post = request(PREDICT, &[]);
    post.headers_mut().insert("content-type", "application/json".parse().unwrap());
    for (request, status) in [(get, 405), (post, 415)] {
        let (response, _) = sender.clone().ready().await.unwrap().send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.into_body().data().await.unwrap().unwrap(), "This port serves gRPC.");
    }
    assert!(setup.seen.headers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_flood_of_frames_ends_its_connection_and_no_other() {
    let setup = Setup::start().await;
    let other = connect(&setup).await;
    let mut stream = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\0eightish".repeat(20_000);
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        let _ = writer.write_all(&pings).await;
    });
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    sending.await.unwrap();
    // The server must send a GOAWAY frame with last stream 0 and the error code ENHANCE_YOUR_CALM.
    assert!(answer.windows(17).any(|part| part == b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0b"));
    assert_eq!(setup.count(|s| s.flooded.clone(), "ping"), 1);
    assert_eq!(call(&other, PREDICT, &[], framed(b"x")).await.unwrap().status(), "0");
}

fn gzip(data: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, data).unwrap();
    let mut message = framed(&encoder.finish().unwrap()).to_vec();
    message[0] = 1;
    message.into()
}

#[tokio::test]
async fn a_second_message_of_a_unary_call_is_refused() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let (plain, gzip) = (framed(b"hello"), gzip(b"hello"));
    for path in [PREDICT, METADATA, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"] {
        for (first, second) in [(&plain, &plain), (&plain, &gzip), (&gzip, &plain), (&gzip, &gzip)] {
            for more in [1, second.len()] {
                let data = [first, &second[..more]].concat().into();
                let reply = call(&sender, path, &[("grpc-encoding", "gzip")], data).await.unwrap();
                assert_eq!(reply.status(), "12", "{path}");
                assert_eq!(reply.text(), "The method takes exactly one request message, and the client sent more.");
            }
        }
    }
    assert_eq!(setup.seen.calls.load(SeqCst), 0);
    until("all is given back", || setup.server().statistics().bytes_in_flight == 0).await;
}

#[tokio::test]
async fn streams_may_have_many_messages_and_none_compressed() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let two = Bytes::from([framed(b"one"), framed(b"two")].concat());
    assert_eq!(call(&sender, "/echo", &[], two.clone()).await.unwrap().data, two);
    let calls = setup.seen.calls.load(SeqCst);
    for data in [two, gzip(b"one")] {
        let reply = call(&sender, "/echo", &[("grpc-encoding", "gzip")], data).await.unwrap();
        assert_eq!((reply.status(), reply.text()), ("12", "The messages of this method must not be compressed."));
    }
    assert_eq!(setup.seen.calls.load(SeqCst), calls);
}

#[tokio::test]
async fn compressed_messages_are_inflated_unless_they_inflate_too_far() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let headers = [("grpc-encoding", "gzip")];
    let reply = call(&sender, PREDICT, &headers, gzip(b"hello")).await.unwrap();
    assert_eq!(reply.message(), "core Predict 5 hello");
    let reply = call(&sender, METADATA, &headers, gzip(b"hello")).await.unwrap();
    assert_eq!((reply.data, &reply.headers["x-from"]), (framed(b"hello"), &"reference".parse().unwrap()));
    assert!(!setup.seen.headers.lock().unwrap().contains_key("grpc-encoding"));
    let broken = gzip(b"hello").slice(..20);
    let broken = Bytes::from([&[1, 0, 0, 0, 15][..], &broken[5..]].concat());
    for path in [PREDICT, METADATA] {
        let reply = call(&sender, path, &headers, broken.clone()).await.unwrap();
        assert_eq!(reply.status(), "13", "{path}");
        assert!(reply.text().contains("is not valid gzip data"), "{}", reply.text());
    }
    for path in [PREDICT, METADATA] {
        // gzip compresses the repeated bytes of `runs` to about a twentieth, so the limit on the size refuses the
        // message, not the limit on the ratio.
        let runs = (0..9_u32 << 20).map(|n| (n / 48).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for (data, word) in [(runs, "limit of 8388608 bytes"), (vec![0; 7 << 20], "100 times its size")] {
            let reply = call(&sender, path, &headers, gzip(&data)).await.unwrap();
            assert_eq!(reply.status(), "8");
            assert!(reply.text().contains(word), "{}", reply.text());
        }
    }
    let refused = setup.server().statistics().refused;
    assert!(refused.contains(&(String::new(), "inflated", 4)), "{refused:?}");
    until("all is given back", || setup.server().statistics().bytes_in_flight == 0).await;
}

#[tokio::test]
async fn only_the_core_compresses_answers() {
    let setup = Setup::start().await;
    let sender = connect(&setup).await;
    let wanted = ("x-response-encoding", "gzip");
    for (headers, data) in [(&[wanted][..], framed(b"hello")), (&[wanted, ("grpc-encoding", "gzip")], gzip(b"hello"))] {
        let reply = call(&sender, PREDICT, headers, data.clone()).await.unwrap();
        assert_eq!((reply.data[0], &reply.headers["grpc-encoding"]), (1, &"gzip".parse().unwrap()));
        let mut message = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&reply.data[5..]), &mut message).unwrap();
        assert_eq!(message, "core Predict 5 hello");
        let reply = call(&sender, METADATA, headers, data).await.unwrap();
        assert_eq!((reply.data[0], reply.headers.contains_key("grpc-encoding")), (0, false));
        assert!(!setup.seen.headers.lock().unwrap().contains_key("x-response-encoding"));
    }
    let reply = call(&sender, PREDICT, &[("x-response-encoding", "br")], framed(b"hello")).await.unwrap();
    assert_eq!(
        (reply.message().as_str(), reply.headers.contains_key("grpc-encoding")),
        ("core Predict 5 hello", false)
    );
    until("all is given back", || setup.server().statistics().bytes_in_flight == 0).await;
}

const REFLECTION: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

#[tokio::test]
async fn long_calls_of_all_connections_are_bounded() {
    // One client address may hold a tenth of `max_long_calls` calls at a time, so here six.
    let setup = Setup::with(Limits { max_long_calls: 60, ..limits() }, |_| ()).await;
    let senders = [connect(&setup).await, connect(&setup).await];
    let mut begun: Vec<_> = (0..6)
        .map(|number| senders[number % 2].clone().send_request(request(REFLECTION, &[]), false).unwrap())
        .collect();
    until("six calls began", || setup.seen.calls.load(SeqCst) == 6).await;
    let refused = call(&senders[0], REFLECTION, &[], framed(b"x")).await.unwrap();
    assert_eq!((refused.status(), refused.text().contains("too many health watches")), ("8", true));
    assert!(setup.server().statistics().refused.contains(&(String::new(), "streams", 1)));
    begun.pop();
    for _ in 0..500 {
        if call(&senders[1], REFLECTION, &[], framed(b"x")).await.unwrap().status() == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a call that has ended makes no room");
}

#[tokio::test]
async fn unfinished_frames_of_all_connections_are_bounded() {
    let setup = Setup::with(Limits { max_part_bytes: 20 << 10, ..limits() }, |_| ()).await;
    let begin = async || {
        let mut stream = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        // The frame header announces 16,384 bytes of an unknown frame type; the test sends 12,288 of these bytes.
        sent.extend(b"\0\x40\0\x77\0\0\0\0\0");
        sent.extend(vec![0; 12 << 10]);
        stream.write_all(&sent).await.unwrap();
        stream
    };
    let mut streams = [begin().await, begin().await];
    until("the flood is counted", || setup.count(|s| s.flooded.clone(), "unfinished") == 1).await;
    // The other connection is closed when the server has received no more of its unfinished frame for too long.
    let mut got = Vec::new();
    for stream in &mut streams {
        let _ = stream.read_to_end(&mut got).await;
    }
    assert!(setup.count(|s| s.cut.clone(), "grpc") >= 1);
    // The server must have sent a GOAWAY frame with the error code ENHANCE_YOUR_CALM to at least one of the
    // connections.
    assert!(got.windows(4).any(|bytes| bytes == [0, 0, 0, 11]), "{got:?}");
}
