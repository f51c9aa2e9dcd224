//! Counts the running gRPC calls without end, such as health watches, by client address, and limits their numbers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Divisor of the limit on gRPC calls without end: the quotient is the limit for one client address.
const ADDRESS_SHARE: usize = 10;

/// Counts, for each client address, the running gRPC calls without end, such as health watches; limits the count of
/// each address and the sum of all counts.
#[derive(Debug)]
pub struct LongCalls {
    limit: usize,
    // Number of running gRPC calls without end by client address; addresses without such a call are not in the map.
    running: Mutex<HashMap<Box<str>, usize>>,
}

impl LongCalls {
    /// Creates the counters, all 0; `limit` is the number of calls without end that may run at the same time.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(LongCalls { limit, running: Mutex::default() })
    }

    /// Counts a gRPC call without end from a client address, until the returned value is dropped; None if the address, or
    /// all addresses together, already have as many such calls as they may.
    #[must_use]
    pub fn begin(self: &Arc<Self>, address: &str) -> Option<LongCall> {
        let mut running = self.lock();
        let of_address = running.get(address).copied().unwrap_or(0);
        let share = self.limit.div_ceil(ADDRESS_SHARE);
        if of_address >= share || running.values().sum::<usize>() >= self.limit {
            return None;
        }
        running.insert(address.into(), of_address + 1);
        drop(running);
        Some(LongCall { all: Arc::clone(self), address: address.into() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gRPC call without end, such as a health watch, which counts as running until this value is dropped.
#[derive(Debug)]
pub struct LongCall {
    all: Arc<LongCalls>,
    address: Box<str>,
}

impl Drop for LongCall {
    fn drop(&mut self) {
        let mut running = self.all.lock();
        if let Some(count) = running.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.address);
            }
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_all_addresses_have_limits() {
        let all = LongCalls::new(20);
        let [first, second] = [all.begin("a").unwrap(), all.begin("a").unwrap()];
        assert!(all.begin("a").is_none());
        drop(first);
        let _again = all.begin("a").unwrap();
        let others: Vec<_> = (0..40).filter_map(|number| all.begin(&format!("b{}", number % 10))).collect();
        assert_eq!(others.len(), 18);
        assert!(all.begin("c").is_none());
        drop(second);
        assert!(all.begin("c").is_some());
        drop(others);
        assert_eq!(all.lock().len(), 1);
    }
}
