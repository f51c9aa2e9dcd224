//! Counts the changes of a table's rows, so that a read that began before a change caches no old row.

use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The number of times that cached rows of one table were removed, because they changed or their slots got another
/// primary. Concurrency: any thread.
#[derive(Debug)]
pub(super) struct Changes(AtomicU64);

impl Changes {
    pub(super) fn new() -> Self {
        Changes(AtomicU64::new(0))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Counts a change, and then removes the changed rows from the cache.
    pub(super) fn note(&self, remove: impl FnOnce()) {
        self.0.fetch_add(1, SeqCst);
        remove();
    }

    /// Caches a row, unless rows of the table have changed since the read of the row began; `before` is what
    /// [`Self::count`] returned then.
    pub(super) fn cache(&self, before: u64, insert: impl FnOnce(), remove: impl FnOnce()) {
        if self.count() == before {
            insert();
            if self.count() != before {
                // The table may have changed between the first comparison and the insertion. Then the inserted row may be
                // old, so it is removed.
                remove();
            }
        }
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::sync::Arc;

    use super::*;
    use crate::sync::{Mutex, check, thread};

    #[test]
    fn no_row_stays_in_the_cache_that_changed_while_it_was_read() {
        check(|| {
            // The row in the cluster, and in the cache.
            let shared = Arc::new((Changes::new(), AtomicU64::new(0), Mutex::new(None)));
            let read = |shared: &(Changes, AtomicU64, Mutex<Option<u64>>)| {
                let (changes, row, cached) = shared;
                let before = changes.count();
                let found = row.load(SeqCst);
                changes.cache(before, || *cached.lock().unwrap() = Some(found), || *cached.lock().unwrap() = None);
            };
            let reading = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || read(&shared))
            });
            let (changes, row, cached) = &*shared;
            row.store(1, SeqCst);
            changes.note(|| *cached.lock().unwrap() = None);
            for one in reading {
                one.join().unwrap();
            }
            assert_ne!(*cached.lock().unwrap(), Some(0));
        });
    }
}
