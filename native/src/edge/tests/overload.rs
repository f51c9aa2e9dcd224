use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::edge::{Health, Limits, Wire};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::setup::{PREDICT, Setup, limits, until};
use super::{grpc, http};

const HANG: &str = "/tensorflow.serving.PredictionService/hang";
const HANG_HTTP: &str = "/v1/models/m/tables/hang:neighbors";
const CHECK: &str = "/grpc.health.v1.Health/Check";

fn one_forwarded() -> Limits {
    Limits { max_forwarded: 1, max_queued_requests: 1, ..limits() }
}

#[tokio::test]
async fn forwarded_calls_are_bounded_and_control_calls_pass() {
    let setup = Setup::with(one_forwarded(), |_| ()).await;
    let sender = grpc::connect(&setup).await;
    let hang = || {
        let sender = sender.clone();
        tokio::spawn(async move { grpc::call(&sender, HANG, &[], grpc::framed(b"x")).await })
    };
    let first = hang();
    until("the first is forwarded", || setup.seen.calls.load(SeqCst) == 1).await;
    let second = hang();
    let waits = || setup.server().statistics().queued_to_forward.contains(&("grpc", 1));
    until("the second waits", waits).await;
    let third = grpc::call(&sender, HANG, &[("x-request-id", "one")], grpc::framed(b"x")).await.unwrap();
    assert_eq!((third.status(), third.headers["grpc-retry-pushback-ms"].to_str().unwrap()), ("14", "1000"));
    assert_eq!(third.text(), "The server is overloaded: 1 requests wait for a thread. Try again later.");
    assert_eq!(third.headers["x-request-id"], "one");
    assert!(!second.is_finished(), "it was refused before the others ended");
    for path in [CHECK, "/tensorflow.serving.ModelService/GetModelStatus", "/other.Service/Method"] {
        assert_eq!(grpc::call(&sender, path, &[], grpc::framed(b"")).await.unwrap().status(), "0", "{path}");
    }
    assert_eq!(grpc::call(&sender, PREDICT, &[], grpc::framed(b"small")).await.unwrap().status(), "0");
    // The second request is refused after it has waited four times `max_queue`.
    assert_eq!(second.await.unwrap().unwrap().status(), "14");
    assert_eq!(setup.seen.resets.load(SeqCst), 0);
    first.abort();
    drop(sender);
}

#[tokio::test]
async fn forwarded_requests_are_bounded_and_status_passes() {
    let setup = Setup::with(Limits { max_queue: Duration::from_millis(50), ..one_forwarded() }, |_| ()).await;
    let mut senders = Vec::new();
    for _ in 0..4 {
        senders.push(http::connect(&setup).await);
    }
    let mut hang = || {
        let mut sender = senders.pop().unwrap();
        tokio::spawn(async move { http::post(&mut sender, HANG_HTTP, &[], "x").await })
    };
    let first = hang();
    until("the first is forwarded", || setup.seen.calls.load(SeqCst) == 1).await;
    let waited = setup.server().statistics().waited;
    assert_eq!(waited.iter().flat_map(|one| &one.counts).sum::<u64>(), 1);
    let second = hang();
    until("the second waits", || setup.server().statistics().queued_to_forward.contains(&("http", 1))).await;
    let third = hang().await.unwrap();
    assert_eq!((third.status().as_u16(), &third.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(third.headers()["x-error-code"], "UNAVAILABLE");
    let mut other = senders.pop().unwrap();
    let answer = http::post(&mut other, "/v2/repository/index", &[], "").await;
    assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, "reference POST /v2/repository/index 0"));
    let second = second.await.unwrap();
    assert_eq!(second.status().as_u16(), 503);
    assert!(second.body().contains("the request waited 0.2"), "{}", second.body());
    first.abort();
}

#[tokio::test]
async fn a_client_that_dribbles_its_body_holds_no_slot() {
    let setup = Setup::with(one_forwarded(), |_| ()).await;
    let sender = grpc::connect(&setup).await;
    let mut ready = sender.clone().ready().await.unwrap();
    let path = "/tensorflow.serving.PredictionService/Predict";
    let (_response, mut body) = ready.send_request(grpc::request(path, &[]), false).unwrap();
    body.send_data(grpc::framed(b"search").slice(..6), false).unwrap();
    let reply = grpc::call(&sender, path, &[], grpc::framed(b"search")).await.unwrap();
    assert_eq!((reply.status(), setup.seen.calls.load(SeqCst)), ("0", 1));
}

