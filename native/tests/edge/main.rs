//! The edge between real clients and a reference that is made up.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod drain;
mod grpc;
mod http;
mod setup;
mod tls;
