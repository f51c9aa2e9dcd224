//! Connections: listeners, TLS, limits, deadlines, metrics; once for every request.
