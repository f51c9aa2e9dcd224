"""OpenTelemetry spans, an optional extra: nothing here is imported unless --tracing asks for it."""
