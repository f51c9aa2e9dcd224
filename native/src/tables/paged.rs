//! Reads pages of mapped tables off the threads of connections, keeps the pages that are read often, and bounds their
//! number.
//!
//! A thread that reads a page of a mapped file which is not in memory waits for the disk. So a paged table has one byte
//! for each page: 0 if the page must be read first, else how often lookups used it lately. A thread of connections only
//! looks at these bytes, and leaves a lookup with a missing page to a thread that may wait. That thread asks the kernel
//! for all missing pages of the lookup together, page by page, so that the disk reads them at the same time and reads
//! nothing behind them.
//!
//! All paged tables share one bound on their pages in memory. Beyond the bound, a clock hand goes over the pages: it
//! drops a page whose count is 1, and subtracts 1 from any higher count. So pages that many lookups use stay, and a
//! page that only one lookup used is dropped.
//!
//! A table that fits below the bound is warmed: a thread reads its other pages, 2 MB at a time, and spends half of its
//! time asleep, so that lookups find the disk free. Parts of which lookups read a page come first. Once all pages of all
//! tables are in memory, a lookup no longer looks at their bytes.
//!
//! The kernel may drop pages too, if the machine or the control group runs out of memory. A thread finds these pages in
//! the process's own page table, and checks a part of all pages every quarter of a second. mincore(2) would report all
//! pages of a file as resident to a user who neither owns the file nor may write to it.
//!
//! Source: madvise(2), mincore(2), posix_fadvise(2), proc_pid_pagemap(5) and mm/madvise.c, mm/readahead.c (Linux 6.18);
//! Nicola, Dan and Dias, Analysis of the Generalized Clock Buffer Replacement Scheme for Database Transaction Processing
//! (1992).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::map::Map;
use super::memory::Memory;
use super::residency::Residency;
use super::table::{Ints, Policy, Table};
use crate::priority;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The highest use count of a page; further lookups of the page do not raise its count.
const MOST_USES: u8 = 4;
/// Maximal number of pages that a thread asks the kernel to read at a time (a batch).
const BATCH_PAGES: usize = 256;
/// A thread with a large batch of pages waits while threads are reading at least this many other pages. More reads
/// would not make the disk faster, and the reading threads would take the processors from the threads of connections.
const PAGES_IN_FLIGHT: usize = 256;
/// A batch of fewer pages is read without a wait for other reads, so that a lookup of few rows does not queue behind
/// large lookups.
const LARGE_BATCH: usize = 16;
/// If more pages are in memory than the limit allows, a thread drops the surplus and 1/`SPARE_SHARE` of the limit, so
/// that few reads drop pages.
const SPARE_SHARE: usize = 256;
/// Number of pages that the warming thread reads at a time, and the most parts that it keeps in mind because lookups read
/// pages of them.
const WARMED_PAGES: usize = 512;
const WANTED_PARTS: usize = 1024;
/// The value that is added to the nice value of the warming thread.
const WARM_NICE: i32 = 10;
/// A table of fewer pages is read as it is opened, so that no lookup leaves a thread of connections for it.
const SMALL_PAGES: usize = 1024;
const AUDIT_EVERY: Duration = Duration::from_millis(250);
/// Bytes of a page's entry in /proc/self/pagemap, and the bit of the last of them that says whether the page is in
/// memory.
const ENTRY_BYTES: usize = 8;
const IS_PRESENT: u8 = 0x80;
/// Number of pages whose entries in the process's page map are read together, and the limits of one audit: pages that it
/// checks, and bytes of use counts that it scans.
const AUDIT_CHUNK: usize = 1024;
const AUDITED_PAGES: usize = 16 * AUDIT_CHUNK;
const AUDITED_BYTES: usize = 4 << 20;

