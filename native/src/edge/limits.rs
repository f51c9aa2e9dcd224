//! Limits the cost of clients: all limits, and one record for each connection.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};

use super::account::{Account, Hold, Shares};
use super::certificate;
use super::fair_queue::address_of;
use super::frames::Flood;

/// How many bytes one connection reads before other connections get their turn.
pub const READ_BUDGET: usize = 64 << 10;
/// How many bytes one connection writes before other connections get their turn.
pub const WRITE_BUDGET: usize = 512 << 10;
/// How many pipelined HTTP/1.1 requests of one connection are begun before other connections get their turn.
const REQUESTS_A_TURN: usize = 16;
/// Requests beyond this size are never tried on the thread of their connection.
pub const INLINE_BYTES: usize = 64 << 10;
/// Answers below this size are counted for their connection only.
pub const COUNTED_BYTES: usize = 16 << 10;
/// An HTTP/1.1 body that comes in more than `TINY_PARTS` parts must have at least `TINY_BYTES` a part on average.
const TINY_BYTES: usize = 32;
const TINY_PARTS: usize = 4096;
/// Time in which a client that floods may still read why the server closes its connection.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Compressed messages of one gRPC connection that are held inflated at the same time.
const MAX_INFLATED: usize = 4;
/// A client that sends or reads fewer bytes a second counts as stalled.
const BYTES_PER_S: u64 = 1024;

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
    /// Time after which a client that neither sends its body nor reads its answer is dropped.
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

/// An order to a connection's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Order {
    /// Serve on.
    Serve = 0,
    /// Tell the client, at the next answer, that the connection ends.
    Drain = 1,
    /// End the connection as soon as no request is open.
    Close = 2,
    /// Drop the connection now.
    Cut = 3,
}

/// One connection, as its task, its requests and the sweeper see it.
#[derive(Debug)]
pub struct Connection {
    /// The client's address and port.
    pub peer: String,
    /// Permits for compressed messages of this connection that are held inflated at the same time.
    pub inflating: Arc<Semaphore>,
    /// Held by the one request that may go on while too many answers are unread.
    pub turn: tokio::sync::Mutex<()>,
    limit: usize,
    read: AtomicU64,
    written: AtomicU64,
    is_blocked: AtomicBool,
    owed: AtomicUsize,
    has_room: Notify,
    open: AtomicUsize,
    served: AtomicU64,
    receiving: AtomicUsize,
    order: AtomicU8,
    waker: OnceLock<Waker>,
    has_unread: AtomicBool,
    flood: AtomicU8,
    begun: AtomicUsize,
    names: OnceLock<Vec<String>>,
    // Of each model that the connection has sent large requests to, or got large answers of.
    shares: Mutex<Vec<Arc<Shares>>>,
}

impl Connection {
    /// Starts the record of a connection.
    #[must_use]
    pub fn new(peer: String, limits: &Limits) -> Arc<Self> {
        Arc::new(Connection {
            peer,
            inflating: Arc::new(Semaphore::new(MAX_INFLATED)),
            turn: tokio::sync::Mutex::new(()),
            limit: limits.max_owed_bytes,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            owed: AtomicUsize::new(0),
            has_room: Notify::new(),
            open: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            receiving: AtomicUsize::new(0),
            order: AtomicU8::new(0),
            waker: OnceLock::new(),
            has_unread: AtomicBool::new(false),
            flood: AtomicU8::new(0),
            begun: AtomicUsize::new(0),
            names: OnceLock::new(),
            shares: Mutex::default(),
        })
    }

    /// Reads the names of the client's verified certificate, in DER.
    pub fn set_certificate(&self, der: &[u8]) {
        self.names.get_or_init(|| certificate::names(der));
    }

    /// The names in the client's verified certificate; empty if the client showed no certificate.
    #[must_use]
    pub fn names(&self) -> &[String] {
        self.names.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the shares of an account that requests to a model count in. `model` is a configured one, or "".
    #[must_use]
    pub fn shares(&self, account: &Arc<Account>, model: &str) -> Arc<Shares> {
        let mut all = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|shares| shares.model() == model) {
            return Arc::clone(known);
        }
        let shares = Shares::open(account, model, address_of(&self.peer));
        all.push(Arc::clone(&shares));
        shares
    }

    /// Counts bytes that came. Only the connection's task calls this.
    #[inline]
    pub fn note_read(&self, size: usize) {
        self.read.store(self.read.load(Relaxed) + size as u64, Relaxed);
    }

    /// Counts bytes that the socket took. Only the connection's task calls this.
    #[inline]
    pub fn note_written(&self, size: usize) {
        self.written.store(self.written.load(Relaxed) + size as u64, Relaxed);
        if self.is_blocked.swap(false, Relaxed)
            && let Some(waker) = self.waker.get()
        {
            // A pipelined request may wait until the answers before it are sent.
            waker.wake_by_ref();
        }
    }