#[tokio::test]
async fn health_is_told_by_the_core_while_python_says_so() {
    let setup = Setup::start().await;
    let sender = grpc::connect(&setup).await;
    let check = |service: &'static [u8]| {
        let sender = sender.clone();
        async move { grpc::call(&sender, CHECK, &[], grpc::framed(service)).await.unwrap() }
    };
    assert_eq!(check(b"").await.headers["x-from"], "reference");
    setup.server().set_health(Some(Health::new(HashSet::from([String::new()]), true)));
    let reply = check(b"").await;
    assert_eq!((reply.status(), &reply.data[..]), ("0", &b"\0\0\0\0\x02\x08\x01"[..]));
    assert!(!reply.headers.contains_key("x-from"));
    assert_eq!(check(b"\x0a\x05other").await.headers["x-from"], "reference");
    setup.server().set_health(None);
    assert_eq!(check(b"").await.headers["x-from"], "reference");
}

#[tokio::test]
async fn a_large_request_whose_deadline_can_not_be_met_is_refused_at_once() {
    let limits = Limits { max_queue: Duration::from_secs(10), ..limits() };
    let setup = Setup::with(limits, |config| config.large_threads = 1).await;
    let sender = grpc::connect(&setup).await;
    for _ in 0..20 {
        assert_eq!(grpc::call(&sender, PREDICT, &[], grpc::framed(b"sleep 50")).await.unwrap().message(), "slept");
    }
    let spawn = |timeout: &'static str| {
        let sender = sender.clone();
        let headers = [("grpc-timeout", timeout)];
        tokio::spawn(async move { grpc::call(&sender, PREDICT, &headers, grpc::framed(b"sleep 50")).await.unwrap() })
    };
    let queued: Vec<_> = (0..10).map(|_| spawn("9S")).collect();
    until("they wait", || setup.server().statistics().queued >= 8).await;
    let begun = Instant::now();
    let refused = spawn("200m").await.unwrap();
    assert_eq!(refused.status(), "14", "{}", refused.text());
    assert!(begun.elapsed() < Duration::from_millis(190), "{:?}", begun.elapsed());
    for one in queued {
        assert_eq!(one.await.unwrap().message(), "slept");
    }
}

#[tokio::test]
async fn a_large_request_is_refused_before_its_body_is_read() {
    let setup = Setup::with(Limits { max_queued_requests: 0, ..limits() }, |config| config.large_threads = 1).await;
    let sender = grpc::connect(&setup).await;
    let first = {
        let sender = sender.clone();
        tokio::spawn(async move { grpc::call(&sender, PREDICT, &[], grpc::framed(b"sleep 300")).await.unwrap() })
    };
    until("the first runs", || setup.words.num_running.load(SeqCst) == 1).await;
    let mut ready = sender.clone().ready().await.unwrap();
    let (response, mut body) = ready.send_request(grpc::request(PREDICT, &[]), false).unwrap();
    body.send_data(grpc::framed(&[b'x'; 200_000]).slice(..1000), false).unwrap();
    assert_eq!(grpc::read(response).await.unwrap().status(), "14");
    let mut stream = tokio::net::TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    let head = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\nx";
    stream.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&answer));
    assert!(!first.is_finished());
    assert_eq!(first.await.unwrap().message(), "slept");
}

#[tokio::test]
async fn a_refused_http_connection_stays_open_and_is_read_more_slowly_than_others() {
    let setup = Setup::with(Limits { max_queued_requests: 0, ..limits() }, |config| config.large_threads = 1).await;
    let mut senders = Vec::new();
    for _ in 0..3 {
        senders.push(http::connect(&setup).await);
    }
    let [mut first, mut refused, mut other] = <[_; 3]>::try_from(senders).ok().unwrap();
    let path = "/v1/models/m:predict";
    let first = tokio::spawn(async move { http::post(&mut first, path, &[], "sleep 600").await });
    until("the first runs", || setup.words.num_running.load(SeqCst) == 1).await;
    // The body of a large request that is refused is read, so that its connection can stay open.
    for _ in 0..2 {
        let answer = http::post(&mut refused, path, &[], vec![b'a'; 100_000]).await;
        assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (503, None));
    }
    let counts = [0, 1].map(|_| std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let [num_refused, num_answered] = counts.clone();
    let floods = [
        tokio::spawn(async move {
            while http::post(&mut refused, path, &[], "large").await.status().as_u16() == 503 {
                num_refused.fetch_add(1, SeqCst);
            }
        }),
        tokio::spawn(async move {
            while http::post(&mut other, path, &[], "small").await.status().as_u16() == 200 {
                num_answered.fetch_add(1, SeqCst);
            }
        }),
    ];
    first.await.unwrap();
    let [num_refused, num_answered] = counts.map(|count| count.load(SeqCst));
    floods.iter().for_each(tokio::task::JoinHandle::abort);
    // A refusal is cheaper than an answer, so without the pauses there would be more of them. How many fewer there are
    // depends on how busy the machine is; if it is so busy that each answer waits as long as a pause, there are as many.
    assert!(num_refused > 0 && num_refused <= num_answered, "{num_refused} {num_answered}");
}

