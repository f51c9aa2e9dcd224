//! The record of one connection, which its task, its requests and the sweeper of idle connections share.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};

use super::certificate;
use super::frames::Flood;
use crate::admission::account::{Account, Hold, Shares};
use crate::admission::fair_queue::client_of;
use crate::admission::limits::{BACKED_UP_BYTES, HEAD_BYTES_A_CONNECTION, LARGE_PART_BYTES, Limits};

/// Number of pipelined HTTP/1.1 requests of one connection that the server starts before it serves other connections.
const REQUESTS_A_TURN: usize = 16;
/// Answers below this size count only for their connection, not for the server's limit on bytes in flight.
pub const COUNTED_BYTES: usize = 16 << 10;
/// Maximal number of compressed messages of one gRPC connection that are held in inflated form at the same time.
const MAX_INFLATED: usize = 4;
/// Maximal number of long-lived calls of one gRPC connection, such as health watches, which wait for no slot of the
/// control server.
pub const MAX_LONG_CALLS: usize = 8;

/// The future that answers one request of the connection.
pub type PendingCall = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An order that the server gives to the task that serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Order {
    /// Continue to serve the connection.
    Serve = 0,
    /// With the next answer, tell the client that the server will close the connection.
    Drain = 1,
    /// Close the connection as soon as none of its requests is unanswered.
    Close = 2,
    /// Close the connection now, even if requests are unanswered.
    Cut = 3,
}

/// The state of one connection, which its task, its requests and the sweeper of idle connections share.
#[derive(Debug)]
pub struct Connection {
    /// Address and port of the connection's client, as "address:port".
    pub peer: String,
    /// Semaphore that limits how many compressed messages of this connection are held in inflated form.
    pub inflating: Arc<Semaphore>,
    /// Semaphore that limits how many long-lived calls of this connection run at the same time.
    pub streaming: Arc<Semaphore>,
    /// Semaphore whose permits are the bytes that large headers of this connection's open calls may still take.
    pub heads: Arc<Semaphore>,
    /// Lock for the one request of this connection that may continue while its client has too many unread answers.
    pub turn: tokio::sync::Mutex<()>,
    limit: usize,
    /// Maximal number of bytes of a refused request's body that the server reads and drops before it closes the
    /// connection.
    pub max_discarded: usize,
    pub(super) read: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) is_blocked: AtomicBool,
    owed: AtomicUsize,
    handed: AtomicUsize,
    has_room: Notify,
    open: AtomicUsize,
    pub(super) served: AtomicU64,
    order: AtomicU8,
    waker: OnceLock<Waker>,
    has_unread: AtomicBool,
    flood: AtomicU8,
    refused: AtomicU64,
    large_refused: AtomicU64,
    arriving: AtomicUsize,
    is_paused: AtomicBool,
    is_http2: AtomicBool,
    begun: AtomicUsize,
    part: AtomicUsize,
    parts: OnceLock<Arc<Account>>,
    part_shares: OnceLock<Arc<Shares>>,
    part_hold: Mutex<Hold>,
    names: OnceLock<Vec<String>>,
    // Counters of the bytes that large requests and answers of this connection hold, one entry for each model.
    shares: Mutex<Vec<Arc<Shares>>>,
}

impl Connection {
    /// Creates the state of a connection that the server has just accepted.
    #[must_use]
    pub fn new(peer: String, limits: &Limits) -> Arc<Self> {
        Arc::new(Connection {
            peer,
            inflating: Arc::new(Semaphore::new(MAX_INFLATED)),
            heads: Arc::new(Semaphore::new(HEAD_BYTES_A_CONNECTION)),
            streaming: Arc::new(Semaphore::new(MAX_LONG_CALLS)),
            turn: tokio::sync::Mutex::new(()),
            limit: limits.max_owed_bytes,
            max_discarded: limits.max_request_bytes.saturating_mul(2),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            owed: AtomicUsize::new(0),
            handed: AtomicUsize::new(0),
            has_room: Notify::new(),
            open: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            order: AtomicU8::new(0),
            waker: OnceLock::new(),
            has_unread: AtomicBool::new(false),
            flood: AtomicU8::new(0),
            refused: AtomicU64::new(0),
            large_refused: AtomicU64::new(0),
            arriving: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            begun: AtomicUsize::new(0),
            part: AtomicUsize::new(0),
            parts: OnceLock::new(),
            part_shares: OnceLock::new(),
            part_hold: Mutex::default(),
            names: OnceLock::new(),
            shares: Mutex::default(),
        })
    }

