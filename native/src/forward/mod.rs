//! Forwards requests to the reference servers over Unix sockets, and their answers to the clients.

mod gate;
mod grpc;
mod http;

pub use gate::{Gates, Lane, Permit};
pub use grpc::{GrpcUpstream, send_in_window};
pub use http::{Forwarded, HttpUpstream, UnreadReason, Upload};
