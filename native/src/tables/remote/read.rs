//! Reads rows of one or more tables of one cluster at the same time.
//!
//! A read asks the primaries, all at once. Where one is down, slow, or lacks a key, its rows are asked of another node of
//! the same slot. An answer of any other size than a row's is never taken for a row. A connection that broke or was
//! given up is closed, so that no later read gets its answers. The reference is service/remote/row_reader.py.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redis_protocol::resp2::types::OwnedFrame;

use super::connection::{Connection, Reply, command};
use super::remote_table::RemoteTable;
use super::topology::{Node, Topology};

/// Commands that leave together: their answers are 1 MB of rows of 256 bytes.
const MOST_COMMANDS: usize = 4096;
/// The pause before a further round.
const PAUSE: Duration = Duration::from_millis(10);
/// Kinds of errors that another try may change: the map of slots is old, or a node is not ready yet.
const PASSING: [&str; 6] = ["MOVED", "ASK", "CLUSTERDOWN", "LOADING", "TRYAGAIN", "MASTERDOWN"];

/// Rows of one table that a read wants.
pub struct Want<'t> {
    /// The table.
    pub table: &'t RemoteTable,
    /// Numbers of the rows, each below V.
    pub ids: Vec<u64>,
    /// The bytes of the rows, end to end.
    pub rows: Vec<u8>,
    /// Positions in `ids` whose rows were not read yet; after the read, could not be read.
    pub left: Vec<u32>,
    /// Changes of rows that the table had seen when the read began.
    changes: u64,
}

impl<'t> Want<'t> {
    /// Takes the rows that the cache has.
    #[must_use]
    pub fn new(table: &'t RemoteTable, ids: Vec<u64>) -> Self {
        let mut rows = vec![0; ids.len() * table.row_bytes()];
        let changes = table.changes();
        let left = table.read_cached(&ids, &mut rows);
        Want { table, ids, rows, left, changes }
    }
}

/// A row that is still to be read: the index of its want, and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Item {
    want: u32,
    position: u32,
}

