//! A cache, in this server's memory, of rows of remote tables that are read often.
//!
//! The server removes a row when it hears that the row has changed in its cluster, and all rows of a table when no
//! servable uses the table any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quick_cache::sync::Cache as QuickCache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use serde::Serialize;

/// Bytes that the cache uses for a row besides the row: key, pointers, lengths, and the share of the hash table.
const ENTRY_BYTES: usize = 96;
/// A key of the cache is one integer: the table's serial number, and the row's number in this many low bits.
const ROW_BITS: u32 = 40;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    pub rows: u64,
    /// Bytes of memory that the cached rows use, including `ENTRY_BYTES` for each row.
    pub bytes: u64,
    pub evictions: u64,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<u64, Arc<[u8]>> for Bytes {
    fn weight(&self, _: &u64, row: &Arc<[u8]>) -> u64 {
        (row.len() + ENTRY_BYTES) as u64
    }
}

#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<u64, Arc<[u8]>> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: u64, _: Arc<[u8]>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A cache of rows of remote tables that keeps a row if it is read often. Concurrency: any thread.
pub(super) struct Cache {
    rows: QuickCache<u64, Arc<[u8]>, Bytes, DefaultHashBuilder, Evictions>,
    evictions: Arc<AtomicU64>,
    serials: AtomicU64,
}

impl Cache {
    pub(super) fn new(bytes: u64, row_bytes: usize) -> Self {
        let evictions = Arc::new(AtomicU64::new(0));
        let expected = usize::try_from(bytes).unwrap_or(usize::MAX) / (row_bytes + ENTRY_BYTES);
        let counting = Evictions(Arc::clone(&evictions));
        let rows = QuickCache::with(expected.max(1), bytes, Bytes, DefaultHashBuilder::default(), counting);
        Cache { rows, evictions, serials: AtomicU64::new(0) }
    }

    pub(super) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Relaxed)
    }

    pub(super) fn copy(&self, table: u64, row: u64, to: &mut [u8]) -> bool {
        let Some(found) = self.rows.get(&key(table, row)) else {
            return false;
        };
        to.copy_from_slice(&found);
        true
    }

    /// Says whether the cache has a row; the cache does not count this as a use of the row.
    pub(super) fn has(&self, table: u64, row: u64) -> bool {
        self.rows.contains_key(&key(table, row))
    }

    pub(super) fn offer(&self, table: u64, row: u64, bytes: &[u8]) {
        self.rows.insert(key(table, row), bytes.into());
    }

    pub(super) fn remove(&self, table: u64, row: u64) {
        self.rows.remove(&key(table, row));
    }

    pub(super) fn remove_table(&self, table: u64) {
        self.remove_rows(table, |_| true);
    }

    pub(super) fn remove_rows(&self, table: u64, is_one: impl Fn(u64) -> bool) {
        self.rows.retain(|key, _| key >> ROW_BITS != table || !is_one(key & ((1 << ROW_BITS) - 1)));
    }

    pub(super) fn counts(&self) -> CacheCounts {
        CacheCounts { rows: self.rows.len() as u64, bytes: self.rows.weight(), evictions: self.evictions.load(Relaxed) }
    }
}

fn key(table: u64, row: u64) -> u64 {
    table << ROW_BITS | row
}
