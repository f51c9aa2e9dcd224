//! Tests of paged tables on a file that is dropped from the page cache.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::map::Map;
use super::super::memory::Memory;
use super::super::paged::*;
use super::super::table::{Dtype, Ints, OnBadId, Policy, Table};

const ROWS: usize = 4096;
const STRIDE: usize = 1000;
const ERROR: Policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };

/// A mapped test file of rows, with their count; each row begins with its number in eight bytes, and row 0 begins at
/// byte 100.
struct Rows(Arc<Map>, usize);

impl Rows {
    fn new(name: &str) -> Self {
        Self::of(name, ROWS)
    }

    fn of(name: &str, num_rows: usize) -> Self {
        // The test's file must lie on a disk, because the kernel can not drop pages of a file in memory.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(".{name}-{}", std::process::id()));
        let mut octets = vec![0; 100 + num_rows * STRIDE];
        for (row, piece) in octets[100..].chunks_exact_mut(STRIDE).enumerate() {
            piece[..8].copy_from_slice(&row.to_le_bytes());
        }
        std::fs::write(&path, &octets).unwrap();
        let file = File::open(&path).unwrap();
        // Pages that are not written to the disk yet can not be dropped from memory, so the test syncs the file first.
        File::options().write(true).open(&path).unwrap().sync_all().unwrap();
        std::fs::remove_file(&path).unwrap();
        let rows = Rows(Arc::new(Map::open(file, false, Arc::default()).unwrap()), num_rows);
        rows.drop_all();
        rows
    }

    /// Drops all pages of the test file from memory, as the kernel does if memory is short.
    fn drop_all(&self) {
        self.advise(libc::MADV_RANDOM);
        // SAFETY: dropping pages loses no data, because the memory map of the test file is shared and read-only.
        unsafe {
            libc::madvise(self.0.as_ptr().cast(), self.0.len(), libc::MADV_DONTNEED);
            libc::posix_fadvise(self.0.file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
    }

    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the advice, of reading ahead or not, changes no data of the map.
        unsafe { libc::madvise(self.0.as_ptr().cast(), self.0.len(), advice) };
    }

    fn number(&self, row: usize) -> usize {
        let octets: Vec<u8> = (0..8).map(|byte| self.0.touch(100 + row * STRIDE + byte)).collect();
        usize::from_le_bytes(octets.try_into().unwrap())
    }

    /// Returns how many pages of the test file are in memory.
    fn resident(&self) -> usize {
        let mut found = vec![0_u8; self.0.len().div_ceil(4096)];
        // SAFETY: mincore writes one byte for each page of the map, and `found` has as many.
        assert_eq!(unsafe { libc::mincore(self.0.as_ptr().cast(), self.0.len(), found.as_mut_ptr()) }, 0);
        found.iter().filter(|&&page| page & 1 == 1).count()
    }

    fn open(&self, pager: &Arc<Pager>) -> PagedTable {
        self.open_as(pager, false)
    }

    fn open_as(&self, pager: &Arc<Pager>, is_warmed: bool) -> PagedTable {
        let rows = Memory::of(Part(Arc::clone(&self.0), self.1));
        let table = Table::new(Dtype::Float32, self.1, STRIDE / 4, &rows, &Memory::default()).unwrap();
        pager.open(&table, &[Arc::clone(&self.0)], is_warmed).unwrap().unwrap()
    }
}

/// The rows of the test file, without the bytes before row 0.
struct Part(Arc<Map>, usize);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the map, which this object keeps, has the rows.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(100), self.1 * STRIDE) }
    }
}

