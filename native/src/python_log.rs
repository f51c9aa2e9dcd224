//! Forwards the core's log events to Python's logger `service.native`, in a thread of its own: the threads of the
//! connections must not wait for Python's interpreter lock. The core logs faults only, never once per request.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Maximal number of log lines that wait for Python; further ones are dropped.
const MAX_WAITING: usize = 256;

/// The channel to the thread that gives lines to Python: the logger's method and the text of each.
type Lines = SyncSender<(&'static str, String)>;
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

struct LogLine {
    message: String,
    fields: String,
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
        // Only warnings and errors of this crate are forwarded, because libraries log too much for an operator.
        let is_own = *metadata.level() <= Level::WARN && metadata.target().starts_with("_native");
        metadata.is_event() && (is_own || metadata.target() == H2)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine { message: String::new(), fields: String::new() };
        event.record(&mut line);
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
        }
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        let sent = LINES
            .get_or_init(start)
            .as_ref()
            .is_some_and(|lines| lines.try_send((method, line.message + &line.fields)).is_ok());
        if !sent {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Starts the thread that gives log lines to Python; None if the system starts no thread.
fn start() -> Option<Lines> {
    let (sender, lines) = sync_channel::<(&str, String)>(MAX_WAITING);
    let run = move || {
        for (method, mut text) in lines {
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let _ = write!(text, " ({dropped} lines before this one were dropped)");
            }
            // At the end of the process, the Python interpreter may be gone; then this thread drops the log line.
            let _ = Python::try_attach(|py| -> PyResult<()> {
                let logger = py.import("logging")?.call_method1("getLogger", ("service.native",))?;
                logger.call_method1(method, ("%s", text))?;
                Ok(())
            });
        }
    };
    std::thread::Builder::new().name("core-log".into()).spawn(run).ok().map(|_| sender)
}
