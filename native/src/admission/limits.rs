//! All limits on the memory and time that clients may cost the server.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

use super::fair_queue;

/// Number of bytes that the server reads from one connection before it serves other connections.
pub const READ_BUDGET: usize = 64 << 10;
/// Number of bytes that the server writes to one connection before it serves other connections.
pub const WRITE_BUDGET: usize = 512 << 10;
/// A gRPC connection starts no further request while its socket accepts no bytes and more bytes than this of its
/// answers are not sent.
pub const BACKED_UP_BYTES: usize = 256 << 10;
/// Refusals on all connections together take at most about 1 part in this many of the connection threads' time.
pub const REFUSAL_SHARE: u32 = 20;
/// The server counts the headers of an open gRPC call if they have at least this size.
pub const LARGE_HEAD_BYTES: usize = 4 << 10;
/// Maximal size of the counted headers of one connection's open gRPC calls.
pub const HEAD_BYTES_A_CONNECTION: usize = 512 << 10;
/// Maximal size of the counted headers of the open gRPC calls of all connections together.
pub const ALL_HEAD_BYTES: usize = 32 << 20;
/// The server counts the part that has come of a request's head, or of an HTTP/2 frame, if it has at least this size.
pub const LARGE_PART_BYTES: usize = 4 << 10;
/// Maximal number of bytes of a client's part of a TLS handshake.
pub const TLS_HANDSHAKE_BYTES: usize = 32 << 10;
/// Maximal number of TLS bytes without application data that a client may send after its TLS handshake. A read counts
/// its data when it ends, after up to [`READ_BUDGET`] bytes.
pub const TLS_BYTES_WITHOUT_DATA: usize = 128 << 10;
/// Number of TLS handshakes that each thread may continue before it looks for new bytes of other connections.
pub const HANDSHAKES_A_TURN: usize = 2;
/// Maximal number of intermediate certificates that a client may show.
pub const MAX_INTERMEDIATES: usize = 3;
/// Maximal size of the path and query in an HTTP/1.1 request line. The control server decodes both on its event loop,
/// which takes it up to 0.3 ms for each KB.
pub const URL_BYTES: usize = 8 << 10;
/// Maximal number of headers of an HTTP request, over HTTP/1.1 (hyper's own limit) and HTTP/2.
pub const MAX_HEADERS: usize = 100;
/// A JSON body that is forwarded counts as this many times its bytes: its objects in Python take as much, or more.
pub const PARSED_TIMES: usize = 10;
/// A request with more bytes never runs on the thread of its connection, but on the pool for large work.
pub const INLINE_BYTES: usize = 64 << 10;
/// An HTTP/1.1 body that comes in more than `TINY_PARTS` parts must have at least `TINY_BYTES` bytes in each part on
/// average.
const TINY_BYTES: usize = 32;
const TINY_PARTS: usize = 4096;
/// A client that sends a body, or reads an answer, with fewer bytes per second is too slow.
const LEAST_BYTES_PER_S: u64 = 1024;

