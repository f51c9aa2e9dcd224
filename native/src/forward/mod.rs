//! Hands a request to the reference servers over a Unix socket, and their answer to the client.

mod gate;
mod grpc;
mod http;

pub use gate::{Gates, Lane, Permit};
pub use grpc::GrpcUpstream;
pub use http::{Forwarded, HttpUpstream, Left, Upload};
