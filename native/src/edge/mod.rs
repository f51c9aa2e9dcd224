//! The core's network server (the edge): accepts connections and serves their requests, with TLS, limits, deadlines and
//! metrics.

mod access;
mod certificate;
mod config;
mod connection;
mod connection_watch;
mod dispatch;
mod encoding;
mod encrypted;
mod events;
mod frames;
mod grpc;
mod grpc_call;
mod grpc_forwarding;
pub(crate) mod grpc_message;
mod grpc_metadata;
mod grpc_task;
mod health;
mod http;
mod http2;
mod http_over_http2;
mod inflating;
mod local_authority;
mod notes;
mod own_wakes;
mod pooled;
mod preface;
mod records;
mod refusal_log;
mod refusal_pause;
mod refusals;
mod request_id;
mod request_window;
mod sampling;
mod server;
pub(crate) mod shared;
mod snapshot;
mod socket;
mod statistics;
#[cfg(all(test, not(feature = "model")))]
mod tests;
mod tls;
mod turns;
mod wrapped_stream;

pub use crate::admission::limits::Limits;
pub use access::{Access, Caller};
pub use certificate::first_end_s;
pub use config::{Config, Listen, Wire};
pub use dispatch::{Cors, Dispatch, Method, Target, target};
pub use health::Health;
pub use records::{LogEntry, Records};
pub use sampling::Tracing;
pub use server::Server;
pub use snapshot::{
    FailedRequest, FailureCount, RetiredSnapshot, SlowRequest, Snapshot, SubjectSnapshot, WaitSnapshot,
};
pub use tls::{TlsError, server_config};
