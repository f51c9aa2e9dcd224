//! Notes which pages of a range are in memory, and how often lookups use them, without a lock.

use std::ops::Deref;

use crate::sync::atomic::{AtomicIsize, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The use counts of a range's pages: 0 if the page is not in memory; and the number of pages with a count above 0.
///
/// A count is changed before the number is, so that the number may lag behind, below 0 or above the number of pages.
#[derive(Debug)]
pub(super) struct Residency {
    uses: Box<[AtomicU8]>,
    num_known: AtomicIsize,
}

impl Deref for Residency {
    type Target = [AtomicU8];

    fn deref(&self) -> &[AtomicU8] {
        &self.uses
    }
}

impl Residency {
    pub(super) fn new(num_pages: usize) -> Self {
        Residency { uses: zeros(num_pages), num_known: AtomicIsize::new(0) }
    }

    pub(super) fn num_known(&self) -> usize {
        self.num_known.load(Relaxed).max(0).cast_unsigned()
    }

    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.num_known.load(Relaxed) >= self.len().cast_signed()
    }

    /// Notes that the pages in `from..to` are in memory; returns for how many that is new. `num_partial`: the number of
    /// ranges that are not whole.
    pub(super) fn know(&self, from: usize, to: usize, num_partial: &AtomicUsize) -> usize {
        let is_new = |uses: &&AtomicU8| uses.compare_exchange(0, 1, Relaxed, Relaxed).is_ok();
        let num_new = self[from..to].iter().filter(is_new).count();
        let before = self.num_known.fetch_add(num_new.cast_signed(), Relaxed);
        // Not "is equal to": the number may pass by the number of pages while other threads change it.
        if (before..before + num_new.cast_signed()).contains(&(self.len().cast_signed() - 1)) {
            num_partial.fetch_sub(1, Relaxed);
        }
        num_new
    }

    /// Notes that `num_pages` pages, whose use counts became 0, are no longer in memory.
    pub(super) fn forget(&self, num_pages: usize, num_partial: &AtomicUsize) {
        let before = self.num_known.fetch_sub(num_pages.cast_signed(), Relaxed);
        if (before - num_pages.cast_signed()..before).contains(&(self.len().cast_signed() - 1)) {
            num_partial.fetch_add(1, Relaxed);
        }
    }
}

/// Returns use counts of 0. Those of a large table take no memory at first: the kernel gives zeroed memory only when a
/// thread writes to it.
#[cfg(not(all(test, feature = "model")))]
fn zeros(num_pages: usize) -> Box<[AtomicU8]> {
    let zeros = Box::into_raw(vec![0_u8; num_pages].into_boxed_slice());
    // SAFETY: the boxed slice of u8 may become one of AtomicU8, which has the same size and alignment.
    unsafe { Box::from_raw(zeros as *mut [AtomicU8]) }
}

#[cfg(all(test, feature = "model"))]
fn zeros(num_pages: usize) -> Box<[AtomicU8]> {
    (0..num_pages).map(|_| AtomicU8::new(0)).collect()
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::sync::Arc;

    use super::*;
    use crate::sync::{check, thread};

    #[test]
    fn the_counts_are_right_whatever_threads_read_and_drop_pages() {
        check(|| {
            let shared = Arc::new((Residency::new(2), AtomicUsize::new(1)));
            // One thread warms both pages, one reads a page for a lookup, and the clock hand drops a page.
            let reading = [2, 1].map(|to| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.0.know(0, to, &shared.1))
            });
            let (pages, num_partial) = &*shared;
            if pages[0].compare_exchange(1, 0, Relaxed, Relaxed).is_ok() {
                pages.forget(1, num_partial);
            }
            for one in reading {
                one.join().unwrap();
            }
            let num_known = pages.iter().filter(|uses| uses.load(Relaxed) > 0).count();
            assert_eq!(pages.num_known(), num_known);
            assert_eq!(num_partial.load(Relaxed), usize::from(num_known < 2));
        });
    }
}
