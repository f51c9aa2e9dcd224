//! Serves one gRPC connection: its task answers small requests, and starts a task for any other.

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
use tokio::sync::OwnedSemaphorePermit;

use super::dispatch::Method;
use super::grpc_message::{self, Code, PREFIX_BYTES, Payload, Status};
use super::inflated::{self, Coding};
use super::limits::{Connection, Debt, Hold, INLINE_BYTES, Open, Order};
use super::request_id;
use super::shared::{self, Begun, Failed, Outcome, Shared};
use super::socket::Socket;
use super::statistics::Event;
use crate::declined::Declined;
use crate::plan::Effort;

/// How many requests the connection's task takes in before it answers any.
const BATCH: usize = 64;
/// How many received bytes of one connection may wait for our tasks.
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const FRAME_BYTES: u32 = 1 << 20;
/// How many bytes are reserved for a message before its bytes have come.
const TRUSTED_BYTES: usize = 1 << 20;

/// Serves one connection to its end.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: Arc<Connection>, shared: Arc<Shared>) {
    let limits = &shared.limits;
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(limits.max_streams)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(limits.max_header_list_bytes)
        .handshake::<_, Payload>(Socket::metered(stream, Arc::clone(&connection)));
    let Ok(Ok(mut h2)) = tokio::time::timeout(limits.handshake_timeout, handshake).await else {
        shared.statistics.count(Event::HandshakeFailedGrpc);
        return;
    };
    let mut batch = Vec::new();
    let mut is_draining = false;
    let mut is_ending = false;
    poll_fn(|cx| {
        connection.wake_by(cx.waker());
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
                    Poll::Ready(Some(Ok(accepted))) => batch.push(accepted),
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
            if batch.is_empty() || state.is_ready() {
                return state;
            }
            for (request, respond) in batch.drain(..) {
                begin(&shared, &connection, request, respond, cx);
            }
        }
    })
    .await;
}

/// The headers of a request that the core may answer.
struct Plain {
    method: Method,
    as_content: bool,
    // A client's own id, which its answer returns.
    request_id: Option<HeaderValue>,
    timeout: Option<Duration>,
}

/// One call.
struct Incoming {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    head: Parts,
    body: RecvStream,
    begun: Instant,
    _open: Open,
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
        // An answer before the end would hide what is wrong with the rest of the request.
        let stall = shared.limits.stall_timeout;
        tokio::spawn(async move {
            if let Ok(Some(())) = tokio::time::timeout(stall, drop_body(&mut body)).await {
                refuse_http(status, respond);
            }
        });
        return;
    }
    let mut first = None;
    let plain = plain(shared, &head);
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
            let outcome = shared
                .call(Effort::Small, plain.as_content, |dispatch, call| dispatch.grpc(plain.method, call, message));
            let reply = match outcome {
                Ok((answered, took)) => Reply::Answer(answered, took),
                Err(Failed::Panicked) => Reply::Panic,
                Err(Failed::Declined(declined)) => {
                    let incoming = Incoming::new(shared, connection, head, body);
                    let begun = first.into_iter().collect();
                    tokio::spawn(declined_small(incoming, respond, begun, declined));
                    return;
                }
            };
            send(shared, connection, &head, plain, respond, reply);
            return;
        }
    }
    let incoming = Incoming::new(shared, connection, head, body);
    tokio::spawn(serve_call(incoming, plain, respond, first));
}

impl Incoming {
    fn new(shared: &Arc<Shared>, connection: &Arc<Connection>, head: Parts, body: RecvStream) -> Self {
        Incoming {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            head,
            body,
            begun: Instant::now(),
            _open: connection.open(),
        }
    }
}

