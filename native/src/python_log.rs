//! Hands what the core logs to Python's logger `service.native`. The core logs faults, and nothing once per request.

use std::fmt::Write;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

struct PythonLog;

/// Makes Python's logger the one that the core logs to. To be called once.
pub fn install() {
    // A second import of the module in one process finds the first one's.
    let _ = tracing::subscriber::set_global_default(PythonLog);
}

struct Text {
    message: String,
    rest: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.rest, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for PythonLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below say more than an operator wants to read.
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("_native")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text { message: String::new(), rest: String::new() };
        event.record(&mut text);
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        // At the end of the process there is no interpreter any more, and nobody to read the line.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("service.native",))?;
            logger.call_method1(method, ("%s", text.message + &text.rest))?;
            Ok(())
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
