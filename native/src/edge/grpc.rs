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
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::account::{Hold, Shares};
use super::dispatch::Method;
use super::fair_queue::{Ask, Refusal};
use super::grpc_message::{self, Code, PREFIX_BYTES, Payload, Status};
use super::health;
use super::inflated::{self, Coding};
use super::limits::{Connection, Debt, INLINE_BYTES, Open, Order};
use super::request_id;
use super::sampling::Draws;
use super::shared::{self, Failed, NotRun, Outcome, Shared, Terms};
use super::socket::{Flushes, Socket};
use super::statistics::Event;
use crate::declined::Declined;
use crate::forward::Lane;
use crate::plan::Effort;

/// How many requests the connection's task takes in before it answers any.
const BATCH: usize = 64;
/// How long one connection answers before other connections get their turn.
const TURN: Duration = Duration::from_micros(500);
/// How many received bytes of one connection may wait for our tasks.
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const FRAME_BYTES: u32 = 1 << 20;
/// How many bytes are reserved for a message before its bytes have come.
const TRUSTED_BYTES: usize = 1 << 20;

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

/// The headers of a request that the core may answer.
#[derive(Clone)]
struct Plain {
    method: Method,
    terms: Terms,
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
    draws: Draws,
    begun: Instant,
    // Accounts for the bytes of the body that were read, and for those that it inflates to.
    hold: Hold,
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

impl Incoming {
    fn new(shared: &Arc<Shared>, connection: &Arc<Connection>, head: Parts, body: RecvStream, draws: Draws) -> Self {
        Incoming {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            head,
            body,
            draws,
            begun: Instant::now(),
            hold: Hold::default(),
            _open: connection.open(),
        }
    }

    /// Refuses large work that would wait too long; see [`Self::ask`].
    fn refusal(&self, data: &[u8], size: usize) -> Option<Status> {
        let ask = self.ask(data, size);
        let refusal = self.shared.large.check(&ask).err()?;
        Some(self.shared.refuse(&ask.path[0], refusal, late))
    }

    /// Describes this call to a queue. Its message begins with `data` and has `size` bytes.
    fn ask(&self, data: &[u8], size: usize) -> Ask {
        let timeout = self.head.headers.get("grpc-timeout").and_then(|value| grpc_message::timeout(value.as_bytes()));
        Ask::new(self.model(data), &self.connection.peer, size, timeout.map(|timeout| self.begun + timeout))
    }