fn few_bytes() -> Limits {
    Limits { max_bytes_in_flight: 16 << 20, stall_timeout: Duration::from_secs(60), ..limits() }
}

#[tokio::test]
async fn a_forwarded_body_counts_as_what_python_makes_of_it() {
    let setup = Setup::with(few_bytes(), |_| ()).await;
    let held = || setup.server().statistics().bytes_in_flight;
    let packed: &[(&str, &str)] = &[("content-encoding", "gzip")];
    // A compressed body may inflate to 4 MB at least; JSON takes ten times its size; a small one is not counted.
    for (size, headers, counted) in [(100, packed, 4 << 20), (100_000, &[], 1_000_000), (1000, &[], 0)] {
        let mut sender = http::connect(&setup).await;
        let calls = setup.seen.calls.load(SeqCst);
        let post = tokio::spawn(async move { http::post(&mut sender, HANG_HTTP, headers, vec![b'1'; size]).await });
        until("it is forwarded", || setup.seen.calls.load(SeqCst) > calls).await;
        assert_eq!(held(), counted, "{size} bytes");
        post.abort();
        until("all is given back", || held() == 0).await;
    }
}

#[tokio::test]
async fn half_received_messages_of_one_connection_leave_room_for_another() {
    // A connection may have 128 streams at a time, so the test makes 128 calls.
    const NUM_CALLS: usize = 128;
    let setup = Setup::with(Limits { max_bytes_in_flight: 2 << 20, ..few_bytes() }, |_| ()).await;
    let sender = grpc::connect(&setup).await;
    // The first frame of each call has a half of the call's message.
    let half = grpc::framed(&vec![b'a'; 30_000]).slice(..15_000);
    let mut calls = Vec::new();
    for _ in 0..NUM_CALLS {
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, mut body) = ready.send_request(grpc::request(PREDICT, &[]), false).unwrap();
        body.send_data(half.clone(), false).unwrap();
        calls.push((tokio::spawn(grpc::read(response)), body));
    }
    // The calls of one connection may hold a half of `max_bytes_in_flight`, so the server refuses the connection's
    // further calls.
    let most = (1 << 20) / 15_000;
    let num_refused = || calls.iter().filter(|(reply, _)| reply.is_finished()).count();
    // The server may refuse some calls more: two threads that check the limit at the same time both count their bytes
    // before one of them is refused.
    until("the others are refused", || num_refused() >= NUM_CALLS - most).await;
    let held = || setup.server().statistics().bytes_in_flight;
    until("the rest is held", || held() == (NUM_CALLS - num_refused()) * 15_000).await;
    assert!(num_refused() < NUM_CALLS - most / 2, "{}", num_refused());
    let other = grpc::connect(&setup).await;
    let whole = grpc::framed(&vec![b'a'; 256 << 10]);
    assert_eq!(grpc::call(&other, PREDICT, &[], whole).await.unwrap().status(), "0");
    for (reply, body) in calls {
        if reply.is_finished() {
            let reply = reply.await.unwrap().unwrap();
            assert_eq!(reply.status(), "14");
            assert!(reply.text().contains("bytes of requests and answers are in flight"), "{}", reply.text());
        } else {
            reply.abort();
        }
        drop(body);
    }
    until("all is given back", || held() == 0).await;
}

#[tokio::test]
async fn half_received_bodies_of_one_address_leave_room_and_a_large_body_is_refused_unread() {
    let setup = Setup::with(few_bytes(), |_| ()).await;
    let held = || setup.server().statistics().bytes_in_flight;
    let started = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n";
    let mut streams = Vec::new();
    for number in 1..=2 {
        let mut stream = tokio::net::TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
        stream.write_all(&[&started[..], &[b'a'; 4_900_000]].concat()).await.unwrap();
        until("it is held", || held() == number * 4_900_000).await;
        streams.push(stream);
    }
    // 9.8 of 16.8 MB are held, so requests from the same client address may hold 1.4 MB more.
    let mut third = tokio::net::TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    third.write_all(started).await.unwrap();
    let mut answer = Vec::new();
    let _ = third.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("9800000 bytes of requests and answers are in flight"), "{answer}");
    let mut sender = http::connect(&setup).await;
    let answer = http::post(&mut sender, "/v1/models/m:predict", &[], vec![b'a'; 1_300_000]).await;
    assert_eq!(answer.status().as_u16(), 200);
    drop(streams);
    until("all is given back", || held() == 0).await;
}
