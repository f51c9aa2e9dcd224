//! One table of one model version whose rows lie in a Valkey or Redis cluster: the commands that read the rows, and the
//! counts of these reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis_protocol::redis_keyslot;
use serde::Serialize;

use super::cache::Cache;
use super::changes::Changes;
use super::description::RemoteDescription;
use super::network;
use super::topology::{ForgetSlots, Topology};

/// Counts of the reads of one table's rows; fields as in `ReadCounts` of service/remote/core_clusters.py.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableCounts {
    pub model: String,
    pub version: i64,
    pub table: String,
    pub reads: u64,
    pub rows: u64,
    pub bytes: u64,
    pub retries: u64,
    pub errors: u64,
    pub default_rows: u64,
    pub stale_rows: u64,
    pub hedges: u64,
    pub hedge_wins: u64,
    pub nanos: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) rows: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) default_rows: AtomicU64,
    pub(super) stale_rows: AtomicU64,
    pub(super) hedges: AtomicU64,
    pub(super) hedge_wins: AtomicU64,
    pub(super) nanos: AtomicU64,
    pub(super) cache_hits: AtomicU64,
    pub(super) cache_misses: AtomicU64,
}

/// One `[V, D]` table of one model version, whose rows lie in a Valkey or Redis cluster. Concurrency: any thread.
pub struct RemoteTable {
    /// The identity of the table: name of the model, number of the version, and name of the table.
    pub(super) subject: (String, i64, String),
    pub(super) topology: Arc<Topology>,
    pub(super) counters: Counters,
    cache: Option<Arc<Cache>>,
    changes: Changes,
    /// Numbers of blocks that lacked a row that was read, until [`Self::take_lost`] takes them.
    lost: Mutex<Vec<u64>>,
    /// Serial number of the table in the keys of the cache, different for each open table of each version.
    serial: u64,
    num_rows: u64,
    row_bytes: usize,
    block_rows: usize,
    /// Numbers of the default rows, and the bytes of each as they were last read; None before the first read.
    default_rows: Vec<(u64, ArcSwapOption<Vec<u8>>)>,
    /// Whether [`Self::read_stale`] may replace a row that can not be read by the table's cached row, however old.
    pub(super) serves_stale: bool,
    /// For how long cached rows of this table are valid after the time up to which the server has read all changes of the
    /// table; None: always.
    fresh: Option<Duration>,
    opened: Instant,
    /// Time up to which the server has read all changes of the table, in milliseconds after the table was opened.
    heard_ms: AtomicU64,
    /// For each shard, the hash slot of the cluster in which the shard's keys lie.
    slots: Vec<u16>,
    /// The bytes with which the GETRANGE command for every row of the table begins.
    head: Vec<u8>,
    /// For each row of a block, the bytes with which the row's GETRANGE command ends.
    tails: Vec<Vec<u8>>,
    /// The header of an answer to GETRANGE that has a row: `$`, the row's size in bytes, and CR LF.
    reply_head: Vec<u8>,
}

impl std::fmt::Debug for RemoteTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RemoteTable").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Drop for RemoteTable {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            cache.remove_table(self.serial);
        }
    }
}

impl ForgetSlots for RemoteTable {
    fn forget_slots(&self, has_moved: &[bool]) {
        let Some(cache) = &self.cache else { return };
        self.changes.note(|| cache.remove_rows(self.serial, |row| has_moved[usize::from(self.slot(row))]));
    }
}

