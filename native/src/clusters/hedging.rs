//! Decides when a read is also sent to a second node: after the time within which its node gave 95 of 100 recent
//! answers, and only for a share of all reads.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Number of response times that are kept for each node: those of its last answers. `slow` needs at least `LEAST` of
/// them, and is computed again after every `EVERY` answers.
const SAMPLES: usize = 128;
const LEAST: usize = 32;
const EVERY: usize = 16;
/// Maximal number of hedged reads (reads that are also sent to a second node) that a cluster's budget can save up.
const MOST_SAVED: u32 = 50;

/// The response times of one node's last answers, each from sending the commands to the first byte of the answers.
#[derive(Debug)]
pub(super) struct Times {
    micros: [u32; SAMPLES],
    count: usize,
    slow: Option<Duration>,
}

impl Default for Times {
    fn default() -> Self {
        Times { micros: [0; SAMPLES], count: 0, slow: None }
    }
}

impl Times {
    pub(super) fn add(&mut self, took: Duration) {
        self.micros[self.count % SAMPLES] = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.count += 1;
        if self.count >= LEAST && self.count.is_multiple_of(EVERY) {
            let mut recent = self.micros;
            let recent = &mut recent[..self.count.min(SAMPLES)];
            let place = recent.len() * 95 / 100;
            self.slow = Some(Duration::from_micros(u64::from(*recent.select_nth_unstable(place).1)));
        }
    }

    /// Returns the time within which 95 of 100 of the node's last answers came; None while too few came.
    pub(super) fn slow(&self) -> Option<Duration> {
        self.slow
    }
}

/// Limits hedged reads of a cluster (reads that are also sent to a second node): each read adds `percent` hundredths of
/// a hedged read to the budget. Concurrency: any thread.
#[derive(Debug)]
pub(super) struct Budget {
    percent: u32,
    /// How many hedged reads the budget allows now, in hundredths of a hedged read.
    saved: AtomicU32,
}

impl Budget {
    pub(super) fn new(percent: u32) -> Self {
        Budget { percent, saved: AtomicU32::new(0) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.percent > 0
    }

    pub(super) fn earn(&self) {
        let add = |saved: u32| (saved < MOST_SAVED * 100).then_some(saved + self.percent);
        let _ = self.saved.fetch_update(Relaxed, Relaxed, add);
    }

    /// Subtracts one hedged read from the budget; returns false if the budget has less than one.
    pub(super) fn take(&self) -> bool {
        self.saved.fetch_update(Relaxed, Relaxed, |saved| saved.checked_sub(100)).is_ok()
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn the_slow_time_is_the_95th_of_100_recent_answers() {
        let mut times = Times::default();
        (0..31).for_each(|_| times.add(Duration::from_micros(7)));
        assert_eq!(times.slow(), None);
        times.add(Duration::from_micros(7));
        assert_eq!(times.slow(), Some(Duration::from_micros(7)));
        // Of 128 answers that took 1 to 128 microseconds, 121 (95 of 100) were faster than 122 microseconds.
        (1..=128).for_each(|micros| times.add(Duration::from_micros(micros)));
        assert_eq!(times.slow(), Some(Duration::from_micros(122)));
        (0..128).for_each(|_| times.add(Duration::from_secs(1 << 40)));
        assert_eq!(times.slow(), Some(Duration::from_micros(u64::from(u32::MAX))));
    }

    #[test]
    fn a_budget_of_5_percent_allows_one_of_twenty_reads() {
        let budget = Budget::new(5);
        let taken = (0..1000).filter(|_| {
            budget.earn();
            budget.take()
        });
        assert_eq!(taken.count(), 50);
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.take()).count(), MOST_SAVED as usize, "no more are saved up");
        let none = Budget::new(0);
        (0..1000).for_each(|_| none.earn());
        assert!(!none.take() && !none.is_open() && budget.is_open());
    }
}