    /// Stores the names in the client's verified certificate; `der` is the certificate in DER form.
    pub fn set_certificate(&self, der: &[u8]) {
        self.names.get_or_init(|| certificate::names(der));
    }

    /// Sets the account that counts the bytes of unfinished heads and HTTP/2 frames of all connections together.
    pub fn count_parts(&self, account: &Arc<Account>) {
        let _ = self.parts.set(Arc::clone(account));
    }

    /// Counts the bytes that have come of an unfinished head or HTTP/2 frame; `size` replaces the last count. Returns
    /// false if the connection, its client address, or all connections together hold too many such bytes.
    #[inline]
    pub fn note_part(&self, size: usize) -> bool {
        let before = self.part.swap(size, Relaxed);
        before.max(size) < LARGE_PART_BYTES || self.hold_part(size)
    }

    fn hold_part(&self, size: usize) -> bool {
        let mut hold = self.part_hold.lock().unwrap_or_else(PoisonError::into_inner);
        *hold = Hold::default();
        let Some(account) = self.parts.get().filter(|_| size >= LARGE_PART_BYTES) else { return true };
        hold.reach(size, || {
            Arc::clone(self.part_shares.get_or_init(|| Shares::open(account, "", &client_of(&self.peer))))
        })
    }

    /// Replaces the counted bytes of a request's head, which is now complete, by the size of its fields.
    #[inline]
    pub fn finish_head(&self, size: impl FnOnce() -> usize) {
        if self.part.load(Relaxed) >= LARGE_PART_BYTES {
            // The result is ignored: a request whose head is complete is served even if, meanwhile, other connections
            // have used up the limit on unfinished heads and frames.
            let _ = self.note_part(size());
        }
    }