/// Counts of the reads and drops of pages, for all paged tables of the server together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Number of looked-up ids whose row was not in memory.
    pub rows: u64,
    /// Number of pages that threads read for lookups.
    pub reads: u64,
    /// Number of pages that the pager dropped to keep the limit on pages in memory.
    pub drops: u64,
    /// Number of pages that an audit found to be dropped from memory by the kernel, not by the pager.
    pub losses: u64,
    /// Time that threads spent on reading pages, in nanoseconds.
    pub nanos: u64,
    /// Number of bytes of the pages that are in memory or that threads are reading.
    pub bytes: u64,
    /// The limit on the bytes of pages in memory, for all paged tables of the server together.
    pub max_bytes: u64,
}

/// The place of a page in the pager's list of ranges: the page that the clock hand, or the audit, checks next.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    range: usize,
    page: usize,
}

#[derive(Debug, Default)]
struct Clock {
    ranges: Vec<Weak<PagedRange>>,
    hand: Place,
    audited: Place,
    /// Whether the pager's audit thread was started.
    is_audited: bool,
}

/// The parts of tables that the warming thread reads: each begins at a page of a range.
#[derive(Debug, Default)]
struct Warming {
    /// Parts of which lookups read a page.
    wanted: VecDeque<(Weak<PagedRange>, usize)>,
    /// Ranges, with the first page that was not warmed yet.
    ranges: VecDeque<(Weak<PagedRange>, usize)>,
    /// Whether a thread warms; it ends when nothing is left.
    is_running: bool,
}

/// Reads and drops the pages of all paged tables of a server. Concurrency: any thread.
#[derive(Debug)]
pub struct Pager {
    page_bytes: usize,
    max_pages: usize,
    /// The page table of this process, /proc/self/pagemap; None where the system does not show it.
    page_table: Option<File>,
    /// Number of pages, of all paged tables, that are in memory or that threads are reading.
    held: AtomicUsize,
    /// Number of ranges with pages that are not in memory.
    num_partial: AtomicUsize,
    /// Number of pages that threads are reading now.
    in_flight: Mutex<usize>,
    has_ended: Condvar,
    clock: Mutex<Clock>,
    warming: Mutex<Warming>,
    rows: AtomicU64,
    reads: AtomicU64,
    drops: AtomicU64,
    losses: AtomicU64,
    nanos: AtomicU64,
}

/// The pages of a table's rows, or of the table's scales, in a mapped file.
#[derive(Debug)]
struct PagedRange {
    /// Number of bytes from the beginning of the range's first page to the row, or scale, with number 0.
    skip: usize,
    stride: usize,
    page_bytes: usize,
    /// For each page, 0 if it is not in memory, else its use count: a lookup raises the count, up to `MOST_USES`, and
    /// the clock hand lowers it.
    uses: Residency,
    /// Whether the pager's thread reads all pages of the range.
    is_warmed: bool,
    map: Arc<Map>,
    /// Offset, in the map and in its file, of the first page of the range.
    offset: usize,
    pager: Arc<Pager>,
    this: Weak<PagedRange>,
}

/// One page: the range of pages to which it belongs, and the page's index in that range.
type Page<'a> = (&'a PagedRange, usize);

/// A table in a mapped file whose pages a [`Pager`] reads and drops.
#[derive(Debug)]
pub struct PagedTable {
    vocabulary_size: usize,
    ranges: Vec<Arc<PagedRange>>,
}

impl Pager {
    /// Returns a pager that keeps at most `max_bytes` of pages in memory.
    #[must_use]
    pub fn new(max_bytes: u64) -> Arc<Self> {
        // SAFETY: `sysconf` takes a number only and accesses no memory of this process.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let max_pages = usize::try_from(max_bytes).unwrap_or(usize::MAX) / page_bytes;
        Arc::new(Pager {
            page_bytes,
            max_pages: max_pages.max(1),
            page_table: File::open("/proc/self/pagemap").ok(),
            held: AtomicUsize::new(0),
            num_partial: AtomicUsize::new(0),
            in_flight: Mutex::default(),
            has_ended: Condvar::new(),
            clock: Mutex::default(),
            warming: Mutex::default(),
            rows: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
        })
    }

