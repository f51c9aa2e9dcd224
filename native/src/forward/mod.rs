//! Forwards requests to the control servers over Unix sockets, and their answers to the clients.

use std::io;
use std::path::Path;

use tokio::net::UnixStream;

mod grpc;
mod http;
mod request_body;

pub use grpc::{GrpcUpstream, Lost, send_in_window};
pub use http::{Forwarded, HttpUpstream, UnreadReason, Upload};
pub use request_body::{BodyError, RequestBody};

/// Connects to the Unix socket of a control server; a path that starts with a zero byte is an abstract name. The
/// socket must be this process's own: the permissions of a file do not protect an abstract name.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    let listener = stream.peer_cred()?.pid().and_then(|id| u32::try_from(id).ok());
    if listener == Some(std::process::id()) { Ok(stream) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}