    /// Says whether only a part of an HTTP/2 frame has come on this connection so far.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.part.load(Relaxed) > 0
    }

    /// Returns the number of requests of this connection that have begun so far, ended requests included.
    #[must_use]
    #[inline]
    pub fn num_begun(&self) -> u64 {
        self.served.load(Relaxed) + self.num_open() as u64
    }

    /// Returns the names in the client's verified certificate; empty if the client showed no certificate.
    #[must_use]
    pub fn names(&self) -> &[String] {
        self.names.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the byte counters for this connection's requests to a model. `model` is a configured model, or "".
    #[must_use]
    pub fn shares(&self, account: &Arc<Account>, model: &str) -> Arc<Shares> {
        let mut all = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|shares| shares.model() == model) {
            return Arc::clone(known);
        }
        let shares = Shares::open(account, model, &client_of(&self.peer));
        all.push(Arc::clone(&shares));
        shares
    }

    /// Counts bytes that the client sent. Only the connection's task calls this.
    #[inline]
    pub fn note_read(&self, size: usize) {
        self.read.store(self.read.load(Relaxed) + size as u64, Relaxed);
    }

    /// Counts bytes that the server wrote to the socket. Only the connection's task calls this.
    #[inline]
    pub fn note_written(&self, size: usize) {
        self.written.store(self.written.load(Relaxed) + size as u64, Relaxed);
        if self.is_blocked.swap(false, Relaxed)
            && let Some(waker) = self.waker.get()
        {
            // The connection's task is woken, because a pipelined request may be waiting until the answers before it
            // are sent.
            waker.wake_by_ref();
        }
    }

    /// Returns true if the send buffer of this connection's socket is full.
    #[must_use]
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed)
    }

    /// Says whether more than [`BACKED_UP_BYTES`] of this connection's answers wait until its socket accepts bytes.
    /// Then the server reads and answers no further request of the connection: else answers would fill memory long
    /// before the client reads them.
    #[must_use]
    #[inline]
    pub fn is_backed_up(&self) -> bool {
        self.is_blocked() && self.owed() > BACKED_UP_BYTES
    }

    /// Starts the connection's next turn among the connections of its thread: sets its count of requests to 0. Only the
    /// connection's task calls this.
    #[inline]
    pub fn begin_turn(&self) {
        self.begun.store(0, Relaxed);
    }

    /// Counts a request; returns true if the request must wait until other connections of this thread had their turn.
    /// Only the connection's task calls this.
    #[inline]
    pub fn is_turn_over(&self) -> bool {
        let begun = self.begun.load(Relaxed);
        self.begun.store(begun + 1, Relaxed);
        begun >= REQUESTS_A_TURN
    }

    /// Returns how many requests the connection's task has begun in its current turn.
    #[must_use]
    #[inline]
    pub fn num_in_turn(&self) -> u32 {
        u32::try_from(self.begun.load(Relaxed)).unwrap_or(u32::MAX)
    }

    /// Stores the kind of flood that the client sends, such as PING frames; the connection's task then ends the
    /// connection.
    pub fn note_flood(&self, flood: Flood) {
        self.flood.store(flood as u8, Relaxed);
        self.note_unread();
    }

    /// Returns the kind of flood with which the client floods the server; None if the client does not flood it.
    #[must_use]
    #[inline]
    pub fn flood(&self) -> Option<Flood> {
        Flood::of(self.flood.load(Relaxed))
    }

    /// Counts a request of this connection that the server refused because it has too much work.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Returns how many requests of this connection the server refused because it had too much work.
    #[must_use]
    #[inline]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts a large request of this connection that the server refused before it had read the request's body.
    pub fn note_large_refused(&self) {
        self.large_refused.fetch_add(1, Relaxed);
    }

    /// Returns how many large requests of this connection the server refused before it had read their bodies.
    #[must_use]
    #[inline]
    pub fn large_refused(&self) -> u64 {
        self.large_refused.load(Relaxed)
    }

    /// Counts an accepted large request whose body has not arrived, until the caller drops the returned value.
    #[must_use]
    pub fn expect_body(self: &Arc<Self>) -> Arriving {
        self.arriving.fetch_add(1, Relaxed);
        Arriving(Arc::clone(self))
    }

    /// Says whether the body of an accepted large request of this connection has not arrived yet.
    #[must_use]
    #[inline]
    pub fn expects_body(&self) -> bool {
        self.arriving.load(Relaxed) > 0
    }

    /// Stops the reading of the connection's socket, or lets the reading go on. Only the connection's task calls this.
    pub fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }

    /// Says whether the server pauses the reading of the connection's socket, because it refused requests of the
    /// connection.
    #[must_use]
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Relaxed)
    }

    /// Stores that the client of this connection to the HTTP port speaks HTTP/2.
    pub fn set_http2(&self) {
        self.is_http2.store(true, Relaxed);
    }

    /// Says whether the client of this connection to the HTTP port speaks HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    /// Stores that the send buffer of this connection's socket is full. Only the connection's task calls this.
    pub fn note_blocked(&self) {
        self.is_blocked.store(true, Relaxed);
    }

    /// Stores that the server will not read the rest of a request's body.
    pub fn note_unread(&self) {
        self.has_unread.store(true, Relaxed);
    }

    /// Returns true if the client may still be sending bytes that the server will not read.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.has_unread.load(Relaxed)
    }

    /// Adds an answer's size to the bytes of this connection's answers that are not sent yet.
    #[inline]
    pub fn owe(&self, size: usize) {
        self.owed.fetch_add(size, Relaxed);
    }

    /// Subtracts bytes of an answer that were sent or dropped from the bytes of this connection that are not sent yet.
    #[inline]
    pub fn pay(&self, size: usize) {
        let before = self.owed.fetch_sub(size, Relaxed);
        if before > self.limit && before - size <= self.limit {
            self.has_room.notify_waiters();
        }
    }

    /// Returns the number of bytes of this connection's answers that are not sent yet.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.owed.load(Relaxed)
    }

    /// Counts bytes of an answer that are handed to h2. Only the connection's task calls this.
    #[inline]
    pub fn note_handed(&self, size: usize) {
        self.handed.store(self.handed().wrapping_add(size), Relaxed);
    }

    /// Returns how many bytes of this connection's answers were handed to h2 so far.
    #[must_use]
    #[inline]
    pub fn handed(&self) -> usize {
        self.handed.load(Relaxed)
    }

    /// Returns true if the connection's further requests must wait until the client has read answers.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.owed() > self.limit
    }

    /// Waits until the client has read so many of this connection's answers that its further requests may run.
    pub async fn room(&self) {
        while self.is_full() {
            let mut notified = std::pin::pin!(self.has_room.notified());
            // The task registers with `has_room` before it checks `is_full` again, so that it misses no notification in
            // between.
            notified.as_mut().enable();
            if self.is_full() {
                notified.await;
            }
        }
    }

    /// Counts a request as open; dropping the returned value counts the request as ended.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
    }

    /// Returns the number of this connection's open requests.
    #[must_use]
    pub fn num_open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Returns the server's current order to the connection's task, such as to drain.
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

    /// Stores an order for the connection's task, unless a stricter order is stored already.
    pub fn tell(&self, order: Order) {
        let is_stricter = self.order.fetch_max(order as u8, Relaxed) < order as u8;
        if is_stricter && let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Stores the waker of the connection's task on the first call; later calls change nothing.
    #[inline]
    pub fn wake_by(&self, waker: &Waker) {
        if self.waker.get().is_none() {
            let _ = self.waker.set(waker.clone());
        }
    }
}

