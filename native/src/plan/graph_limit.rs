//! Limits how many threads run graphs at the same time, for a pool that may have more threads than the machine has
//! processors.

use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Limits how many graphs run at the same time. Concurrency: any thread; [`GraphLimit::permit`] blocks.
#[derive(Debug)]
pub struct GraphLimit {
    free: Mutex<usize>,
    has_free: Condvar,
}

/// The permission to run one graph. Dropping the permit lets another thread run a graph.
#[derive(Debug)]
pub struct GraphPermit<'a>(&'a GraphLimit);

impl GraphLimit {
    /// Returns a limit of `count` graphs at the same time, at least 1.
    #[must_use]
    pub fn new(count: usize) -> Self {
        GraphLimit { free: Mutex::new(count.max(1)), has_free: Condvar::new() }
    }

    /// Blocks until the calling thread may run a graph; returns the permit for the run.
    #[must_use]
    pub fn permit(&self) -> GraphPermit<'_> {
        let mut free = self.lock();
        while *free == 0 {
            free = self.has_free.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        GraphPermit(self)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GraphPermit<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.has_free.notify_one();
    }
}

/// Compares by identity: a limit equals only itself, even if another one allows the same number of graphs.
impl PartialEq for GraphLimit {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for GraphLimit {}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn as_many_graphs_run_as_the_limit_says_and_no_more() {
        let (limit, running, most) = (GraphLimit::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        // Each run waits for a second one, so the test ends only if two runs are allowed at the same time.
        let pairs = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _permit = limit.permit();
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    pairs.wait();
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
    }

    #[test]
    fn a_run_that_panics_gives_its_permit_back() {
        let limit = GraphLimit::new(0);
        for _ in 0..2 {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let _permit = limit.permit();
                panic!("on purpose");
            }));
            assert!(ran.is_err());
        }
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::sync::Arc;

    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use crate::sync::{check, thread};

    #[test]
    fn each_thread_gets_its_permit_and_no_two_at_a_time() {
        check(|| {
            let limit = Arc::new((GraphLimit::new(1), AtomicUsize::new(0)));
            let run = |limit: &(GraphLimit, AtomicUsize)| {
                let _permit = limit.0.permit();
                assert_eq!(limit.1.fetch_add(1, Ordering::Relaxed), 0);
                limit.1.fetch_sub(1, Ordering::Relaxed);
            };
            let threads = [(); 2].map(|()| {
                let limit = Arc::clone(&limit);
                thread::spawn(move || run(&limit))
            });
            run(&limit);
            let _ = threads.map(|one| one.join().unwrap());
        });
    }
}
