//! Holds the configuration that Python starts the edge with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::dispatch::Cors;
use super::limits::Limits;
use super::sampling::Tracing;

/// The two wires. Their numbers index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wire {
    Grpc = 0,
    Http = 1,
}

/// The place of a listener.
#[derive(Debug)]
pub enum Listen {
    /// On an address; port 0 picks one.
    Address(SocketAddr),
    /// On a socket that is bound and listens already.
    Bound(std::net::TcpListener),
    /// On a Unix socket, which is made anew.
    Path(PathBuf),
}

/// The settings of an edge, which do not change while it runs.
#[derive(Debug)]
pub struct Config {
    /// Threads that serve connections.
    pub threads: usize,
    /// Threads that run large requests.
    pub large_threads: usize,
    /// Where gRPC is served.
    pub grpc: Vec<Listen>,
    /// Where HTTP is served.
    pub http: Vec<Listen>,
    /// Unix socket of the gRPC reference.
    pub grpc_upstream: PathBuf,
    /// Unix socket of the HTTP reference.
    pub http_upstream: PathBuf,
    /// TLS of gRPC from the first connection on; None: it is plaintext.
    pub grpc_tls: Option<Arc<rustls::ServerConfig>>,
    /// TLS of HTTP; None: it is plaintext.
    pub http_tls: Option<Arc<rustls::ServerConfig>>,
    /// Limits on the cost of clients.
    pub limits: Limits,
    /// The known callers and their models; None: everybody may run every model.
    pub access: Option<Access>,
    /// The shares of requests that are traced; None: no request is traced.
    pub tracing: Option<Tracing>,
    /// Proves to the reference that the edge wrote the headers of [`super::shared::OWN_HEADERS`].
    pub seal: String,
    /// Whether floats of a gRPC Predict travel in `tensor_content` where a request does not say otherwise.
    pub as_content: bool,
    /// Whether NaN and infinite numbers are refused in JSON requests and written as null.
    pub strict_json: bool,
    /// Origins whose pages may read answers in a browser.
    pub cors: Cors,
    /// Limits of the buckets that durations are counted in, in seconds, ascending.
    pub bucket_limits_s: Vec<f64>,
    /// Limits of the buckets that waits for a thread are counted in, in seconds, ascending.
    pub wait_limits_s: Vec<f64>,
    /// Time from which on a request is slow.
    pub slow_from: Duration,
    /// Time for which a drain waits for another request of an idle HTTP/1.1 connection, whose answer announces the end.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            threads: 1,
            large_threads: 1,
            grpc: Vec::new(),
            http: Vec::new(),
            grpc_upstream: PathBuf::new(),
            http_upstream: PathBuf::new(),
            grpc_tls: None,
            http_tls: None,
            limits: Limits::default(),
            access: None,
            tracing: None,
            seal: String::new(),
            as_content: false,
            strict_json: false,
            cors: Cors::Off,
            bucket_limits_s: Vec::new(),
            wait_limits_s: Vec::new(),
            slow_from: Duration::MAX,
            linger: Duration::from_millis(500),
        }
    }
}
