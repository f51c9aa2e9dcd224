//! Accepts connections and serves their requests: TLS, limits, deadlines and metrics.

mod config;
mod dispatch;
mod frames;
mod grpc;
pub(crate) mod grpc_message;
mod http;
mod inflated;
mod large;
pub mod limits;
mod request_id;
mod server;
pub(crate) mod shared;
mod socket;
mod statistics;
mod tls;

pub use config::{Config, Listen, Wire};
pub use dispatch::{Cors, Dispatch, Method, Target, target};
pub use limits::Limits;
pub use server::Server;
pub use statistics::{SlowRequest, Snapshot, SubjectSnapshot};
pub use tls::{TlsError, server_config};
