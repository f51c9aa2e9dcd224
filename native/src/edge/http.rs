//! Serves one connection of the HTTP port, and answers its requests. The library hyper parses and writes HTTP/1.1; the
//! connection's task answers small requests.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderName, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use super::access::session;
use super::connection::{COUNTED_BYTES, Connection, Debt, Open, Order, Owed};
use super::dispatch::{Dispatch, Method, RareTarget, Target, decoded, named_model, target};
use super::encoding::{self, Accepted, Encoded};
use super::events::Event;
use super::grpc_message::{Code, Status};
use super::health;
use super::inflating;
use super::notes;
use super::own_wakes::{self, OwnWaker};
use super::pooled::Pooled;
use super::records::{RunRecord, SpanRecord, times_ns};
use super::refusal_pause::RefusalPause;
use super::refusals;
use super::sampling::Traced;
use super::shared::{self, Failed, Made, Outcome, Shared, Terms};
use super::socket::Socket;
use crate::admission::account::{Hold, Shares};
use crate::admission::fair_queue::{Ask, Refusal};
use crate::admission::gate::Lane;
use crate::admission::limits::{self, INLINE_BYTES, PARSED_TIMES, URL_BYTES};
use crate::admission::pace::Pace;
use crate::forms::{Answered, Call};
use crate::forward::{BodyError, Forwarded, RequestBody, UnreadReason, Upload};
use crate::plan::faults::{self, BoxedFault, Fault};
use crate::plan::{Declined, Effort};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const MODEL_VERSION: HeaderName = HeaderName::from_static("x-model-version");
/// Maximal number of bytes that are allocated for a body before its bytes have come.
const TRUSTED_BYTES: usize = 1 << 20;
/// Maximal size of the body of a refused request that is read to its end, so that the connection can stay open.
const MOST_DROPPED: u64 = 1 << 20;

/// The body of an answer; its request counts as open until this value is dropped.
pub struct Answer {
    pub content: Content,
    _open: Open,
}

/// The content of an answer's body.
pub enum Content {
    Whole(Bytes),
    Forwarded(Forwarded),
}

impl Answer {
    fn whole(data: Bytes, open: Open) -> Self {
        let content = Content::Whole(data);
        Answer { content, _open: open }
    }

    /// Adds the field "models" to the body of an error about a model that is not served.
    fn add_models(&mut self, known: &[String]) {
        if let Content::Whole(data) = &mut self.content
            && let Ok(serde_json::Value::Object(mut members)) = serde_json::from_slice(data)
        {
            members.insert("models".to_owned(), known.into());
            *data = serde_json::Value::Object(members).to_string().into();
        }
    }

    fn forwarded(body: Forwarded, open: Open) -> Self {
        let content = Content::Forwarded(body);
        Answer { content, _open: open }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.get_mut().content {
            Content::Whole(data) if data.is_empty() => Poll::Ready(None),
            Content::Whole(data) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(data))))),
            Content::Forwarded(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(data) => data.is_empty(),
            Content::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(data) => SizeHint::with_exact(data.len() as u64),
            Content::Forwarded(body) => body.size_hint(),
        }
    }
}

