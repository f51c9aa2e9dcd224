//! Holds the parts of the server that all connections share, and calls the handlers of wire formats (forms) for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::Access;
use super::connection::{Connection, Debt};
use super::dispatch::{Cors, Dispatch};
use super::encoding::{Accepted, Compressors, Encoded};
use super::events::Event;
use super::grpc_message::{Code, Status};
use super::health::{FRESH, Health};
use super::records::Records;
use super::refusal_log::LogPace;
use super::refusal_pause::Pauses;
use super::request_id::RequestIds;
use super::sampling::Tracing;
use super::statistics::Statistics;
use crate::admission::account::Account;
use crate::admission::fair_queue::{Refusal, address_of};
use crate::admission::gate::Gates;
use crate::admission::large::{LazyPool, Pool};
use crate::admission::limits::{LARGE_HEAD_BYTES, Limits};
use crate::admission::long_calls::LongCalls;
use crate::forms::{Answered, Call, TensorEncoding};
use crate::forward::{GrpcUpstream, HttpUpstream};
use crate::plan::faults::{self, BoxedFault};
use crate::plan::{Declined, Effort, Grant, GraphLimit, Routes};

/// Prefix of the names of headers that only the core may send to the control server.
pub const OWN_HEADERS: &str = "x-embedding-server-";
/// Header of forwarded requests, which tells the control server in Python which names in the client's verified
/// certificate belong to known callers.
pub const NAMES_HEADER: &str = "x-embedding-server-names";
/// Header that proves to the control server that the core wrote the other headers, because clients may also connect
/// to the control server directly.
pub const SEAL_HEADER: &str = "x-embedding-server-seal";
/// Header of forwarded requests, which tells the control server what [`Shared::client`] returns.
const CLIENT_HEADER: &str = "x-embedding-server-client";
/// Names in a client certificate are not forwarded if they have more bytes than this: grpcio takes 8 KiB of metadata.
const MAX_NAMES_BYTES: usize = 4096;
/// Most names of models that the error for an unknown model lists.
const MAX_MODELS_TOLD: usize = 100;

/// The parts of the network server that all connections share.
pub struct Shared {
    /// Limits on the memory and time that one client may cost the server.
    pub limits: Limits,
    /// The known callers, with the models that each may run; None lets every client run every model.
    pub access: ArcSwapOption<Access>,
    /// Sampling rates, which decide for how many requests a trace is recorded; None if tracing is off.
    pub tracing: Option<Tracing>,
    /// The records of sampled requests, which Python takes.
    pub records: Arc<Records>,
    /// Secret text that proves to the control server that the core wrote the headers of [`OWN_HEADERS`].
    pub seal: String,
    /// Whether a gRPC Predict answer has its floats in `tensor_content`, unless its request chooses the encoding.
    pub as_content: bool,
    /// Whether JSON requests with NaN or infinity are refused, and JSON answers have null in their place.
    pub strict_json: bool,
    /// Web origins whose pages may read the server's answers in a browser.
    pub cors: Cors,
    /// The routing table of the published servables.
    pub routes: ArcSwap<Routes>,
    /// The handlers of the wire formats (forms), which answer requests.
    pub dispatch: Arc<dyn Dispatch>,
    /// The counters of requests, connections and other events.
    pub statistics: Statistics,
    /// The counters of the bytes that requests and answers hold.
    pub account: Arc<Account>,
    /// The compressors of answers.
    pub compressors: Compressors,
    /// The thread pool for large work.
    pub large: Pool,
    /// The thread pool for requests that wait for disks or other machines.
    pub waiting: LazyPool,
    /// Limits how many threads of the pool `waiting` run graphs at the same time: the pool may have more threads than
    /// the machine has processors.
    pub graph_limit: Arc<GraphLimit>,
    /// The count of connections that the server does not read now because it refused their requests.
    pub pauses: Pauses,
    /// Limits how many lines on refusals are logged.
    pub refusal_log: LogPace,
    /// The generator of request ids, for requests that bring no id of their own.
    pub ids: RequestIds,
    /// The health state from which the core answers health checks, as Python published it.
    pub health: ArcSwapOption<Health>,
    /// Whether the control servers have started: Python has published a health state, or that it answers the checks.
    pub has_upstreams: AtomicBool,
    /// Whether a control server has not answered the core for as long as a health state is valid.
    pub is_silent: AtomicBool,
    /// Queues that limit how many gRPC calls are forwarded at the same time.
    pub grpc_gates: Gates,
    /// Queues that limit how many HTTP requests are forwarded at the same time.
    pub http_gates: Gates,
    /// Semaphore whose permits are the bytes that large headers of all open gRPC calls may still take.
    pub heads: Arc<Semaphore>,
    /// The counters of the bytes of requests' heads, and of HTTP/2 frames, of which only a part has come.
    pub parts: Arc<Account>,
    /// The counters of running gRPC calls without end, such as health watches.
    pub long_calls: Arc<LongCalls>,
    /// The client that forwards calls to the gRPC control server.
    pub grpc_upstream: GrpcUpstream,
    /// The client that forwards requests to the HTTP control server.
    pub http_upstream: HttpUpstream,
}