    /// Returns the configured model that a message names which begins with `data`; "" if there is none.
    fn model<'d>(&self, data: &'d [u8]) -> &'d str {
        let (shared, path) = (&self.shared, self.head.uri.path());
        // Requests of all methods of TensorFlow Serving's service have the model in the same field as Predict.
        let is_like_predict = path.starts_with("/tensorflow.serving.PredictionService/");
        let method = Method::of_path(path).or(is_like_predict.then_some(Method::Predict));
        match (method, data.split_first_chunk::<PREFIX_BYTES>()) {
            (Some(method), Some(([0, ..], message))) => shared.known_model(shared.dispatch.model(method, message)),
            _ => "",
        }
    }

    /// Returns the shares that a call counts in whose message begins with `data`.
    fn shares(&self, data: &[u8]) -> Arc<Shares> {
        self.connection.shares(&self.shared.account, self.model(data))
    }

    /// Accounts for `size` bytes of a call whose message begins with `data`.
    ///
    /// # Errors
    /// There is no room for them.
    fn reach(&mut self, data: &[u8], size: usize) -> Result<(), Status> {
        let mut hold = std::mem::take(&mut self.hold);
        let has_room = hold.reach(size, || self.shares(data));
        self.hold = hold;
        if has_room { Ok(()) } else { Err(self.shared.no_bytes(self.hold.model())) }
    }
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
    let mut plain = Plain { method, terms, request_id: None, timeout: None };
    let mut is_grpc = false;
    for (name, value) in &head.headers {
        match name.as_str() {
            "content-type" => is_grpc = matches!(value.as_bytes(), b"application/grpc" | b"application/grpc+proto"),
            "grpc-encoding" => match value.as_bytes() {
                b"identity" | b"gzip" | b"deflate" => {}
                _ => return None,
            },
            "grpc-timeout" => plain.timeout = Some(grpc_message::timeout(value.as_bytes())?),
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
            let debt = Debt::new(connection, &shared.account, answered.servable.model(), answered.body.len());
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
async fn declined_small(
    mut incoming: Incoming,
    plain: Plain,
    mut respond: SendResponse<Payload>,
    data: Bytes,
    declined: Declined,
) {
    if declined == Declined::TooLarge {
        let next = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            next = large(&mut incoming, &plain, data) => next,
        };
        return finish(incoming, &plain, respond, next).await;
    }
    forward(incoming, respond, data).await;
}

/// The next step of a call.
enum Next {
    Reply(Reply),
    /// Holds the bytes of the body that were read.
    Forward(Bytes),
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
        return serve_other(incoming, respond, first).await;
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

/// Serves a call that the core does not answer.
async fn serve_other(mut incoming: Incoming, mut respond: SendResponse<Payload>, first: Option<Bytes>) {
    let path = incoming.head.uri.path();
    let is_check = path == health::CHECK;
    if !has_one_message(path) {
        if coding(&incoming.head).is_some() {
            // Only the first of its messages could be judged before the reference inflates it.
            let status = unimplemented("The messages of this method must not be compressed.");
            return refuse(&incoming, respond, &status);
        }
        return forward(incoming, respond, first.unwrap_or_default()).await;
    }
    // The message is read whole first, so that a slow sender does not hold a slot of the reference.
    let gathered = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        gathered = gather(&mut incoming, first, false) => gathered,
    };
    let status = match gathered {
        Gathered::Message(data) if is_check && is_serving(&incoming.shared, &data) => {
            return send_serving(&incoming.shared, &incoming.connection, respond);
        }
        Gathered::Message(data) => return forward(incoming, respond, data).await,
        Gathered::Unusual(begun) => return forward(incoming, respond, begun).await,
        Gathered::Refused(status) => status,
        Gathered::TooMany => too_many(),
        Gathered::Stalled => stalled(),
        Gathered::Lost => return respond.send_reset(Reason::CANCEL),
    };
    refuse(&incoming, respond, &status);
}

fn refuse(incoming: &Incoming, mut respond: SendResponse<Payload>, status: &Status) {
    let id = incoming.shared.ids.of_http(&incoming.head.headers);
    let _ = respond.send_response(status.head(id.to_str().ok()), true);
}

fn is_serving(shared: &Shared, data: &[u8]) -> bool {
    let message = grpc_message::whole(data);
    message.is_some_and(|m| shared.health().is_some_and(|health| health.is_serving(m)))
}

fn send_serving(shared: &Shared, connection: &Arc<Connection>, mut respond: SendResponse<Payload>) {
    let debt = Debt::new(connection, &shared.account, "", health::SERVING.len());
    if let Some(payload) = Payload::message(Bytes::from_static(health::SERVING), debt)
        && let Ok(mut stream) = respond.send_response(grpc_message::head(None), false)
        && stream.send_data(payload, false).is_ok()
    {
        let _ = stream.send_trailers(grpc_message::trailers());
    }
}

/// Says whether a call of a method has one message, which may be read whole before the call is forwarded.
fn has_one_message(path: &str) -> bool {
    let is_known = ["/tensorflow.serving.", "/inference."].iter().any(|service| path.starts_with(service));
    is_known && !path.ends_with("/ModelStreamInfer") || [health::CHECK, health::WATCH].contains(&path)
}

fn lane(path: &str) -> Lane {
    match path.rsplit_once('/') {
        Some(("/tensorflow.serving.PredictionService", method)) if method != "GetModelMetadata" => Lane::Work,
        Some((_, "ModelInfer")) => Lane::Work,
        Some((_, "Watch" | "ServerReflectionInfo" | "ModelStreamInfer")) => Lane::Stream,
        _ => Lane::Control,
    }
}

/// Hands a call to the reference. `begun` holds the bytes of its body that were read.
async fn forward(mut incoming: Incoming, mut respond: SendResponse<Payload>, begun: Bytes) {
    let mut inflated = None;
    if let Some(coding) = coding(&incoming.head) {
        let judged = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            judged = judge(&mut incoming, coding, &begun) => judged,
        };
        match judged {
            Ok(permit) => inflated = permit,
            Err(status) => return refuse(&incoming, respond, &status),
        }
    }
    let shared = Arc::clone(&incoming.shared);
    let ask = incoming.ask(&begun, begun.len());
    let model = Arc::clone(&ask.path[0]);
    let entered = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        entered = shared.grpc_gates.enter(lane(incoming.head.uri.path()), ask) => entered,
    };
    let permit = match entered {
        Ok(permit) => permit,
        Err(refusal) => return refuse(&incoming, respond, &shared.refuse(&model, refusal, late)),
    };
    shared.statistics.count(Event::ForwardedGrpc);
    shared.mark(&mut incoming.head.headers, &incoming.connection, incoming.draws);
    let is_served = shared.grpc_upstream.forward(incoming.head, incoming.body, begun, respond, permit).await;
    if !is_served {
        shared.statistics.count(Event::UpstreamFailedGrpc);
    }
    drop(inflated);
}

