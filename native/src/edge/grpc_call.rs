//! One gRPC call: its headers, its request message, and its answer or refusal.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::HeaderValue;
use http::request::Parts;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Arriving, Connection, Debt, Open};
use super::dispatch::Method;
use super::encoding::Encoded;
use super::grpc_message::{self, Code, PREFIX_BYTES, Payload, Status};
use super::health;
use super::notes;
use super::records::{RunRecord, SpanRecord, times_ns};
use super::refusals;
use super::request_id;
use super::sampling::Traced;
use super::shared::{self, HeldHead, Made, Shared, Terms};
use crate::admission::account::{Hold, Shares};
use crate::admission::fair_queue::Ask;
use crate::admission::large::Announcement;
use crate::admission::limits::INLINE_BYTES;
use crate::admission::pace::Pace;
use crate::plan::faults::{self, BoxedFault, Fault};

/// Maximal number of bytes that are allocated for a message before its bytes have come.
const TRUSTED_BYTES: usize = 1 << 20;

/// The result of the check of a gRPC call's headers, if the core may answer the call.
#[derive(Clone)]
pub struct Plain {
    pub method: Method,
    pub terms: Terms,
    // The request id that the call's client chose; the answer's headers return it.
    pub request_id: Option<HeaderValue>,
    // The trace for which the call is sampled.
    pub traced: Option<Arc<Traced>>,
}

/// One gRPC call that the core has received and not yet answered.
pub struct Incoming {
    pub shared: Arc<Shared>,
    pub connection: Arc<Connection>,
    pub head: Parts,
    pub body: RecvStream,
    pub begun: Instant,
    // Counts the bytes of the body that were read, and of its inflated form, against the limit on bytes in flight.
    pub hold: Hold,
    // A call keeps its headers in memory until its answer begins, so large headers count against a limit.
    heads: Option<HeldHead>,
    // Announces a large call to the queue of large work; None for a small call, and once the call is in that queue.
    pub announcement: Option<(Announcement, Arriving)>,
    // Limits how many messages of the connection are held in inflated form; None if the call's message was not
    // compressed.
    pub inflated: Option<OwnedSemaphorePermit>,
    _open: Open,
}

impl Incoming {
    /// Creates the record of a received gRPC call, and counts the call as open on its connection.
    pub fn new(shared: &Arc<Shared>, connection: &Arc<Connection>, head: Parts, body: RecvStream) -> Self {
        Incoming {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            head,
            body,
            begun: Instant::now(),
            hold: Hold::default(),
            heads: None,
            announcement: None,
            inflated: None,
            _open: connection.open(),
        }
    }

    /// Returns the method under which the call is counted.
    pub fn method(&self) -> Method {
        Method::of_path(self.head.uri.path()).unwrap_or(Method::OtherGrpc)
    }

    /// Returns the client of the call, for the record of its failure.
    pub fn client(&self) -> String {
        self.shared.client(&self.head.headers, &self.connection)
    }

    fn count_refusal(&self, status: &Status, id: &HeaderValue) {
        let id = id.to_str().unwrap_or_default();
        refusals::count_unlimited(&self.shared, self.method(), status, id, || self.client());
    }

    /// Counts the call's headers, if they are large, against the limits on the headers of open calls.
    ///
    /// # Errors
    /// The open calls of the connection, or of all connections together, already have too many bytes of headers.
    pub fn hold_head(&mut self) -> Result<(), Status> {
        self.heads = self.shared.hold_head(&self.connection, &self.head.headers)?;
        Ok(())
    }

    /// Announces a large call to the queue of large work, until the call itself goes there.
    ///
    /// # Errors
    /// The queue is full, or the call would wait too long for a thread.
    pub fn announce(&mut self, data: &[u8], size: usize) -> Result<(), Status> {
        let ask = self.ask(data, size);
        let model = Arc::clone(&ask.path[0]);
        match self.shared.large.announce(ask) {
            Ok(announcement) => self.announcement = Some((announcement, self.connection.expect_body())),
            Err(refusal) => return Err(self.shared.refuse(&model, refusal, late)),
        }
        Ok(())
    }

