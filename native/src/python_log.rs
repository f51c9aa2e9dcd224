//! Forwards the core's log events to Python's logger `service.core`, in a thread of its own: the threads of the
//! connections must not wait for Python's interpreter lock. Besides its own faults, the core logs the refusals of
//! requests, at a bounded rate: see `edge/refusal_log.rs`.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Maximal number of log lines that wait for Python; further ones are dropped.
const MAX_WAITING: usize = 256;

use crate::plan::faults::LOG_TARGET;

/// The channel to the thread that gives lines to Python.
type Lines = SyncSender<LogLine>;
/// The channel, from the first line on; None if the system started no thread.
static LINES: OnceLock<Option<Lines>> = OnceLock::new();
/// Number of dropped lines that no later line has told yet.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Target of the log events of the crate that reads HTTP/2 requests. It resets a stream whose `:authority` is no host, and
/// tells nobody but its log why.
const H2: &str = "h2::server";
/// Whether such a reset was logged; further ones are not, because each request of a client may cause one.
static TOLD_AUTHORITY: AtomicBool = AtomicBool::new(false);
/// Maximal length in characters of a message of the crate h2, which holds bytes of the client.
const MAX_H2_MESSAGE: usize = 200;

struct PythonLog;

/// Installs the forwarding of this crate's warnings and errors to Python's logging, for the whole process.
pub fn install() {
    // set_global_default() fails if the process imported this module before; the forwarding is installed already in
    // this case.
    let _ = tracing::subscriber::set_global_default(PythonLog);
}

/// One line of the log.
#[derive(Default)]
struct LogLine {
    /// Number of the line's level in Python's logging.
    level: u32,
    message: String,
    fields: String,
    /// The refusal of a request that the line tells; None for any other line.
    refusal: Option<Refusal>,
}

/// The refusal of a request, as `service/http/errors.py` and `service/grpc/refusals.py` log one.
#[derive(Default)]
struct Refusal {
    wire: String,
    status: u64,
    code: String,
    request_id: String,
    text: String,
    cause: String,
    left_out: u64,
}

impl Visit for Refusal {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        let of = match field.name() {
            "wire" => &mut self.wire,
            "code" => &mut self.code,
            "request_id" => &mut self.request_id,
            "text" => &mut self.text,
            "cause" => &mut self.cause,
            _ => return,
        };
        value.clone_into(of);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "status" => self.status = value,
            "left_out" => self.left_out = value,
            _ => {}
        }
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for PythonLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Only warnings and errors of this crate are forwarded, because libraries log too much for an operator; and the
        // refusals of requests.
        let is_told = *metadata.level() <= Level::WARN || metadata.target() == LOG_TARGET;
        let is_own = is_told && metadata.target().starts_with("_native");
        metadata.is_event() && (is_own || metadata.target() == H2)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut line = LogLine { level, ..LogLine::default() };
        if event.metadata().target() == LOG_TARGET {
            let mut refusal = Refusal::default();
            event.record(&mut refusal);
            line.refusal = Some(refusal);
        } else {
            event.record(&mut line);
        }
        if event.metadata().target() == H2 {
            let is_told = line.message.contains("malformed authority");
            if !is_told || TOLD_AUTHORITY.swap(true, Ordering::Relaxed) {
                return;
            }
            let why: String = line.message.chars().take(MAX_H2_MESSAGE).collect();
            line.message = format!(
                "calls of a client get RST_STREAM 1 (PROTOCOL_ERROR), because their :authority is no host; grpcio sends \
                 such calls for a list of addresses (ipv4:a,b): set its channel option grpc.default_authority; {why}"
            );
            line.fields.clear();
            line.level = 30;
        }
        let sent = LINES.get_or_init(start).as_ref().is_some_and(|lines| lines.try_send(line).is_ok());
        if !sent {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Starts the thread that gives log lines to Python; None if the system starts no thread.
fn start() -> Option<Lines> {
    let (sender, lines) = sync_channel::<LogLine>(MAX_WAITING);
    let run = move || {
        for line in lines {
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            // At the end of the process, the Python interpreter may be gone; then this thread drops the log line.
            let _ = Python::try_attach(|py| line.log(py, dropped));
        }
    };
    std::thread::Builder::new().name("core-log".into()).spawn(run).ok().map(|_| sender)
}

impl LogLine {
    /// Gives the line to Python's logging; `dropped` lines before it were dropped.
    fn log(self, py: Python<'_>, dropped: u64) -> PyResult<()> {
        let logger = |name: &str| py.import("logging")?.call_method1("getLogger", (name,));
        let Some(refusal) = self.refusal else {
            let mut text = self.message + &self.fields;
            if dropped > 0 {
                let _ = write!(text, " ({dropped} lines before this one were dropped)");
            }
            logger("service.core")?.call_method1("log", (self.level, "%s", text))?;
            return Ok(());
        };
        let is_http = refusal.wire == "http";
        let extra = PyDict::new(py);
        extra.set_item("request_id", refusal.request_id)?;
        if is_http {
            extra.set_item("status", refusal.status)?;
        } else {
            extra.set_item("code", refusal.code)?;
        }
        if !refusal.cause.is_empty() {
            extra.set_item("reason", refusal.cause)?;
        }
        if refusal.left_out + dropped > 0 {
            extra.set_item("left_out", refusal.left_out + dropped)?;
        }
        let options = PyDict::new(py);
        options.set_item("extra", extra)?;
        // The text may quote the request, so it is written in ASCII.
        let text = py.import("builtins")?.call_method1("ascii", (refusal.text,))?;
        let message = if self.level < 40 { "request refused: %s" } else { "request failed: %s" };
        let name = if is_http { "service.http.errors" } else { "service.grpc.refusals" };
        logger(name)?.call_method("log", (self.level, message, text), Some(&options))?;
        Ok(())
    }
}
