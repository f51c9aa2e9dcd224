//! Answers gRPC calls: small ones at once, on the task of their connection.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};

use super::connection::{Connection, PendingCall};
use super::dispatch::Method;
use super::encoding::{Accepted, Coding};
use super::grpc_call::{Incoming, Plain, Reply, is_serving, refuse, refuse_fault, send, send_serving};
use super::grpc_message::{self, Code, Payload, Status};
use super::grpc_task::{declined_small, serve_call};
use super::health;
use super::inflating;
use super::refusals;
use super::request_id;
use super::shared::{Failed, Shared};
use crate::admission::limits::INLINE_BYTES;
use crate::forms::TensorEncoding;
use crate::plan::faults::BoxedFault;
use crate::plan::{Declined, Effort};

/// Answers a small request at once, or returns a future that answers the request.
pub fn begin(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: Request<RecvStream>,
    respond: SendResponse<Payload>,
    cx: &mut Context<'_>,
) -> Option<PendingCall> {
    let (mut head, mut body) = request.into_parts();
    if let Some(status) = not_grpc(&head) {
        if body.is_end_stream() {
            refuse_http(shared, connection, &head, status, respond);
            return None;
        }
        // Before the task refuses a request that is not gRPC, it reads the body to its end, so that h2 still reports a
        // protocol error in the body.
        let (shared, connection) = (Arc::clone(shared), Arc::clone(connection));
        let stall = shared.limits.stall_timeout;
        return Some(Box::pin(async move {
            if let Ok(Some(())) = tokio::time::timeout(stall, drop_body(&mut body)).await {
                refuse_http(&shared, &connection, &head, status, respond);
            }
        }));
    }
    let mut first = None;
    if head.uri.path() == health::CHECK
        && let Poll::Ready(Some(Ok(data))) = body.poll_data(cx)
    {
        let _ = body.flow_control().release_capacity(data.len());
        if body.is_end_stream() && is_serving(shared, &data) {
            send_serving(shared, connection, respond);
            return None;
        }
        first = Some(data);
    }
    let plain = match plain(shared, connection, &head) {
        Ok(plain) => plain,
        Err((method, fault)) => {
            refuse_fault(shared, connection, method, &head, &fault, respond);
            return None;
        }
    };
    if let Some(plain) = &plain
        && !plain.terms.accepted.is_required()
        && !connection.is_full()
        && !shared.account.is_full()
    {
        if let Poll::Ready(Some(Ok(data))) = body.poll_data(cx) {
            let _ = body.flow_control().release_capacity(data.len());
            let inflated = body
                .is_end_stream()
                .then(|| inflating::inflate_small_message(&mut head.headers, &data, &shared.limits));
            first = Some(inflated.flatten().unwrap_or(data));
        }
        if let Some(message) = first.as_deref().and_then(grpc_message::whole)
            && message.len() <= INLINE_BYTES.min(shared.limits.max_message_bytes)
            && body.is_end_stream()
        {
            let outcome = shared.call(Effort::Small, connection, &plain.terms, |dispatch, call| {
                dispatch.grpc(plain.method, call, message)
            });
            let reply = match outcome {
                Ok(made) => Reply::Answer(made),
                Err(Failed::Panicked) => Reply::Panic,
                Err(Failed::Refused(fault)) => Reply::Fault(fault),
                Err(Failed::Declined(declined)) => {
                    let mut incoming = Incoming::new(shared, connection, head, body);
                    if let Err(status) = incoming.hold_head() {
                        refuse(&incoming, respond, &status);
                        return None;
                    }
                    // If the queue refuses a large request, the refusal comes before a future for the call is created,
                    // because the future would cost more than the refusal.
                    if declined == Declined::TooLarge
                        && let Some(data) = &first
                        && let Err(status) = incoming.announce(data, data.len())
                    {
                        refuse(&incoming, respond, &status);
                        return None;
                    }
                    let begun = first.unwrap_or_default();
                    return Some(Box::pin(declined_small(incoming, plain.clone(), respond, begun, declined)));
                }
            };
            send(shared, connection, &head, plain, respond, reply);
            return None;
        }
    }
    let mut incoming = Incoming::new(shared, connection, head, body);
    if let Err(status) = incoming.hold_head() {
        refuse(&incoming, respond, &status);
        return None;
    }
    Some(Box::pin(serve_call(incoming, plain, respond, first)))
}

/// Returns the HTTP status with which a request that is not gRPC is refused; None if it is gRPC.
fn not_grpc(head: &Parts) -> Option<StatusCode> {
    if head.method != http::Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    (!kind.starts_with(b"application/grpc")).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Reads a request's body to its end and drops it; returns None if the client ends the body too early.
async fn drop_body(body: &mut RecvStream) -> Option<()> {
    while let Some(data) = body.data().await {
        let size = data.ok()?.len();
        body.flow_control().release_capacity(size).ok()?;
    }
    body.trailers().await.ok().map(|_| ())
}

fn refuse_http(
    shared: &Shared,
    connection: &Connection,
    head: &Parts,
    status: StatusCode,
    mut respond: SendResponse<Payload>,
) {
    const TEXT: &str = "This port serves gRPC.";
    let counted = Status { code: Code::InvalidArgument, text: TEXT.into(), may_retry: false };
    let client = shared.client(&head.headers, connection);
    refusals::count_status(shared, Method::OtherGrpc, "", &counted, &shared.ids.make(), client);
    let mut answer = Response::new(());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
    }
    if let Ok(mut stream) = respond.send_response(answer, false) {
        let _ = stream.send_data(Bytes::from_static(TEXT.as_bytes()).into(), true);
    }
}

/// Checks the headers of a call; returns None if it is no data request, or its metadata has a fault, for which
/// [`super::grpc_metadata`] refuses it.
///
/// # Errors
/// The call's credentials belong to no caller, or it asks for an unknown form of answer.
fn plain(shared: &Shared, connection: &Connection, head: &Parts) -> Result<Option<Plain>, (Method, BoxedFault)> {
    let Some(method) = Method::of_path(head.uri.path()) else { return Ok(None) };
    let terms = shared.terms(&head.headers, connection).map_err(|fault| (method, fault))?;
    let traced = shared.tracing.as_ref().and_then(|tracing| tracing.begin(&head.headers)).map(Arc::new);
    let mut plain = Plain { method, terms, request_id: None, traced };
    for (name, value) in &head.headers {
        match name.as_str() {
            "grpc-encoding" => match value.as_bytes() {
                b"identity" | b"gzip" | b"deflate" => {}
                _ => return Ok(None),
            },
            "grpc-timeout" if grpc_message::timeout(value.as_bytes()).is_none() => return Ok(None),
            "x-tensor-encoding" if method == Method::Predict => {
                plain.terms.encoding =
                    TensorEncoding::of_name(value.as_bytes()).map_err(|fault| (Method::Predict, fault))?;
            }
            "x-response-encoding" if value.as_bytes() == b"gzip" => plain.terms.accepted = Accepted::only(Coding::Gzip),
            "x-request-id" if plain.request_id.is_none() && request_id::is_sane(value.as_bytes()) => {
                plain.request_id = Some(value.clone());
            }
            _ => {}
        }
    }
    Ok(Some(plain))
}