/// All limits of the core's network server. A time or size is for one connection or one request, unless its text names
/// another scope. Python writes times as seconds.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximal size of a request's body over HTTP, in bytes.
    pub max_request_bytes: usize,
    /// Maximal size of a request's message over gRPC, in bytes.
    pub max_message_bytes: usize,
    /// Maximal size of an answer's arrays, in bytes.
    pub max_response_bytes: usize,
    /// Size from which HTTP answers are compressed for clients that accept it; 0 for never.
    pub gzip_min_bytes: usize,
    /// Maximal number of bytes that the requests and answers of all connections together may hold.
    pub max_bytes_in_flight: usize,
    /// Maximal number of bytes that unfinished heads of requests, and unfinished HTTP/2 frames, of all connections together
    /// may hold; those below [`LARGE_PART_BYTES`] do not count.
    pub max_part_bytes: usize,
    /// Maximal number of long-lived calls, such as health watches, of all gRPC connections together.
    pub max_long_calls: usize,
    /// Maximal number of open connections on each wire, gRPC and HTTP.
    pub max_connections: usize,
    /// Maximal number of open streams, each with one call, on one HTTP/2 connection.
    pub max_streams: u32,
    /// Maximal size of an HTTP/1.1 request's head, in bytes; at least 8 KB.
    pub max_head_bytes: usize,
    /// Maximal size of a gRPC request's header list, in bytes.
    pub max_header_list_bytes: u32,
    /// Maximal number of bytes of a connection's unread answers; above it, the connection's further requests wait.
    pub max_owed_bytes: usize,
    /// Maximal number of waiting requests in each queue: of each thread pool, and of each lane of forwarded requests.
    pub max_queued_requests: usize,
    /// Limit on the expected wait of a large request for a thread, or of a forwarded request for the control server.
    #[serde(deserialize_with = "seconds")]
    pub max_queue: Duration,
    /// Maximal number of searches of each wire that run on the control server at the same time.
    pub max_forwarded: usize,
    /// Maximal number of TLS handshakes at the same time. A further handshake ends the oldest one, so that new clients
    /// can still connect.
    pub max_handshakes: usize,
    /// Maximal time for a TLS handshake, and again for the HTTP/2 handshake after it.
    #[serde(deserialize_with = "seconds")]
    pub handshake_timeout: Duration,
    /// Maximal time for the head of an HTTP/1.1 request to arrive.
    #[serde(deserialize_with = "seconds")]
    pub head_timeout: Duration,
    /// Time in which a client must send, or read, at least [`Self::least_bytes`] bytes.
    #[serde(deserialize_with = "seconds")]
    pub stall_timeout: Duration,
    /// Time for which the server keeps an idle HTTP/1.1 connection open.
    #[serde(deserialize_with = "seconds")]
    pub keep_alive: Duration,
    /// Time for which the server keeps an idle gRPC connection open; None for ever.
    #[serde(deserialize_with = "optional_seconds")]
    pub grpc_keep_alive: Option<Duration>,
    /// Time, give or take a tenth, after which the server asks a client of either wire to end its connection; None: never.
    #[serde(deserialize_with = "optional_seconds")]
    pub max_age: Option<Duration>,
    /// Time for which a connection of that age may finish its open requests; None for ever.
    #[serde(deserialize_with = "optional_seconds")]
    pub max_age_grace: Option<Duration>,
    /// Maximal time for a large or forwarded HTTP request.
    #[serde(deserialize_with = "seconds")]
    pub http_timeout: Duration,
}

/// Reads a time in seconds.
///
/// # Errors
/// The number is negative or too large.
pub fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(Error::custom)
}

fn optional_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    Option::<f64>::deserialize(from)?.map(Duration::try_from_secs_f64).transpose().map_err(Error::custom)
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_request_bytes: 64 << 20,
            max_message_bytes: 64 << 20,
            max_response_bytes: 256 << 20,
            gzip_min_bytes: 32 << 10,
            max_bytes_in_flight: 1 << 30,
            max_part_bytes: 24 << 20,
            max_long_calls: 8192,
            max_connections: 1 << 16,
            max_streams: 128,
            max_head_bytes: 64 << 10,
            max_header_list_bytes: 64 << 10,
            max_owed_bytes: 16 << 20,
            max_queued_requests: 1024,
            max_queue: Duration::from_millis(200),
            max_forwarded: 16,
            max_handshakes: 1000,
            handshake_timeout: Duration::from_secs(20),
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(20),
            keep_alive: Duration::from_secs(620),
            grpc_keep_alive: None,
            max_age: None,
            max_age_grace: None,
            http_timeout: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// Returns the limits of a queue whose requests run in `slots` slots.
    #[must_use]
    pub fn queue(&self, slots: usize) -> fair_queue::Limits {
        fair_queue::Limits { slots, queued: self.max_queued_requests, wait: self.max_queue }
    }

    /// Returns how many bytes of a body a client must send, or how many bytes of answers it must read, within
    /// `stall_timeout`.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        LEAST_BYTES_PER_S * self.stall_timeout.as_secs().max(1)
    }

    /// Returns the time between two checks of all connections by the sweeper.
    #[must_use]
    pub fn sweep_interval(&self) -> Duration {
        let times = [self.head_timeout, self.stall_timeout, self.keep_alive];
        let optional = [self.grpc_keep_alive, self.max_age, self.max_age_grace];
        let shortest = times.into_iter().chain(optional.into_iter().flatten()).min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// Counts the parts in which the body of an HTTP/1.1 request arrives, and their bytes.
#[derive(Debug, Default)]
pub struct BodyParts {
    count: usize,
    bytes: usize,
}

impl BodyParts {
    /// Counts a part of `size` bytes; returns true if the body has too many tiny parts. Each part costs the server as
    /// much as a small request.
    pub fn is_flood(&mut self, size: usize) -> bool {
        self.count += 1;
        self.bytes += size;
        self.count > TINY_PARTS && self.bytes < self.count * TINY_BYTES
    }
}