/// The reason why a wire format's handler (form) gave no answer: it declined the request, rows could not be read, or it
/// panicked.
#[derive(Debug)]
pub enum Failed {
    /// The handler (form) declined the request, for this reason; the server then runs the request on a thread pool, or
    /// forwards a search to the control server.
    Declined(Declined),
    /// The request has a fault, for which it is refused.
    Refused(BoxedFault),
    /// The wire format's handler (form) panicked while it answered the request.
    Panicked,
}

/// Properties of a request, from its headers and its connection, that decide whether and in which form the core answers
/// the request.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How the answer has its numbers, if the request is a gRPC Predict.
    pub encoding: TensorEncoding,
    /// The compressions that the client accepts for the answer.
    pub accepted: Accepted,
    grant: Option<Arc<Grant>>,
}

impl Terms {
    /// Says whether the caller may run a model of this name.
    #[must_use]
    pub fn allows(&self, model: &str) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.allows(model))
    }

    /// Returns the name under which a request for a model counts: "" if the caller can not see the model.
    #[must_use]
    pub fn share<'m>(&self, model: &'m str) -> &'m str {
        if self.grant.as_ref().is_some_and(|grant| !grant.sees(model)) { "" } else { model }
    }
}

/// An answer that a wire format's handler (form) has made, with its time and its count of unread bytes.
pub struct Made {
    /// The answer, without its body.
    pub answered: Answered,
    /// The answer's body, as it is sent.
    pub body: Encoded,
    /// Counts the answer's bytes as unread from the moment the answer is made until they are sent.
    pub debt: Debt,
    /// Time that the wire format's handler (form) took to make the answer.
    pub took: Duration,
}

/// The answer of a wire format's handler (form), or the reason why there is no answer.
pub type Outcome = Result<Made, Failed>;

/// The bytes of the large headers of one open request of an HTTP/2 connection: its share of the connection's limit, and
/// of that of all connections.
pub type HeldHead = [OwnedSemaphorePermit; 2];

impl Shared {
    /// Counts the headers of a request on an HTTP/2 connection, if they are large, until the result is dropped.
    ///
    /// # Errors
    /// The open requests of the connection, or of all connections together, already have too many bytes of headers.
    pub fn hold_head(&self, connection: &Connection, headers: &HeaderMap) -> Result<Option<HeldHead>, Status> {
        let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if size < LARGE_HEAD_BYTES {
            return Ok(None);
        }
        let permits = u32::try_from(size).unwrap_or(u32::MAX);
        let held = [&connection.heads, &self.heads].map(|all| Arc::clone(all).try_acquire_many_owned(permits).ok());
        let [Some(of_connection), Some(of_all)] = held else {
            self.statistics.refused("", "bytes");
            return Err(Status {
                code: Code::Unavailable,
                text: "The open calls have too many bytes of metadata.".into(),
                may_retry: true,
            });
        };
        Ok(Some([of_connection, of_all]))
    }

    /// Returns the properties of a request that decide in which form the core answers it.
    ///
    /// # Errors
    /// The request's credentials belong to no caller.
    pub fn terms(&self, headers: &HeaderMap, connection: &Connection) -> Result<Terms, BoxedFault> {
        let grant = match &*self.access.load() {
            None => None,
            Some(access) => {
                let grant = access.grant(headers, connection.names());
                Some(Arc::clone(grant.ok_or_else(faults::no_credentials)?))
            }
        };
        let encoding = TensorEncoding::of_server(self.as_content);
        Ok(Terms { encoding, accepted: Accepted::default(), grant })
    }

