//! Tests of the core's network server with real clients and test reference servers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![allow(clippy::large_stack_arrays, clippy::format_collect, reason = "speed does not matter here")]

mod access;
mod drain;
mod grpc;
mod http;
mod overload;
mod setup;
mod tls;
