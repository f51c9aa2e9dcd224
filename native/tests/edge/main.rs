//! The edge between real clients and a reference that is made up.

mod drain;
mod grpc;
mod http;
mod setup;
mod tls;
