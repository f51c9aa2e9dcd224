//! Holds the configuration with which Python starts the core's network server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::dispatch::Cors;
use super::sampling::Tracing;
use crate::admission::limits::{Limits, seconds};

/// The two wires, gRPC and HTTP. Their numbers are indexes of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Grpc = 0,
    Http = 1,
}

/// The address or socket on which the server accepts connections.
#[derive(Debug)]
pub enum Listen {
    /// Listens on this IP address and port; for port 0 the system picks a free port.
    Address(SocketAddr),
    /// Accepts connections from a TCP socket that is bound and listens already.
    Bound(std::net::TcpListener),
    /// Listens on a Unix socket, which the server creates anew at this path.
    Path(PathBuf),
}

/// The settings with which the core's network server starts; `service/core/edge.py` writes them as JSON, but for those
/// that are skipped here.
#[derive(Debug, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Number of threads that run large requests.
    pub large_threads: usize,
    #[serde(skip)]
    pub grpc: Vec<Listen>,
    #[serde(skip)]
    pub http: Vec<Listen>,
    /// Path of the Unix socket on which the gRPC control server listens.
    pub grpc_upstream: PathBuf,
    pub http_upstream: PathBuf,
    /// TLS settings of the ports at the start; None: plaintext.
    #[serde(skip)]
    pub grpc_tls: Option<Arc<rustls::ServerConfig>>,
    #[serde(skip)]
    pub http_tls: Option<Arc<rustls::ServerConfig>>,
    pub limits: Limits,
    /// The known callers, with the models that each may run; None lets every client run every model.
    #[serde(skip)]
    pub access: Option<Access>,
    /// Sampling rates, which decide for how many requests a trace is recorded; None if tracing is off.
    pub tracing: Option<Tracing>,
    /// Secret text that proves to the control server that the core wrote the headers of
    /// [`super::shared::OWN_HEADERS`].
    pub seal: String,
    /// Whether a gRPC Predict answer has its floats in `tensor_content`, unless its request chooses the encoding.
    pub as_content: bool,
    /// Whether JSON requests with NaN or infinity are refused, and JSON answers have null in their place.
    pub strict_json: bool,
    pub cors: Cors,
    /// Upper limits of the buckets in the histogram of request durations, in seconds, ascending.
    pub bucket_limits_s: Vec<f64>,
    /// Upper limits of the buckets in the histogram of the time that requests wait for a thread, in seconds, ascending.
    pub wait_limits_s: Vec<f64>,
    /// Ascending upper limits, exclusive, of the histogram of tf.Examples in a request.
    pub example_limits: Vec<usize>,
    /// A request that takes at least this time is recorded as slow.
    #[serde(deserialize_with = "seconds")]
    pub slow_from: Duration,
    /// Time for which a drain keeps an idle HTTP/1.1 connection open, so that the answer to its next request can
    /// announce the end.
    #[serde(skip)]
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
            example_limits: Vec::new(),
            slow_from: Duration::MAX,
            linger: Duration::from_millis(500),
        }
    }
}
