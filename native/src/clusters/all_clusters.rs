//! The Valkey and Redis clusters of one server, and the tables that its model versions read there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::cache::{Cache, CacheCounts};
use super::connection::Node;
use super::description::{Address, RemoteDescription};
use super::network;
use super::read::{Want, read};
use super::remote_table::{RemoteTable, TableCounts};
use super::topology::{ForgetSlots, InSync, Topology};

/// Expected size of a row in bytes, for a row cache that is created before the first table is opened.
const TYPICAL_ROW_BYTES: usize = 256;
/// Number of rows that the server reads together when it fills the cache in advance.
const FILLED_TOGETHER: usize = 1000;

#[derive(Default)]
struct Opened {
    topologies: HashMap<Address, Weak<Topology>>,
    /// Open tables, by two names: the tag with which the table's keys begin (model, table and fingerprint), and the
    /// version.
    tables: HashMap<(String, i64), Weak<RemoteTable>>,
}

/// Reads these default rows of a table from its cluster, and stores them in the table.
///
/// # Errors
/// Why a row could not be read; rows that could be read are stored.
fn read_default_rows(table: &RemoteTable, rows: Vec<u64>) -> Result<(), String> {
    let mut wants = [Want::new(table, rows)];
    let why = read(&mut wants, None);
    let [want] = wants;
    for (position, (row, bytes)) in want.ids.iter().zip(want.rows.chunks_exact(table.row_bytes())).enumerate() {
        if !want.left.contains(&(position as u32)) {
            table.set_default_row(*row, bytes);
        }
    }
    if want.left.is_empty() { Ok(()) } else { Err(why) }
}

/// All Valkey and Redis clusters of which one server reads rows. Model versions that read one cluster share its
/// connections. Concurrency: any thread.
pub struct Clusters {
    opened: Mutex<Opened>,
    cache: Option<Arc<Cache>>,
    in_sync: Arc<InSync>,
}

impl Clusters {
    /// Creates the list of Valkey and Redis clusters, still empty, and a row cache of at most `cache_bytes` bytes; 0
    /// for no cache.
    #[must_use]
    pub fn new(cache_bytes: u64) -> Self {
        let cache = (cache_bytes > 0).then(|| Arc::new(Cache::new(cache_bytes, TYPICAL_ROW_BYTES)));
        Clusters { opened: Mutex::default(), cache, in_sync: Arc::default() }
    }

