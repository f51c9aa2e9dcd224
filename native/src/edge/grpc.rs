//! Serves one gRPC connection: its task answers small requests, and starts a task for any other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::{Connection, Order};
use super::dispatch::Method;
use super::events::Event;
use super::grpc_call::{Incoming, Plain, Reply, is_serving, refuse, send, send_serving};
use super::grpc_message::{self, Payload};
use super::grpc_task::{declined_small, serve_call};
use super::health;
use super::limits::INLINE_BYTES;
use super::request_id;
use super::sampling::Draws;
use super::shared::{Failed, Shared};
use super::socket::{Flushes, Socket};
use crate::declined::Declined;
use crate::plan::Effort;

/// How many requests the connection's task takes in before it answers any.
const BATCH: usize = 64;
/// How long one connection answers before other connections get their turn.
const TURN: Duration = Duration::from_micros(500);
/// How many received bytes of one connection may wait for our tasks.
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const FRAME_BYTES: u32 = 1 << 20;
/// Serves one connection to its end.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: Arc<Connection>, shared: Arc<Shared>) {
    let limits = &shared.limits;
    let flushes = Arc::new(Flushes::default());
    let socket = Socket::metered(stream, Arc::clone(&connection), Arc::clone(&flushes));
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(limits.max_streams)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(limits.max_header_list_bytes)
        .handshake::<_, Payload>(socket);
    let Ok(Ok(mut h2)) = tokio::time::timeout(limits.handshake_timeout, handshake).await else {
        shared.statistics.count(Event::HandshakeFailedGrpc);
        return;
    };
    let mut batch = VecDeque::new();
    let mut is_draining = false;
    let mut is_ending = false;
    poll_fn(|cx| {
        connection.wake_by(cx.waker());
        let end = Instant::now() + TURN;
        loop {
            if !is_ending && let Some(flood) = connection.flood() {
                is_ending = true;
                shared.statistics.count(flood.into());
                h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            match connection.order() {
                Order::Serve => {}
                Order::Cut => {
                    shared.statistics.count(Event::CutGrpc);
                    return Poll::Ready(());
                }
                Order::Drain | Order::Close => {
                    if !is_draining {
                        is_draining = true;
                        h2.graceful_shutdown();
                    }
                }
            }
            let mut state = Poll::Pending;
            while batch.len() < BATCH {
                match h2.poll_accept(cx) {
                    Poll::Ready(Some(Ok(accepted))) => batch.push_back(accepted),
                    Poll::Ready(ended) => {
                        if let Some(Err(error)) = ended
                            && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)
                            && !is_ending
                        {
                            shared.statistics.count(Event::FloodHttp2);
                        }
                        state = Poll::Ready(());
                        break;
                    }
                    Poll::Pending => break,
                }
            }
            if state.is_pending() && batch.is_empty() && !is_ending && connection.flood().is_some() {
                continue;
            }
            if batch.is_empty() && state.is_pending() && flushes.make_due() {
                if Instant::now() < end {
                    continue;
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if batch.is_empty() || state.is_ready() {
                return state;
            }
            while let Some((request, respond)) = batch.pop_front() {
                begin(&shared, &connection, request, respond, cx);
                if Instant::now() >= end {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    })
    .await;
}

/// Answers a request at once, or starts a task that does.
fn begin(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: Request<RecvStream>,
    respond: SendResponse<Payload>,
    cx: &mut Context<'_>,
) {
    let (head, mut body) = request.into_parts();
    if let Some(status) = not_grpc(&head) {
        if body.is_end_stream() {
            return refuse_http(status, respond);
        }
        // The body is read to its end first: h2 then still reports a protocol error in the rest of the request.
        let stall = shared.limits.stall_timeout;
        tokio::spawn(async move {
            if let Ok(Some(())) = tokio::time::timeout(stall, drop_body(&mut body)).await {
                refuse_http(status, respond);
            }
        });
        return;
    }
    let mut first = None;
    if head.uri.path() == health::CHECK
        && let Poll::Ready(Some(Ok(data))) = body.poll_data(cx)
    {
        let _ = body.flow_control().release_capacity(data.len());
        if body.is_end_stream() && is_serving(shared, &data) {
            return send_serving(shared, connection, respond);
        }
        first = Some(data);
    }
    let draws = Draws::new(shared.tracing.as_ref());
    let plain = plain(shared, connection, &head, draws);
    if let Some(plain) = &plain
        && !connection.is_full()
        && !shared.account.is_full()
    {
        if let Poll::Ready(Some(Ok(data))) = body.poll_data(cx) {
            let _ = body.flow_control().release_capacity(data.len());
            first = Some(data);
        }
        if let Some(message) = first.as_deref().and_then(grpc_message::whole)
            && message.len() <= INLINE_BYTES
            && body.is_end_stream()
        {
            let outcome =
                shared.call(Effort::Small, &plain.terms, |dispatch, call| dispatch.grpc(plain.method, call, message));
            let reply = match outcome {
                Ok((answered, took)) => Reply::Answer(answered, took),
                Err(Failed::Panicked) => Reply::Panic,
                Err(Failed::NoRows(failure)) => Reply::Refusal(shared.no_rows(plain.method, "", failure)),
                Err(Failed::Declined(declined)) => {
                    let incoming = Incoming::new(shared, connection, head, body, draws);
                    // Refused without a task, which would cost more than the refusal itself.
                    if declined == Declined::TooLarge
                        && let Some(data) = &first
                        && let Some(status) = incoming.refusal(data, data.len())
                    {
                        return refuse(&incoming, respond, &status);
                    }
                    let begun = first.unwrap_or_default();
                    tokio::spawn(declined_small(incoming, plain.clone(), respond, begun, declined));
                    return;
                }
            };
            send(shared, connection, &head, plain, respond, reply);
            return;
        }
    }
    let incoming = Incoming::new(shared, connection, head, body, draws);
    tokio::spawn(serve_call(incoming, plain, respond, first));
}

/// Returns the HTTP status that refuses a request which is not gRPC; None for gRPC.
fn not_grpc(head: &Parts) -> Option<StatusCode> {
    if head.method != http::Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    (!kind.starts_with(b"application/grpc")).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Reads a body to its end and drops it; None if the body breaks off.
async fn drop_body(body: &mut RecvStream) -> Option<()> {
    while let Some(data) = body.data().await {
        let size = data.ok()?.len();
        body.flow_control().release_capacity(size).ok()?;
    }
    body.trailers().await.ok().map(|_| ())
}

fn refuse_http(status: StatusCode, mut respond: SendResponse<Payload>) {
    let mut head = Response::new(());
    *head.status_mut() = status;
    let headers = head.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
    }
    if let Ok(mut stream) = respond.send_response(head, false) {
        let _ = stream.send_data(Bytes::from_static(b"This port serves gRPC.").into(), true);
    }
}

/// Looks at the headers; None where the reference takes the request.
fn plain(shared: &Shared, connection: &Connection, head: &Parts, draws: Draws) -> Option<Plain> {
    let method = Method::of_path(head.uri.path())?;
    if head.method != http::Method::POST {
        return None;
    }
    let terms = shared.terms(&head.headers, connection, draws)?;
    let mut plain = Plain { method, terms, request_id: None };
    let mut is_grpc = false;
    for (name, value) in &head.headers {
        match name.as_str() {
            "content-type" => is_grpc = matches!(value.as_bytes(), b"application/grpc" | b"application/grpc+proto"),
            "grpc-encoding" => match value.as_bytes() {
                b"identity" | b"gzip" | b"deflate" => {}
                _ => return None,
            },
            "grpc-timeout" => drop(grpc_message::timeout(value.as_bytes())?),
            "x-tensor-encoding" => plain.terms.as_content = value.as_bytes() == b"content",
            "x-response-encoding" if value.as_bytes() == b"gzip" => return None,
            "x-request-id" if plain.request_id.is_none() && request_id::is_sane(value.as_bytes()) => {
                plain.request_id = Some(value.clone());
            }
            _ => {}
        }
    }
    is_grpc.then_some(plain)
}