    /// Describes this gRPC call to the queue of large work; the call's message begins with `data` and has `size` bytes.
    pub fn ask(&self, data: &[u8], size: usize) -> Ask {
        let timeout = self.head.headers.get("grpc-timeout").and_then(|value| grpc_message::timeout(value.as_bytes()));
        Ask::new(self.model(data), &self.connection.peer, size, timeout.map(|timeout| self.begun + timeout))
    }

    /// Returns the name of the model in a message that begins with `data`; "" if the message names no configured model.
    fn model<'d>(&self, data: &'d [u8]) -> &'d str {
        let (shared, path) = (&self.shared, self.head.uri.path());
        // GetModelMetadata has the model's name in the same field as a Predict request.
        let is_like_predict = path.starts_with("/tensorflow.serving.PredictionService/");
        let method = Method::of_path(path).or(is_like_predict.then_some(Method::Predict));
        match (method, data.split_first_chunk::<PREFIX_BYTES>()) {
            (Some(method), Some(([0, ..], message))) => shared.known_model(shared.dispatch.model(method, message)),
            _ => "",
        }
    }

    /// Returns the connection's byte counters for the model of a gRPC call whose message begins with `data`.
    pub fn shares(&self, data: &[u8]) -> Arc<Shares> {
        self.connection.shares(&self.shared.account, self.model(data))
    }

    /// Raises the bytes that a call holds to `size`, and checks the limit on bytes in flight; `data` is the beginning
    /// of the call's message.
    ///
    /// # Errors
    /// The limit leaves fewer bytes.
    pub fn reach(&mut self, data: &[u8], size: usize) -> Result<(), Status> {
        let mut hold = std::mem::take(&mut self.hold);
        let has_room = hold.reach(size, || self.shares(data));
        self.hold = hold;
        if has_room { Ok(()) } else { Err(self.shared.no_bytes(self.hold.model())) }
    }
}

/// Answers a call with a refusal, and counts the refusal on the call's connection if the server has too much work.
pub fn refuse(incoming: &Incoming, mut respond: SendResponse<Payload>, status: &Status) {
    let id = incoming.shared.ids.of_http(&incoming.head.headers);
    note_refusal(&incoming.connection, status);
    incoming.count_refusal(status, &id);
    let _ = respond.send_response(status.head(id.to_str().ok()), true);
}

/// Refuses a call for a fault in its headers.
pub fn refuse_fault(
    shared: &Shared,
    connection: &Connection,
    method: Method,
    head: &Parts,
    fault: &Fault,
    mut respond: SendResponse<Payload>,
) {
    let id = shared.ids.of_http(&head.headers);
    let id = id.to_str().unwrap_or_default();
    let status = refusals::of_grpc(shared, method, fault, id, shared.client(&head.headers, connection));
    let _ = respond.send_response(status.head(Some(id)), true);
}

/// Refuses a call without a request message. Source: gRPC's statuscodes.md, "Request cardinality violation".
///
/// The answer has an empty DATA frame before its trailers: a client that tests the stream's state, such as h2spec, waits
/// for DATA after the HEADERS that ended the request.
pub fn refuse_empty(incoming: &Incoming, mut respond: SendResponse<Payload>) {
    let id = incoming.shared.ids.of_http(&incoming.head.headers);
    let status = unimplemented("The method takes exactly one request message, and the client sent none.");
    incoming.count_refusal(&status, &id);
    if let Ok(mut stream) = respond.send_response(grpc_message::head(None, None), false)
        && stream.send_data(Bytes::new().into(), false).is_ok()
    {
        let _ = stream.send_trailers(status.trailers(id.to_str().ok()));
    }
}

/// Counts a refused gRPC call on its connection if the server has too much work: see [`super::refusal_pause`].
fn note_refusal(connection: &Connection, status: &Status) {
    if status.code == Code::Unavailable && status.may_retry {
        connection.note_refused();
    }
}

/// The result of a call that the core handled: an answer, a refusal, a refusal for a fault of the request, or a panic of the handler.
pub enum Reply {
    Answer(Made),
    Refusal(Status),
    Fault(BoxedFault),
    Panic,
}

