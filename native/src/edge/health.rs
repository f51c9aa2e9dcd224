//! Answers health checks from the state that Python published, so that no health probe waits for Python's interpreter
//! lock.
//!
//! The core gives positive answers only. It forwards every other check, and Python's answer names the problem.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::forms::protobuf::{Fields, Value};

/// The path of a gRPC health check.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The path of gRPC health watches; the core forwards these calls to the control server.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// The bytes of a `HealthCheckResponse` whose status is SERVING.
pub const SERVING: &[u8] = &[0x08, 0x01];
/// Time for which a published health state is valid. Python publishes the state each second, so the state expires if
/// Python hangs.
pub const FRESH: Duration = Duration::from_secs(10);

/// Returns true for the path of a health check by HTTP.
#[must_use]
pub fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/v2/health/live" | "/v2/health/ready")
}

/// The health state of the server, as Python published it.
#[derive(Debug)]
pub struct Health {
    /// Names of the gRPC services for which a health check returns SERVING; the name "" stands for the whole server.
    serving: HashSet<String>,
    /// Whether every configured model can answer requests.
    is_ready: bool,
    at: Instant,
}

impl Health {
    /// Returns a health state that is valid for the next 10 seconds.
    #[must_use]
    pub fn new(serving: HashSet<String>, is_ready: bool) -> Self {
        Health { serving, is_ready, at: Instant::now() }
    }

    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }

    /// Returns true if the core answers this `HealthCheckRequest` with SERVING.
    #[must_use]
    pub fn is_serving(&self, message: &[u8]) -> bool {
        let mut service = "";
        for field in Fields::of(message) {
            match field {
                Ok((1, Value::Delimited(name))) => service = std::str::from_utf8(name).unwrap_or("\u{0}"),
                _ => return false,
            }
        }
        self.is_fresh() && self.serving.contains(service)
    }

    /// Returns the JSON body of a positive answer to a health check by HTTP GET, the same bytes that the control
    /// server sends; None if the core can not answer the check.
    #[must_use]
    pub fn page(&self, path: &str) -> Option<&'static str> {
        let body = match path {
            "/healthz" => r#"{"status":"ok"}"#,
            "/v2/health/live" => r#"{"live":true}"#,
            "/readyz" if self.is_ready => r#"{"status":"ready","problems":{}}"#,
            "/v2/health/ready" if self.is_ready => r#"{"ready":true}"#,
            _ => return None,
        };
        self.is_fresh().then_some(body)
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn only_good_news_is_told() {
        let ready = Health::new(HashSet::from([String::new(), "m".into()]), true);
        assert!(ready.is_serving(b"") && ready.is_serving(b"\x0a\x01m"));
        for message in [&b"\x0a\x01n"[..], b"\x0a\x01", b"\x0a\x01\xff", b"\x10\x01", b"m"] {
            assert!(!ready.is_serving(message), "{message:?}");
        }
        assert_eq!(ready.page("/readyz"), Some(r#"{"status":"ready","problems":{}}"#));
        let not_ready = Health::new(HashSet::new(), false);
        assert!(not_ready.page("/healthz").is_some() && not_ready.page("/v2/health/live").is_some());
        assert_eq!((not_ready.page("/readyz"), not_ready.page("/v2/health/ready")), (None, None));
        assert!(!not_ready.is_serving(b"") && ready.page("/").is_none());
    }

    #[test]
    fn what_is_old_is_not_told() {
        let mut health = Health::new(HashSet::from([String::new()]), true);
        let Some(at) = Instant::now().checked_sub(FRESH) else { return };
        health.at = at;
        assert!(!health.is_serving(b"") && health.page("/healthz").is_none());
    }
}