fn coding(head: &Parts) -> Option<Coding> {
    match head.headers.get("grpc-encoding")?.as_bytes() {
        b"gzip" => Some(Coding::Gzip),
        b"deflate" => Some(Coding::Deflate),
        _ => None,
    }
}

/// Counts the bytes that a call's message inflates to, which the call holds in the account from then on. Returns a permit
/// that the caller keeps until the call ends; None if `data` is no whole compressed message, so that the reference does
/// not inflate it.
async fn judge(incoming: &mut Incoming, coding: Coding, data: &Bytes) -> Result<Option<OwnedSemaphorePermit>, Status> {
    let message = match data.split_first_chunk::<PREFIX_BYTES>() {
        Some((prefix, message)) if prefix[0] != 0 && message.len() == grpc_message::length(*prefix) => {
            data.slice_ref(message)
        }
        _ => return Ok(None),
    };
    let shared = Arc::clone(&incoming.shared);
    let limit = shared.limits.max_request_bytes;
    incoming.reach(data, data.len())?;
    // The permit bounds how many messages of this connection are held inflated at the same time.
    let Ok(permit) = Arc::clone(&incoming.connection.inflating).acquire_owned().await else {
        return Err(shared::no_upstream());
    };
    let (sender, receiver) = oneshot::channel();
    let job = move |told: Result<Duration, Refusal>| {
        let size = told.map(|_| inflated::size(coding, &message, limit));
        let has_run = size.is_ok();
        let _ = sender.send(size);
        has_run
    };
    // The ticket is kept while this task waits: if the task is dropped, the ticket takes the job out of the queue.
    let ticket = shared.large.submit(incoming.ask(&[], data.len()), job);
    let _ticket = ticket.map_err(|refusal| shared.refuse("", refusal, late))?;
    match receiver.await {
        Ok(Ok(Ok(size))) => incoming.reach(data, data.len() + size).map(|()| Some(permit)),
        Ok(Ok(Err(too_large))) => {
            shared.statistics.refused("", "inflated");
            Err(Status { code: Code::ResourceExhausted, text: too_large.text(), may_retry: false })
        }
        Ok(Err(refusal)) => Err(shared.refuse("", refusal, late)),
        // The pool of threads is closed because the server stops.
        Err(_) => Err(shared::no_upstream()),
    }
}

fn late() -> String {
    "The deadline passed while the request waited for a thread.".into()
}

fn unimplemented(text: &str) -> Status {
    Status { code: Code::Unimplemented, text: text.into(), may_retry: false }
}

/// Source: gRPC's statuscodes.md, "Request cardinality violation". grpcio answers the first message in silence.
fn too_many() -> Status {
    unimplemented("The method takes exactly one request message, and the client sent more.")
}

fn stalled() -> Status {
    Status { code: Code::Cancelled, text: "The client stopped sending the request.".into(), may_retry: false }
}

/// Reads the message and answers it.
async fn answer(incoming: &mut Incoming, plain: &Plain, first: Option<Bytes>) -> Next {
    // Bodies of requests that wait stay in the connection's window.
    incoming.connection.room().await;
    let data = match gather(incoming, first, true).await {
        Gathered::Message(data) => data,
        Gathered::Unusual(begun) => return Next::Forward(begun),
        Gathered::Refused(status) => return Next::Reply(Reply::Refusal(status)),
        Gathered::TooMany => return Next::Reply(Reply::Refusal(too_many())),
        Gathered::Stalled => return Next::Reply(Reply::Refusal(stalled())),
        Gathered::Lost => return Next::Reset(Reason::CANCEL),
    };
    if data.len() > INLINE_BYTES {
        return large(incoming, plain, data).await;
    }
    let connection = Arc::clone(&incoming.connection);
    // While the client leaves answers unread, one request at a time goes on; else all would add answers at once.
    let _turn = if connection.is_full() {
        let turn = connection.turn.lock().await;
        connection.room().await;
        Some(turn)
    } else {
        None
    };
    let message = data.get(PREFIX_BYTES..).unwrap_or_default();
    let outcome =
        incoming.shared.call(Effort::Small, &plain.terms, |dispatch, call| dispatch.grpc(plain.method, call, message));
    if matches!(outcome, Err(Failed::Declined(Declined::TooLarge))) {
        return large(incoming, plain, data).await;
    }
    after(outcome, data)
}