    /// Adds a table, which lies in `maps`, to the tables whose pages the pager reads and drops. The first table starts
    /// the pager's thread, which ends with the pager. `is_warmed`: all pages of the table are read, in another thread
    /// unless they are few. Returns None if rows or scales lie in none of the maps, and so are in memory.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn open(self: &Arc<Self>, table: &Table, maps: &[Arc<Map>], is_warmed: bool) -> io::Result<Option<PagedTable>> {
        let open = |memory: &Memory| self.range(table.vocabulary_size, memory.as_bytes(), maps, is_warmed);
        let parts = [&table.rows, &table.scales].into_iter().filter(|memory| !memory.as_bytes().is_empty());
        let Some(ranges) = parts.map(open).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut clock = self.lock();
        clock.ranges.retain(|one| one.strong_count() > 0);
        clock.ranges.extend(ranges.iter().map(Arc::downgrade));
        if !clock.is_audited {
            clock.is_audited = true;
            let audited = Arc::downgrade(self);
            std::thread::Builder::new().name("pages".to_owned()).spawn(move || audit(&audited))?;
        }
        drop(clock);
        if is_warmed {
            for range in &ranges {
                if range.uses.len() <= SMALL_PAGES {
                    range.warm(0, range.uses.len());
                } else {
                    self.warming().ranges.push_back((Arc::downgrade(range), 0));
                }
            }
            self.start_warming()?;
        }
        Ok(Some(PagedTable { vocabulary_size: table.vocabulary_size, ranges }))
    }

    fn range(
        self: &Arc<Self>,
        rows: usize,
        bytes: &[u8],
        maps: &[Arc<Map>],
        is_warmed: bool,
    ) -> Option<Arc<PagedRange>> {
        // Dropping pages of a private map would lose its changed rows.
        let mut shared = maps.iter().filter(|map| !map.is_private());
        let (map, at) = shared.find_map(|map| Some((map, map.place(bytes)?)))?;
        let offset = at / self.page_bytes * self.page_bytes;
        let num_pages = (at + bytes.len() - offset).div_ceil(self.page_bytes);
        self.num_partial.fetch_add(1, Relaxed);
        Some(Arc::new_cyclic(|this| PagedRange {
            skip: at - offset,
            stride: bytes.len() / rows.max(1),
            page_bytes: self.page_bytes,
            uses: Residency::new(num_pages),
            is_warmed,
            map: Arc::clone(map),
            offset,
            pager: Arc::clone(self),
            this: this.clone(),
        }))
    }

    /// Says whether a page of any paged table is not in memory.
    #[must_use]
    #[inline]
    pub fn has_missing_pages(&self) -> bool {
        self.num_partial.load(Relaxed) > 0
    }

    #[cfg(all(test, not(feature = "model")))]
    pub(super) fn is_warming(&self) -> bool {
        self.warming().is_running
    }

    fn warming(&self) -> MutexGuard<'_, Warming> {
        self.warming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the warming thread if it has work and does not run.
    fn start_warming(self: &Arc<Self>) -> io::Result<()> {
        let mut warming = self.warming();
        if warming.is_running || warming.ranges.is_empty() {
            return Ok(());
        }
        let pager = Arc::downgrade(self);
        std::thread::Builder::new().name("warm-pages".to_owned()).spawn(move || warm(&pager))?;
        warming.is_running = true;
        Ok(())
    }

    /// Returns the next part that the warming thread reads; None, which ends the thread, if nothing is left to read or
    /// the limit on pages in memory is reached.
    fn next_part(&self) -> Option<(Arc<PagedRange>, usize)> {
        let mut warming = self.warming();
        if self.held.load(Relaxed) + WARMED_PAGES > self.max_pages {
            *warming = Warming::default();
            return None;
        }
        while let Some((range, page)) = warming.wanted.pop_front() {
            if let Some(range) = range.upgrade() {
                return Some((range, page));
            }
        }
        while let Some((range, page)) = warming.ranges.front_mut() {
            let from = *page;
            *page += WARMED_PAGES;
            match range.upgrade().filter(|range| from < range.uses.len()) {
                Some(range) => return Some((range, from)),
                None => drop(warming.ranges.pop_front()),
            }
        }
        *warming = Warming::default();
        None
    }

    /// Tells the warming thread which parts lookups need: those with these pages.
    fn want(&self, pages: &[Page<'_>]) {
        let mut warming = self.warming();
        if !warming.is_running {
            return;
        }
        for run in runs(pages) {
            let (range, page) = run[0];
            let part = page - page % WARMED_PAGES;
            let is_last = warming.wanted.back().is_some_and(|(one, at)| *at == part && one.as_ptr() == range);
            if range.is_warmed && !is_last && warming.wanted.len() < WANTED_PARTS {
                warming.wanted.push_back((range.this.clone(), part));
            }
        }
    }

    /// Returns the counts of reads and drops of pages so far, and the number of bytes of pages that are in memory now.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        let page_bytes = self.page_bytes as u64;
        PageCounts {
            rows: self.rows.load(Relaxed),
            reads: self.reads.load(Relaxed),
            drops: self.drops.load(Relaxed),
            losses: self.losses.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
            bytes: self.held.load(Relaxed) as u64 * page_bytes,
            max_bytes: self.max_pages as u64 * page_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Clock> {
        // The state of the pager's clock stays valid if another thread panics while it holds the lock.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads pages from the disk into memory; `pages` names each page once, in the order of the addresses.
    fn read(&self, pages: &[Page<'_>]) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        while pages.len() >= LARGE_BATCH && *in_flight >= PAGES_IN_FLIGHT {
            in_flight = self.has_ended.wait(in_flight).unwrap_or_else(PoisonError::into_inner);
        }
        *in_flight += pages.len();
        drop(in_flight);
        let begun = Instant::now();
        let held = self.held.fetch_add(pages.len(), Relaxed) + pages.len();
        if held > self.max_pages {
            self.drop_pages();
        }
        for run in runs(pages) {
            let (range, page) = run[0];
            // SAFETY: `madvise` gets addresses of pages of a map that the range owns.
            unsafe { libc::madvise(range.address(page), run.len() * self.page_bytes, libc::MADV_WILLNEED) };
        }
        let mut num_known = 0;
        for &(range, page) in pages {
            let _ = range.map.touch(range.offset + page * range.page_bytes);
            // If another thread has read the same page meanwhile, that thread has counted the page, so this thread
            // takes its own count back.
            num_known += 1 - range.uses.know(page, page + 1, &self.num_partial);
        }
        self.held.fetch_sub(num_known, Relaxed);
        self.reads.fetch_add((pages.len() - num_known) as u64, Relaxed);
        self.nanos.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Relaxed);
        *self.in_flight.lock().unwrap_or_else(PoisonError::into_inner) -= pages.len();
        self.has_ended.notify_one();
        self.want(pages);
    }

    /// Drops pages if more are in memory than the limit allows: the surplus, and 1/`SPARE_SHARE` of the limit.
    fn drop_pages(&self) {
        let mut clock = self.lock();
        // Another thread may have dropped enough pages while this thread waited for the lock, so the surplus is
        // computed here again.
        let over = self.held.load(Relaxed).saturating_sub(self.max_pages);
        if over == 0 {
            return;
        }
        let chosen = clock.choose(over + self.max_pages / SPARE_SHARE);
        let num_chosen: usize = chosen.iter().map(|(_, pages)| pages.len()).sum();
        self.held.fetch_sub(num_chosen, Relaxed);
        self.drops.fetch_add(num_chosen as u64, Relaxed);
        drop(clock);
        for (range, pages) in &chosen {
            let pages: Vec<Page<'_>> = pages.iter().map(|&page| (&**range, page)).collect();
            for run in runs(&pages) {
                range.forget(run[0].1, run.len());
            }
        }
    }

    /// Sets each element of `is_there` to whether that page, counted from the address on, is in memory; returns false
    /// if the kernel does not tell. There are at most [`AUDIT_CHUNK`] pages.
    fn find_pages(&self, at: *mut libc::c_void, is_there: &mut [bool]) -> bool {
        let mut entries = [0_u8; AUDIT_CHUNK * ENTRY_BYTES];
        let entries = &mut entries[..is_there.len() * ENTRY_BYTES];
        let offset = at.addr() / self.page_bytes * ENTRY_BYTES;
        if let Some(file) = &self.page_table
            && file.read_exact_at(entries, offset as u64).is_ok()
        {
            for (is_there, entry) in is_there.iter_mut().zip(entries.chunks_exact(ENTRY_BYTES)) {
                // A page's entry in /proc/self/pagemap is a little-endian number, so its highest bits, with the bit for
                // "in memory", are in its last byte.
                *is_there = entry[ENTRY_BYTES - 1] & IS_PRESENT != 0;
            }
            return true;
        }
        let mut found = [0_u8; AUDIT_CHUNK];
        // SAFETY: `found` has a byte for each of at most AUDIT_CHUNK pages.
        let result = unsafe { libc::mincore(at, is_there.len() * self.page_bytes, found.as_mut_ptr()) };
        is_there.iter_mut().zip(found).for_each(|(is_there, found)| *is_there = found & 1 == 1);
        result == 0
    }

    /// Audits some pages: sets the use count of each page that the kernel has dropped to 0.
    pub(super) fn audit(&self) {
        let mut clock = self.lock();
        let ranges: Vec<_> = clock.ranges.iter().filter_map(Weak::upgrade).collect();
        let mut place = std::mem::take(&mut clock.audited);
        drop(clock);
        let (mut num_checked, mut num_seen) = (0, 0);
        let mut left = ranges.iter().map(|range| range.uses.len()).sum::<usize>().min(AUDITED_BYTES);
        while num_checked < AUDITED_PAGES && num_seen < left {
            let Some(range) = ranges.get(place.range) else {
                // The search for pages that the kernel dropped goes on at the first page: it has passed the last one, or
                // tables were closed since the last audit.
                left = left.min(num_seen + ranges.iter().map(|range| range.uses.len()).sum::<usize>());
                place = Place::default();
                continue;
            };
            let end = range.uses.len().min(place.page + AUDIT_CHUNK);
            if place.page >= end {
                place = Place { range: place.range + 1, page: 0 };
                continue;
            }
            num_seen += end - place.page;
            if range.uses[place.page..end].iter().any(|uses| uses.load(Relaxed) > 0) {
                num_checked += end - place.page;
                let num_lost = range.compare(place.page, end);
                self.held.fetch_sub(num_lost, Relaxed);
                self.losses.fetch_add(num_lost as u64, Relaxed);
            }
            place.page = end;
        }
        self.lock().audited = place;
    }
}

impl Clock {
    /// Moves the pager's clock hand until `num_pages` pages to drop are chosen, or no more can be found. Sets the use
    /// counts of chosen pages to 0. Returns the chosen pages by range, in the order of their addresses.
    fn choose(&mut self, num_pages: usize) -> Vec<(Arc<PagedRange>, Vec<usize>)> {
        let ranges: Vec<_> = self.ranges.iter().map(Weak::upgrade).collect();
        let total: usize = ranges.iter().flatten().map(|range| range.uses.len()).sum();
        let mut chosen: Vec<(Arc<PagedRange>, Vec<usize>)> = Vec::new();
        let (mut left, mut steps) = (num_pages, total * usize::from(MOST_USES));
        while left > 0 && steps > 0 {
            let Some(range) = ranges.get(self.hand.range) else {
                self.hand = Place::default();
                continue;
            };
            let Some(range) = range.as_ref().filter(|range| self.hand.page < range.uses.len()) else {
                self.hand = Place { range: self.hand.range + 1, page: 0 };
                continue;
            };
            let from = self.hand.page;
            let mut pages = Vec::new();
            for uses in &range.uses[from..] {
                if left == 0 || steps == 0 {
                    break;
                }
                steps -= 1;
                let count = uses.load(Relaxed);
                // If a lookup counts a use of the page at the same time, this compare-exchange of the use count fails,
                // and the page stays in memory for this round.
                if count > 0 && uses.compare_exchange(count, count - 1, Relaxed, Relaxed).is_ok() && count == 1 {
                    pages.push(self.hand.page);
                    left -= 1;
                }
                self.hand.page += 1;
            }
            if !pages.is_empty() {
                range.uses.forget(pages.len(), &range.pager.num_partial);
                chosen.push((Arc::clone(range), pages));
            }
        }
        chosen
    }
}

impl PagedRange {
    fn address(&self, page: usize) -> *mut libc::c_void {
        self.map.as_ptr().wrapping_add(self.offset + page * self.page_bytes).cast()
    }

    /// Returns the indexes, within the range, of the pages in which a row lies.
    #[inline]
    fn pages(&self, row: usize) -> std::ops::RangeInclusive<usize> {
        let begin = self.skip + row * self.stride;
        begin / self.page_bytes..=(begin + self.stride - 1) / self.page_bytes
    }

    /// Says whether a page of the range is in memory, and raises the page's use count if it is.
    #[inline]
    fn uses(&self, page: usize) -> bool {
        let uses = &self.uses[page];
        let count = uses.load(Relaxed);
        if count > 0 && count < MOST_USES {
            // The compare-exchange of the page's use count fails if the clock hand has changed the count meanwhile, so
            // a dropped page keeps the count 0.
            let _ = uses.compare_exchange(count, count + 1, Relaxed, Relaxed);
        }
        count > 0
    }

    /// Drops `num_pages` pages of the file, from `page` on, from the memory of this process and from the page cache.
    fn forget(&self, page: usize, num_pages: usize) {
        let num_bytes = num_pages * self.page_bytes;
        let offset = self.offset + page * self.page_bytes;
        // SAFETY: dropping pages loses no data: the map is shared and read-only, so a later read gets the same bytes
        // from the file.
        unsafe {
            libc::madvise(self.address(page), num_bytes, libc::MADV_DONTNEED);
            let (offset, num_bytes) = (offset as libc::off_t, num_bytes as libc::off_t);
            libc::posix_fadvise(self.map.file().as_raw_fd(), offset, num_bytes, libc::POSIX_FADV_DONTNEED);
        }
    }

    /// Sets to 0 the use counts of the pages in `from..to` that are not in memory; returns how many of these counts
    /// were above 0.
    fn compare(&self, from: usize, to: usize) -> usize {
        let mut is_there = [false; AUDIT_CHUNK];
        if !self.pager.find_pages(self.address(from), &mut is_there[..to - from]) {
            return 0;
        }
        // A lookup has touched each page whose use count is above 0, so the process's page table has such a page as
        // long as it is in memory.
        let lost = self.uses[from..to].iter().zip(is_there).filter(|(uses, is_there)| {
            let count = uses.load(Relaxed);
            !is_there && count > 0 && uses.compare_exchange(count, 0, Relaxed, Relaxed).is_ok()
        });
        let num_lost = lost.count();
        self.uses.forget(num_lost, &self.pager.num_partial);
        num_lost
    }

    /// Reads the pages in `from..to` into memory. Blocks.
    fn warm(&self, from: usize, to: usize) {
        let (address, num_bytes) = (self.address(from), (to - from) * self.page_bytes);
        // The first call reads the pages with few large reads; the second alone would wait for each page.
        // SAFETY: `madvise` gets addresses of pages of a map that the range owns.
        let result = unsafe {
            libc::madvise(address, num_bytes, libc::MADV_WILLNEED);
            libc::madvise(address, num_bytes, libc::MADV_POPULATE_READ)
        };
        if result != 0 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
                // The lookup that needs such a page finds the damage.
                return;
            }
            // Linux before 5.14.
            for page in from..to {
                let _ = self.map.touch(self.offset + page * self.page_bytes);
            }
        }
        self.pager.held.fetch_add(self.uses.know(from, to, &self.pager.num_partial), Relaxed);
    }
}