/// The HTTP status of a request that is no gRPC at all.
fn not_grpc(head: &Parts) -> Option<StatusCode> {
    if head.method != http::Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    (!kind.starts_with(b"application/grpc")).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Reads a body and drops it; None where it does not come to its end.
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
fn plain(shared: &Shared, head: &Parts) -> Option<Plain> {
    let method = Method::of_path(head.uri.path())?;
    if !shared.is_answering || head.method != http::Method::POST {
        return None;
    }
    let mut plain = Plain { method, as_content: shared.as_content, request_id: None, timeout: None };
    let mut is_grpc = false;
    for (name, value) in &head.headers {
        match name.as_str() {
            "content-type" => is_grpc = matches!(value.as_bytes(), b"application/grpc" | b"application/grpc+proto"),
            "grpc-encoding" => match value.as_bytes() {
                b"identity" | b"gzip" | b"deflate" => {}
                _ => return None,
            },
            "grpc-timeout" => plain.timeout = Some(grpc_message::timeout(value.as_bytes())?),
            "x-tensor-encoding" => plain.as_content = value.as_bytes() == b"content",
            "x-response-encoding" if value.as_bytes() == b"gzip" => return None,
            "x-request-id" if plain.request_id.is_none() && request_id::is_sane(value.as_bytes()) => {
                plain.request_id = Some(value.clone());
            }
            _ => {}
        }
    }
    is_grpc.then_some(plain)
}

/// The end of a call.
enum Reply {
    Answer(crate::forms::Answered, Duration),
    Refusal(Status),
    Panic,
}

fn send(
    shared: &Shared,
    connection: &Arc<Connection>,
    head: &Parts,
    plain: &Plain,
    mut respond: SendResponse<Payload>,
    reply: Reply,
) {
    let id = |plain: &Plain| match &plain.request_id {
        Some(id) => String::from_utf8_lossy(id.as_bytes()).into_owned(),
        None => shared.ids.of_http(&head.headers).to_str().unwrap_or_default().to_owned(),
    };
    let status = match reply {
        Reply::Answer(answered, took) => {
            shared.statistics.succeeded(plain.method, &answered, took, || id(plain));
            let debt = Debt::new(connection, &shared.account, answered.body.len());
            let Some(payload) = Payload::message(answered.body, debt) else {
                return respond.send_reset(Reason::INTERNAL_ERROR);
            };
            if let Ok(mut stream) = respond.send_response(grpc_message::head(plain.request_id.as_ref()), false)
                && stream.send_data(payload, false).is_ok()
            {
                let _ = stream.send_trailers(grpc_message::trailers());
            }
            return;
        }
        Reply::Refusal(status) => (id(plain), status),
        Reply::Panic => {
            let id = id(plain);
            let status = shared::internal_error(&id);
            (id, status)
        }
    };
    let _ = respond.send_response(status.1.head(Some(&status.0)), true);
}

/// Goes on with a small request that was not answered inline.
async fn declined_small(incoming: Incoming, mut respond: SendResponse<Payload>, begun: Begun, declined: Declined) {
    if declined == Declined::TooLarge
        && let (Some(plain), Some(data)) = (plain(&incoming.shared, &incoming.head), begun.first())
    {
        let data = data.clone();
        let hold = incoming.shared.account.hold();
        let next = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            next = large(&incoming, &plain, data, hold) => next,
        };
        return finish(incoming, &plain, respond, next).await;
    }
    forward(incoming, respond, begun).await;
}

/// The next step of a call.
enum Next {
    Reply(Reply),
    Forward(Begun),
    Reset(Reason),
}

/// Serves a call in a task of its own.
async fn serve_call(
    mut incoming: Incoming,
    plain: Option<Plain>,
    mut respond: SendResponse<Payload>,
    first: Option<Bytes>,
) {
    let Some(plain) = plain else {
        return forward(incoming, respond, first.into_iter().collect()).await;
    };
    let next = tokio::select! {
        biased;
        // The client gave up.
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        next = answer(&mut incoming, &plain, first) => next,
    };
    finish(incoming, &plain, respond, next).await;
}

async fn finish(incoming: Incoming, plain: &Plain, mut respond: SendResponse<Payload>, next: Next) {
    match next {
        Next::Reply(reply) => {
            send(&incoming.shared, &incoming.connection, &incoming.head, plain, respond, reply);
        }
        Next::Forward(begun) => forward(incoming, respond, begun).await,
        Next::Reset(reason) => respond.send_reset(reason),
    }
}

async fn forward(mut incoming: Incoming, mut respond: SendResponse<Payload>, mut begun: Begun) {
    let mut room = None;
    if let Some(coding) = coding(&incoming.head) {
        let judged = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            judged = judge(&mut incoming, coding, begun) => judged,
        };
        match judged {
            Ok((data, found)) => (begun, room) = (data, found),
            Err(status) => {
                let id = incoming.shared.ids.of_http(&incoming.head.headers);
                let _ = respond.send_response(status.head(id.to_str().ok()), true);
                return;
            }
        }
    }
    let shared = &incoming.shared;
    shared.statistics.count(Event::ForwardedGrpc);
    shared::mark(&mut incoming.head.headers, &incoming.connection);
    let is_served = shared.grpc_upstream.forward(incoming.head, incoming.body, begun, respond).await;
    if !is_served {
        shared.statistics.count(Event::UpstreamFailedGrpc);
    }
    drop(room);
}

