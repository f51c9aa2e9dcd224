//! Pauses the reading of a connection whose requests the server refuses.
//!
//! A refusal costs processor time, which accepted requests then lack. While a connection is not read, its requests wait
//! in the socket's buffers, and TCP makes the client wait. Answers are written on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::connection::Connection;
use crate::admission::limits::REFUSAL_SHARE;

/// Pauses are added up until their sum is at least this long, because the runtime's timers have a resolution of 1 ms.
const LEAST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_millis(100);
/// In the length of a pause, a refusal counts as at most this long, because the connection's turn also includes other
/// work, for example reading the bodies of accepted requests.
const MOST_SPENT: Duration = Duration::from_micros(50);

/// The number of connections whose sockets the server does not read now, because it refused their requests, and the
/// number of threads that serve connections.
#[derive(Debug)]
pub struct Pauses {
    threads: u32,
    count: AtomicUsize,
}

impl Pauses {
    /// Creates the count of paused connections, which starts at 0.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Pauses { threads: u32::try_from(threads).unwrap_or(u32::MAX).max(1), count: AtomicUsize::new(0) }
    }

    /// Returns for how long the server does not read a connection, after refusals of its requests that took the time
    /// `spent`. All paused connections share the time for refusals, so each pauses longer when there are more of them.
    fn length(&self, spent: Duration) -> Duration {
        let connections = u32::try_from(self.count.load(Relaxed)).unwrap_or(u32::MAX).saturating_add(1);
        (spent.saturating_mul(REFUSAL_SHARE).saturating_mul(connections) / self.threads).min(MOST)
    }
}

/// Pauses the reading of one connection after refusals; only the connection's task uses this struct.
pub struct RefusalPause<'s> {
    pauses: &'s Pauses,
    connection: Arc<Connection>,
    // Number of requests of the connection that the server had refused by the end of the last turn of the connection's
    // task.
    refused: u64,
    // Time for which the connection must still be paused: single pauses are too short for a timer, so they add up.
    owed: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'s> RefusalPause<'s> {
    /// Starts without a pause.
    #[must_use]
    pub fn new(pauses: &'s Pauses, connection: Arc<Connection>) -> Self {
        RefusalPause { pauses, connection, refused: 0, owed: Duration::ZERO, timer: None }
    }

    /// Ends the pause if its time is over; if not, a timer wakes the connection's task at that time.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) {
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.end();
        }
    }

    /// Adds to the owed pause if requests were refused in the turn that ends, and begins the pause once it is long
    /// enough. `requests` is the number of requests that the turn has begun or ended.
    pub fn after_turn(&mut self, begun: Instant, requests: u32, cx: &mut Context<'_>) {
        let refused = self.connection.refused();
        let in_turn = u32::try_from(refused - self.refused).unwrap_or(u32::MAX);
        self.refused = refused;
        if in_turn == 0 || self.timer.is_some() {
            return;
        }
        let each = (begun.elapsed() / requests.max(in_turn)).min(MOST_SPENT);
        self.owed += self.pauses.length(each.saturating_mul(in_turn));
        // No pause begins while the body of an accepted request is arriving, because the pause would delay that body.
        if self.owed < LEAST || self.connection.expects_body() {
            return;
        }
        let timer = Box::pin(tokio::time::sleep(self.owed.min(MOST)));
        self.owed = Duration::ZERO;
        self.timer = Some(timer);
        self.connection.set_paused(true);
        self.pauses.count.fetch_add(1, Relaxed);
        // The first poll of the timer registers the connection's task, so that the timer wakes the task.
        self.poll_end(cx);
    }

    fn end(&mut self) {
        if self.timer.take().is_some() {
            self.connection.set_paused(false);
            self.pauses.count.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for RefusalPause<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::admission::limits::Limits;

    fn refuse(pause: &mut RefusalPause<'_>, refusals: usize, spent: Duration, requests: u32) {
        for _ in 0..refusals {
            pause.connection.note_refused();
        }
        let begun = Instant::now().checked_sub(spent).unwrap();
        pause.after_turn(begun, requests, &mut Context::from_waker(Waker::noop()));
    }

    #[tokio::test]
    async fn a_connection_is_paused_for_twenty_times_the_time_of_its_refusals() {
        let (pauses, connection) = (Pauses::new(1), Connection::new(String::new(), &Limits::default()));
        let mut pause = RefusalPause::new(&pauses, Arc::clone(&connection));
        refuse(&mut pause, 0, Duration::from_millis(9), 10);
        assert!(!connection.is_paused(), "nothing was refused");
        let arriving = connection.expect_body();
        refuse(&mut pause, 5, Duration::from_micros(400), 10);
        assert!(!connection.is_paused(), "the body of an accepted request is on its way");
        drop(arriving);
        // In each of two turns of 0.4 ms, the server refused 5 of 10 requests; the pause is 20 times the 0.4 ms of
        // these refusals, 8 ms.
        refuse(&mut pause, 5, Duration::from_micros(400), 10);
        assert!(connection.is_paused());
        assert_eq!(
            pauses.length(Duration::from_millis(1)),
            Duration::from_millis(40),
            "two connections share the time"
        );
        let mut cx = Context::from_waker(Waker::noop());
        pause.poll_end(&mut cx);
        assert!(connection.is_paused());
        tokio::time::sleep(Duration::from_millis(20)).await;
        pause.poll_end(&mut cx);
        assert!(!connection.is_paused());
        assert_eq!(pauses.count.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn short_pauses_add_up_long_ones_are_cut_and_a_dropped_one_ends() {
        let (pauses, connection) = (Pauses::new(2), Connection::new(String::new(), &Limits::default()));
        let mut pause = RefusalPause::new(&pauses, Arc::clone(&connection));
        for expected in [false, true] {
            refuse(&mut pause, 1, Duration::from_millis(1), 1);
            assert_eq!(connection.is_paused(), expected);
        }
        drop(pause);
        assert!(!connection.is_paused());
        assert_eq!(pauses.length(Duration::from_secs(9)), MOST);
    }
}