impl Drop for PagedRange {
    fn drop(&mut self) {
        self.pager.held.fetch_sub(self.uses.num_known(), Relaxed);
        self.pager.num_partial.fetch_sub(usize::from(!self.uses.is_whole()), Relaxed);
    }
}

impl PagedTable {
    /// Says whether the rows of all ids are in memory. Counts a use of each page that it finds, and stops at the first
    /// page that is not in memory.
    #[must_use]
    pub fn has_rows(&self, ids: Ints<'_>, policy: Policy) -> bool {
        if self.ranges.iter().all(|range| range.uses.is_whole()) {
            return true;
        }
        ids.iter()
            .filter_map(|id| self.row(id, policy))
            .all(|row| self.ranges.iter().all(|range| range.pages(row).all(|page| range.uses(page))))
    }

    /// Returns the row that a lookup reads for an id; None if it reads none.
    #[inline]
    fn row(&self, id: i64, policy: Policy) -> Option<usize> {
        if (id as u64) < self.vocabulary_size as u64 {
            return Some(id as usize);
        }
        policy.replacement(id, self.vocabulary_size as u64).ok().flatten().map(|row| row as usize)
    }

    /// Returns how many of the table's pages are in memory, by the pager's use counts.
    #[cfg(all(test, not(feature = "model")))]
    pub(super) fn num_kept(&self) -> usize {
        self.ranges.iter().flat_map(|range| range.uses.iter()).filter(|uses| uses.load(Relaxed) > 0).count()
    }

