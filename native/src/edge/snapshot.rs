//! The numbers of a server at one time, as Python reads them in JSON.

use serde::Serialize;

/// One request that was slow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct SlowRequest {
    /// The time of its end, in seconds since 1970.
    pub at_s: f64,
    pub request_id: String,
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: i64,
    pub signature: String,
    pub seconds: f64,
    pub run_seconds: f64,
    pub rows: usize,
}

/// Successes of one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct SubjectSnapshot {
    pub api: &'static str,
    pub method: &'static str,
    pub model: String,
    pub version: i64,
    pub signature: String,
    /// "lookup" or "predict".
    pub kind: &'static str,
    pub rows: u64,
    pub seconds: f64,
    /// Counts by bucket: one more than there are limits, as the last bucket has none.
    pub counts: Vec<u64>,
    pub run_seconds: f64,
    /// As `counts`, for the run time alone.
    pub run_counts: Vec<u64>,
}

/// The waits of one model's requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct WaitSnapshot {
    pub model: String,
    pub seconds: f64,
    /// Counts by bucket: one more than there are limits, as the last bucket has none.
    pub counts: Vec<u64>,
}

/// All numbers at one time. Counters only grow; `gauges` go up and down.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Successes.
    pub subjects: Vec<SubjectSnapshot>,
    /// Requests that a form did not answer, by reason.
    pub declined: Vec<(&'static str, u64)>,
    /// Requests that went to the reference, by wire.
    pub forwarded: Vec<(&'static str, u64)>,
    /// Forwarded requests that found no reference, by wire.
    pub upstream_failed: Vec<(&'static str, u64)>,
    /// Requests that the edge refused itself, by model ("" where it is not known) and reason, and connections.
    pub refused: Vec<(String, &'static str, u64)>,
    /// Requests that failed because rows of a cluster could not be read: API, method, model, code and count.
    pub failed: Vec<(&'static str, &'static str, String, &'static str, u64)>,
    /// Times that requests waited for a thread before they ran, by model.
    pub waited: Vec<WaitSnapshot>,
    /// Connections that the sweeper cut, because the client sent its head or read answers too slowly, by wire.
    pub cut: Vec<(&'static str, u64)>,
    /// Connections that were ended because of a flood or a malformed request, by reason.
    pub flooded: Vec<(&'static str, u64)>,
    /// TLS or HTTP/2 handshakes that failed, by wire.
    pub handshakes_failed: Vec<(&'static str, u64)>,
    /// Connections that were accepted, by wire.
    pub connected: Vec<(&'static str, u64)>,
    /// Requests that ended in a panic.
    pub panicked: u64,
    /// Connections that are open now, by wire.
    pub connections: Vec<(&'static str, u64)>,
    /// Bytes of requests and answers that are held now.
    pub bytes_in_flight: usize,
    /// The same bytes by model, "" where the model is not known.
    pub held: Vec<(String, usize)>,
    /// Large requests that wait for a thread now.
    pub queued: usize,
    /// Requests that wait for the reference now, by wire.
    pub queued_to_forward: Vec<(&'static str, u64)>,
    /// The last slow requests, the oldest first.
    pub slow: Vec<SlowRequest>,
}
