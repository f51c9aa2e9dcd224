use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::setup::{PREDICT, Setup, until};
use super::{grpc, http};

#[tokio::test]
async fn a_drain_lets_open_requests_end() {
    let setup = Setup::start().await;
    let sender = grpc::connect(&setup).await;
    let call = tokio::spawn(async move { grpc::call(&sender, PREDICT, &[], grpc::framed(b"sleep 500")).await });
    let mut other = http::connect(&setup).await;
    let post = tokio::spawn(async move { http::post(&mut other, "/v1/models/m:predict", &[], "sleep 500").await });
    until("both run", || setup.words.num_running.load(SeqCst) == 2).await;
    let mut setup = setup;
    let server = setup.server.take().unwrap();
    let is_done = tokio::task::spawn_blocking(move || server.drain(Duration::from_secs(5))).await.unwrap();
    assert!(is_done);
    assert_eq!(call.await.unwrap().unwrap().message(), "slept");
    let answer = post.await.unwrap();
    assert_eq!((answer.body().as_str(), &answer.headers()["connection"]), ("slept", &"close".parse().unwrap()));
}

#[tokio::test]
async fn a_drain_under_load_loses_nothing() {
    let mut setup = Setup::start().await;
    let server = Arc::new(setup.server.take().unwrap());
    let address = server.addresses(crate::edge::Wire::Http)[0];
    let grpc_address = server.addresses(crate::edge::Wire::Grpc)[0];
    let all_served = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let count = Arc::clone(&all_served);
        // This client keeps its connection until an answer tells it to close the connection.
        clients.spawn(async move {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let io = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            loop {
                let answer = http::post(&mut sender, "/v1/models/m:predict", &[], "x").await;
                assert_eq!(answer.status(), 200);
                count.fetch_add(1, SeqCst);
                if answer.headers().contains_key("connection") {
                    break;
                }
            }
        });
        clients.spawn(async move {
            let stream = tokio::net::TcpStream::connect(grpc_address).await.unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            loop {
                let Ok(mut sender) = sender.clone().ready().await else {
                    break;
                };
                let Ok((response, mut body)) = sender.send_request(grpc::request(PREDICT, &[]), false) else {
                    break;
                };
                let _ = body.send_data(grpc::framed(b"x"), true);
                match grpc::read(response).await {
                    Ok(reply) => assert_eq!(reply.status(), "0"),
                    // The draining server refused this stream, which came after the last stream that it accepted; a
                    // client may safely send the request again elsewhere.
                    Err(error) => {
                        assert!(error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM), "{error}");
                        break;
                    }
                }
            }
        });
    }
    until("there is load", || all_served.load(SeqCst) > 100).await;
    let draining = Arc::clone(&server);
    let drained = tokio::task::spawn_blocking(move || draining.drain(Duration::from_secs(5)));
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    assert!(drained.await.unwrap());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_end() {
    let mut setup = Setup::start().await;
    let sender = grpc::connect(&setup).await;
    let (response, _body) = sender.clone().send_request(grpc::request("/hang", &[]), true).unwrap();
    until("the call arrives", || setup.seen.calls.load(SeqCst) == 1).await;
    let server = setup.server.take().unwrap();
    let is_done = tokio::task::spawn_blocking(move || server.drain(Duration::from_millis(700))).await.unwrap();
    assert!(!is_done);
    assert!(grpc::read(response).await.is_err());
}