    /// Opens a table in a cluster; `rows` is V, its number of rows. Two servables of one version get the same table, if
    /// both describe the same cluster.
    #[must_use]
    pub fn open(
        &self,
        model: &str,
        version: i64,
        table: &str,
        rows: usize,
        description: &RemoteDescription,
    ) -> Arc<RemoteTable> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (description.tag.clone(), version);
        if let Some(known) = opened.tables.get(&name).and_then(Weak::upgrade)
            && known.topology.address == description.address
        {
            return known;
        }
        opened.topologies.retain(|_, one| one.strong_count() > 0);
        opened.tables.retain(|_, one| one.strong_count() > 0);
        let known = opened.topologies.get(&description.address).and_then(Weak::upgrade);
        let topology = known.unwrap_or_else(|| {
            let new = Arc::new(Topology::new(description.address.clone(), Arc::clone(&self.in_sync)));
            opened.topologies.insert(description.address.clone(), Arc::downgrade(&new));
            new
        });
        let subject = (model.to_owned(), version, table.to_owned());
        let new = Arc::new(RemoteTable::new(subject, description, rows, topology, self.cache.clone()));
        let mut of_topology = new.topology.tables.lock().unwrap_or_else(PoisonError::into_inner);
        of_topology.retain(|one| one.strong_count() > 0);
        let forgets: Arc<dyn ForgetSlots> = Arc::<RemoteTable>::clone(&new);
        of_topology.push(Arc::downgrade(&forgets));
        drop(of_topology);
        opened.tables.insert(name, Arc::downgrade(&new));
        new
    }

    /// Opens a table as [`Clusters::open`] does, and reads its default rows.
    ///
    /// # Errors
    /// Why a default row could not be read.
    pub fn open_with_default_rows(
        &self,
        model: &str,
        version: i64,
        table: &str,
        rows: usize,
        description: &RemoteDescription,
    ) -> Result<Arc<RemoteTable>, String> {
        let opened = self.open(model, version, table, rows, description);
        read_default_rows(&opened, opened.default_rows_among(None))?;
        Ok(opened)
    }

    /// Removes rows of a table from the row cache, because they have changed in the table's cluster; None: all rows of
    /// the table. Reads changed default rows again; a default row that can not be read stays as it was.
    pub fn forget(&self, model: &str, version: i64, table: &str, rows: Option<&[u64]>) {
        for one in self.named(model, version, table) {
            one.forget(rows);
            let _ = read_default_rows(&one, one.default_rows_among(rows));
        }
    }

    /// Calls [`RemoteTable::heard`] for an open table, because the server has read all changes of this table up to
    /// `age` ago.
    pub fn heard(&self, model: &str, version: i64, table: &str, age: Duration) {
        self.named(model, version, table).for_each(|one| one.heard(age));
    }

    /// Returns the blocks of an open table that lacked a row that was read since the last call, and the table's numbers
    /// of reads and of failed reads.
    #[must_use]
    pub fn lost(&self, model: &str, version: i64, table: &str) -> (Vec<u64>, u64, u64) {
        let mut found = (Vec::new(), 0, 0);
        for one in self.named(model, version, table) {
            found.0.extend(one.take_lost());
            let counts = one.counts();
            found.1 += counts.reads;
            found.2 += counts.errors;
        }
        found
    }

    /// Records replicas, by host and port, that are in sync with their primaries, and for how long from now on rows may
    /// be read from each.
    pub fn set_in_sync(&self, nodes: impl IntoIterator<Item = (String, u16, Duration)>) {
        let now = network::now();
        self.in_sync.set(nodes.into_iter().map(|(host, port, time)| (Node::new(&host, port), now + time)));
    }

    #[must_use]
    pub fn table(&self, tag: &str, version: i64) -> Option<Arc<RemoteTable>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.tables.get(&(tag.to_owned(), version)).and_then(Weak::upgrade)
    }

    /// Asks each Valkey or Redis cluster for its slot map. Reads alone do not notice an outdated map, because a replica
    /// that became a primary answers them as before. Waits for the nodes, each cluster's longest time for a read at
    /// most.
    pub fn refresh(&self) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let topologies: Vec<_> = opened.topologies.values().filter_map(Weak::upgrade).collect();
        drop(opened);
        for topology in topologies {
            // An error of a slot map's refresh is ignored: a later read that needs the map reports its own error.
            let _ = topology.refresh(network::now() + topology.address.timeout(), true, None);
        }
    }

    /// Reads rows of an open table into the cache, in the order of `rows`, until `deadline` or until a row can not be
    /// read; leaves out numbers that are no rows. Returns how many of the rows the cache had or this call read; 0 if
    /// the table is not open, or there is no cache.
    #[must_use]
    pub fn fill(&self, tag: &str, version: i64, rows: &[u64], deadline: Instant) -> usize {
        let Some(table) = self.table(tag, version).filter(|table| table.has_cache()) else { return 0 };
        let size = table.num_rows();
        let rows: Vec<u64> = rows.iter().copied().filter(|row| *row < size).collect();
        let mut count = 0;
        for some in rows.chunks(FILLED_TOGETHER) {
            let mut wants = [Want::new(&table, some.to_vec())];
            read(&mut wants, Some(deadline));
            count += wants[0].ids.len() - wants[0].left.len() - wants[0].num_stale;
            if !wants[0].left.is_empty() || network::now() >= deadline {
                break;
            }
        }
        count
    }

    fn named(&self, model: &str, version: i64, table: &str) -> impl Iterator<Item = Arc<RemoteTable>> {
        let is_named = move |one: &Arc<RemoteTable>| {
            let (its_model, its_version, name) = &one.subject;
            (&**its_model, *its_version, &**name) == (model, version, table)
        };
        self.tables().into_iter().filter(is_named)
    }

    fn tables(&self) -> Vec<Arc<RemoteTable>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.tables.values().filter_map(Weak::upgrade).collect()
    }

    #[must_use]
    pub fn counts(&self) -> Vec<TableCounts> {
        self.tables().iter().map(|table| table.counts()).collect()
    }

    #[must_use]
    pub fn cache_counts(&self) -> Option<CacheCounts> {
        self.cache.as_ref().map(|cache| cache.counts())
    }
}
