use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::edge::Tracing;

use super::setup::{PREDICT, Setup, limits};
use super::{grpc, http};

const PATH: &str = "/v1/models/m:predict";

/// Sends the same request over gRPC and HTTP; returns for each of the two, gRPC first, whether the core answered the
/// request.
async fn answered(setup: &Setup, headers: &[(&str, &str)]) -> [bool; 2] {
    let sender = grpc::connect(setup).await;
    let reply = grpc::call(&sender, PREDICT, headers, grpc::framed(b"hello")).await.unwrap();
    let mut sender = http::connect(setup).await;
    let answer = http::post(&mut sender, PATH, headers, "hello").await;
    [reply.message() == "core Predict 5 hello", answer.body().starts_with("core ")]
}

#[tokio::test]
async fn traced_requests_are_answered_and_recorded() {
    let tracing = Tracing { root: 0.5, sampled_parent: 1.0, unsampled_parent: 0.0 };
    let setup = Setup::with(limits(), |config| config.tracing = Some(tracing)).await;
    let parent = |flags: &str| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    let records = setup.server().records();
    let taken = || records.take(Duration::ZERO).unwrap();
    assert_eq!(answered(&setup, &[("traceparent", &parent("01"))]).await, [true; 2]);
    let spans = taken().spans;
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, [PREDICT, "POST /v1/models/{model}:predict"]);
    assert!(spans.iter().all(|span| span.parent == parent("01") && span.run.is_some()));
    assert_eq!(answered(&setup, &[("traceparent", &parent("00"))]).await, [true; 2]);
    assert_eq!(taken().spans.len(), 0);
    let sender = grpc::connect(&setup).await;
    for _ in 0..200 {
        grpc::call(&sender, PREDICT, &[], grpc::framed(b"hello")).await.unwrap();
    }
    // The number of traced calls is binomial with n = 200 and p = 0.5; it lies beyond these limits once in 10**9 runs.
    let spans = taken().spans;
    assert!((57..=143).contains(&spans.len()), "{}", spans.len());
    // With a ratio of 0.5, a trace id is sampled if its lower 64 bits begin with a hex digit below 8.
    assert!(spans.iter().all(|span| span.trace_id[16..17] < *"8"));
    assert_eq!(setup.seen.calls.load(SeqCst), 0);
}
