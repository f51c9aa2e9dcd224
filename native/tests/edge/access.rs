use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use _native::edge::{Access, Caller, Tracing};

use crate::setup::{PREDICT, Setup, limits};
use crate::{grpc, http};

const PATH: &str = "/v1/models/m:predict";
const NO_CREDENTIALS: &str = "Valid credentials are required: Authorization: Bearer <token>, or a certificate.";
/// SHA-256 of "token".
const DIGEST: &str = "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0";

/// Builds a list of callers, each with a token's digest, a name in a certificate ("" for none) and a model.
pub fn callers(all: &[(&str, &str, &str)]) -> Access {
    let list = |text: &str| if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
    let callers: Vec<Caller> = all
        .iter()
        .map(|(digest, name, model)| Caller {
            digests: list(digest),
            certificates: list(name),
            models: list(model),
            name: String::new(),
            seen: Vec::new(),
        })
        .collect();
    Access::new(&callers).unwrap()
}

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
async fn the_core_answers_known_callers_and_refuses_all_others() {
    let access = callers(&[(DIGEST, "", "m")]);
    let setup = Setup::with(limits(), |config| config.access = Some(access)).await;
    for value in ["Bearer token", "bearer  token"] {
        assert_eq!(answered(&setup, &[("authorization", value)]).await, [true; 2], "{value}");
    }
    assert_eq!(setup.seen.calls.load(SeqCst), 0);
    let forged = [("x-embedding-server-names", "CN%3Aranker"), ("x-embedding-server-seal", "")];
    let twice = [("authorization", "Bearer token"), ("authorization", "Bearer token")];
    let sender = grpc::connect(&setup).await;
    for headers in [&[][..], &[("authorization", "Bearer other")], &[("authorization", "Basic token")], &twice, &forged]
    {
        let reply = grpc::call(&sender, PREDICT, headers, grpc::framed(b"hello")).await.unwrap();
        assert_eq!((reply.status(), reply.text()), ("16", NO_CREDENTIALS), "{headers:?}");
        let mut sender = http::connect(&setup).await;
        for _ in 0..2 {
            // The connection stays open after a refusal, because the small body was read.
            let answer = http::post(&mut sender, PATH, headers, "hello").await;
            assert_eq!(
                (answer.status().as_u16(), answer.headers()["www-authenticate"].as_bytes()),
                (401, &b"Bearer"[..])
            );
            assert_eq!(answer.body(), &format!("{{\"error\":\"{NO_CREDENTIALS}\"}}"));
        }
    }
    assert_eq!(setup.seen.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn a_new_list_of_callers_holds_for_connections_that_are_open() {
    let access = callers(&[(DIGEST, "", "m")]);
    let setup = Setup::with(limits(), |config| config.access = Some(access)).await;
    let sender = grpc::connect(&setup).await;
    let ask = async || {
        let headers = [("authorization", "Bearer token")];
        grpc::call(&sender, PREDICT, &headers, grpc::framed(b"hello")).await.unwrap().message()
    };
    assert_eq!(ask().await, "core Predict 5 hello");
    // With the first list of callers, the caller may run only another model; with the second list, the caller's token
    // is unknown.
    setup.server().set_access(callers(&[(DIGEST, "", "other")]));
    assert_eq!(ask().await, "hello");
    setup.server().set_access(callers(&[]));
    let headers = [("authorization", "Bearer token")];
    assert_eq!(grpc::call(&sender, PREDICT, &headers, grpc::framed(b"hello")).await.unwrap().status(), "16");
    setup.server().set_access(callers(&[(DIGEST, "", "*")]));
    assert_eq!(ask().await, "core Predict 5 hello");
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