impl RemoteTable {
    /// Prepares the reads of a table's rows from a Valkey or Redis cluster; `rows` is V, the table's number of rows.
    pub(super) fn new(
        subject: (String, i64, String),
        description: &RemoteDescription,
        rows: usize,
        topology: Arc<Topology>,
        cache: Option<Arc<Cache>>,
    ) -> Self {
        let RemoteDescription { tag, block_rows, num_shards, row_bytes, default_rows, serves_stale, .. } = description;
        let key_bytes = tag.len() + SHARD_DIGITS + 1 + BLOCK_DIGITS;
        let shard_tag = |shard: usize| {
            let mut key = tag.clone().into_bytes();
            write_hex(&mut key, shard, SHARD_DIGITS);
            key.push(b'}');
            key
        };
        let tail = |row: usize| {
            let (begin, end) = ((row * row_bytes).to_string(), ((row + 1) * row_bytes - 1).to_string());
            format!("\r\n${}\r\n{begin}\r\n${}\r\n{end}\r\n", begin.len(), end.len()).into_bytes()
        };
        RemoteTable {
            subject,
            topology,
            counters: Counters::default(),
            changes: Changes::new(),
            lost: Mutex::default(),
            serial: cache.as_ref().map_or(0, |cache| cache.next_serial()),
            cache,
            num_rows: rows as u64,
            row_bytes: *row_bytes,
            block_rows: (*block_rows).max(1),
            default_rows: default_rows.iter().map(|row| (*row, ArcSwapOption::empty())).collect(),
            serves_stale: *serves_stale,
            fresh: description.fresh_ms.map(Duration::from_millis),
            opened: network::now(),
            heard_ms: AtomicU64::new(0),
            slots: (0..(*num_shards).max(1)).map(|shard| redis_keyslot(&shard_tag(shard))).collect(),
            head: format!("*4\r\n$8\r\nGETRANGE\r\n${key_bytes}\r\n{tag}").into_bytes(),
            tails: (0..(*block_rows).max(1).min(rows.max(1))).map(tail).collect(),
            reply_head: format!("${row_bytes}\r\n").into_bytes(),
        }
    }

    #[must_use]
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Returns the number of bytes of one row of the remote table, including the row's scale.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Says whether the server has a cache for rows that it reads from Valkey or Redis clusters.
    #[must_use]
    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Returns the bytes of the default row with this number, which replace a row that can not be read; None: there is
    /// no such default row, and the read fails.
    #[must_use]
    pub fn default_row(&self, row: u64) -> Option<Arc<Vec<u8>>> {
        self.default_rows.iter().find(|(number, _)| *number == row)?.1.load_full()
    }

    /// Returns the numbers of those default rows that are among the changed rows `ids`; None: of all default rows.
    pub(super) fn default_rows_among(&self, ids: Option<&[u64]>) -> Vec<u64> {
        let numbers = self.default_rows.iter().map(|(number, _)| *number);
        numbers.filter(|number| ids.is_none_or(|ids| ids.contains(number))).collect()
    }

    pub(super) fn set_default_row(&self, row: u64, bytes: &[u8]) {
        if let Some((_, place)) = self.default_rows.iter().find(|(number, _)| *number == row) {
            place.store(Some(Arc::new(bytes.to_vec())));
        }
    }

    pub fn count_default_rows(&self, count: usize) {
        self.counters.default_rows.fetch_add(count as u64, Relaxed);
    }

