//! Reads rows of one or more tables from one Valkey or Redis cluster, all at the same time.
//!
//! A read asks all primaries at once. If a primary is down, slow, or lacks a key, the read asks another node of the
//! same slot for its rows; a replica is asked only while it is in sync. Only an answer with the size of a row counts as
//! a row. The read closes a connection that broke or on which a read was given up, so that no later read gets its
//! answers. If another node answered first, the connection stays open, and its next read skips the late answers.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redis_protocol::resp2::types::OwnedFrame;

use super::connection::{Connection, Node, Reason, Reply, command, is_closed, is_passing};
use super::network::{self, late};
use super::remote_table::RemoteTable;
use super::topology::Topology;

/// Maximal number of commands that are sent to a node together; for rows of 256 bytes, their answers are 1 MB.
const MOST_COMMANDS: usize = 4096;
/// The pause before a read asks nodes again for rows that it did not get.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time to connect and send to a hedged read's second node, because the first may answer at any moment.
const SECOND_CONNECT: Duration = Duration::from_millis(20);

/// A list of rows of one table that a read must get, with the buffer for the rows.
pub struct Want<'t> {
    pub table: &'t RemoteTable,
    /// Numbers of the rows to read, each below V.
    pub ids: Vec<u64>,
    /// The buffer to which the read copies the rows' bytes, end to end, in the order of `ids`.
    pub rows: Vec<u8>,
    /// Positions in `ids` of the rows that are not read yet; after the read, of the rows that could not be read.
    pub left: Vec<u32>,
    /// Number of rows that could not be read from the cluster, so that old copies in the cache replaced them.
    pub num_stale: usize,
    /// The table's count of reported changes when the read began; rows are cached only if the count is still the same.
    changes: u64,
}

impl<'t> Want<'t> {
    /// Begins the read of some rows: copies the rows that the cache has into the buffer, and leaves the other rows to
    /// [`read`].
    #[must_use]
    pub fn new(table: &'t RemoteTable, ids: Vec<u64>) -> Self {
        let mut rows = vec![0; ids.len() * table.row_bytes()];
        let changes = table.changes();
        let left = table.read_cached(&ids, &mut rows);
        Want { table, ids, rows, left, num_stale: 0, changes }
    }
}

/// A row that is still to be read: the index of its [`Want`], and its position in the want's `ids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Item {
    want: u32,
    position: u32,
}

/// Reads rows that the cache lacked, each from its table's cluster. Afterwards `Want::left` has the positions of the
/// rows that could not be read, and the returned text is the reason.
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
    for want in wants {
        want.num_stale = want.table.read_stale(&want.ids, &mut want.rows, &mut want.left);
    }
    why
}

fn read_cluster(topology: &Topology, wants: &mut [Want<'_>], items: Vec<Item>, deadline: Option<Instant>) -> String {
    let begun = network::now();
    let until = begun + topology.address.timeout();
    let mut until = deadline.map_or(until, |deadline| deadline.min(until));
    if items.iter().any(|item| wants[item.want as usize].table.serves_stale) {
        // If a table may serve stale rows, the last quarter of the read's time is kept for an answer with cached rows
        // in place of rows that could not be read.
        until -= until.saturating_duration_since(begun) / 4;
    }
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
        hedges: 0,
        hedge_wins: 0,
        why: Reason::default(),
        lost: String::new(),
        moved_by: None,
        closed: Vec::new(),
    };
    task.run();
    let Task { wants, left, retries, hedges, hedge_wins, why, .. } = task;
    for item in left {
        wants[item.want as usize].left.push(item.position);
    }
    let nanos = u64::try_from((network::now() - begun).as_nanos()).unwrap_or(u64::MAX);
    for (want, size) in wants.iter_mut().zip(sizes).filter(|(_, size)| *size > 0) {
        let (counters, read) = (&want.table.counters, size - want.left.len());
        counters.reads.fetch_add(1, Relaxed);
        counters.rows.fetch_add(read as u64, Relaxed);
        counters.bytes.fetch_add((read * want.table.row_bytes()) as u64, Relaxed);
        counters.retries.fetch_add(retries, Relaxed);
        counters.hedges.fetch_add(hedges, Relaxed);
        counters.hedge_wins.fetch_add(hedge_wins, Relaxed);
        counters.errors.fetch_add(u64::from(!want.left.is_empty()), Relaxed);
        counters.nanos.fetch_add(nanos, Relaxed);
    }
    why.text
}

