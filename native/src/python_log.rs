//! Forwards the core's log events to Python's logger `service.native`. The core logs faults only, never once per
//! request.

use std::fmt::Write;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

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
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("_native")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        // At the end of the process, the Python interpreter may be gone; then this function drops the log line.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("service.native",))?;
            logger.call_method1(method, ("%s", line.message + &line.fields))?;
            Ok(())
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