    /// Returns the name of a request's caller, or the address of its client if its credentials belong to no caller.
    #[must_use]
    pub fn client(&self, headers: &HeaderMap, connection: &Connection) -> String {
        let access = self.access.load();
        let grant = access.as_ref().and_then(|access| access.grant(headers, connection.names()));
        grant.map_or_else(|| address_of(&connection.peer).to_owned(), |grant| grant.caller.clone())
    }

    /// Removes the client's headers whose prefix is reserved for the core, and adds the core's own headers.
    pub fn mark(&self, headers: &mut HeaderMap, connection: &Connection, client: &str) {
        let is_own = |name: &HeaderName| name.as_str().starts_with(OWN_HEADERS);
        if headers.keys().any(is_own) {
            let own: Vec<_> = headers.keys().filter(|name| is_own(name)).cloned().collect();
            for name in own {
                headers.remove(name);
            }
        }
        self.seal(headers);
        let mut add = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        add(CLIENT_HEADER, client);
        if let Some(access) = &*self.access.load()
            && !connection.names().is_empty()
        {
            let encoded = |name| utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
            let names: Vec<String> = access.known(connection.names()).map(encoded).collect();
            let names = names.join(" ");
            if !names.is_empty() && names.len() <= MAX_NAMES_BYTES {
                add(NAMES_HEADER, &names);
            }
        }
    }

    fn seal(&self, headers: &mut HeaderMap) {
        if let Ok(seal) = HeaderValue::from_str(&self.seal) {
            headers.insert(HeaderName::from_static(SEAL_HEADER), seal);
        }
    }

