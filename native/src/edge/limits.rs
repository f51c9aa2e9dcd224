//! All limits on the cost of clients.

use std::time::Duration;

use super::fair_queue;

/// How many bytes one connection reads before other connections get their turn.
pub const READ_BUDGET: usize = 64 << 10;
/// How many bytes one connection writes before other connections get their turn.
pub const WRITE_BUDGET: usize = 512 << 10;
/// Requests beyond this size are never tried on the thread of their connection.
pub const INLINE_BYTES: usize = 64 << 10;
/// An HTTP/1.1 body that comes in more than `TINY_PARTS` parts must have at least `TINY_BYTES` a part on average.
const TINY_BYTES: usize = 32;
const TINY_PARTS: usize = 4096;
/// A client that sends a body, or reads an answer, with fewer bytes a second is too slow.
const LEAST_BYTES_PER_S: u64 = 1024;

/// All limits of the edge. Times and sizes are for one connection or one request where nothing else is said.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request body or message.
    pub max_request_bytes: usize,
    /// Largest answer, as arrays.
    pub max_response_bytes: usize,
    /// Bytes of requests and answers that all connections together may hold.
    pub max_bytes_in_flight: usize,
    /// Connections of each wire.
    pub max_connections: usize,
    /// Streams of one HTTP/2 connection.
    pub max_streams: u32,
    /// Largest head of an HTTP/1.1 request; at least 8 KB.
    pub max_head_bytes: usize,
    /// Largest header list of a gRPC request.
    pub max_header_list_bytes: u32,
    /// Answers that one connection may leave unread before its further requests wait.
    pub max_owed_bytes: usize,
    /// Large requests that may wait for a thread; also forwarded requests of each wire that may wait for the reference.
    pub max_queued_requests: usize,
    /// Time for which one such request may wait.
    pub max_queue: Duration,
    /// Requests of each wire that the reference runs at the same time.
    pub max_forwarded: usize,
    /// TLS handshakes at the same time. A further handshake ends the oldest, so that new clients can still connect.
    pub max_handshakes: usize,
    /// Time for the handshakes of TLS and HTTP/2.
    pub handshake_timeout: Duration,
    /// Time for the head of an HTTP/1.1 request to arrive.
    pub head_timeout: Duration,
    /// Time in which a client must send, or read, [`Self::least_bytes`].
    pub stall_timeout: Duration,
    /// Time for which an idle HTTP/1.1 connection is kept.
    pub keep_alive: Duration,
    /// Time for which an idle gRPC connection is kept; None: for ever.
    pub grpc_keep_alive: Option<Duration>,
    /// Time after which a large HTTP request is given up.
    pub http_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_request_bytes: 64 << 20,
            max_response_bytes: 256 << 20,
            max_bytes_in_flight: 1 << 30,
            max_connections: 1 << 16,
            max_streams: 1000,
            max_head_bytes: 64 << 10,
            max_header_list_bytes: 16 << 10,
            max_owed_bytes: 16 << 20,
            max_queued_requests: 1024,
            max_queue: Duration::from_millis(200),
            max_forwarded: 16,
            max_handshakes: 1000,
            handshake_timeout: Duration::from_secs(20),
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
            grpc_keep_alive: None,
            http_timeout: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// Limits of a queue before so many slots.
    #[must_use]
    pub fn queue(&self, slots: usize) -> fair_queue::Limits {
        fair_queue::Limits { slots, queued: self.max_queued_requests, wait: self.max_queue }
    }

    /// Bytes of a body, or of answers, that a client must send, or read, within `stall_timeout`.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        LEAST_BYTES_PER_S * self.stall_timeout.as_secs().max(1)
    }

    /// How often the sweeper looks at all connections.
    #[must_use]
    pub fn sweep_interval(&self) -> Duration {
        let times = [self.head_timeout, self.stall_timeout, self.keep_alive];
        let shortest = times.into_iter().chain(self.grpc_keep_alive).min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// Counts the parts in which an HTTP/1.1 body comes, and their bytes.
#[derive(Debug, Default)]
pub struct BodyParts {
    count: usize,
    bytes: usize,
}

impl BodyParts {
    /// Counts a part; says whether the body has too many tiny parts. Each part costs as much as a small request.
    pub fn is_flood(&mut self, size: usize) -> bool {
        self.count += 1;
        self.bytes += size;
        self.count > TINY_PARTS && self.bytes < self.count * TINY_BYTES
    }
}