/// Reads the rows that the cache lacked. Afterwards `Want::left` has the rows that could not be read; the returned text
/// says why.
///
/// `deadline` is the request's; the address of each cluster has a limit of its own.
pub fn read(wants: &mut [Want<'_>], deadline: Option<Instant>) -> String {
    let mut why = String::new();
    for want in &*wants {
        want.table.count_cached(want.ids.len(), want.left.len());
    }
    let mut is_begun = vec![false; wants.len()];
    for first in 0..wants.len() {
        if is_begun[first] || wants[first].left.is_empty() {
            continue;
        }
        let topology = Arc::clone(&wants[first].table.topology);
        let mut items = Vec::new();
        for (index, want) in wants.iter_mut().enumerate().skip(first) {
            if Arc::ptr_eq(&want.table.topology, &topology) {
                is_begun[index] = true;
                let of_want = want.left.drain(..).map(|position| Item { want: index as u32, position });
                items.extend(of_want);
            }
        }
        let of_cluster = read_cluster(&topology, wants, items, deadline);
        if !of_cluster.is_empty() {
            why = of_cluster;
        }
    }
    why
}

fn read_cluster(topology: &Topology, wants: &mut [Want<'_>], items: Vec<Item>, deadline: Option<Instant>) -> String {
    let begun = Instant::now();
    let until = begun + topology.address.timeout();
    let until = deadline.map_or(until, |deadline| deadline.min(until));
    let mut sizes = vec![0_usize; wants.len()];
    for item in &items {
        sizes[item.want as usize] += 1;
    }
    let mut task = Task {
        topology,
        wants,
        until,
        left: items,
        lacking: HashMap::new(),
        asking: HashMap::new(),
        retries: 0,
        why: String::new(),
    };
    task.run();
    let Task { wants, left, retries, why, .. } = task;
    for item in left {
        wants[item.want as usize].left.push(item.position);
    }
    let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for (want, size) in wants.iter_mut().zip(sizes).filter(|(_, size)| *size > 0) {
        let (counters, read) = (&want.table.counters, size - want.left.len());
        counters.reads.fetch_add(1, Relaxed);
        counters.rows.fetch_add(read as u64, Relaxed);
        counters.bytes.fetch_add((read * want.table.row_bytes()) as u64, Relaxed);
        counters.retries.fetch_add(retries, Relaxed);
        counters.errors.fetch_add(u64::from(!want.left.is_empty()), Relaxed);
        counters.nanos.fetch_add(nanos, Relaxed);
    }
    why
}

/// Commands for one node.
struct Group {
    node: Node,
    /// Whether another node, which gives its slots away, named this one.
    asks: bool,
    items: Vec<Item>,
}

/// One read of one cluster.
struct Task<'a, 'w> {
    topology: &'a Topology,
    wants: &'a mut [Want<'w>],
    until: Instant,
    left: Vec<Item>,
    /// Nodes that answered and gave no row.
    lacking: HashMap<Item, Vec<Node>>,
    /// Rows that a node which gives its slots away sent elsewhere.
    asking: HashMap<Item, Node>,
    retries: u64,
    why: String,
}

impl Task<'_, '_> {
    fn run(&mut self) {
        let mut is_first = true;
        if self.topology.map().holders.is_empty() {
            self.refresh();
        }
        while !self.left.is_empty() {
            if !is_first {
                self.retries += 1;
                if Instant::now() + PAUSE >= self.until {
                    if self.why.is_empty() {
                        "timed out".clone_into(&mut self.why);
                    }
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            let needs_map = self.round();
            if !self.left.is_empty() && (needs_map || is_first) {
                self.refresh();
            }
            if !self.left.is_empty() && self.is_hopeless() {
                return;
            }
            is_first = false;
        }
    }

    fn refresh(&mut self) {
        if let Err(why) = self.topology.refresh(self.until) {
            self.why = why;
        }
    }

    fn slot(&self, item: Item) -> u16 {
        let want = &self.wants[item.want as usize];
        want.table.slot(want.ids[item.position as usize])
    }

    /// Says whether a slot that is needed has no node to ask: all are down, or all lack the key.
    fn is_hopeless(&mut self) -> bool {
        let map = self.topology.map();
        for &item in &self.left {
            if self.asking.contains_key(&item) {
                continue;
            }
            let nodes = map.nodes(self.slot(item));
            let lacking = self.lacking.get(&item).map_or(&[][..], |lacking| lacking);
            if nodes.is_empty() || !nodes.iter().all(|node| lacking.contains(node) || self.topology.is_down(node)) {
                continue;
            }
            if nodes.iter().all(|node| lacking.contains(node)) {
                "its rows are not in the cluster".clone_into(&mut self.why);
            }
            return true;
        }
        false
    }

    /// Asks one node for each row that is left; says whether the map of slots is to be asked for.
    fn round(&mut self) -> bool {
        let (groups, mut needs_map) = self.groups();
        let mut sent = Vec::with_capacity(groups.len());
        for group in groups {
            for some in group.items.chunks(MOST_COMMANDS) {
                match self.send(&group, some) {
                    Ok(connection) => sent.push((group.node.clone(), group.asks, some.to_vec(), connection)),
                    Err((error, is_reused)) => {
                        self.left.extend_from_slice(some);
                        self.failed(&group.node, &error, is_reused);
                        needs_map = true;
                    }
                }
            }
        }
        for (node, asks, items, mut connection) in sent {
            let mut read = 0;
            match self.receive(&node, asks, &items, &mut connection, &mut read) {
                Ok(is_old) => {
                    needs_map |= is_old;
                    self.topology.answered(&node);
                    self.topology.give_back(&node, connection);
                }
                Err(error) => {
                    self.left.extend_from_slice(&items[read..]);
                    self.failed(&node, &error, connection.is_reused);
                    needs_map = true;
                }
            }
        }
        needs_map
    }

    /// Takes the rows that are left, by the node to ask. Rows without a node stay left; then the second result is true.
    fn groups(&mut self) -> (Vec<Group>, bool) {
        let map = self.topology.map();
        let mut groups: Vec<Group> = Vec::new();
        let mut of_node: HashMap<(Node, bool), usize> = HashMap::new();
        // The group of each holder, so that rows of slots with the same nodes need no look at these nodes.
        let mut of_holder: Vec<Option<usize>> = vec![None; map.holders.len()];
        let mut needs_map = false;
        for item in std::mem::take(&mut self.left) {
            let slot = self.slot(item);
            let told = self.asking.remove(&item);
            let lacking = self.lacking.get(&item).map_or(&[][..], |lacking| lacking);
            let holder = map.holder(slot).map(usize::from);
            let is_plain = told.is_none() && lacking.is_empty();
            if let Some(group) = holder.filter(|_| is_plain).and_then(|holder| of_holder[holder]) {
                groups[group].items.push(item);
                continue;
            }
            let asks = told.is_some();
            let able = || map.nodes(slot).iter().filter(|node| !lacking.contains(node));
            let node =
                told.or_else(|| able().find(|node| !self.topology.is_out(node)).or_else(|| able().next()).cloned());
            let Some(node) = node else {
                needs_map = true;
                self.left.push(item);
                continue;
            };
            let group = *of_node.entry((node.clone(), asks)).or_insert_with(|| {
                groups.push(Group { node, asks, items: Vec::new() });
                groups.len() - 1
            });
            groups[group].items.push(item);
            if let Some(holder) = holder.filter(|_| is_plain) {
                of_holder[holder] = Some(group);
            }
        }
        (groups, needs_map)
    }

    /// Sends the commands for some rows. The error says also whether an earlier read used the connection.
    fn send(&self, group: &Group, items: &[Item]) -> Result<Connection, (io::Error, bool)> {
        let until = self.node_until();
        let mut connection = self.topology.connection(&group.node, until).map_err(|error| (error, false))?;
        let asking = command(&["ASKING"]);
        let mut commands = Vec::with_capacity(items.len() * 128);
        for item in items {
            if group.asks {
                commands.extend_from_slice(&asking);
            }
            let want = &self.wants[item.want as usize];
            want.table.write_command(want.ids[item.position as usize], &mut commands);
        }
        match connection.send(&commands, until) {
            Ok(()) => Ok(connection),
            Err(error) => Err((error, connection.is_reused)),
        }
    }

    /// Reads the answers for some rows; says whether the map of slots is old. `read` counts the rows that are judged.
    fn receive(
        &mut self,
        node: &Node,
        asks: bool,
        items: &[Item],
        connection: &mut Connection,
        read: &mut usize,
    ) -> io::Result<bool> {
        let until = self.node_until();
        let mut is_old = false;
        for &item in items {
            if asks {
                connection.answer(until)?;
            }
            let want = &mut self.wants[item.want as usize];
            let size = want.table.row_bytes();
            let to = &mut want.rows[item.position as usize * size..][..size];
            match connection.row(want.table.reply_head(), to, until)? {
                Reply::Row => want.table.offer(want.ids[item.position as usize], to, want.changes),
                Reply::Other(frame) => {
                    self.left.push(item);
                    is_old |= self.judge(node, item, &frame);
                }
            }
            *read += 1;
        }
        Ok(is_old)
    }

    /// Notes an answer that is no row; says whether the map of slots is old.
    fn judge(&mut self, node: &Node, item: Item, frame: &OwnedFrame) -> bool {
        let OwnedFrame::Error(text) = frame else {
            self.lacking.entry(item).or_default().push(node.clone());
            "its rows are not in the cluster".clone_into(&mut self.why);
            return true;
        };
        self.why = format!("{node}: {text}");
        let kind = text.split(' ').next().unwrap_or_default();
        if kind == "ASK"
            && let Some((host, port)) = text.rsplit(' ').next().and_then(|place| place.rsplit_once(':'))
            && let Ok(port) = port.parse()
        {
            let host = if host.is_empty() { &*node.host } else { host };
            self.asking.insert(item, Node::new(host, port));
            return false;
        }
        if PASSING.contains(&kind) {
            return true;
        }
        self.lacking.entry(item).or_default().push(node.clone());
        false
    }

    fn failed(&mut self, node: &Node, error: &io::Error, is_reused: bool) {
        self.why = format!("{node}: {error}");
        if is_reused && error.kind() != io::ErrorKind::TimedOut {
            // The process behind an idle connection has ended; another may serve the same address by now.
            self.topology.drop_idle(node);
        } else {
            self.topology.failed(node);
        }
    }

    fn node_until(&self) -> Instant {
        self.until.min(Instant::now() + self.topology.address.node_timeout())
    }
}