    /// Runs the handler of a wire format (form) on this thread; a panic in the handler fails only this request.
    pub fn call(
        &self,
        effort: Effort<'_>,
        connection: &Arc<Connection>,
        terms: &Terms,
        form: impl FnOnce(&dyn Dispatch, &Call<'_>) -> Result<Answered, Declined>,
    ) -> Outcome {
        self.call_on(&self.routes.load(), effort, effort != Effort::Small, connection, terms, form)
    }

    /// As [`Shared::call`], with this routing table. `may_work`: the thread may take long to compress the answer.
    pub(super) fn call_on(
        &self,
        routes: &Routes,
        effort: Effort<'_>,
        may_work: bool,
        connection: &Arc<Connection>,
        terms: &Terms,
        form: impl FnOnce(&dyn Dispatch, &Call<'_>) -> Result<Answered, Declined>,
    ) -> Outcome {
        let started = Instant::now();
        let drawn = fastrand::f64();
        let call = Call {
            routes,
            effort,
            max_response_bytes: self.limits.max_response_bytes,
            encoding: terms.encoding,
            strict_json: self.strict_json,
            grant: terms.grant.as_deref(),
            log: (drawn < routes.most_logged()).then_some(drawn),
        };
        // A panic leaves no servable half-changed: a handler only reads a servable, and changes only its counters and
        // caches.
        let make = || {
            let mut answered = form(&*self.dispatch, &call)?;
            let body = self.compressors.encode(&mut answered, terms.accepted, may_work, &self.limits);
            Ok::<_, Declined>((answered, body))
        };
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(Ok((mut answered, body))) => {
                if let Some(log) = answered.record.take() {
                    self.records.log(&answered, *log);
                }
                // An answer's bytes count as unread as soon as the wire format's handler (form) has made them. The
                // connection's task looks at no finished call while its socket is full, so the pool's threads would
                // meanwhile make the answers of all its other calls.
                let debt = Debt::new(connection, &self.account, answered.servable.model(), body.len());
                Ok(Made { answered, body, debt, took: started.elapsed() })
            }
            Ok(Err(declined)) => Err(self.failed(declined)),
            Err(_) => {
                self.statistics.count(Event::Panicked);
                Err(Failed::Panicked)
            }
        }
    }

    /// Counts the reason why a request has no answer; a fault is counted where it is sent.
    pub(super) fn failed(&self, declined: Declined) -> Failed {
        if let Some(event) = Event::declined(&declined) {
            self.statistics.count(event);
        }
        match declined {
            Declined::Fault(fault) => {
                if fault.code == Code::DataLoss {
                    self.records.note_damage(&fault.subject.model);
                }
                Failed::Refused(fault)
            }
            Declined::Unusual | Declined::Malformed => {
                Failed::Refused(faults::internal("a form has no error for a request that it does not read"))
            }
            declined => Failed::Declined(declined),
        }
    }

    /// Returns how many requests wait for a thread of a pool: of the pool for large work, or of the pool for requests
    /// that wait.
    #[must_use]
    pub fn num_queued(&self) -> usize {
        self.large.num_waiting() + self.waiting.get().map_or(0, Pool::num_waiting)
    }

    /// Returns the health state that Python published; None if there is none, if the control servers do not answer, or
    /// if the server records traces: then the core forwards health checks.
    #[must_use]
    pub fn health(&self) -> Option<Arc<Health>> {
        if self.tracing.is_some() || self.is_silent.load(Relaxed) { None } else { self.health.load_full() }
    }

    /// Asks both control servers whether they answer; true until they have started.
    pub async fn do_upstreams_answer(&self) -> bool {
        if !self.has_upstreams.load(Relaxed) {
            return true;
        }
        let mut headers = HeaderMap::new();
        self.seal(&mut headers);
        let asked = async { tokio::join!(self.http_upstream.answers(headers), self.grpc_upstream.answers()) };
        tokio::time::timeout(FRESH / 2, asked).await == Ok((true, true))
    }

    /// Returns the name of a model if it is configured, else "", so that names that clients invent use no memory.
    #[must_use]
    pub fn known_model<'m>(&self, model: &'m str) -> &'m str {
        if self.routes.load().model(model).is_some() { model } else { "" }
    }

    /// Returns the names of the models that a caller may see, at most [`MAX_MODELS_TOLD`] in sorted order.
    #[must_use]
    pub fn models_of(&self, terms: &Terms) -> Vec<String> {
        let routes = self.routes.load();
        let mut names: Vec<String> =
            routes.names().filter(|name| !terms.share(name).is_empty()).map(str::to_owned).collect();
        names.sort_unstable();
        names.truncate(MAX_MODELS_TOLD);
        names
    }

    /// Counts and returns the refusal of a request because too many bytes are held in memory.
    #[must_use]
    pub fn no_bytes(&self, model: &str) -> Status {
        self.statistics.refused(model, "bytes");
        let (held, limit) = (self.account.held(), self.account.limit());
        overloaded(&format!("{held} bytes of requests and answers are in flight, its limit is {limit}"))
    }

    /// Counts and returns the refusal of a request whose body comes too slowly; see [`crate::admission::pace::Pace`].
    #[must_use]
    pub fn stalled(&self, model: &str) -> Status {
        self.statistics.refused(model, "stalled");
        let (least, seconds) = (self.limits.least_bytes(), self.limits.stall_timeout.as_secs_f64());
        Status {
            code: Code::DeadlineExceeded,
            text: format!("The request body came too slowly: less than {least} bytes in {seconds} s."),
            may_retry: false,
        }
    }

    /// Counts a queue's refusal of a request, and returns the error for the client. `late` gives the error text if the
    /// request's deadline has passed.
    #[must_use]
    pub fn refuse(&self, model: &str, refusal: Refusal, late: impl FnOnce() -> String) -> Status {
        self.statistics.refused(model, refusal.reason());
        match refusal {
            Refusal::Queue(waiting) | Refusal::Wait(waiting) => {
                overloaded(&format!("{waiting} requests wait for a thread"))
            }
            Refusal::Deadline => overloaded("no thread would be free before the request's deadline"),
            Refusal::Waited(wait) => Status {
                code: Code::Unavailable,
                text: format!("The server is overloaded: the request waited {:.3} s for a thread.", wait.as_secs_f64()),
                may_retry: true,
            },
            Refusal::Late => Status { code: Code::DeadlineExceeded, text: late(), may_retry: false },
        }
    }
}

fn overloaded(what: &str) -> Status {
    Status {
        code: Code::Unavailable,
        text: format!("The server is overloaded: {what}. Try again later."),
        may_retry: true,
    }
}

/// Logs a panic, and returns the error for the request in which it happened.
#[must_use]
pub fn internal_error(request_id: &str) -> Status {
    tracing::error!(request_id, "a request panicked");
    Status {
        code: Code::Internal,
        text: format!("Internal error; the server's log has the cause, request id {request_id}"),
        may_retry: false,
    }
}

/// Returns the error for a request that the core can not forward, because the control server is not reachable.
#[must_use]
pub fn no_upstream() -> Status {
    Status {
        code: Code::Unavailable,
        text: "The server can not answer this request now. Try again later.".into(),
        may_retry: true,
    }
}
