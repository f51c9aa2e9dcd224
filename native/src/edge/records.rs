//! Keeps the records of sampled requests until Python takes them: entries of request logs, and data of trace spans. No
//! request waits for them: a record that has no room is dropped and counted.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::forms::{Answered, LogRecord};

/// Most bytes of records that wait for Python.
const MAX_BYTES: usize = 64 << 20;
/// Bytes that a record takes besides its texts.
const OWN_BYTES: usize = 512;

/// A request for the log of its model.
#[derive(Debug)]
pub struct LogEntry {
    pub model: String,
    pub version: i64,
    pub signature: String,
    /// When the request was answered, in seconds since 1970.
    pub answered_s: u64,
    /// A serialized `PredictionLog` that lacks its `log_metadata`.
    pub log: Vec<u8>,
}

/// The data of a request's trace span; `service/observe/otel.py` makes the span.
#[derive(Debug, Serialize)]
pub struct SpanRecord {
    /// The route of an HTTP request, or the path of a gRPC call.
    pub name: String,
    /// The path of an HTTP request; "" for a gRPC call.
    pub path: String,
    /// The client's `traceparent`, "" if it sent none.
    pub parent: String,
    /// The trace id that was drawn for a request without a parent, in hexadecimal digits.
    pub trace_id: String,
    pub request_id: String,
    /// When the request began and ended, in nanoseconds since 1970.
    pub times_ns: (u64, u64),
    /// The status of an HTTP answer; 0 for a gRPC call.
    pub status: u16,
    /// The error code of a gRPC call; "" for an answer and for HTTP.
    pub code: &'static str,
    /// The error text of a gRPC call.
    pub text: String,
    /// The lookup or the run of a graph for the request; None if the request was refused.
    pub run: Option<RunRecord>,
}

/// The data of the trace span of a lookup or of a run of a graph.
#[derive(Clone, Debug, Serialize)]
pub struct RunRecord {
    model: String,
    version: i64,
    signature: String,
    is_lookup: bool,
    /// When the run began and ended, in nanoseconds since 1970.
    times_ns: (u64, u64),
}

impl RunRecord {
    /// Returns the data of the run that gave an answer; None for rows of a table.
    #[must_use]
    pub fn of(answered: &Answered) -> Option<Self> {
        let signature = answered.servable.signatures().get(answered.signature)?;
        Some(RunRecord {
            model: answered.servable.model().to_owned(),
            version: answered.servable.version(),
            signature: signature.name.clone(),
            is_lookup: signature.graph.is_none(),
            times_ns: times_ns(answered.began, answered.began + answered.ran),
        })
    }
}

/// Returns two times in nanoseconds since 1970.
#[must_use]
pub fn times_ns(begin: Instant, end: Instant) -> (u64, u64) {
    let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let at = |time: Instant| {
        let ago = now.saturating_duration_since(time);
        u64::try_from(wall.saturating_sub(ago).as_nanos()).unwrap_or(u64::MAX)
    };
    (at(begin), at(end))
}

/// The records that Python takes at one time.
#[derive(Debug, Default)]
pub struct Taken {
    /// Requests for the logs of their models, in the order in which they were answered.
    pub entries: Vec<LogEntry>,
    pub spans: Vec<SpanRecord>,
    /// Numbers of requests for logs that were dropped since the last call, by model.
    pub dropped_entries: HashMap<String, u64>,
    /// Number of requests for traces that were dropped since the last call.
    pub dropped_spans: u64,
    /// Names of models of which a request found a file damaged since the last call.
    pub damaged: HashSet<String>,
    num_bytes: usize,
    is_closed: bool,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.spans.is_empty()
            && self.dropped_entries.is_empty()
            && self.dropped_spans == 0
            && self.damaged.is_empty()
    }

    fn has_room(&mut self, size: usize) -> bool {
        let has_room = self.num_bytes + size <= MAX_BYTES;
        if has_room {
            self.num_bytes += size;
        }
        has_room
    }
}

/// The queue of records between the core and Python.
#[derive(Debug, Default)]
pub struct Records {
    waiting: Mutex<Taken>,
    news: Condvar,
}

impl Records {
    /// Adds a request to the log of its model, or counts it as dropped.
    pub fn log(&self, answered: &Answered, LogRecord(log): LogRecord) {
        let Some(signature) = answered.servable.signatures().get(answered.signature) else { return };
        let model = answered.servable.model();
        let mut waiting = self.lock();
        if waiting.has_room(log.len() + OWN_BYTES) {
            waiting.entries.push(LogEntry {
                model: model.to_owned(),
                version: answered.servable.version(),
                signature: signature.name.clone(),
                answered_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
                log,
            });
        } else {
            *waiting.dropped_entries.entry(model.to_owned()).or_default() += 1;
        }
        drop(waiting);
        self.news.notify_one();
    }

    /// Adds a request to the traces, or counts it as dropped.
    pub fn trace(&self, span: SpanRecord) {
        let mut waiting = self.lock();
        let texts = [&span.name, &span.path, &span.parent, &span.text].map(String::len);
        if waiting.has_room(texts.iter().sum::<usize>() + OWN_BYTES) {
            waiting.spans.push(span);
        } else {
            waiting.dropped_spans += 1;
        }
        drop(waiting);
        self.news.notify_one();
    }

    /// Notes that a request found a file of a model damaged.
    pub fn note_damage(&self, model: &str) {
        self.lock().damaged.insert(model.to_owned());
        self.news.notify_one();
    }

    /// Returns all records; waits until there are any, the time has passed, or the queue is closed. None: the queue is
    /// closed and empty.
    #[must_use]
    pub fn take(&self, timeout: Duration) -> Option<Taken> {
        let is_idle = |waiting: &mut Taken| waiting.is_empty() && !waiting.is_closed;
        let waited = self.news.wait_timeout_while(self.lock(), timeout, is_idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.is_closed && waiting.is_empty() {
            return None;
        }
        let is_closed = waiting.is_closed;
        Some(std::mem::replace(&mut *waiting, Taken { is_closed, ..Taken::default() }))
    }

    /// Ends the waits of [`Records::take`]: no more requests are answered.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn span(text: String) -> SpanRecord {
        SpanRecord {
            name: "n".into(),
            path: String::new(),
            parent: String::new(),
            trace_id: String::new(),
            request_id: String::new(),
            times_ns: (1, 2),
            status: 0,
            code: "",
            text,
            run: None,
        }
    }

    #[test]
    fn records_beyond_the_limit_are_dropped_and_counted() {
        let records = Records::default();
        for _ in 0..3 {
            records.trace(span("x".repeat(MAX_BYTES / 2 - OWN_BYTES - 1)));
        }
        let taken = records.take(Duration::ZERO).expect("it is open");
        assert_eq!((taken.spans.len(), taken.dropped_spans), (2, 1));
        records.trace(span(String::new()));
        let taken = records.take(Duration::ZERO).expect("it is open");
        assert_eq!((taken.spans.len(), taken.dropped_spans), (1, 0));
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_then_nothing() {
        let records = Records::default();
        assert!(records.take(Duration::ZERO).expect("it is open").is_empty());
        records.trace(span(String::new()));
        records.close();
        assert_eq!(records.take(Duration::MAX).expect("it has one").spans.len(), 1);
        assert!(records.take(Duration::MAX).is_none());
    }
}