/// Sends the answer to a call that the core handled itself.
pub fn send(
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
    let client = || shared.client(&head.headers, connection);
    let status = match reply {
        Reply::Answer(Made { answered, body, debt, took }) => {
            shared.statistics.succeeded(plain.method, &answered, took, || (id(plain), client()));
            if let Some(traced) = &plain.traced {
                let run = RunRecord::of(&answered);
                shared.records.trace(span(head, traced, own_id(head, plain), run, None));
            }
            connection.note_handed(body.len());
            let coding = body.coding();
            let Some(payload) = Payload::message(body, debt) else {
                return respond.send_reset(Reason::INTERNAL_ERROR);
            };
            if let Ok(mut stream) = respond.send_response(grpc_message::head(plain.request_id.as_ref(), coding), false)
                && stream.send_data(payload, false).is_ok()
            {
                let mut trailers = grpc_message::trailers();
                notes::add(&mut trailers, &answered);
                let _ = stream.send_trailers(trailers);
            }
            return;
        }
        Reply::Refusal(status) => {
            let id = id(plain);
            note_refusal(connection, &status);
            refusals::count_unlimited(shared, plain.method, &status, &id, client);
            (id, status)
        }
        Reply::Fault(mut fault) => {
            let id = id(plain);
            // The fault of a model that is served, and that the caller may see, names the model.
            if fault.code == Code::NotFound && fault.subject.model.is_empty() {
                let told = faults::models(shared.models_of(&plain.terms));
                if fault.text.len() + told.len() <= refusals::MAX_GRPC_BYTES {
                    fault.text += &told;
                }
            }
            let status = refusals::of_grpc(shared, plain.method, &fault, &id, client());
            (id, status)
        }
        Reply::Panic => {
            let id = id(plain);
            let status = shared::internal_error(&id);
            refusals::count_status(shared, plain.method, "", &status, &id, client());
            (id, status)
        }
    };
    let (id, status) = status;
    let _ = respond.send_response(status.head(Some(&id)), true);
    if let Some(traced) = &plain.traced {
        shared.records.trace(span(head, traced, id, None, Some(status)));
    }
}

/// Returns the request id that the call brought, or its trace's id; "" if it has neither.
fn own_id(head: &Parts, plain: &Plain) -> String {
    let own = plain.request_id.clone().or_else(|| request_id::traced(&head.headers));
    own.and_then(|id| id.to_str().ok().map(str::to_owned)).unwrap_or_default()
}

/// Returns the data of a call's trace span, which ends now.
fn span(
    head: &Parts,
    traced: &Traced,
    request_id: String,
    run: Option<RunRecord>,
    refusal: Option<Status>,
) -> SpanRecord {
    let (code, text) = refusal.map_or(("", String::new()), |status| (status.code.name(), status.text));
    SpanRecord {
        name: head.uri.path().to_owned(),
        path: String::new(),
        parent: traced.parent.clone(),
        trace_id: format!("{:032x}", traced.trace_id),
        request_id,
        times_ns: times_ns(traced.begun, Instant::now()),
        status: 0,
        code,
        text,
        run,
    }
}

/// Returns true if `data` is a gRPC health check that the core answers with SERVING.
pub fn is_serving(shared: &Shared, data: &[u8]) -> bool {
    let message = grpc_message::whole(data);
    message.is_some_and(|m| shared.health().is_some_and(|health| health.is_serving(m)))
}

/// Sends SERVING as the answer to a gRPC health check.
pub fn send_serving(shared: &Shared, connection: &Arc<Connection>, mut respond: SendResponse<Payload>) {
    let debt = Debt::new(connection, &shared.account, "", health::SERVING.len());
    if let Some(payload) = Payload::message(Encoded::plain(Bytes::from_static(health::SERVING)), debt)
        && let Ok(mut stream) = respond.send_response(grpc_message::head(None, None), false)
        && stream.send_data(payload, false).is_ok()
    {
        let _ = stream.send_trailers(grpc_message::trailers());
    }
}

/// The request body of a call, as far as the server has read it.
pub enum Gathered {
    /// One whole gRPC message, with its five-byte prefix.
    Message(Bytes),
    /// A body that is no plain message, such as a compressed one.
    Unusual(Bytes),
    /// The message is longer than the limit. The first bytes of the body; more may follow.
    TooLong(Bytes, BoxedFault),
    /// A refusal: the limit on bytes in flight is reached, the work would wait too long, the message comes too slowly or
    /// ends early, or more bytes follow it. The rest of the body is not read.
    Refused(Status),
    /// The client ended the call without a message.
    Empty,
    Lost,
}