    /// Records that the server has read all changes of the table up to `age` ago, so that cached rows stay valid for a
    /// while.
    pub(super) fn heard(&self, age: Duration) {
        let at = (network::now() - self.opened).saturating_sub(age);
        self.heard_ms.fetch_max(u64::try_from(at.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Says whether cached rows are valid: the server has read all changes up to less than `fresh` ago, or `fresh` is
    /// None.
    fn is_followed(&self) -> bool {
        let since =
            || (network::now() - self.opened).saturating_sub(Duration::from_millis(self.heard_ms.load(Relaxed)));
        self.fresh.is_none_or(|fresh| since() < fresh)
    }

    /// Copies row `ids[i]` to piece `i` of `rows` if the cache has that row and cached rows are valid; returns the
    /// positions of all other ids.
    pub(super) fn read_cached(&self, ids: &[u64], rows: &mut [u8]) -> Vec<u32> {
        let Some(cache) = self.cache.as_ref().filter(|_| self.is_followed()) else {
            return (0..ids.len() as u32).collect();
        };
        let pieces = rows.chunks_exact_mut(self.row_bytes);
        let found = ids.iter().zip(pieces).map(|(id, to)| cache.copy(self.serial, *id, to));
        found.enumerate().filter(|(_, is_there)| !is_there).map(|(position, _)| position as u32).collect()
    }

    /// If the table may serve stale rows, copies rows that could not be read from the cluster out of the cache, however
    /// old they are; returns how many rows were copied. `left` has the positions of the rows in `ids`; after the call
    /// it has only the positions of rows that were not copied.
    pub(super) fn read_stale(&self, ids: &[u64], rows: &mut [u8], left: &mut Vec<u32>) -> usize {
        let Some(cache) = self.cache.as_ref().filter(|_| self.serves_stale) else { return 0 };
        let before = left.len();
        left.retain(|&position| {
            let place = position as usize;
            !cache.copy(self.serial, ids[place], &mut rows[place * self.row_bytes..][..self.row_bytes])
        });
        let copied = before - left.len();
        self.counters.stale_rows.fetch_add(copied as u64, Relaxed);
        copied
    }

    /// Says whether the cache has a copy of a row, however old, that [`Self::read_stale`] may use for this table.
    pub(super) fn has_stale(&self, id: u64) -> bool {
        self.serves_stale && self.cache.as_ref().is_some_and(|cache| cache.has(self.serial, id))
    }

    /// Counts how many rows of one read were in the cache (hits), and how many were not (misses).
    pub(super) fn count_cached(&self, ids: usize, missed: usize) {
        if self.cache.is_some() {
            self.counters.cache_hits.fetch_add((ids - missed) as u64, Relaxed);
            self.counters.cache_misses.fetch_add(missed as u64, Relaxed);
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.count()
    }

    /// Adds a row to the cache, unless rows of the table have changed since the read of the row began; `before` is what
    /// [`Self::changes`] returned then.
    pub(super) fn offer(&self, id: u64, row: &[u8], before: u64) {
        if let Some(cache) = &self.cache {
            self.changes.cache(before, || cache.offer(self.serial, id, row), || cache.remove(self.serial, id));
        }
    }

    pub(super) fn forget(&self, ids: Option<&[u64]>) {
        let Some(cache) = &self.cache else { return };
        self.changes.note(|| match ids {
            None => cache.remove_table(self.serial),
            Some(ids) => ids.iter().for_each(|id| cache.remove(self.serial, *id)),
        });
    }

    /// Notes that the block of a row lacks this row in the cluster.
    pub(super) fn note_lost(&self, id: u64) {
        let block = id / self.block_rows as u64;
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.len() < MOST_LOST && !lost.contains(&block) {
            lost.push(block);
        }
    }

    pub(super) fn take_lost(&self) -> Vec<u64> {
        std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Names the block and the hash slot of a row, for an error text.
    pub(super) fn place(&self, id: u64) -> String {
        format!("block {} of table \"{}\" (slot {})", id / self.block_rows as u64, self.subject.2, self.slot(id))
    }

    pub(super) fn slot(&self, id: u64) -> u16 {
        self.slots[id as usize / self.block_rows % self.slots.len()]
    }

    /// Appends to `to` the GETRANGE command that reads a row.
    pub(super) fn write_command(&self, id: u64, to: &mut Vec<u8>) {
        let (block, row) = (id as usize / self.block_rows, id as usize % self.block_rows);
        to.extend_from_slice(&self.head);
        write_hex(to, block % self.slots.len(), SHARD_DIGITS);
        to.push(b'}');
        write_hex(to, block, BLOCK_DIGITS);
        to.extend_from_slice(&self.tails[row]);
    }

    pub(super) fn reply_head(&self) -> &[u8] {
        &self.reply_head
    }

    pub(super) fn counts(&self) -> TableCounts {
        let (model, version, table) = self.subject.clone();
        let counters = &self.counters;
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        TableCounts {
            model,
            version,
            table,
            reads: of(&counters.reads),
            rows: of(&counters.rows),
            bytes: of(&counters.bytes),
            retries: of(&counters.retries),
            errors: of(&counters.errors),
            default_rows: of(&counters.default_rows),
            stale_rows: of(&counters.stale_rows),
            hedges: of(&counters.hedges),
            hedge_wins: of(&counters.hedge_wins),
            nanos: of(&counters.nanos),
            cache_hits: of(&counters.cache_hits),
            cache_misses: of(&counters.cache_misses),
        }
    }
}

/// Largest number of blocks that are noted as lost at a time.
const MOST_LOST: usize = 64;
/// Number of hexadecimal digits of a shard and of a block in a key, as in `TableLayout.key` of
/// service/remote/layout.py.
const SHARD_DIGITS: usize = 4;
const BLOCK_DIGITS: usize = 8;

fn write_hex(to: &mut Vec<u8>, number: usize, digits: usize) {
    for place in (0..digits).rev() {
        to.push(b"0123456789abcdef"[number >> (4 * place) & 15]);
    }
}
