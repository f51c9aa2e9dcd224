//! The record of one connection, as its task, its requests and the sweeper see it, and what a request holds of it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};

use super::account::{Account, Hold, Shares};
use super::certificate;
use super::fair_queue::address_of;
use super::frames::Flood;
use super::limits::{BACKED_UP_BYTES, Limits};

/// How many pipelined HTTP/1.1 requests of one connection are begun before other connections get their turn.
const REQUESTS_A_TURN: usize = 16;
/// Answers below this size are counted for their connection only.
pub const COUNTED_BYTES: usize = 16 << 10;
/// Compressed messages of one gRPC connection that are held inflated at the same time.
const MAX_INFLATED: usize = 4;

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
    pub(super) read: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) is_blocked: AtomicBool,
    owed: AtomicUsize,
    has_room: Notify,
    open: AtomicUsize,
    pub(super) served: AtomicU64,
    order: AtomicU8,
    waker: OnceLock<Waker>,
    has_unread: AtomicBool,
    flood: AtomicU8,
    refused: AtomicU64,
    is_paused: AtomicBool,
    begun: AtomicUsize,
    names: OnceLock<Vec<String>>,
    // One entry for each model to which this connection has sent large requests, or from which it got large answers.
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
            order: AtomicU8::new(0),
            waker: OnceLock::new(),
            has_unread: AtomicBool::new(false),
            flood: AtomicU8::new(0),
            refused: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
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

    /// Says whether many answers wait for the socket. Then no further request is read or answered: else their answers
    /// would fill memory, and processor caches, long before the client reads them.
    #[must_use]
    #[inline]
    pub fn is_backed_up(&self) -> bool {
        self.is_blocked() && self.owed() > BACKED_UP_BYTES
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

    /// Counts a request that the server refused because it has too much work.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Returns how many requests the server refused because it had too much work.
    #[must_use]
    #[inline]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Stops the reading of the socket, or lets it go on. Only the connection's task calls this.
    pub fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }

    /// Says whether the socket must not be read now.
    #[must_use]
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Relaxed)
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
    data: Bytes,
    _debt: Debt,
}

impl Owed {
    /// Owes an answer for which a debt is counted.
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

#[cfg(test)]
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
    fn orders_only_get_stricter() {
        let connection = Connection::new(String::new(), &limits());
        connection.tell(Order::Close);
        connection.tell(Order::Drain);
        assert_eq!(connection.order(), Order::Close);
    }
}