fn coding(head: &Parts) -> Option<Coding> {
    match head.headers.get("grpc-encoding")?.as_bytes() {
        b"gzip" => Some(Coding::Gzip),
        b"deflate" => Some(Coding::Deflate),
        _ => None,
    }
}

/// Reads the first message and finds out how large it will be when the reference inflates it. Returns what was read,
/// and the room for it: to be held until the call ends.
async fn judge(
    incoming: &mut Incoming,
    coding: Coding,
    begun: Begun,
) -> Result<(Begun, Option<(Hold, OwnedSemaphorePermit)>), Status> {
    let shared = Arc::clone(&incoming.shared);
    let (limit, stall) = (shared.limits.max_request_bytes, shared.limits.stall_timeout);
    let large = Arc::clone(&incoming.connection.large);
    let mut hold = shared.account.hold();
    let mut data: Vec<u8> = begun.concat();
    if !hold.grow(data.len()) {
        return Err(shared.no_bytes());
    }
    let end = loop {
        if let Some(prefix) = data.first_chunk::<PREFIX_BYTES>() {
            let size = grpc_message::length(*prefix);
            if prefix[0] == 0 || size > limit {
                // Nothing to inflate, or refused by the reference.
                return Ok((vec![data.into()], None));
            }
            if data.len() >= size + PREFIX_BYTES {
                break size + PREFIX_BYTES;
            }
        }
        if incoming.body.is_end_stream() {
            return Ok((vec![data.into()], None));
        }
        let more = match tokio::time::timeout(stall, incoming.body.data()).await {
            Err(_) => return Err(stalled()),
            Ok(Some(Ok(more))) => more,
            Ok(_) => return Ok((vec![data.into()], None)),
        };
        let _ = incoming.body.flow_control().release_capacity(more.len());
        if !hold.grow(more.len()) {
            return Err(shared.no_bytes());
        }
        data.extend_from_slice(&more);
    };
    // So many of a connection at once are inflated, and held inflated.
    let Ok(permit) = large.acquire_owned().await else {
        return Err(shared::no_upstream());
    };
    let data = Bytes::from(data);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let message = data.slice(PREFIX_BYTES..end);
    let queued = shared.large.submit(move || {
        let _ = sender.send(inflated::size(coding, &message, limit));
    });
    if let Err(full) = queued {
        return Err(shared.no_place(full));
    }
    match receiver.await {
        Ok(Ok(size)) if hold.grow(size) => Ok((vec![data], Some((hold, permit)))),
        Ok(Ok(_)) => Err(shared.no_bytes()),
        Ok(Err(too_large)) => {
            shared.statistics.count(Event::RefusedInflated);
            Err(Status { code: Code::ResourceExhausted, text: too_large.text(), may_retry: false })
        }
        // The pool is closed: the server stops.
        Err(_) => Err(shared::no_upstream()),
    }
}

fn stalled() -> Status {
    Status { code: Code::Cancelled, text: "The client stopped sending the request.".into(), may_retry: false }
}

/// Reads the message and answers it.
async fn answer(incoming: &mut Incoming, plain: &Plain, first: Option<Bytes>) -> Next {
    // Bodies of requests that wait stay in the connection's window.
    incoming.connection.room().await;
    if incoming.shared.account.is_full() {
        return Next::Reply(Reply::Refusal(incoming.shared.no_bytes()));
    }
    let mut hold = incoming.shared.account.hold();
    let data = match gather(incoming, first, &mut hold).await {
        Gathered::Message(data) => data,
        Gathered::Unusual(begun) => return Next::Forward(begun),
        Gathered::NoRoom => return Next::Reply(Reply::Refusal(incoming.shared.no_bytes())),
        Gathered::Stalled => {
            return Next::Reply(Reply::Refusal(stalled()));
        }
        Gathered::Lost => return Next::Reset(Reason::CANCEL),
    };
    if data.len() > INLINE_BYTES {
        return large(incoming, plain, data, hold).await;
    }
    let connection = Arc::clone(&incoming.connection);
    // One request at a time goes on while the client leaves answers unread: many would answer at once.
    let _turn = if connection.is_full() {
        let turn = connection.turn.lock().await;
        connection.room().await;
        Some(turn)
    } else {
        None
    };
    let message = data.get(PREFIX_BYTES..).unwrap_or_default();
    let outcome = incoming
        .shared
        .call(Effort::Small, plain.as_content, |dispatch, call| dispatch.grpc(plain.method, call, message));
    if matches!(outcome, Err(Failed::Declined(Declined::TooLarge))) {
        return large(incoming, plain, data, hold).await;
    }
    after(outcome, data)
}