    /// Says whether the socket's send buffer is full.
    #[must_use]
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed)
    }

    /// Starts the connection's next turn: sets its count of requests to 0. Only the connection's task calls this.
    #[inline]
    pub fn begin_turn(&self) {
        self.begun.store(0, Relaxed);
    }

    /// Counts a request; says whether the request must wait for the next turn. Only the connection's task calls this.
    #[inline]
    pub fn is_turn_over(&self) -> bool {
        let begun = self.begun.load(Relaxed);
        self.begun.store(begun + 1, Relaxed);
        begun >= REQUESTS_A_TURN
    }

    /// Notes the type of frame that the client floods with; the connection's task then ends the connection.
    pub fn note_flood(&self, flood: Flood) {
        self.flood.store(flood as u8, Relaxed);
        self.note_unread();
    }

    /// Returns the type of frame that the client flooded with; None: it did not.
    #[must_use]
    #[inline]
    pub fn flood(&self) -> Option<Flood> {
        Flood::of(self.flood.load(Relaxed))
    }

    /// Notes that the socket's send buffer is full. Only the connection's task calls this.
    pub fn note_blocked(&self) {
        self.is_blocked.store(true, Relaxed);
    }

    /// Notes that the rest of a body will not be read.
    pub fn note_unread(&self) {
        self.has_unread.store(true, Relaxed);
    }

    /// Says whether the client may be sending what nobody reads.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.has_unread.load(Relaxed)
    }

    /// Counts an answer that is not sent yet.
    #[inline]
    pub fn owe(&self, size: usize) {
        self.owed.fetch_add(size, Relaxed);
    }

    /// Counts bytes of an answer as sent, or as dropped.
    #[inline]
    pub fn pay(&self, size: usize) {
        let before = self.owed.fetch_sub(size, Relaxed);
        if before > self.limit && before - size <= self.limit {
            self.has_room.notify_waiters();
        }
    }

    /// Bytes of answers that are not sent yet.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.owed.load(Relaxed)
    }

    /// Says whether further requests must wait until the client has read answers.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.owed() > self.limit
    }

    /// Waits until the client has read enough.
    pub async fn room(&self) {
        loop {
            let mut notified = std::pin::pin!(self.has_room.notified());
            // Registered before the look, so that no notification between the two is lost.
            notified.as_mut().enable();
            if !self.is_full() {
                return;
            }
            notified.await;
        }
    }

    /// Opens a request; dropping what it returns ends it.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
    }

    /// Requests that are open.
    #[must_use]
    pub fn num_open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Notes that the rest of a request's body is awaited; dropping what it returns ends that.
    #[must_use]
    pub fn receive(self: &Arc<Self>) -> Receiving {
        self.receiving.fetch_add(1, Relaxed);
        Receiving(Arc::clone(self))
    }

    /// Returns the order that stands for the connection's task.
    #[must_use]
    #[inline]
    pub fn order(&self) -> Order {
        match self.order.load(Relaxed) {
            0 => Order::Serve,
            1 => Order::Drain,
            2 => Order::Close,
            _ => Order::Cut,
        }
    }

    /// Tells the connection's task what to do; a stricter order that stands is kept.
    pub fn tell(&self, order: Order) {
        let is_stricter = self.order.fetch_max(order as u8, Relaxed) < order as u8;
        if is_stricter && let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Takes the waker of the connection's task, which stays the same for as long as the task lives.
    #[inline]
    pub fn wake_by(&self, waker: &Waker) {
        if self.waker.get().is_none() {
            let _ = self.waker.set(waker.clone());
        }
    }
}

/// A request that is not answered yet, or whose answer is not handed to the socket yet.
#[derive(Debug)]
pub struct Open(Arc<Connection>);

impl Drop for Open {
    fn drop(&mut self) {
        let served = &self.0.served;
        served.fetch_add(1, Relaxed);
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// A body whose rest is awaited.
#[derive(Debug)]
pub struct Receiving(Arc<Connection>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.receiving.fetch_sub(1, Relaxed);
    }
}

/// Bytes of an answer that are owed to a connection; dropping it gives back what was not sent.
#[derive(Debug)]
pub struct Debt {
    connection: Arc<Connection>,
    size: usize,
    _hold: Hold,
}

impl Debt {
    /// Counts a model's answer of this size, also over the limits: they are looked at before work begins.
    #[must_use]
    pub fn new(connection: &Arc<Connection>, account: &Arc<Account>, model: &str, size: usize) -> Self {
        connection.owe(size);
        let mut hold = Hold::default();
        if size >= COUNTED_BYTES {
            hold.reach(size, || connection.shares(account, model));
        }
        Debt { connection: Arc::clone(connection), size, _hold: hold }
    }

    /// Counts some of it as sent.
    #[inline]
    pub fn pay(&mut self, size: usize) {
        let size = size.min(self.size);
        self.size -= size;
        self.connection.pay(size);
    }
}

/// Bytes of an answer that are owed until nobody holds them any more.
#[derive(Debug)]
pub struct Owed {
    /// The answer.
    pub data: Bytes,
    /// Bytes to give back.
    pub debt: Debt,
}

impl AsRef<[u8]> for Owed {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.connection.pay(self.size);
    }
}