    fn missing<'a>(&'a self, ids: Ints<'_>, policy: Policy, pages: &mut Vec<Page<'a>>) {
        let mut num_rows = 0;
        for row in ids.iter().filter_map(|id| self.row(id, policy)) {
            let before = pages.len();
            for range in &self.ranges {
                pages.extend(range.pages(row).filter(|&page| !range.uses(page)).map(|page| (&**range, page)));
            }
            num_rows += u64::from(pages.len() > before);
        }
        if let Some(range) = self.ranges.first() {
            range.pager.rows.fetch_add(num_rows, Relaxed);
        }
    }
}

/// Reads those rows of the ids that are not in memory, of several tables together; blocks until the disk has answered.
pub fn read_rows<'a>(wanted: impl Iterator<Item = (&'a PagedTable, Ints<'a>, Policy)>) {
    let mut pages = Vec::new();
    for (table, ids, policy) in wanted {
        table.missing(ids, policy, &mut pages);
    }
    let Some(&(range, _)) = pages.first() else { return };
    pages.sort_unstable_by_key(|&(range, page)| range.address(page).addr());
    pages.dedup_by_key(|(range, page)| range.address(*page));
    for batch in pages.chunks(BATCH_PAGES) {
        range.pager.read(batch);
    }
}

/// Runs on the warming thread: reads part after part, until nothing is left.
fn warm(pager: &Weak<Pager>) {
    priority::lower(WARM_NICE);
    while let Some((range, from)) = pager.upgrade().and_then(|pager| pager.next_part()) {
        let (begun, to) = (Instant::now(), range.uses.len().min(from + WARMED_PAGES));
        if range.uses[from..to].iter().any(|uses| uses.load(Relaxed) == 0) {
            range.warm(from, to);
        }
        drop(range);
        std::thread::sleep(begun.elapsed());
    }
}

/// Runs on the pager's thread: audits some pages at regular times, until the pager is dropped.
fn audit(pager: &Weak<Pager>) {
    while let Some(pager) = pager.upgrade() {
        pager.audit();
        drop(pager);
        std::thread::sleep(AUDIT_EVERY);
    }
}

/// Splits pages, which are in the order of their addresses, into groups of adjacent pages of one range.
fn runs<'a, 'b>(pages: &'b [Page<'a>]) -> impl Iterator<Item = &'b [Page<'a>]> {
    pages.chunk_by(|before, after| std::ptr::eq(before.0, after.0) && before.1 + 1 == after.1)
}