fn after(outcome: Outcome, data: Bytes) -> Next {
    match outcome {
        Ok((answered, took)) => Next::Reply(Reply::Answer(answered, took)),
        Err(Failed::Panicked) => Next::Reply(Reply::Panic),
        Err(Failed::Declined(_)) => Next::Forward(data),
    }
}

/// Answers a message on a thread for large work.
async fn large(incoming: &mut Incoming, plain: &Plain, data: Bytes) -> Next {
    let ask = incoming.ask(&data, data.len());
    let (shared, connection) = (Arc::clone(&incoming.shared), Arc::clone(&incoming.connection));
    let model = Arc::clone(&ask.path[0]);
    if let Err(status) = incoming.reach(&data, data.len()) {
        return Next::Reply(Reply::Refusal(status));
    }
    let mut turn = None;
    loop {
        connection.room().await;
        let (method, body) = (plain.method, data.clone());
        let called = shared.call_large(ask.clone(), &connection, plain.terms.clone(), move |dispatch, call| {
            dispatch.grpc(method, call, body.get(PREFIX_BYTES..).unwrap_or_default())
        });
        match called.await {
            Ok(outcome) => return after(outcome, data),
            Err(NotRun::Refused(refusal)) => {
                return Next::Reply(Reply::Refusal(shared.refuse(&model, refusal, late)));
            }
            // While the client leaves answers unread, one request at a time goes on; else all would answer at once.
            Err(NotRun::Unread) if turn.is_none() => turn = Some(connection.turn.lock().await),
            Err(NotRun::Unread) => {}
            Err(NotRun::Closed) => return Next::Reset(Reason::CANCEL),
        }
    }
}

/// The body of a request, as far as it was read.
enum Gathered {
    /// One whole message behind its prefix.
    Message(Bytes),
    /// A body that the reference judges. These are its first bytes; more may follow.
    Unusual(Bytes),
    /// There is no room for the message, or it is large work that would wait too long. The rest of it is not read.
    Refused(Status),
    /// Bytes follow the message.
    TooMany,
    Stalled,
    Lost,
}

async fn gather(incoming: &mut Incoming, first: Option<Bytes>, is_plain: bool) -> Gathered {
    if incoming.shared.account.is_full() {
        return Gathered::Refused(incoming.shared.no_bytes(""));
    }
    let (limit, stall) = (incoming.shared.limits.max_request_bytes, incoming.shared.limits.stall_timeout);
    let mut one = first;
    let mut all: Vec<u8> = Vec::new();
    let mut is_judged = false;
    loop {
        let so_far: &[u8] = one.as_deref().unwrap_or(&all);
        if let Some(prefix) = so_far.first_chunk::<PREFIX_BYTES>() {
            let size = grpc_message::length(*prefix);
            if size > limit {
                return Gathered::Unusual(one.unwrap_or_else(|| all.into()));
            }
            if so_far.len() > size + PREFIX_BYTES {
                return Gathered::TooMany;
            }
            if size > INLINE_BYTES && !is_judged {
                is_judged = true;
                let shares = incoming.shares(so_far);
                if !shares.has_room(size) {
                    return Gathered::Refused(incoming.shared.no_bytes(shares.model()));
                }
                if is_plain && let Some(status) = incoming.refusal(so_far, size) {
                    return Gathered::Refused(status);
                }
            }
        }
        if !so_far.is_empty()
            && let Err(status) = incoming.reach(so_far, so_far.len())
        {
            return Gathered::Refused(status);
        }
        let body = &mut incoming.body;
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
    if grpc_message::whole(&data).is_some() { Gathered::Message(data) } else { Gathered::Unusual(data) }
}