/// An open request: its answer is not made yet, or not handed to the socket yet.
#[derive(Debug)]
pub struct Open(Arc<Connection>);

impl Drop for Open {
    fn drop(&mut self) {
        let served = &self.0.served;
        served.fetch_add(1, Relaxed);
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// An accepted large request, which counts as not arrived until this value is dropped.
#[derive(Debug)]
pub struct Arriving(Arc<Connection>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Relaxed);
    }
}

/// The bytes of one answer that are not sent yet; dropping this value removes them from the connection's count.
#[derive(Debug)]
pub struct Debt {
    connection: Arc<Connection>,
    size: usize,
    _hold: Hold,
}

impl Debt {
    /// Counts an answer of `size` bytes as not sent: for the connection and, if the answer is large, for the model.
    /// This count may pass the limits, because the server checks the limits before it starts a request.
    #[must_use]
    pub fn new(connection: &Arc<Connection>, account: &Arc<Account>, model: &str, size: usize) -> Self {
        connection.owe(size);
        let mut hold = Hold::default();
        if size >= COUNTED_BYTES {
            hold.reach(size, || connection.shares(account, model));
        }
        Debt { connection: Arc::clone(connection), size, _hold: hold }
    }

    /// Counts the same answer anew, after its size has changed to `size`.
    #[must_use]
    pub fn resized(self, account: &Arc<Account>, model: &str, size: usize) -> Self {
        Debt::new(&self.connection, account, model, size)
    }

    /// Records that `size` more bytes of this `Debt`'s answer were sent.
    #[inline]
    pub fn pay(&mut self, size: usize) {
        let size = size.min(self.size);
        self.size -= size;
        self.connection.pay(size);
    }
}

/// The bytes of an answer that count as not sent until the last reference to them is dropped.
#[derive(Debug)]
pub struct Owed {
    data: Bytes,
    _debt: Debt,
}

impl Owed {
    /// Combines the bytes of an answer with the value that counts them as not sent, so that both are dropped together.
    #[must_use]
    pub fn new(data: Bytes, debt: Debt) -> Self {
        Owed { data, _debt: debt }
    }
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

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { max_owed_bytes: 100, ..Limits::default() }
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
    fn parts_of_heads_are_counted_until_they_are_finished() {
        let account = Account::new(100 << 10);
        let [one, two] = ["a:1", "a:2"].map(|peer| Connection::new(peer.into(), &limits()));
        one.count_parts(&account);
        two.count_parts(&account);
        assert!(one.note_part(LARGE_PART_BYTES - 1) && account.held() == 0);
        assert!(one.note_part(60 << 10) && account.held() == 60 << 10);
        assert!(!two.note_part(60 << 10));
        drop(two);
        one.finish_head(|| 10 << 10);
        assert_eq!(account.held(), 10 << 10);
        one.finish_head(|| 10);
        assert_eq!(account.held(), 0);
        assert!(one.note_part(9 << 10));
        drop(one);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn orders_only_get_stricter() {
        let connection = Connection::new(String::new(), &limits());
        connection.tell(Order::Close);
        connection.tell(Order::Drain);
        assert_eq!(connection.order(), Order::Close);
    }
}