/// Waits until a condition is true. The bound only ends a test whose condition never comes: other programs may leave a
/// thread with a low priority next to no time.
#[track_caller]
fn eventually(is_true: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !is_true() {
        assert!(Instant::now() < end, "never");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_table_that_is_not_in_a_map_is_not_paged() {
    let rows = Rows::new("paged-elsewhere");
    let elsewhere = Memory::of(vec![0; ROWS * STRIDE]);
    let table = Table::new(Dtype::Float32, ROWS, STRIDE / 4, &elsewhere, &Memory::default()).unwrap();
    assert!(Pager::new(1 << 30).open(&table, &[Arc::clone(&rows.0)], false).unwrap().is_none());
}

fn read(table: &PagedTable, ids: &[i64]) {
    read_rows(std::iter::once((table, Ints::of(ids), ERROR)));
}

#[test]
fn a_row_is_there_after_it_was_read_and_nothing_behind_it_is_read() {
    let rows = Rows::new("paged-one");
    let pager = Pager::new(1 << 30);
    let table = rows.open(&pager);
    assert_eq!(rows.resident(), 0);
    // Row 8 lies in bytes 8100 to 9100 of the file, so in its second and third page of 4096 bytes; row 1000 lies in one
    // page.
    let ids = [8, 1000, 8, -1, 1 << 40];
    assert!(!table.has_rows(Ints::of(&ids), ERROR));
    read(&table, &ids);
    assert!(table.has_rows(Ints::of(&ids), ERROR));
    assert!(!table.has_rows(Ints::of(&[2000]), ERROR));
    assert_eq!((rows.resident(), rows.number(8), rows.number(1000)), (3, 8, 1000));
    // Nor does the disk's read-ahead, which is up to megabytes, read more.
    rows.advise(libc::MADV_NORMAL);
    read(&table, &[3000]);
    assert_eq!((rows.number(3000), rows.resident()), (3000, 4));
    let counts = pager.counts();
    assert_eq!((counts.rows, counts.reads, counts.drops, counts.bytes), (4, 4, 0, 4 * 4096));
    drop(table);
    // A thread of the pager may hold the table for a moment.
    eventually(|| pager.counts().bytes == 0);
}

#[test]
fn an_id_outside_the_table_reads_the_row_of_its_policy() {
    let rows = Rows::new("paged-policy");
    let table = rows.open(&Pager::new(1 << 30));
    let policy = Policy { on_bad_id: OnBadId::DefaultRow, default_row: 77 };
    assert!(!table.has_rows(Ints::of(&[-5]), policy));
    read_rows(std::iter::once((&table, Ints::of(&[-5]), policy)));
    assert!(table.has_rows(Ints::of(&[77]), ERROR));
}

#[test]
fn the_bound_is_kept_and_rows_that_are_read_often_stay() {
    let rows = Rows::new("paged-bound");
    let pager = Pager::new(200 * 4096);
    let table = rows.open(&pager);
    // The ids are every 16th of the first 640 rows: 40 rows, which lie in at most 80 pages.
    let hot: Vec<i64> = (0..40).map(|n| n * 16).collect();
    let mut num_hot_there = 0;
    for round in 0..300 {
        num_hot_there += usize::from(table.has_rows(Ints::of(&hot), ERROR));
        read(&table, &hot);
        let cold: Vec<i64> = (0..10).map(|n| 700 + (round * 10 + n) * 7 % 3300).collect();
        read(&table, &cold);
        // The kernel keeps a page that something else holds at the moment of its drop: seldom, or the pages of 300 rounds
        // would be some 3000.
        assert!(pager.counts().bytes <= 200 * 4096 && rows.resident() <= 400, "{} pages", rows.resident());
        assert!(cold.iter().all(|&row| rows.number(row as usize) == row as usize));
    }
    assert!(num_hot_there > 270, "{num_hot_there} of 300 rounds");
    let counts = pager.counts();
    assert!(counts.drops > 1000 && counts.bytes <= counts.max_bytes, "{counts:?}");
    // Where memory is short, the kernel drops pages, too.
    assert!(counts.bytes / 4096 <= counts.reads - counts.drops, "{counts:?}");
}

#[test]
fn a_lookup_larger_than_the_bound_is_read() {
    let rows = Rows::new("paged-large");
    let pager = Pager::new(10 * 4096);
    let table = rows.open(&pager);
    let all: Vec<i64> = (0..ROWS as i64).collect();
    read(&table, &all);
    assert!((0..ROWS).all(|row| rows.number(row) == row));
    read(&table, &[5]);
    assert!(pager.counts().bytes <= 10 * 4096);
}

#[test]
fn pages_that_the_kernel_dropped_are_found() {
    let rows = Rows::new("paged-lost");
    let pager = Pager::new(1 << 30);
    let table = rows.open(&pager);
    let ids: Vec<i64> = (0..100).map(|n| n * 40).collect();
    read(&table, &ids);
    let held = pager.counts().bytes;
    rows.drop_all();
    // The test audits the pages itself. The pager's own thread may have done so before; the counts are then the same.
    pager.audit();
    let counts = pager.counts();
    assert_eq!((counts.bytes, counts.losses * 4096), (0, held));
    assert!(!table.has_rows(Ints::of(&ids), ERROR));
}

#[test]
fn pages_that_the_kernel_dropped_are_found_by_a_user_who_may_not_write_the_file() {
    // SAFETY: the call changes the effective user of this thread alone, as glibc's function would not.
    let become_user = |user: libc::uid_t| unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
    // SAFETY: `geteuid` takes no arguments and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        let _ = writeln!(std::io::stderr(), "this user can not become another one: NO FOREIGN FILE WAS TESTED");
        return;
    }
    let rows = Rows::new("paged-foreign");
    let pager = Pager::new(1 << 30);
    let table = rows.open(&pager);
    let ids: Vec<i64> = (0..100).map(|n| n * 40).collect();
    read(&table, &ids);
    let held = pager.counts().bytes;
    rows.drop_all();
    assert_eq!(become_user(65534), 0);
    let resident = rows.resident();
    pager.audit();
    assert_eq!(become_user(0), 0);
    let counts = pager.counts();
    assert_eq!((counts.bytes, counts.losses * 4096), (0, held));
    assert_eq!(resident, rows.0.len().div_ceil(4096), "mincore reports all pages of a foreign file as resident");
}

#[test]
fn a_small_table_is_warm_as_it_is_opened() {
    let rows = Rows::new("paged-small");
    let pager = Pager::new(1 << 30);
    let table = rows.open_as(&pager, true);
    assert!(table.has_rows(Ints::of(&(0..ROWS as i64).collect::<Vec<_>>()), ERROR) && !pager.has_missing_pages());
    // A second table, which is not warmed, misses pages; the first misses none until the kernel drops some.
    let other = rows.open(&pager);
    assert!(
        pager.has_missing_pages() && table.has_rows(Ints::of(&[5]), ERROR) && !other.has_rows(Ints::of(&[5]), ERROR)
    );
    drop(other);
    eventually(|| !pager.has_missing_pages());
    rows.drop_all();
    pager.audit();
    assert!(pager.has_missing_pages() && !table.has_rows(Ints::of(&[5]), ERROR));
    assert_eq!((pager.counts().reads, pager.counts().bytes), (0, 0));
}

#[test]
fn a_large_table_that_fits_is_warmed_beside_lookups() {
    let rows = Rows::of("paged-warm", 4 * ROWS);
    let pager = Pager::new(1 << 30);
    let table = rows.open_as(&pager, true);
    read(&table, &[9, 12_000]);
    eventually(|| !pager.has_missing_pages());
    assert_eq!(rows.resident(), rows.0.len().div_ceil(4096));
    assert!(pager.counts().reads <= 3, "warming counts no reads of lookups: {:?}", pager.counts());
}

#[test]
fn warming_ends_at_the_bound() {
    let rows = Rows::of("paged-warm-bound", 4 * ROWS);
    let pager = Pager::new(2000 * 4096);
    let table = rows.open_as(&pager, true);
    eventually(|| pager.counts().bytes >= (2000 - 512) * 4096 && !pager.is_warming());
    assert!(pager.counts().bytes <= 2000 * 4096 && pager.has_missing_pages());
    drop(table);
}

#[test]
fn threads_read_and_drop_together() {
    let rows = Rows::new("paged-threads");
    let pager = Pager::new(300 * 4096);
    let table = rows.open(&pager);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (table, rows) = (&table, &rows);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..100 {
                    let ids: Vec<i64> = (0..20).map(|_| random.i64(0..ROWS as i64)).collect();
                    read(table, &ids);
                    assert!(ids.iter().all(|&id| rows.number(id as usize) == id as usize));
                }
            });
        }
    });
    // The audit may be between its two notes of a page that the kernel dropped.
    eventually(|| pager.counts().bytes == table.num_kept() as u64 * 4096);
}