/// Whether a number grows by `BYTES_PER_S` at least, seen from looks at it once in a while.
#[derive(Debug, Default)]
struct Progress(Option<(u64, Instant)>);

impl Progress {
    fn is_stalled(&mut self, number: u64, now: Instant, timeout: Duration) -> bool {
        match self.0 {
            Some((mark, since)) if number.abs_diff(mark) < BYTES_PER_S * timeout.as_secs().max(1) => {
                now.duration_since(since) > timeout
            }
            _ => {
                self.0 = Some((number, now));
                false
            }
        }
    }
}

/// Times of a connection that the sweeper keeps between two looks.
#[derive(Debug)]
pub struct Watch {
    is_http: bool,
    begun: Instant,
    reading: Progress,
    writing: Progress,
    // Requests that were served and bytes that had come when the connection was first seen without a request.
    idle: Option<(u64, u64, Instant)>,
    ending: Option<Instant>,
}

impl Watch {
    /// Starts to watch a connection.
    #[must_use]
    pub fn new(is_http: bool, now: Instant) -> Self {
        Watch {
            is_http,
            begun: now,
            reading: Progress::default(),
            writing: Progress::default(),
            idle: None,
            ending: None,
        }
    }

    /// Looks at a connection; says what its task is to be told.
    pub fn look(&mut self, connection: &Connection, limits: &Limits, now: Instant) -> Order {
        if connection.flood().is_some() && now.duration_since(*self.ending.get_or_insert(now)) > LAST_WORD {
            return Order::Cut;
        }
        let (read, written) = (connection.read.load(Relaxed), connection.written.load(Relaxed));
        if connection.is_blocked.load(Relaxed) || connection.owed() > 0 {
            if self.writing.is_stalled(written, now, limits.stall_timeout) {
                return Order::Cut;
            }
            self.idle = None;
            return Order::Serve;
        }
        self.writing = Progress::default();
        if self.is_http && connection.receiving.load(Relaxed) > 0 {
            if self.reading.is_stalled(read, now, limits.stall_timeout) {
                return Order::Cut;
            }
        } else {
            self.reading = Progress::default();
        }
        if connection.num_open() > 0 {
            self.idle = None;
            return Order::Serve;
        }
        // Small gRPC requests are answered without being opened, so bytes tell of them.
        let served = if self.is_http { connection.served.load(Relaxed) } else { read };
        let (bytes, since) = match self.idle {
            Some((known, bytes, since)) if known == served => (bytes, since),
            _ => {
                self.idle = Some((served, read, now));
                (read, now)
            }
        };
        if !self.is_http {
            let is_over = limits.grpc_keep_alive.is_some_and(|time| now.duration_since(since) > time);
            return if is_over { Order::Close } else { Order::Serve };
        }
        let (from, time) = match (served, read == bytes) {
            (0, _) => (self.begun, limits.head_timeout),
            (_, true) => (since, limits.keep_alive),
            // The head of a further request is on its way.
            (_, false) => (since, limits.keep_alive + limits.head_timeout),
        };
        if now.duration_since(from) <= time {
            Order::Serve
        } else if read == bytes && served > 0 {
            Order::Close
        } else {
            Order::Cut
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            stall_timeout: Duration::from_secs(4),
            head_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(1),
            max_owed_bytes: 100,
            ..Limits::default()
        }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_debt_is_paid_in_parts_and_by_dropping() {
        let (connection, account) = (Connection::new(String::new(), &limits()), Account::new(1 << 20));
        let mut debt = Debt::new(&connection, &account, "m", 20 << 10);
        assert!(connection.is_full() && account.held() == 20 << 10);
        debt.pay(1 << 10);
        assert_eq!(connection.owed(), 19 << 10);
        drop(debt);
        assert_eq!((connection.owed(), account.held()), (0, 0));
    }

    #[test]
    fn an_idle_http_connection_is_closed_and_a_dribbled_head_is_cut() {
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
        let mut watch = Watch::new(true, start);
        assert_eq!(watch.look(&connection, &limits(), at(start, 1)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Cut);
        drop(connection.open());
        let mut watch = Watch::new(true, start);
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 5)), Order::Close);
        connection.note_read(1);
        assert_eq!(watch.look(&connection, &limits(), at(start, 6)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 7)), Order::Cut);
    }

    #[test]
    fn a_client_that_does_not_read_is_cut() {
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
        let mut watch = Watch::new(false, start);
        let _open = connection.open();
        connection.note_blocked();
        assert_eq!(watch.look(&connection, &limits(), at(start, 0)), Order::Serve);
        connection.note_written(8192);
        connection.note_blocked();
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 6)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 8)), Order::Cut);
    }

    #[test]
    fn orders_only_get_stricter() {
        let connection = Connection::new(String::new(), &limits());
        connection.tell(Order::Close);
        connection.tell(Order::Drain);
        assert_eq!(connection.order(), Order::Close);
    }
}
