//! One gRPC call: its headers and message as they were read, and its answer or refusal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::HeaderValue;
use http::request::Parts;

use super::account::{Hold, Shares};
use super::connection::{Connection, Debt, Open};
use super::dispatch::Method;
use super::fair_queue::Ask;
use super::grpc_message::{self, Code, PREFIX_BYTES, Payload, Status};
use super::health;
use super::large::Announcement;
use super::limits::INLINE_BYTES;
use super::pace::Pace;
use super::sampling::Draws;
use super::shared::{self, Shared, Terms};

/// How many bytes are reserved for a message before its bytes have come.
const TRUSTED_BYTES: usize = 1 << 20;

/// The headers of a request that the core may answer.
#[derive(Clone)]
pub struct Plain {
    pub method: Method,
    pub terms: Terms,
    // A client's own id, which its answer returns.
    pub request_id: Option<HeaderValue>,
}

/// One call.
pub struct Incoming {
    pub shared: Arc<Shared>,
    pub connection: Arc<Connection>,
    pub head: Parts,
    pub body: RecvStream,
    pub draws: Draws,
    pub begun: Instant,
    // Accounts for the bytes of the body that were read, and for those that it inflates to.
    pub hold: Hold,
    // Large work, while its message is read.
    pub announcement: Option<Announcement>,
    _open: Open,
}

impl Incoming {
    /// Opens a call on its connection.
    pub fn new(
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        head: Parts,
        body: RecvStream,
        draws: Draws,
    ) -> Self {
        Incoming {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            head,
            body,
            draws,
            begun: Instant::now(),
            hold: Hold::default(),
            announcement: None,
            _open: connection.open(),
        }
    }

    /// Announces large work to the queue until the call goes there.
    ///
    /// # Errors
    /// It would wait too long.
    pub fn announce(&mut self, data: &[u8], size: usize) -> Result<(), Status> {
        let ask = self.ask(data, size);
        let model = Arc::clone(&ask.path[0]);
        match self.shared.large.announce(ask) {
            Ok(announcement) => self.announcement = Some(announcement),
            Err(refusal) => return Err(self.shared.refuse(&model, refusal, late)),
        }
        Ok(())
    }

    /// Describes this call to a queue. Its message begins with `data` and has `size` bytes.
    pub fn ask(&self, data: &[u8], size: usize) -> Ask {
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
    pub fn reach(&mut self, data: &[u8], size: usize) -> Result<(), Status> {
        let mut hold = std::mem::take(&mut self.hold);
        let has_room = hold.reach(size, || self.shares(data));
        self.hold = hold;
        if has_room { Ok(()) } else { Err(self.shared.no_bytes(self.hold.model())) }
    }
}

/// Answers a call with a refusal.
pub fn refuse(incoming: &Incoming, mut respond: SendResponse<Payload>, status: &Status) {
    let id = incoming.shared.ids.of_http(&incoming.head.headers);
    note_refusal(&incoming.connection, status);
    let _ = respond.send_response(status.head(id.to_str().ok()), true);
}

/// Counts a refusal on its connection if the reason is too much work: see [`super::refusal_pause`].
fn note_refusal(connection: &Connection, status: &Status) {
    if status.code == Code::Unavailable && status.may_retry {
        connection.note_refused();
    }
}

/// The end of a call.
pub enum Reply {
    Answer(crate::forms::Answered, Duration),
    Refusal(Status),
    Panic,
}

/// Answers a call that the core may answer.
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
        Reply::Refusal(status) => {
            note_refusal(connection, &status);
            (id(plain), status)
        }
        Reply::Panic => {
            let id = id(plain);
            let status = shared::internal_error(&id);
            (id, status)
        }
    };
    let _ = respond.send_response(status.1.head(Some(&status.0)), true);
}

/// Says whether `data` is a health check that the core answers with SERVING.
pub fn is_serving(shared: &Shared, data: &[u8]) -> bool {
    let message = grpc_message::whole(data);
    message.is_some_and(|m| shared.health().is_some_and(|health| health.is_serving(m)))
}

/// Answers a health check with SERVING.
pub fn send_serving(shared: &Shared, connection: &Arc<Connection>, mut respond: SendResponse<Payload>) {
    let debt = Debt::new(connection, &shared.account, "", health::SERVING.len());
    if let Some(payload) = Payload::message(Bytes::from_static(health::SERVING), debt)
        && let Ok(mut stream) = respond.send_response(grpc_message::head(None), false)
        && stream.send_data(payload, false).is_ok()
    {
        let _ = stream.send_trailers(grpc_message::trailers());
    }
}

/// The body of a request, as far as it was read.
pub enum Gathered {
    /// One whole message behind its prefix.
    Message(Bytes),
    /// A body that the reference judges. These are its first bytes; more may follow.
    Unusual(Bytes),
    /// There is no room for the message, it is large work that would wait too long, or it comes too slowly. Its rest is
    /// not read.
    Refused(Status),
    /// Bytes follow the message.
    TooMany,
    Lost,
}

fn is_whole(data: &[u8]) -> bool {
    grpc_message::whole(data).is_some()
}

/// Reads the one message of a call. `is_plain` says whether the core answers the call, or the reference.
pub async fn gather(incoming: &mut Incoming, first: Option<Bytes>, is_plain: bool) -> Gathered {
    if incoming.shared.account.is_full() {
        return Gathered::Refused(incoming.shared.no_bytes(""));
    }
    let limit = incoming.shared.limits.max_request_bytes;
    let mut pace = Pace::new(&incoming.shared.limits);
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
                if is_plain && let Err(status) = incoming.announce(so_far, size) {
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
        // The first part shares its memory with other bytes that the connection has received, so it is copied before
        // the rest is awaited.
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
    if is_whole(&data) { Gathered::Message(data) } else { Gathered::Unusual(data) }
}

/// Words the refusal of a call whose deadline passed.
pub fn late() -> String {
    "The deadline passed while the request waited for a thread.".into()
}

/// Refuses what the method does not take.
pub fn unimplemented(text: &str) -> Status {
    Status { code: Code::Unimplemented, text: text.into(), may_retry: false }
}

/// Refuses a second message. Source: gRPC's statuscodes.md, "Request cardinality violation". grpcio answers the first message in silence.
pub fn too_many() -> Status {
    unimplemented("The method takes exactly one request message, and the client sent more.")
}