fn is_whole(data: &[u8]) -> bool {
    grpc_message::whole(data).is_some()
}

/// Reads the one request message of a call. `is_plain`: the core may answer the call, so a large message is announced
/// to the queue of large work.
pub async fn gather(incoming: &mut Incoming, first: Option<Bytes>, is_plain: bool) -> Gathered {
    if incoming.shared.account.is_full() {
        return Gathered::Refused(incoming.shared.no_bytes(""));
    }
    let limit = incoming.shared.limits.max_message_bytes;
    let mut pace = Pace::new(&incoming.shared.limits);
    let mut one = first;
    let mut all: Vec<u8> = Vec::new();
    let mut is_judged = false;
    loop {
        let so_far: &[u8] = one.as_deref().unwrap_or(&all);
        if let Some(prefix) = so_far.first_chunk::<PREFIX_BYTES>() {
            let size = grpc_message::length(*prefix);
            if size > limit {
                let fault = faults::message_too_long(size, limit);
                let fault = fault.of_model(incoming.model(so_far));
                return Gathered::TooLong(one.unwrap_or_else(|| all.into()), fault);
            }
            if so_far.len() > size + PREFIX_BYTES {
                return Gathered::Refused(unimplemented(
                    "The method takes exactly one request message, and the client sent more.",
                ));
            }
            if size > INLINE_BYTES && !is_judged {
                is_judged = true;
                let shares = incoming.shares(so_far);
                if !shares.has_room(size) {
                    incoming.connection.note_large_refused();
                    return Gathered::Refused(incoming.shared.no_bytes(shares.model()));
                }
                if is_plain && let Err(status) = incoming.announce(so_far, size) {
                    incoming.connection.note_large_refused();
                    return Gathered::Refused(status);
                }
            }
        }
        if !so_far.is_empty()
            && let Err(status) = incoming.reach(so_far, so_far.len())
        {
            return Gathered::Refused(status);
        }
        if incoming.body.is_end_stream() {
            break;
        }
        // Before the task waits for further parts of a message, it copies the first part: this frees the receive
        // buffer, in which the part lies beside other bytes.
        if let Some(first) = one.take_if(|first| !is_whole(first)) {
            let told = first.first_chunk::<PREFIX_BYTES>().map_or(0, |prefix| grpc_message::length(*prefix));
            all.reserve((told + PREFIX_BYTES).min(TRUSTED_BYTES));
            all.extend_from_slice(&first);
        }
        let body = &mut incoming.body;
        let data = match pace.next(|cx| body.poll_data(cx)).await {
            Err(_) => {
                let so_far = one.as_deref().unwrap_or(&all);
                return Gathered::Refused(incoming.shared.stalled(incoming.model(so_far)));
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => return Gathered::Lost,
            Ok(Some(Ok(data))) => data,
        };
        pace.count(data.len());
        let _ = body.flow_control().release_capacity(data.len());
        if data.is_empty() {
            continue;
        }
        if one.is_none() && all.is_empty() {
            one = Some(data);
            continue;
        }
        if let Some(first) = one.take() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    let data = one.unwrap_or_else(|| all.into());
    let told = data.first_chunk().map_or(PREFIX_BYTES, |prefix| PREFIX_BYTES + grpc_message::length(*prefix));
    match &data[..] {
        [] => Gathered::Empty,
        whole if is_whole(whole) => Gathered::Message(data),
        cut if cut.len() < told => Gathered::Refused(Status {
            // As in gRPC's own servers.
            code: Code::Internal,
            text: format!("The client ended the call after {} of {told} bytes of its message.", cut.len()),
            may_retry: false,
        }),
        _ => Gathered::Unusual(data),
    }
}

/// Returns the error text for a request whose deadline passed.
pub fn late() -> String {
    "The deadline passed before the request was answered.".into()
}

/// Returns the error for a gRPC request that the called method does not support.
pub fn unimplemented(text: &str) -> Status {
    Status { code: Code::Unimplemented, text: text.into(), may_retry: false }
}