/// Serves one connection of HTTP/1.1 until it is closed.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: Arc<Connection>, shared: Arc<Shared>) {
    let service = service_fn(|request| handle(&shared, &connection, request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    // The sweeper closes connections whose request head comes too slowly, because hyper would start a timer for each
    // request.
    builder.header_read_timeout(None).max_header_size(shared.limits.max_head_bytes);
    let socket = TokioIo::new(Socket::new(stream, Arc::clone(&connection)));
    let mut hyper = pin!(builder.serve_connection(socket, service));
    let mut is_closing = false;
    let mut waker = OwnWaker::default();
    let mut pause = RefusalPause::new(&shared.pauses, Arc::clone(&connection));
    poll_fn(|cx| {
        connection.wake_by(cx.waker());
        pause.poll_end(cx);
        let begun = Instant::now();
        connection.begin_turn();
        match connection.order() {
            Order::Serve | Order::Drain => {}
            Order::Close => {
                if !is_closing {
                    is_closing = true;
                    hyper.as_mut().graceful_shutdown();
                }
            }
            Order::Cut => {
                shared.statistics.count(Event::CutHttp);
                return Poll::Ready(());
            }
        }
        let state = hyper.as_mut().poll(&mut Context::from_waker(waker.of(cx))).map(|ended| {
            // hyper itself answers a request that it can not parse.
            if ended.is_err_and(|error| error.is_parse()) {
                shared.statistics.count(Event::MalformedHttp);
            }
        });
        if state.is_pending()
            && let Some(flood) = connection.flood()
        {
            shared.statistics.count(flood.into());
            return Poll::Ready(());
        }
        pause.after_turn(begun, connection.num_in_turn(), cx);
        state
    })
    .await;
}

/// Counts a refused request on its connection if the server has too much work: see [`super::refusal_pause`].
pub fn note_refusal(connection: &Connection, response: &Response<Answer>) {
    if response.status() == StatusCode::SERVICE_UNAVAILABLE && response.headers().contains_key(RETRY_AFTER) {
        connection.note_refused();
    }
}

async fn handle(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    poll_fn(|cx| {
        if connection.is_blocked() {
            // Pipelined requests wait while the client leaves answers unread. The socket wakes this task when the
            // client has read more.
            return Poll::Pending;
        }
        if connection.is_turn_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
    let open = connection.open();
    let exchange = Exchange::new(shared, connection);
    let (head, body) = request.into_parts();
    exchange.connection.finish_head(|| {
        let fields = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        head.uri.path().len() + fields.sum::<usize>()
    });
    let mut response = exchange.checked(head, RequestBody::Http1(body), open).await;
    note_refusal(exchange.connection, &response);
    exchange.connection.finish_head(|| 0);
    if exchange.connection.order() != Order::Serve {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Returns true if the request's Host headers are valid: exactly one in HTTP/1.1, at most one in HTTP/1.0. Source: RFC
/// 9112, section 3.2.
fn has_one_host(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(http::header::HOST).iter();
    let has_one = hosts.next().is_some() || head.version < http::Version::HTTP_11;
    has_one && hosts.next().is_none()
}

/// The result of the check of a data request's path and headers.
#[derive(Clone)]
struct Plain {
    terms: Terms,
    /// The target of a rare path.
    rare: Option<Arc<RareTarget>>,
    json_length: Option<usize>,
}

impl Plain {
    fn target<'h>(&'h self, head: &'h Parts) -> Target<'h> {
        let usual = || target(head.uri.path()).expect("plain() has read the path");
        let found = self.rare.as_ref().map_or_else(usual, |rare| rare.target());
        Target { json_length: self.json_length, ..found }
    }
}

/// A data request that has another HTTP method than POST, or a fault in its path or headers.
struct Refused {
    method: Method,
    fault: Option<BoxedFault>,
}

/// Checks the path and the headers of a request; returns None for a control request, which is forwarded.
///
/// # Errors
/// The request is a data request that is refused.
fn plain(shared: &Shared, connection: &Connection, head: &Parts) -> Result<Option<Plain>, Refused> {
    let path = head.uri.path();
    let (method, rare) = match target(path) {
        Some(found) => (found.method, None),
        None => match RareTarget::of_path(head.method.as_str(), path) {
            Some((method, rare)) => (method, Some(rare)),
            None => return Ok(None),
        },
    };
    let refused = |fault| Refused { method, fault: Some(fault) };
    let mut terms = match shared.terms(&head.headers, connection) {
        Ok(terms) => terms,
        // A browser without credentials gets the page to sign in.
        Err(_) if head.method == http::Method::GET || head.method == http::Method::HEAD => return Ok(None),
        // The control server tells the core of the session, and sends the browser here again.
        Err(_) if session(&head.headers).is_some() => return Ok(None),
        Err(fault) => return Err(refused(fault)),
    };
    if head.method != http::Method::POST {
        return Err(Refused { method, fault: None });
    }
    let rare = rare.transpose().map_err(refused)?.map(Arc::new);
    terms.accepted = Accepted::of(&head.headers);
    let told = if method == Method::Infer { head.headers.get(JSON_LENGTH) } else { None };
    let json_length = told.map(|value| header_length(value.as_bytes())).transpose().map_err(refused)?;
    Ok(Some(Plain { terms, rare, json_length }))
}

/// Parses the value of the header Inference-Header-Content-Length.
fn header_length(value: &[u8]) -> Result<usize, BoxedFault> {
    let text = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.filter(|text| text.len() <= 19).and_then(|text| text.parse().ok()).ok_or_else(|| {
        let shown = value[..value.len().min(32)].iter().map(|&byte| match byte {
            0x20..0x7f => char::from(byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        });
        faults::no_header_length(&shown.collect::<String>())
    })
}

/// Polls a body for its next part. For each part that is taken, hyper wakes the task to read more: in vain, once the body
/// has come.
fn next_part(body: &mut RequestBody, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    if let RequestBody::Http2(_) = body {
        return Pin::new(body).poll_frame(cx);
    }
    let (part, has_woken) = own_wakes::without(|| Pin::new(&mut *body).poll_frame(cx));
    if has_woken && !(part.is_ready() && body.is_end_stream()) {
        cx.waker().wake_by_ref();
    }
    part
}

/// Returns the queue in which a request with this head waits to be forwarded.
fn lane(head: &Parts) -> Lane {
    let is_search = head.method == http::Method::POST && decoded(head.uri.path()).ends_with(":neighbors");
    if is_search { Lane::Search } else { Lane::Control }
}

/// Returns the name of the configured model in a request's path; "" if the path names no configured model.
fn model<'h>(shared: &Shared, head: &'h Parts) -> Cow<'h, str> {
    let name = named_model(head.uri.path());
    if shared.known_model(&name).is_empty() { "".into() } else { name }
}

/// Says whether a body could not be read because its bytes are wrong, and not because the connection ended.
fn is_malformed(error: &BodyError) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| matches!(cause.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData))
}

/// Adds the headers that `service/http/middleware.py` adds to each answer to a GET.
fn secure(headers: &mut HeaderMap) {
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// Returns the same error answer that uvicorn gives to a malformed request.
fn bad_request(open: Open) -> Response<Answer> {
    let mut refusal = Response::new(Answer::whole(Bytes::from_static(b"Invalid HTTP request received."), open));
    *refusal.status_mut() = StatusCode::BAD_REQUEST;
    refusal.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    refusal
}

/// Returns the refusal of a request over HTTP/2 with more than [`limits::MAX_HEADERS`] headers, as hyper does over
/// HTTP/1.1.
pub fn too_many_headers(shared: &Shared, open: Open) -> Response<Answer> {
    shared.statistics.refused("", "headers");
    let mut refusal = bad_request(open);
    *refusal.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    refusal
}

/// One HTTP request that the core has received and not yet answered.
pub struct Exchange<'e> {
    pub shared: &'e Arc<Shared>,
    pub connection: &'e Arc<Connection>,
    // The run of a lookup or graph that gave the answer, if the request is traced.
    run: OnceLock<RunRecord>,
}

/// The body of a request, as far as the server has read it.
enum Gathered {
    Whole(Bytes, Hold),
    /// The body's Content-Length is above the limit. The control server refuses the request by its head.
    TooLong,
    /// The first bytes of a body that is larger than the limit. The control server refuses the request; more bytes
    /// may follow.
    TooMuch(Bytes),
    NoRoom,
    /// The queue of large work refuses the large request, so the server does not read its body.
    Refused(Refusal),
    /// The client sent the body too slowly.
    Stalled,
    /// The client disconnected.
    Lost,
    /// The body has an error, such as a chunk without its size.
    Malformed,
    /// The client sent the body in too many tiny parts.
    Flood,
}

impl<'e> Exchange<'e> {
    /// Begins the exchange of a request on this connection.
    pub fn new(shared: &'e Arc<Shared>, connection: &'e Arc<Connection>) -> Self {
        Exchange { shared, connection, run: OnceLock::new() }
    }

    /// Returns the answer to a request; refuses one that is malformed.
    pub async fn checked(&self, head: Parts, body: RequestBody, open: Open) -> Response<Answer> {
        // A CONNECT request is never forwarded: the control server's parser would read the body of a CONNECT as
        // further requests.
        if !has_one_host(&head) || head.method == http::Method::CONNECT {
            return self.malformed(Event::MalformedHttp, open);
        }
        match self.traced(&head) {
            None => self.respond(head, body, open).await,
            Some(traced) => Box::pin(self.respond_traced(traced, head, body, open)).await,
        }
    }

    async fn respond_traced(
        &self,
        (traced, name, path): (Traced, String, String),
        head: Parts,
        body: RequestBody,
        open: Open,
    ) -> Response<Answer> {
        let response = self.respond(head, body, open).await;
        if let Content::Whole(_) = response.body().content {
            let id = response.headers().get(super::request_id::REQUEST_ID).and_then(|id| id.to_str().ok());
            self.shared.records.trace(SpanRecord {
                name,
                path,
                trace_id: format!("{:032x}", traced.trace_id),
                request_id: id.unwrap_or_default().to_owned(),
                times_ns: times_ns(traced.begun, Instant::now()),
                parent: traced.parent,
                status: response.status().as_u16(),
                code: "",
                text: String::new(),
                run: self.run.get().cloned(),
            });
        }
        response
    }

    /// Returns the trace of a data request that is sampled for one, with its span's name and its path.
    fn traced(&self, head: &Parts) -> Option<(Traced, String, String)> {
        let tracing = self.shared.tracing.as_ref().filter(|_| head.method == http::Method::POST)?;
        let rare = || RareTarget::of_path("POST", head.uri.path())?.1.ok();
        let (usual, rare) = (target(head.uri.path()), target(head.uri.path()).is_none().then(rare).flatten());
        let found = usual.or_else(|| rare.as_ref().map(RareTarget::target))?;
        let traced = tracing.begin(&head.headers)?;
        Some((traced, format!("POST {}", found.route()), head.uri.path().to_owned()))
    }

    async fn respond(&self, mut head: Parts, mut body: RequestBody, open: Open) -> Response<Answer> {
        if head.uri.path_and_query().is_some_and(|url| url.as_str().len() > URL_BYTES) {
            return self.long_url(&head, &body, open);
        }
        if let Some(text) = self.health(&head, &body) {
            return self.page(&head.headers, text, open);
        }
        if self.shared.cors.is_preflight(&head.method, &head.headers) {
            return self.preflight(&head, &body, open);
        }
        let plain = match plain(self.shared, self.connection, &head) {
            Ok(plain) => plain,
            Err(refused) => return Box::pin(self.refuse_data(refused, &head, body, open)).await,
        };
        // The core reads a request's body, up to the limit on its size, before it forwards the request, so that a slow
        // client does not hold a slot of the control server.
        if plain.is_none() && body.is_end_stream() && lane(&head) == Lane::Control {
            return Box::pin(self.forward(head, self.upload(Bytes::new(), body), open)).await;
        }
        let (data, mut hold) = match self.gather(&mut body, &head, plain.is_some()).await {
            Gathered::Whole(data, hold) => (data, hold),
            gathered => return Box::pin(self.not_whole(gathered, head, body, plain, open)).await,
        };
        let may_run = |plain: &Plain| plain.terms.allows(plain.target(&head).model);
        let (data, _permit) = if head.headers.contains_key(CONTENT_ENCODING) && plain.as_ref().is_some_and(may_run) {
            match Box::pin(self.inflate(&mut head, data, &mut hold)).await {
                Ok(inflated) => inflated,
                Err(status) => return self.not_inflated(plain.as_ref(), &head, &status, open),
            }
        } else {
            (data, None)
        };
        let Some(plain) = plain else {
            return Box::pin(self.forward_whole(head, data, hold, open)).await;
        };
        let found = plain.target(&head);
        let (method, name, accepted) = (found.method, found.model, plain.terms.accepted);
        // Over HTTP/2, the connection's other requests may have been answered while this one's body came.
        self.connection.room().await;
        let mut outcome = Err(Failed::Declined(Declined::TooLarge));
        if data.len() <= INLINE_BYTES {
            outcome = self.shared.call(Effort::Small, self.connection, &plain.terms, |dispatch, call| {
                dispatch.http(&found, call, &data)
            });
        }
        if let Err(Failed::Declined(why)) = &outcome
            && why.is_for_a_pool()
        {
            outcome = match Box::pin(self.large(why, &head, &plain, &data, &mut hold)).await {
                Ok(outcome) => outcome,
                Err(status) => return self.refuse(&head.headers, &status, open),
            };
        }
        if outcome.as_ref().is_ok_and(|made| made.body.is_due())
            && let Ok(made) = outcome
        {
            let ask = || self.ask(&head, data.len());
            outcome = match Box::pin(inflating::finish(self.shared, made, accepted, ask)).await {
                Ok(made) => Ok(made),
                Err(refusal) => {
                    let status = self.too_long(&model(self.shared, &head), refusal);
                    return self.refuse(&head.headers, &status, open);
                }
            };
        }
        let share = plain.terms.share(name);
        match outcome {
            Ok(Made { answered, body, debt, took }) => {
                if self.shared.tracing.is_some()
                    && let Some(run) = RunRecord::of(&answered)
                {
                    let _ = self.run.set(run);
                }
                let id = self.shared.ids.of_http(&head.headers);
                let asked = || (id.to_str().unwrap_or_default().to_owned(), self.client(&head.headers));
                self.shared.statistics.succeeded(method, &answered, took, asked);
                self.answer(&head.headers, &answered, body, debt, id, open)
            }
            Err(Failed::Panicked) => {
                let id = self.shared.ids.of_http(&head.headers);
                let status = shared::internal_error(id.to_str().unwrap_or_default());
                let (shared, client) = (self.shared, self.client(&head.headers));
                refusals::count_status(shared, method, share, &status, id.to_str().unwrap_or_default(), client);
                self.refusal(&head.headers, &status, id, open)
            }
            Err(Failed::Refused(fault)) => {
                // A model that the caller can not see must look like one that is not there.
                let is_known = !share.is_empty() && !self.shared.known_model(name).is_empty();
                let fault = fault.of_model(share);
                if fault.code == Code::NotFound && !is_known {
                    return self.unknown_model(method, &head, fault, self.shared.models_of(&plain.terms), open);
                }
                self.fault(method, &head, &fault, open)
            }
            Err(Failed::Declined(_)) => {
                let fault = faults::internal("a form of HTTP left its request undone");
                self.fault(method, &head, &fault.of_model(share), open)
            }
        }
    }

    /// Answers a request whose body is not read to its end: refuses it, or forwards a control request.
    async fn not_whole(
        &self,
        gathered: Gathered,
        head: Parts,
        body: RequestBody,
        plain: Option<Plain>,
        open: Open,
    ) -> Response<Answer> {
        match gathered {
            Gathered::Whole(data, hold) => self.forward_whole(head, data, hold, open).await,
            Gathered::TooLong if plain.is_none() => {
                self.forward(head, self.upload(Bytes::new(), body).withhold(), open).await
            }
            Gathered::TooMuch(begun) if plain.is_none() => self.forward(head, self.upload(begun, body), open).await,
            Gathered::TooLong | Gathered::TooMuch(_) => {
                let limit = self.shared.limits.max_request_bytes;
                let size = body.size_hint().exact().filter(|size| *size > limit as u64);
                let fault =
                    size.map_or_else(|| faults::body_over_limit(limit), |size| faults::body_too_long(size, limit));
                let method = plain.map_or(Method::HttpPredict, |plain| plain.target(&head).method);
                let fault = fault.of_model(&model(self.shared, &head));
                self.unread(self.fault(method, &head, &fault, open))
            }
            Gathered::NoRoom => {
                let model = model(self.shared, &head);
                self.refuse_undone(&head, body, &self.shared.no_bytes(&model), open).await
            }
            Gathered::Refused(refusal) => {
                let model = model(self.shared, &head);
                self.refuse_undone(&head, body, &self.too_long(&model, refusal), open).await
            }
            Gathered::Stalled => {
                let status = self.shared.stalled(&model(self.shared, &head));
                let mut refusal = self.refuse_unread(&head.headers, &status, open);
                *refusal.status_mut() = StatusCode::REQUEST_TIMEOUT;
                refusal
            }
            Gathered::Lost => {
                if !self.connection.is_http2() {
                    self.connection.tell(Order::Cut);
                }
                bad_request(open)
            }
            Gathered::Malformed => self.malformed(Event::MalformedHttp, open),
            Gathered::Flood => self.malformed(Event::FloodParts, open),
        }
    }

    /// Answers the body of an HTTP request on a thread of a pool; `why` is the reason why a thread of connections does
    /// not answer it.
    async fn large(
        &self,
        why: &Declined,
        head: &Parts,
        plain: &Plain,
        data: &Bytes,
        hold: &mut Hold,
    ) -> Result<Outcome, Status> {
        let ask = self.ask(head, data.len());
        if !hold.reach(data.len(), || self.shares(head)) {
            return Err(self.shared.no_bytes(&ask.path[0]));
        }
        let (uri, data, rare, json_length) = (head.uri.clone(), data.clone(), plain.rare.clone(), plain.json_length);
        let form = move |dispatch: &dyn Dispatch, call: &Call<'_>| {
            let found = rare.as_ref().map(|rare| rare.target()).or_else(|| target(uri.path()));
            let found = Target { json_length, ..found.ok_or(Declined::Unusual)? };
            dispatch.http(&found, call, &data)
        };
        let (shared, connection, terms) = (self.shared, self.connection, &plain.terms);
        Pooled { shared, connection, terms, ask, form }.run(why, None, || self.late()).await
    }

    /// Inflates the body of a request if it is compressed; see [`inflating::inflate_body`].
    async fn inflate(
        &self,
        head: &mut Parts,
        data: Bytes,
        hold: &mut Hold,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Status> {
        let ask = self.ask(head, data.len());
        let too_long = |model: &str, refusal| self.too_long(model, refusal);
        inflating::inflate_body(self.shared, self.connection, head, data, hold, ask, too_long).await
    }

    /// Refuses a request whose body can not be inflated: for a fault of the request, or because of a limit, which has counted
    /// it.
    fn not_inflated(&self, plain: Option<&Plain>, head: &Parts, status: &Status, open: Open) -> Response<Answer> {
        match plain {
            Some(plain) if status.code == Code::InvalidArgument => {
                let found = plain.target(head);
                let fault = Fault::new(status.code, status.text.clone()).of_model(plain.terms.share(found.model));
                self.fault(found.method, head, &fault, open)
            }
            _ => self.refuse(&head.headers, status, open),
        }
    }

    fn late(&self) -> String {
        format!("Timed out: the request took longer than {} s.", self.shared.limits.http_timeout.as_secs_f64())
    }

    fn too_long(&self, model: &str, refusal: Refusal) -> Status {
        self.shared.refuse(model, refusal, || self.late())
    }

    /// Returns the model, client, size and deadline of a request, by which a queue decides whether the request may
    /// wait.
    fn ask(&self, head: &Parts, size: usize) -> Ask {
        let deadline = Instant::now() + self.shared.limits.http_timeout;
        Ask::new(&model(self.shared, head), &self.connection.peer, size, Some(deadline))
    }

    /// Returns the body of the answer to a health check; None if the core can not answer the check.
    fn health(&self, head: &Parts, body: &RequestBody) -> Option<&'static str> {
        let is_plain = head.method == http::Method::GET && head.uri.query().is_none() && body.is_end_stream();
        if !is_plain {
            return None;
        }
        self.shared.health()?.page(head.uri.path())
    }

    fn page(&self, asked: &HeaderMap, text: &'static str, open: Open) -> Response<Answer> {
        let mut response = Response::new(Answer::whole(Bytes::from_static(text.as_bytes()), open));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        secure(headers);
        self.mark(headers, asked, self.shared.ids.of_http(asked));
        response
    }

    /// Refuses a request because the server has too much work. The body is dropped as it comes, so that the connection
    /// can stay open: a client that connects anew for each request costs the server more, and escapes the pause after
    /// refusals. If the body is long or its client waits to send it, the connection is closed instead.
    async fn refuse_undone(
        &self,
        head: &Parts,
        mut body: RequestBody,
        status: &Status,
        open: Open,
    ) -> Response<Answer> {
        let is_short = body.size_hint().upper().is_some_and(|size| size <= MOST_DROPPED);
        if !is_short || self.connection.is_http2() || head.headers.contains_key(EXPECT) {
            return self.refuse_unread(&head.headers, status, open);
        }
        let mut pace = Pace::new(&self.shared.limits);
        while !body.is_end_stream() {
            match pace.next(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => pace.count(frame.data_ref().map_or(0, Bytes::len)),
                Ok(Some(Err(_))) | Err(_) => return self.refuse_unread(&head.headers, status, open),
            }
        }
        self.refuse(&head.headers, status, open)
    }

    /// Refuses a request without reading the rest of its body, and closes the connection.
    fn refuse_unread(&self, asked: &HeaderMap, status: &Status, open: Open) -> Response<Answer> {
        self.unread(self.refuse(asked, status, open))
    }

    /// Marks the refusal of a request the rest of whose body is not read: the connection is closed.
    fn unread(&self, mut refusal: Response<Answer>) -> Response<Answer> {
        self.connection.note_unread();
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        refusal
    }

    /// Refuses a data request for its path, its HTTP method, its headers or its caller. Its body is read first, so that the
    /// connection can stay open; but of an unknown caller only a small one.
    async fn refuse_data(&self, refused: Refused, head: &Parts, mut body: RequestBody, open: Open) -> Response<Answer> {
        let Refused { method, fault } = refused;
        let is_known = fault.as_ref().is_none_or(|fault| fault.code != Code::Unauthenticated);
        let is_small = body.size_hint().exact().is_some_and(|size| size <= INLINE_BYTES as u64);
        let is_read = body.is_end_stream()
            || (is_known || is_small) && matches!(self.gather(&mut body, head, false).await, Gathered::Whole(..));
        let refusal = match fault {
            Some(fault) => self.fault(method, head, &fault, open),
            None => self.not_allowed(method, head, open),
        };
        if is_read { refusal } else { self.unread(refusal) }
    }

    /// Answers a request to a path of a data request that has another HTTP method than POST.
    fn not_allowed(&self, method: Method, head: &Parts, open: Open) -> Response<Answer> {
        const ALLOWED: HeaderValue = HeaderValue::from_static("POST");
        // An answer to HEAD has the headers of an answer to GET.
        let name = if head.method == http::Method::HEAD { "GET" } else { head.method.as_str() };
        let mut response = if head.method == http::Method::OPTIONS {
            let mut response = Response::new(Answer::whole(Bytes::new(), open));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
            // TensorFlow Serving answers 200 to a browser's question, also where it allows no origin.
            if !head.headers.contains_key(ORIGIN) {
                *response.status_mut() = StatusCode::NO_CONTENT;
            }
            self.mark(response.headers_mut(), &head.headers, self.shared.ids.of_http(&head.headers));
            response
        } else if method == Method::Infer {
            let text = format!("{name} is not allowed here; send it by POST");
            let fault = Fault::new(Code::InvalidArgument, text).of_model(&model(self.shared, head));
            let mut response = self.fault(method, head, &fault, open);
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, ALLOWED);
            response
        } else {
            let fault = faults::malformed_path(name, head.uri.path(), "; send it by POST");
            let fault = fault.of_model(&model(self.shared, head));
            let mut response = self.fault(method, head, &fault, open);
            // TensorFlow Serving answers 400 for its own method.
            if method != Method::HttpPredict {
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                response.headers_mut().insert(ALLOW, ALLOWED);
            }
            response
        };
        if head.method == http::Method::GET || head.method == http::Method::HEAD {
            secure(response.headers_mut());
        }
        response
    }

    /// Answers a browser's question whether a page may send a request.
    fn preflight(&self, head: &Parts, body: &RequestBody, open: Open) -> Response<Answer> {
        let mut response = Response::new(Answer::whole(Bytes::new(), open));
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        self.mark(response.headers_mut(), &head.headers, self.shared.ids.of_http(&head.headers));
        if body.is_end_stream() { response } else { self.unread(response) }
    }

    /// Refuses a request whose URL is too long.
    fn long_url(&self, head: &Parts, body: &RequestBody, open: Open) -> Response<Answer> {
        let text = format!("The request's path and query have more than {URL_BYTES} bytes.");
        let status = Status { code: Code::InvalidArgument, text, may_retry: false };
        self.shared.statistics.refused("", "url");
        let mut refusal = if body.is_end_stream() {
            self.refuse(&head.headers, &status, open)
        } else {
            self.refuse_unread(&head.headers, &status, open)
        };
        *refusal.status_mut() = StatusCode::URI_TOO_LONG;
        refusal
    }

    /// Returns the counters of the bytes that this connection's requests to the request's model hold.
    fn shares(&self, head: &Parts) -> Arc<Shares> {
        self.connection.shares(&self.shared.account, &model(self.shared, head))
    }

    /// Reads the body of a request. `is_plain`: the core may answer the request, so a large one is announced to the
    /// queue of large work.
    async fn gather(&self, body: &mut RequestBody, head: &Parts, is_plain: bool) -> Gathered {
        let limit = self.shared.limits.max_request_bytes;
        let told = body.size_hint().exact().and_then(|size| usize::try_from(size).ok());
        if body.size_hint().lower() > limit as u64 {
            return Gathered::TooLong;
        }
        if self.shared.account.is_full() {
            return Gathered::NoRoom;
        }
        let large = told.filter(|size| *size > INLINE_BYTES);
        if large.is_some_and(|size| !self.shares(head).has_room(size)) {
            self.connection.note_large_refused();
            return Gathered::NoRoom;
        }
        // A large request that the core may answer stays announced to the queue of large work until its body is read.
        let announced = large.filter(|_| is_plain).map(|size| self.shared.large.announce(self.ask(head, size)));
        let _announced = match announced.transpose() {
            Ok(announcement) => announcement.map(|announcement| (announcement, self.connection.expect_body())),
            Err(refusal) => {
                self.connection.note_large_refused();
                return Gathered::Refused(refusal);
            }
        };
        let mut hold = Hold::default();
        let mut pace = Pace::new(&self.shared.limits);
        let mut parts = limits::BodyParts::default();
        let mut one = Bytes::new();
        let mut all: Vec<u8> = Vec::new();
        while !body.is_end_stream() {
            let data = match pace.next(|cx| next_part(body, cx)).await {
                Err(_) => return Gathered::Stalled,
                Ok(None) => break,
                Ok(Some(Err(error))) => return if is_malformed(&error) { Gathered::Malformed } else { Gathered::Lost },
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => data,
                    _ => continue,
                },
            };
            pace.count(data.len());
            if parts.is_flood(data.len()) {
                return Gathered::Flood;
            }
            if one.is_empty() && all.is_empty() {
                if data.len() > limit {
                    return Gathered::TooMuch(data);
                }
                // A body that comes whole in its first part is small, and is not counted against the limit on bytes in
                // flight.
                if !body.is_end_stream() && !hold.reach(data.len(), || self.shares(head)) {
                    return Gathered::NoRoom;
                }
                one = data;
                continue;
            }
            if all.is_empty() {
                all.reserve(told.unwrap_or(0).min(TRUSTED_BYTES));
                all.extend_from_slice(&one);
                one = Bytes::new();
            }
            if !hold.reach(all.len() + data.len(), || self.shares(head)) {
                return Gathered::NoRoom;
            }
            all.extend_from_slice(&data);
            if all.len() > limit {
                return Gathered::TooMuch(all.into());
            }
        }
        Gathered::Whole(if all.is_empty() { one } else { all.into() }, hold)
    }

    /// Returns a body to forward: the bytes that were read already, then the bytes that the client still sends.
    fn upload(&self, begun: Bytes, rest: RequestBody) -> Upload {
        let (connection, shared) = (Arc::clone(self.connection), Arc::clone(self.shared));
        let left = move |left| match left {
            UnreadReason::Unread => connection.note_unread(),
            UnreadReason::Flood => {
                shared.statistics.count(Event::FloodParts);
                connection.tell(Order::Cut);
            }
        };
        Upload::streamed(begun, rest, Box::new(left))
    }

    /// Refuses a malformed request, and closes its connection.
    fn malformed(&self, event: Event, open: Open) -> Response<Answer> {
        self.shared.statistics.count(event);
        self.connection.note_unread();
        let mut refusal = bad_request(open);
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        refusal
    }

    /// Forwards a request whose body is read. A large body, which is JSON, counts as what Python makes of it, and a
    /// compressed one as what Python may inflate it to.
    async fn forward_whole(&self, head: Parts, data: Bytes, mut hold: Hold, open: Open) -> Response<Answer> {
        let made = if head.headers.contains_key(CONTENT_ENCODING) && !data.is_empty() {
            encoding::most_inflated(data.len()).min(self.shared.limits.max_request_bytes)
        } else if data.len() > INLINE_BYTES {
            data.len().saturating_mul(PARSED_TIMES).min(self.shared.account.limit())
        } else {
            0
        };
        if made > 0 && !hold.reach(made, || self.shares(&head)) {
            let model = model(self.shared, &head);
            return self.refuse(&head.headers, &self.shared.no_bytes(&model), open);
        }
        self.forward(head, Upload::whole(data), open).await
    }

    async fn forward(&self, mut head: Parts, body: Upload, open: Open) -> Response<Answer> {
        let shared = self.shared;
        let ask = self.ask(&head, usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX));
        let model = Arc::clone(&ask.path[0]);
        let lane = lane(&head);
        let permit = match Box::pin(shared.http_gates.enter(lane, ask)).await {
            Ok(permit) => permit,
            Err(refusal) => {
                let mut response = self.refuse(&head.headers, &self.too_long(&model, refusal), open);
                if body.is_unread() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                return response;
            }
        };
        if let (Lane::Search, Some(permit)) = (lane, &permit) {
            shared.statistics.waited(&model, permit.waited);
        }
        shared.statistics.count(Event::ForwardedHttp);
        let headers = head.headers.clone();
        let is_probe = health::is_probe(head.uri.path());
        let client = self.client(&headers);
        shared.mark(&mut head.headers, self.connection, &client);
        // The future of a forwarded request is boxed, so that the futures of requests that the core answers itself stay
        // small.
        let forwarded = Box::pin(shared.http_upstream.forward(head, body)).await;
        drop(permit);
        if let Some(mut response) = forwarded {
            self.allow_origin(response.headers_mut(), &headers);
            return response.map(|body| Answer::forwarded(body, open));
        }
        shared.statistics.count(Event::UpstreamFailedHttp);
        let (id, status) = (shared.ids.of_http(&headers), shared::no_upstream());
        // A probe that comes while the server starts is no failed request.
        if !is_probe {
            refusals::count_status(shared, Method::OtherHttp, &model, &status, id.to_str().unwrap_or_default(), client);
        }
        self.refusal(&headers, &status, id, open)
    }

    fn answer(
        &self,
        asked: &HeaderMap,
        answered: &Answered,
        body: Encoded,
        debt: Debt,
        id: HeaderValue,
        open: Open,
    ) -> Response<Answer> {
        let json_length = answered.json_length;
        let (mut body, mark_encoding) = body.into_http();
        if body.len() >= COUNTED_BYTES || self.connection.is_http2() {
            body = Bytes::from_owner(Owed::new(body, debt));
        }
        let mut response = Response::new(Answer::whole(body, open));
        let headers = response.headers_mut();
        headers.insert(MODEL_VERSION, HeaderValue::from(answered.servable.version()));
        notes::add(headers, answered);
        match json_length {
            Some(length) => {
                headers.insert(JSON_LENGTH, HeaderValue::from(length));
                headers.insert(CONTENT_TYPE, OCTETS);
            }
            None => {
                headers.insert(CONTENT_TYPE, JSON);
            }
        }
        self.mark(headers, asked, id);
        mark_encoding(headers);
        response
    }

    fn client(&self, headers: &HeaderMap) -> String {
        self.shared.client(headers, self.connection)
    }

    /// Refuses a gRPC call that was sent to the HTTP port, in gRPC's form: its client shows no text of an HTTP error.
    pub fn refuse_grpc(&self, head: &Parts, open: Open) -> Response<Answer> {
        let text = "this is the HTTP port: send gRPC calls to the gRPC port (--port, by default 8500)".to_owned();
        let status = Status { code: Code::Unimplemented, text, may_retry: false };
        let id = self.shared.ids.of_http(&head.headers);
        let (id, client) = (id.to_str().unwrap_or_default(), self.client(&head.headers));
        refusals::count_status(self.shared, Method::OtherHttp, "", &status, id, client);
        status.head(Some(id)).map(|()| Answer::whole(Bytes::new(), open))
    }

    /// Returns the answer for a model that is not served, with the names of the models that the caller may see: in the
    /// text for the clients of Open Inference, which show only that, and in a field where TensorFlow Serving's text is
    /// fixed.
    fn unknown_model(
        &self,
        method: Method,
        head: &Parts,
        mut fault: BoxedFault,
        known: Vec<String>,
        open: Open,
    ) -> Response<Answer> {
        if method == Method::Infer {
            fault.text += &faults::models(known);
            return self.fault(method, head, &fault, open);
        }
        let mut response = self.fault(method, head, &fault, open);
        response.body_mut().add_models(&known);
        response
    }

    /// Refuses a request for a fault of its own.
    fn fault(&self, method: Method, head: &Parts, fault: &Fault, open: Open) -> Response<Answer> {
        let id = self.shared.ids.of_http(&head.headers);
        let client = self.client(&head.headers);
        let status = refusals::of_http(self.shared, method, fault, id.to_str().unwrap_or_default(), client);
        self.refusal(&head.headers, &status, id, open)
    }

    pub fn refuse(&self, asked: &HeaderMap, status: &Status, open: Open) -> Response<Answer> {
        self.refusal(asked, status, self.shared.ids.of_http(asked), open)
    }

    fn refusal(&self, asked: &HeaderMap, status: &Status, id: HeaderValue, open: Open) -> Response<Answer> {
        let body = serde_json::json!({ "error": status.text }).to_string();
        let mut response = Response::new(Answer::whole(body.into(), open));
        let number = StatusCode::from_u16(refusals::http_status(status.code));
        let number = number.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.status_mut() = number;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ERROR_CODE, HeaderValue::from_static(status.code.name()));
        if status.may_retry {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status.code == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        self.mark(headers, asked, id);
        response
    }

    /// Adds the request id, which the control server also adds to its answers, and the CORS headers.
    fn mark(&self, headers: &mut HeaderMap, asked: &HeaderMap, id: HeaderValue) {
        self.allow_origin(headers, asked);
        headers.insert(super::request_id::REQUEST_ID, id);
    }

    /// Adds the CORS headers.
    fn allow_origin(&self, headers: &mut HeaderMap, asked: &HeaderMap) {
        let origin = asked.get(ORIGIN).and_then(|origin| origin.to_str().ok());
        for (name, value) in self.shared.cors.headers(origin) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
    }
}
