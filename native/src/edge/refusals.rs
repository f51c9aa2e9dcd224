//! Counts and logs the refusal of a request for a fault of its own, and cuts the fault's text to what a client gets.

use std::time::Instant;

use super::dispatch::Method;
use super::grpc_message::Status;
use super::shared::Shared;
use crate::plan::faults::{Code, Fault, LOG_TARGET, Subject};

/// Largest text of a gRPC status, in bytes. Source: `tensorflow_serving/model_servers/grpc_status_util.cc` (9d981c5).
pub const MAX_GRPC_BYTES: usize = 1024;
/// Largest error text of an HTTP answer, in characters: it may quote a value of the request, which may have megabytes.
const MAX_HTTP_CHARACTERS: usize = 4096;
const CUT_MARK: &str = "...TRUNCATED";
/// Counts and logs a fault of a request to a method of the HTTP API, and returns the status to send.
#[must_use]
pub fn of_http(shared: &Shared, method: Method, fault: &Fault, request_id: &str, client: String) -> Status {
    let mut text = fault.text.clone();
    if let Some((end, _)) = text.char_indices().nth(MAX_HTTP_CHARACTERS) {
        text.truncate(end);
        text.push_str(CUT_MARK);
    }
    count(shared, method, fault, request_id, client);
    log(shared, method, fault, &text, request_id);
    if http_status(fault.code) == 500 {
        text = format!("{text} Request id: {request_id}");
    }
    Status { code: fault.code, text, may_retry: fault.may_retry }
}

/// Counts and logs a fault of a gRPC call, and returns the status to send.
#[must_use]
pub fn of_grpc(shared: &Shared, method: Method, fault: &Fault, request_id: &str, client: String) -> Status {
    let mut text = fault.text.clone();
    if fault.code == Code::Internal {
        text = format!("{text} Request id: {request_id}");
    }
    if text.len() > MAX_GRPC_BYTES {
        let end = (0..=MAX_GRPC_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(CUT_MARK);
    }
    count(shared, method, fault, request_id, client);
    log(shared, method, fault, &text, request_id);
    Status { code: fault.code, text, may_retry: fault.may_retry }
}

/// Returns the HTTP status of a canonical code.
///
/// Source: `tensorflow_serving/model_servers/http_rest_api_util` and `util/net_http` (9d981c5).
#[must_use]
pub fn http_status(code: Code) -> u16 {
    match code {
        Code::InvalidArgument | Code::FailedPrecondition => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::ResourceExhausted => 413,
        Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

fn count(shared: &Shared, method: Method, fault: &Fault, request_id: &str, client: String) {
    let mut subject = fault.subject.clone();
    if subject.version.is_none() {
        // Names that clients invent are counted together.
        if shared.known_model(&subject.model).is_empty() {
            subject.model.clear();
        }
    }
    shared.statistics.failed(method, subject, fault.code, &fault.text, request_id, client);
}

/// Counts a failed request that has a status in place of a fault.
pub fn count_status(shared: &Shared, method: Method, model: &str, status: &Status, request_id: &str, client: String) {
    let subject = Subject { model: shared.known_model(model).to_owned(), ..Subject::default() };
    shared.statistics.failed(method, subject, status.code, &status.text, request_id, client);
}

/// Counts a gRPC call that is refused with this status, unless a limit has counted it already. gRPC gives the code
/// INTERNAL to a message that can not be read; that is a fault of the client, and counts as `INVALID_ARGUMENT`.
pub fn count_unlimited(
    shared: &Shared,
    method: Method,
    status: &Status,
    request_id: &str,
    client: impl FnOnce() -> String,
) {
    let code = if status.code == Code::Internal { Code::InvalidArgument } else { status.code };
    if matches!(code, Code::InvalidArgument | Code::Unimplemented) {
        count_status(shared, method, "", &Status { code, ..status.clone() }, request_id, client());
    }
}

fn log(shared: &Shared, method: Method, fault: &Fault, text: &str, request_id: &str) {
    let Some(left_out) = shared.refusal_log.take(Instant::now()) else { return };
    let (wire, status, name) = (method.api(), http_status(fault.code), fault.code.name());
    match fault.code {
        Code::Internal | Code::DataLoss => {
            let cause = &*fault.cause;
            tracing::error!(target: LOG_TARGET, wire, status, code = name, text, cause, request_id, left_out);
        }
        Code::Unavailable | Code::DeadlineExceeded => {
            tracing::warn!(target: LOG_TARGET, wire, status, code = name, text, request_id, left_out);
        }
        _ => tracing::info!(target: LOG_TARGET, wire, status, code = name, text, request_id, left_out),
    }
}