/// A group of rows that one node is asked for, with one command for each row.
struct Group {
    node: Node,
    /// Whether the slot of these rows is moving to this node: the slot's present node named this node in an ASK error.
    asks: bool,
    /// Whether the asked node is the primary: a replica may lack the last changes, so its rows are not cached.
    is_primary: bool,
    items: Vec<Item>,
}

/// A group of rows whose commands were sent to one node, and perhaps to a second node.
struct Asked {
    group: Group,
    connection: Connection,
    at: Instant,
    /// Time at which the read stops waiting for the answers to the group's commands.
    until: Instant,
    /// Time at which the read also asks a second node for the group's rows; None if it does not, or already did.
    hedge_at: Option<Instant>,
    second: Option<(Node, Connection)>,
}

impl Asked {
    fn connections(&self) -> impl Iterator<Item = &Connection> {
        std::iter::once(&self.connection).chain(self.second.iter().map(|(_, connection)| connection))
    }

    /// Returns the group with the second node as its only node, because the first node failed; None if no second node
    /// was asked.
    fn of_second(self, until: Instant) -> Option<Self> {
        let (node, connection) = self.second?;
        let group = Group { node, is_primary: false, ..self.group };
        Some(Asked { group, connection, at: network::now(), until, hedge_at: None, second: None })
    }
}