fn after(outcome: Outcome, data: Bytes) -> Next {
    match outcome {
        Ok((answered, took)) => Next::Reply(Reply::Answer(answered, took)),
        Err(Failed::Panicked) => Next::Reply(Reply::Panic),
        Err(Failed::Declined(_)) => Next::Forward(vec![data]),
    }
}

/// Answers a message on a thread for large work.
async fn large(incoming: &Incoming, plain: &Plain, data: Bytes, mut hold: Hold) -> Next {
    let (shared, connection) = (&incoming.shared, &incoming.connection);
    // So many at once, so that one connection neither fills the queue nor is owed more than so many answers.
    let Ok(_permit) = connection.large.acquire().await else {
        return Next::Reset(Reason::INTERNAL_ERROR);
    };
    connection.room().await;
    if !hold.reach(data.len()) {
        return Next::Reply(Reply::Refusal(shared.no_bytes()));
    }
    let deadline = plain.timeout.map(|timeout| incoming.begun + timeout);
    let (method, body) = (plain.method, data.clone());
    let job = shared.call_large(deadline, plain.as_content, move |dispatch, call| {
        dispatch.grpc(method, call, body.get(PREFIX_BYTES..).unwrap_or_default())
    });
    match job {
        Err(full) => Next::Reply(Reply::Refusal(shared.no_place(full))),
        Ok(receiver) => match receiver.await {
            Ok(Some(outcome)) => after(outcome, data),
            Ok(None) => {
                let text = "The deadline passed before the request was run.";
                Next::Reply(Reply::Refusal(shared.too_late(text.into())))
            }
            // The pool is closed: the server stops.
            Err(_) => Next::Reset(Reason::CANCEL),
        },
    }
}

/// The body of a request, as far as it was read.
enum Gathered {
    /// One whole message behind its prefix.
    Message(Bytes),
    /// A body that the reference judges. These are its first bytes; more may follow.
    Unusual(Begun),
    NoRoom,
    Stalled,
    Lost,
}

async fn gather(incoming: &mut Incoming, first: Option<Bytes>, hold: &mut Hold) -> Gathered {
    let Incoming { shared, body, .. } = incoming;
    let (limit, stall) = (shared.limits.max_request_bytes, shared.limits.stall_timeout);
    let mut one = first;
    let mut all: Vec<u8> = Vec::new();
    loop {
        let so_far: &[u8] = one.as_deref().unwrap_or(&all);
        if let Some(prefix) = so_far.first_chunk::<PREFIX_BYTES>() {
            let size = grpc_message::length(*prefix);
            if prefix[0] != 0 || size > limit || so_far.len() > size + PREFIX_BYTES {
                return Gathered::Unusual(vec![one.unwrap_or_else(|| all.into())]);
            }
        }
        if body.is_end_stream() {
            break;
        }
        let data = match tokio::time::timeout(stall, body.data()).await {
            Err(_) => return Gathered::Stalled,
            Ok(None) => break,
            Ok(Some(Err(_))) => return Gathered::Lost,
            Ok(Some(Ok(data))) => data,
        };
        let _ = body.flow_control().release_capacity(data.len());
        if data.is_empty() {
            continue;
        }
        if !hold.grow(data.len()) {
            return Gathered::NoRoom;
        }
        if one.is_none() && all.is_empty() {
            one = Some(data);
            continue;
        }
        if let Some(first) = one.take() {
            let told = first.first_chunk::<PREFIX_BYTES>().map_or(0, |prefix| grpc_message::length(*prefix));
            all.reserve((told + PREFIX_BYTES).min(TRUSTED_BYTES));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    let data = one.unwrap_or_else(|| all.into());
    if grpc_message::whole(&data).is_some() { Gathered::Message(data) } else { Gathered::Unusual(vec![data]) }
}
