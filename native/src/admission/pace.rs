//! Ends the wait for a request body that its client sends too slowly. Both the HTTP and the gRPC code use this rule.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::limits::Limits;

/// If a check of clients comes later than this, the process was stopped or starved, and has not read yet what the
/// clients sent meanwhile.
pub const LATE: Duration = Duration::from_secs(1);

/// The number of bytes of one request body that have arrived, and the time by which more bytes must arrive.
#[derive(Debug)]
pub struct Pace {
    timeout: Duration,
    least: u64,
    // Number of bytes of the request body that arrived since the time `since`.
    received: u64,
    // Start of the current interval, in which a least number of body bytes must arrive; None until the server first has
    // to wait for the client, so that a body that has already arrived costs no read of the clock.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// The error for a client that sent fewer bytes than [`Limits::least_bytes`] within [`Limits::stall_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled;

impl Pace {
    /// Creates the record of a request body's pace, before the body's first byte has arrived.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Pace { timeout: limits.stall_timeout, least: limits.least_bytes(), received: 0, since: None, timer: None }
    }

    /// Waits until the next part of the body has arrived. The caller counts its bytes with [`Self::count`].
    ///
    /// # Errors
    /// [`Stalled`].
    pub async fn next<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stalled> {
        poll_fn(|cx| match poll(cx) {
            Poll::Ready(part) => Poll::Ready(Ok(part)),
            Poll::Pending => self.poll_stalled(cx).map(Err),
        })
        .await
    }

    /// Adds arrived bytes of the body to the count of the current interval. Once the count is high enough, a new interval
    /// begins.
    #[inline]
    pub fn count(&mut self, size: usize) {
        self.received += size as u64;
        if self.received >= self.least && self.since.is_some() {
            self.begin(Instant::now());
        }
    }

    /// Polls the timer of the body's current interval; ready if the client has sent too few bytes in the interval.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Stalled> {
        let mut end = match self.since {
            Some(since) => since + self.timeout,
            None => self.begin(Instant::now()),
        };
        loop {
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end.into())));
            if timer.deadline() != end.into() {
                timer.as_mut().reset(end.into());
            }
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if now.duration_since(end) < LATE {
                return Poll::Ready(Stalled);
            }
            end = self.begin(now);
        }
    }

    /// Starts the next interval in which the client must send bytes of the body; returns the end of the interval.
    fn begin(&mut self, now: Instant) -> Instant {
        self.received = 0;
        self.since = Some(now);
        now + self.timeout
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { stall_timeout: Duration::from_millis(200), ..Limits::default() }
    }

    /// Counts up to `most` parts of `size` bytes, with a pause before each; returns how many parts arrived, and whether
    /// the client then counted as too slow.
    async fn sent(pause: Duration, size: usize, most: usize) -> (usize, bool) {
        let mut pace = Pace::new(&limits());
        for count in 0..most {
            let mut part = Box::pin(tokio::time::sleep(pause));
            if pace.next(|cx| part.as_mut().poll(cx)).await.is_err() {
                return (count, true);
            }
            pace.count(size);
        }
        (most, false)
    }

    #[tokio::test]
    async fn a_body_that_dribbles_ends_after_the_timeout_although_each_byte_is_in_time() {
        let begun = Instant::now();
        let (count, is_stalled) = sent(Duration::from_millis(10), 1, 1000).await;
        assert!(is_stalled && (1..=20).contains(&count), "{count}");
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }

    #[tokio::test]
    async fn a_body_at_the_least_rate_goes_on_for_longer_than_the_timeout() {
        // The pauses between the parts add up to more than the timeout, but each part has enough bytes to restart the
        // time limit.
        assert_eq!(sent(Duration::from_millis(20), 1024, 30).await, (30, false));
    }

    #[tokio::test]
    async fn a_timer_that_fires_much_too_late_begins_a_new_interval() {
        let mut pace = Pace::new(&limits());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(pace.poll_stalled(&mut cx).is_pending());
        // No timer of this runtime fires while its only thread sleeps, as if the process was stopped.
        std::thread::sleep(limits().stall_timeout + LATE);
        tokio::task::yield_now().await;
        assert!(pace.poll_stalled(&mut cx).is_pending());
        tokio::time::timeout(LATE * 60, pace.next(|_| Poll::<()>::Pending)).await.unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn a_body_that_is_there_sets_no_timer() {
        let mut pace = Pace::new(&limits());
        assert_eq!(pace.next(|_| Poll::Ready(7)).await, Ok(7));
        pace.count(1 << 20);
        assert!(pace.timer.is_none() && pace.since.is_none());
    }
}
