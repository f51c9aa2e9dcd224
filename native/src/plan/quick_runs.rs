//! Decides whether a thread that serves connections runs a graph itself, or leaves it to a thread for large work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A connection's thread runs a graph itself if that takes at most this time: some times as long as to hand the request
/// to another thread and back, and twice as long as the largest lookup that the thread answers.
const QUICK_NS: u32 = 200_000;
/// For this time after a lookup, connection threads run no graphs, so that no lookup waits for the graphs of many
/// connections.
const LOOKUPS_FIRST: Duration = Duration::from_secs(1);
/// Number of size classes of requests; each class holds requests of up to twice the elements of the class before it.
const CLASSES: usize = 32;

/// How long the runs of one graph take, in nanoseconds, by the size of the request; 0 if no request of that size ran.
/// Only of a graph whose run time depends on the sizes of its inputs alone, not on their values.
#[derive(Debug, Default)]
pub struct RunTimes([AtomicU32; CLASSES]);

impl RunTimes {
    /// Says whether runs for requests with so many elements in all inputs are quick; false if none has run.
    pub(super) fn are_quick(&self, elements: usize) -> bool {
        (1..=QUICK_NS).contains(&self.of(elements).load(Relaxed))
    }

    /// Notes the time of a run. A short run counts for more than a long one: other threads may have interrupted the long
    /// one, and the first run for a shape compiles kernels.
    pub(super) fn learn(&self, elements: usize, took: Duration) {
        let known = self.of(elements);
        let (before, took) = (known.load(Relaxed), u32::try_from(took.as_nanos()).unwrap_or(u32::MAX).max(1));
        let now = match before {
            0 => took,
            _ if took < before => before - (before - took) / 4,
            _ => before.saturating_add((took - before).min(before) / 32),
        };
        known.store(now, Relaxed);
    }

    fn of(&self, elements: usize) -> &AtomicU32 {
        &self.0[(usize::BITS as usize - elements.leading_zeros() as usize).min(CLASSES - 1)]
    }
}

/// When a thread of connections last answered a lookup.
#[derive(Debug)]
struct LastLookup(AtomicU64);

impl LastLookup {
    fn note(&self, now: Duration) {
        let now = millis(now);
        // The time is written at most once in a millisecond, because all threads share it.
        if self.0.load(Relaxed) != now {
            self.0.store(now, Relaxed);
        }
    }

    fn is_recent(&self, now: Duration) -> bool {
        let last = self.0.load(Relaxed);
        last > 0 && millis(now).saturating_sub(last) < u64::try_from(LOOKUPS_FIRST.as_millis()).unwrap_or(u64::MAX)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// All models of the process share its threads, and so the time of their last lookup.
static LAST_LOOKUP: LastLookup = LastLookup(AtomicU64::new(0));

fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Notes that a thread of connections answers a lookup.
pub(super) fn note_lookup() {
    LAST_LOOKUP.note(now());
}

/// Says whether a thread of connections answered a lookup in the last second.
pub(super) fn has_lookups() -> bool {
    LAST_LOOKUP.is_recent(now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_whose_runs_are_known_to_be_quick_are_quick() {
        let times = RunTimes::default();
        assert!(!times.are_quick(100));
        times.learn(100, Duration::from_micros(90));
        assert!(times.are_quick(100) && times.are_quick(64) && !times.are_quick(128) && !times.are_quick(63));
        times.learn(usize::MAX, Duration::from_secs(60));
        assert!(!times.are_quick(usize::MAX));
        times.learn(0, Duration::ZERO);
        assert!(times.are_quick(0) && !times.are_quick(1));
    }

    #[test]
    fn a_long_run_among_quick_ones_does_not_count_but_many_do() {
        let times = RunTimes::default();
        // The first run compiles kernels.
        for micros in [5_000, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90] {
            times.learn(1, Duration::from_micros(micros));
        }
        assert!(times.are_quick(1));
        times.learn(1, Duration::from_secs(1));
        assert!(times.are_quick(1));
        (0..100).for_each(|_| times.learn(1, Duration::from_millis(1)));
        assert!(!times.are_quick(1));
    }

    #[test]
    fn a_lookup_is_recent_for_a_second() {
        let last = LastLookup(AtomicU64::new(0));
        assert!(!last.is_recent(Duration::ZERO));
        last.note(Duration::ZERO);
        assert!(last.is_recent(Duration::ZERO) && last.is_recent(Duration::from_millis(999)));
        assert!(!last.is_recent(Duration::from_secs(1)));
        last.note(Duration::from_secs(7));
        assert!(last.is_recent(Duration::from_millis(7_900)) && last.is_recent(Duration::from_secs(6)));
    }
}
