//! Hands a request to the reference servers over a Unix socket, and their answer to the client.

mod grpc;
mod http;

pub use grpc::GrpcUpstream;
pub use http::{Forwarded, HttpUpstream, Left, Upload};