/// The state of one read, which gets rows of one or more tables from one cluster.
struct Task<'a, 'w> {
    topology: &'a Topology,
    wants: &'a mut [Want<'w>],
    until: Instant,
    left: Vec<Item>,
    /// For each row, the nodes that answered without the row.
    lacking: HashMap<Item, Vec<Node>>,
    /// For each row whose slot is moving to another node, the node that an ASK error named.
    asking: HashMap<Item, Node>,
    retries: u64,
    /// Number of hedged reads, for which a second node was asked, and number of those that the second node answered
    /// first.
    hedges: u64,
    hedge_wins: u64,
    why: Reason,
    /// Which block lacked a row last, and how.
    lost: String,
    /// The node that said last that another one holds a slot: its slot map is newer than this server's.
    moved_by: Option<Node>,
    /// Nodes that closed a new connection of this read.
    closed: Vec<Node>,
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
                if network::now() + PAUSE >= self.until {
                    if self.why.text.is_empty() {
                        "timed out".clone_into(&mut self.why.text);
                    }
                    return;
                }
                network::sleep(PAUSE);
            }
            let needs_map = self.round();
            if !self.left.is_empty() && (needs_map || is_first) {
                self.refresh();
            }
            if !self.left.is_empty() && (self.is_hopeless() || self.is_cache_best()) {
                return;
            }
            is_first = false;
        }
    }

    fn refresh(&mut self) {
        let is_patient = self.left.iter().any(|item| !self.has_stale(*item));
        // If the cache has a copy of each missing row that may be served, the read waits for the slot map no longer
        // than for one node.
        let until = if is_patient { self.until } else { self.node_until() };
        if let Err(why) = self.topology.refresh(until, is_patient, self.moved_by.take()) {
            self.why.note(why);
        }
    }

    fn slot(&self, item: Item) -> u16 {
        let want = &self.wants[item.want as usize];
        want.table.slot(want.ids[item.position as usize])
    }

    fn has_stale(&self, item: Item) -> bool {
        let want = &self.wants[item.want as usize];
        want.table.has_stale(want.ids[item.position as usize])
    }

    /// Says whether cached rows, however old, are the best answer for all missing rows: the cache has all of them and
    /// may serve them, no node is being asked for one, and all readable nodes of their slots failed a moment ago.
    fn is_cache_best(&self) -> bool {
        let map = self.topology.map();
        let topology = self.topology;
        let is_silent = |item: &Item| topology.readable(&map, self.slot(*item)).all(|node| topology.is_down(node));
        self.left.iter().all(|item| self.has_stale(*item) && !self.asking.contains_key(item) && is_silent(item))
    }

    /// Says whether one of the missing rows can not be read: no node is being asked for this row, and each node of its
    /// slot failed a moment ago, or each either failed or answered without the row, the primary among the latter.
    fn is_hopeless(&mut self) -> bool {
        let map = self.topology.map();
        for &item in &self.left {
            if self.asking.contains_key(&item) {
                continue;
            }
            let slot = self.slot(item);
            let lacking = self.lacking.get(&item).map_or(&[][..], |lacking| lacking);
            // If the primary is down, the read also waits for replicas that are not in sync, because one of them may
            // become the primary.
            let nodes: Vec<&Node> = match map.primary(slot) {
                Some(primary) if !self.topology.is_down(primary) => self.topology.readable(&map, slot).collect(),
                _ => map.nodes(slot).iter().collect(),
            };
            if nodes.is_empty() {
                continue;
            }
            if !nodes.iter().all(|node| lacking.contains(node) || self.topology.is_down(node)) {
                continue;
            }
            if map.primary(slot).is_some_and(|primary| lacking.contains(primary)) {
                self.why = Reason::refusal(self.lost.clone());
                return true;
            }
            // A replica lacks a key that has moved away while its slot moves. Only the primary knows where the key is, so
            // the read asks the primary again until its time is over.
            if lacking.is_empty() {
                return true;
            }
        }
        false
    }

    /// Asks a node for each missing row, and a second node if the first is slow, and reads the answers; returns true if
    /// the slot map must be read again.
    fn round(&mut self) -> bool {
        let (groups, mut needs_map) = self.groups();
        let mut asked = Vec::with_capacity(groups.len());
        for Group { node, asks, is_primary, items } in groups {
            for some in items.chunks(MOST_COMMANDS) {
                let group = Group { node: node.clone(), asks, is_primary, items: some.to_vec() };
                let begun = network::now();
                match self.send(&group, self.node_until()) {
                    Ok(connection) => asked.push(self.asked(group, connection)),
                    Err((error, is_reused)) => {
                        self.left.extend_from_slice(some);
                        self.failed(&node, &error, is_reused, begun);
                        needs_map = true;
                    }
                }
            }
        }
        while !asked.is_empty() {
            needs_map |= self.hear(&mut asked);
        }
        needs_map
    }

    fn asked(&self, group: Group, connection: Connection) -> Asked {
        let (at, until) = (network::now(), self.node_until());
        let budget = &self.topology.budget;
        budget.earn();
        let slow = if budget.is_open() && !group.asks { self.topology.slow(&group.node) } else { None };
        Asked { group, connection, at, until, hedge_at: slow.map(|slow| at + slow), second: None }
    }

    /// Waits until a node answers or a time limit passes, and reads the answers that have come. Groups without an
    /// answer stay in `asked`. Returns true if the slot map must be read again.
    fn hear(&mut self, asked: &mut Vec<Asked>) -> bool {
        let is_ready = if self.topology.budget.is_open() {
            let wake = asked.iter().map(|one| one.hedge_at.unwrap_or(one.until).min(one.until)).min();
            let sockets: Vec<_> = asked.iter().flat_map(Asked::connections).map(Connection::socket).collect();
            network::wait(&sockets, wake.unwrap_or(self.until))
        } else {
            vec![true; asked.len()]
        };
        let mut is_ready = is_ready.into_iter();
        let mut is_next_ready = || is_ready.next().unwrap_or(false);
        let now = network::now();
        let mut needs_map = false;
        for mut one in std::mem::take(asked) {
            let is_first_ready = is_next_ready();
            let is_second_ready = one.second.is_some() && is_next_ready();
            if is_first_ready {
                needs_map |= self.hear_first(one, now, asked);
            } else if is_second_ready {
                asked.extend(self.hear_second(one, now));
            } else if now >= one.until {
                needs_map = true;
                self.failed(&one.group.node, &late(), false, one.at);
                self.go_on(one, 0, asked);
            } else {
                if one.hedge_at.is_some_and(|at| now >= at) {
                    one.hedge_at = None;
                    one.second = self.ask_second(&one.group);
                }
                asked.push(one);
            }
        }
        needs_map
    }

    /// Reads the answers of a group's first node; returns true if the slot map must be read again.
    fn hear_first(&mut self, mut one: Asked, now: Instant, asked: &mut Vec<Asked>) -> bool {
        let mut read = 0;
        match self.receive(&one.group, &mut one.connection, &mut read) {
            Ok(is_old) => {
                if self.topology.budget.is_open() {
                    self.topology.took(&one.group.node, now - one.at);
                }
                self.topology.answered(&one.group.node);
                self.topology.give_back(&one.group.node, one.connection);
                is_old
            }
            Err(error) => {
                self.failed(&one.group.node, &error, one.connection.is_reused, one.at);
                self.go_on(one, read, asked);
                true
            }
        }
    }

    /// After the first node failed, leaves the group's rows to the second node, if one was asked and `read` is 0; else
    /// leaves the rows from number `read` on to the next round.
    fn go_on(&mut self, one: Asked, read: usize, asked: &mut Vec<Asked>) {
        if read > 0 || one.second.is_none() {
            // If some of the first node's rows are copied already, or no second node was asked, the other rows are
            // asked for again in the next round: a second node's answers would have all rows of the group, also the
            // copied ones.
            self.left.extend_from_slice(&one.group.items[read..]);
            return;
        }
        asked.extend(one.of_second(self.node_until()));
    }

    /// Asks a second node for the rows of a group, too; None if no other node can be asked for all of them, or the
    /// budget is used up.
    fn ask_second(&mut self, group: &Group) -> Option<(Node, Connection)> {
        if !self.lacking.is_empty() {
            return None;
        }
        let map = self.topology.map();
        let slot = self.slot(*group.items.first()?);
        let holder = map.holder(slot)?;
        if group.items.iter().any(|item| map.holder(self.slot(*item)) != Some(holder)) {
            return None;
        }
        let mut nodes = self.topology.readable(&map, slot);
        let node = nodes.find(|node| **node != group.node && !self.topology.is_down(node))?;
        if !self.topology.budget.take() {
            return None;
        }
        self.hedges += 1;
        let begun = network::now();
        let until = self.node_until().min(begun + SECOND_CONNECT);
        let is_primary = map.primary(slot) == Some(node);
        let second = Group { node: node.clone(), asks: false, is_primary, items: group.items.clone() };
        match self.send(&second, until) {
            Ok(connection) => Some((second.node, connection)),
            Err((error, is_reused)) => {
                self.failed(node, &error, is_reused, begun);
                None
            }
        }
    }

    /// Reads the answers of the second node. If one of the answers has no row, returns the group, which then waits for
    /// the first node alone.
    fn hear_second(&mut self, mut one: Asked, now: Instant) -> Option<Asked> {
        let (node, mut connection) = one.second.take()?;
        if !self.has_all(&one.group.items, &mut connection) {
            return Some(one);
        }
        self.hedge_wins += 1;
        self.topology.took(&one.group.node, now - one.at);
        self.topology.answered(&node);
        self.topology.give_back(&node, connection);
        // No byte of the first node's answers was read, so the next read on the first node's connection must skip these
        // answers.
        one.connection.owed += one.group.items.len();
        self.topology.give_back(&one.group.node, one.connection);
        None
    }

    /// Reads the answers of a hedged read's second node, and copies their rows; returns true if each answer has a row.
    fn has_all(&mut self, items: &[Item], connection: &mut Connection) -> bool {
        let until = self.node_until();
        if connection.skip_owed(until).is_err() {
            return false;
        }
        let mut is_row = |item: &Item| {
            let want = &mut self.wants[item.want as usize];
            let size = want.table.row_bytes();
            let to = &mut want.rows[item.position as usize * size..][..size];
            // The second node's rows are not cached, because this node may be a replica that lacks the last changes.
            matches!(connection.row(want.table.reply_head(), to, until), Ok(Reply::Row))
        };
        items.iter().all(&mut is_row)
    }

    /// Groups the missing rows by the node to ask. Rows that no node can be asked for stay in `left`, and the second
    /// result is then true.
    fn groups(&mut self) -> (Vec<Group>, bool) {
        let map = self.topology.map();
        let mut groups: Vec<Group> = Vec::new();
        let mut of_node: HashMap<(Node, bool), usize> = HashMap::new();
        // For each set of nodes in the slot map (`holders`), the group of the node that was chosen from the set, so
        // that the choice is made once.
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
            let able = || self.topology.readable(&map, slot).filter(|node| !lacking.contains(node));
            // If all readable nodes of a slot failed a moment ago, one of them is asked all the same, unless the cache
            // has a copy of the row that may be served.
            let any = || if self.has_stale(item) { None } else { able().next() };
            let node = told.or_else(|| able().find(|node| !self.topology.is_out(node)).or_else(any).cloned());
            let Some(node) = node else {
                needs_map = true;
                self.left.push(item);
                continue;
            };
            let is_primary = asks || map.primary(slot) == Some(&node);
            let group = *of_node.entry((node.clone(), asks)).or_insert_with(|| {
                groups.push(Group { node, asks, is_primary, items: Vec::new() });
                groups.len() - 1
            });
            groups[group].items.push(item);
            if let Some(holder) = holder.filter(|_| is_plain) {
                of_holder[holder] = Some(group);
            }
        }
        (groups, needs_map)
    }

    /// Sends the commands that read a group's rows. An error comes with a flag: whether an earlier read used the
    /// connection.
    fn send(&self, group: &Group, until: Instant) -> Result<Connection, (io::Error, bool)> {
        // A primary is asked on a connection without READONLY. If another node took over, which the server does not know
        // yet, the former primary then answers MOVED, and no rows that may be old.
        let connection = self.topology.connection(&group.node, !group.is_primary, until);
        let mut connection = connection.map_err(|error| (error, false))?;
        let asking = command(&["ASKING"]);
        let mut commands = Vec::with_capacity(group.items.len() * 128);
        for item in &group.items {
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

    /// Reads the answers for the rows of a group; returns true if the slot map is outdated. `read` counts the answers
    /// that are handled.
    fn receive(&mut self, group: &Group, connection: &mut Connection, read: &mut usize) -> io::Result<bool> {
        let until = self.node_until();
        let mut is_old = false;
        connection.skip_owed(until)?;
        for &item in &group.items {
            if group.asks {
                connection.answer(until)?;
            }
            let want = &mut self.wants[item.want as usize];
            let size = want.table.row_bytes();
            let to = &mut want.rows[item.position as usize * size..][..size];
            match connection.row(want.table.reply_head(), to, until)? {
                Reply::Row if group.is_primary => {
                    want.table.offer(want.ids[item.position as usize], to, want.changes);
                }
                Reply::Row => {}
                Reply::Other(frame) => {
                    self.left.push(item);
                    is_old |= self.judge(group, item, &frame);
                }
            }
            *read += 1;
        }
        Ok(is_old)
    }

    /// Handles a node's answer that has no row, such as an error; returns true if the slot map may be outdated.
    fn judge(&mut self, group: &Group, item: Item, frame: &OwnedFrame) -> bool {
        let node = &group.node;
        let OwnedFrame::Error(text) = frame else {
            let is_short = matches!(frame, OwnedFrame::BulkString(bytes) if !bytes.is_empty());
            let fault = if is_short { "is cut short" } else { "is not in the cluster, or ends before the row" };
            self.lost(group, item, fault);
            return true;
        };
        self.why = Reason::passing(format!("{node}: {text}"));
        let kind = text.split(' ').next().unwrap_or_default();
        if kind == "ASK"
            && let Some((host, port)) = text.rsplit(' ').next().and_then(|place| place.rsplit_once(':'))
            && let Ok(port) = port.parse()
        {
            let host = if host.is_empty() { &*node.host } else { host };
            self.asking.insert(item, Node::new(host, port));
            return false;
        }
        if kind == "MOVED" {
            self.moved_by = Some(node.clone());
        }
        if is_passing(text) {
            return true;
        }
        let fault = if kind == "WRONGTYPE" { "is of another type" } else { &*format!("can not be read: {text}") };
        self.lost(group, item, fault);
        false
    }

    /// Notes that a node lacks a row, although the node holds the row's slot. Only if the node is a primary, the row is
    /// lost: a replica also lacks keys that move to another node.
    fn lost(&mut self, group: &Group, item: Item, fault: &str) {
        self.lacking.entry(item).or_default().push(group.node.clone());
        let want = &self.wants[item.want as usize];
        let id = want.ids[item.position as usize];
        let place = want.table.place(id);
        if !group.is_primary {
            return self.why.note(Reason::passing(format!("{place} {fault} at the replica {}", group.node)));
        }
        want.table.note_lost(id);
        self.lost = format!("{place} {fault}; run \"model-export push\"");
        self.why = Reason::refusal(self.lost.clone());
    }

    fn failed(&mut self, node: &Node, error: &io::Error, is_reused: bool, asked: Instant) {
        self.why.failed(node, error);
        let is_first = is_closed(error) && !self.closed.contains(node);
        if error.kind() == io::ErrorKind::TimedOut {
            self.topology.late(node, asked);
        } else if is_reused || is_first {
            // If an idle connection turns out to be broken, or the node closes the first new one of a read, as CLIENT KILL
            // does, reads do not avoid the node: it is asked once more. Only its idle connections are closed.
            if !is_reused {
                self.closed.push(node.clone());
            }
            self.topology.drop_idle(node);
        } else {
            self.topology.failed(node);
        }
    }

    fn node_until(&self) -> Instant {
        self.until.min(network::now() + self.topology.address.node_timeout())
    }
}
