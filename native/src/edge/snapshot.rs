//! The values of all the server's counters at one time, which Python reads as JSON.

use serde::Serialize;

/// A record of one slow request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowRequest {
    pub at_s: f64,
    pub request_id: String,
    /// As in [`FailedRequest`].
    pub client: String,
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: i64,
    pub signature: String,
    pub seconds: f64,
    pub run_seconds: f64,
    pub rows: usize,
}

/// A record of one request that was refused for a fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedRequest {
    pub at_s: f64,
    pub request_id: String,
    /// The caller's name, or the address of a client that is no known caller.
    pub client: String,
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: Option<i64>,
    pub signature: String,
    pub code: &'static str,
    pub message: String,
}

/// Number of requests that were refused with the same method, model, version, signature and code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureCount {
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: Option<i64>,
    pub signature: String,
    pub code: &'static str,
    pub count: u64,
}

/// The counts of a version that is unloaded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RetiredSnapshot {
    pub subjects: Vec<SubjectSnapshot>,
    pub failed: Vec<FailureCount>,
}

/// Counts of the answered requests with the same method, model, version and signature.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubjectSnapshot {
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: i64,
    pub signature: String,
    /// The kind of the requests' signature: "lookup" or "predict".
    pub kind: &'static str,
    pub rows: u64,
    pub seconds: f64,
    /// Number of requests in each bucket of the duration histogram; one number more than bucket limits, because the
    /// last bucket has no limit.
    pub counts: Vec<u64>,
    pub run_seconds: f64,
    /// Number of requests in each bucket of the histogram of run times. A run time excludes the parsing of the request
    /// and the writing of JSON text, but includes the writing of binary and protobuf answers.
    pub run_counts: Vec<u64>,
    /// Number of requests in each bucket of the histogram of tf.Examples in a request; empty for other methods.
    pub example_counts: Vec<u64>,
}

/// The times that one model's requests waited for a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitSnapshot {
    pub model: String,
    pub seconds: f64,
    /// Number of requests in each bucket of the histogram of waits; one number more than bucket limits, because the
    /// last bucket has no limit.
    pub counts: Vec<u64>,
}

/// The values of all counters at one time. Counts only grow; gauges, such as the number of open connections, go up and
/// down.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    pub subjects: Vec<SubjectSnapshot>,
    /// Number of times that a handler of a wire format (form) declined a request, by reason. Requests that a thread
    /// pool then answers count here, too.
    pub declined: Vec<(&'static str, u64)>,
    pub forwarded: Vec<(&'static str, u64)>,
    /// Number of forwarded requests that could not reach the control server, by wire.
    pub upstream_failed: Vec<(&'static str, u64)>,
    /// Number of requests that the core refused itself, by model and reason; the model is "" if it is not known.
    /// Refused connections count here, too.
    pub refused: Vec<(String, &'static str, u64)>,
    pub failed: Vec<FailureCount>,
    pub waited: Vec<WaitSnapshot>,
    /// Number of connections that the server cut, by wire: mostly because the client was too slow to send a request's
    /// head or to read answers.
    pub cut: Vec<(&'static str, u64)>,
    /// Number of connections that the server closed because of a flood or a malformed request, by reason.
    pub flooded: Vec<(&'static str, u64)>,
    pub handshakes_failed: Vec<(&'static str, u64)>,
    pub connected: Vec<(&'static str, u64)>,
    pub panicked: u64,
    pub connections: Vec<(&'static str, u64)>,
    pub bytes_in_flight: usize,
    /// Number of bytes that all requests and answers together have held since the server's start.
    pub bytes_held_total: u64,
    pub held: Vec<(String, usize)>,
    /// Number of requests that wait now for a thread of one of the two pools: requests that take too long for a thread
    /// of connections, and requests that read rows from the disk or from a Valkey or Redis cluster.
    pub queued: usize,
    /// Number of requests that wait to be forwarded to the control server now, by wire.
    pub queued_to_forward: Vec<(&'static str, u64)>,
    /// Records of the last slow requests, the oldest first.
    pub slow: Vec<SlowRequest>,
    /// Records of the last refused requests: those that the server caused, then those that clients caused; the oldest
    /// first.
    pub failures: Vec<FailedRequest>,
}
