//! Limits how many lines on refusals the core logs: Python writes the log, and a flood of mistakes must not cost its
//! interpreter.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Most lines on refusals that the core logs: in a burst, and then per second. Source: `service/observe/logs.py`, whose
/// limit would drop more.
const LINES_AT_ONCE: f64 = 500.0;
const LINES_PER_S: f64 = 20.0;

/// How many lines on refusals the core may still log.
pub struct LogPace(Mutex<Pace>);

struct Pace {
    lines: f64,
    since: Instant,
    left_out: u64,
}

impl Default for LogPace {
    fn default() -> Self {
        LogPace(Mutex::new(Pace { lines: LINES_AT_ONCE, since: Instant::now(), left_out: 0 }))
    }
}

impl LogPace {
    /// Returns the number of lines that were left out since the last one; None if this line is left out, too.
    pub fn take(&self, now: Instant) -> Option<u64> {
        let mut pace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let more = now.saturating_duration_since(pace.since).as_secs_f64() * LINES_PER_S;
        pace.lines = (pace.lines + more).min(LINES_AT_ONCE);
        pace.since = now;
        if pace.lines < 1.0 {
            pace.left_out += 1;
            return None;
        }
        pace.lines -= 1.0;
        Some(std::mem::take(&mut pace.left_out))
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_refusals_is_logged_at_a_bounded_rate() {
        let (pace, start) = (LogPace::default(), Instant::now());
        let logged = (0..600).filter(|_| pace.take(start).is_some()).count();
        assert!((500..=501).contains(&logged), "{logged}");
        let later = start + Duration::from_secs(1);
        let left_out: Vec<u64> = (0..30).filter_map(|_| pace.take(later)).collect();
        assert!((19..=21).contains(&left_out.len()) && left_out[0] >= 99, "{left_out:?}");
        assert!(left_out[1..].iter().all(|count| *count == 0));
    }
}
