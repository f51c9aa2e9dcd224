//! The nodes of one Valkey or Redis cluster: which nodes hold which slots, which nodes failed a moment ago, and idle
//! connections to nodes.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use redis_protocol::resp2::types::OwnedFrame;

use super::connection::{Connection, Node, Reason, command, is_closed, is_single};
use super::description::Address;
use super::hedging::{Budget, Times};
use super::network;

const NUM_SLOTS: usize = 16384;
/// After a node failed, reads avoid the node for this time, unless its slots have no other node. When the time is over,
/// one read tries the node; the other reads avoid the node until that read has succeeded, or until this time has passed
/// again.
const BREAK: Duration = Duration::from_millis(500);
/// After a node gave the slot map, the server asks no node for the map again for this time.
const REFRESH: Duration = Duration::from_millis(100);
/// For how long after the last slot map the server takes none of an earlier epoch. Only a cluster that was made anew has
/// one for longer.
const EPOCH: Duration = Duration::from_secs(30);
/// The server closes a connection on which a node owes more answers than this.
const MOST_OWED: usize = 1 << 14;
/// Maximal number of idle connections that the server keeps for each node of a cluster.
const IDLE_CONNECTIONS: usize = 64;

/// The slot map of a Valkey or Redis cluster: the nodes of each hash slot. Each element of `holders` is the nodes of
/// some slots, the primary first; `has_primary` says for each element whether its first node is a primary, which may
/// have failed; `by_slot` has each slot's index in both.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) holders: Vec<Vec<Node>>,
    has_primary: Vec<bool>,
    by_slot: Vec<Option<u16>>,
}

impl Map {
    /// Returns the index in `holders` of a slot's nodes; None if the slot has no node.
    pub(super) fn holder(&self, slot: u16) -> Option<u16> {
        self.by_slot.get(usize::from(slot)).copied().flatten()
    }

    pub(super) fn nodes(&self, slot: u16) -> &[Node] {
        self.holder(slot).map_or(&[], |holder| &self.holders[usize::from(holder)])
    }

    /// Returns the primary of a slot; None if it has failed, or the slot map has no nodes for the slot.
    pub(super) fn primary(&self, slot: u16) -> Option<&Node> {
        let holder = usize::from(self.holder(slot)?);
        self.holders[holder].first().filter(|_| self.has_primary[holder])
    }
}

/// The replicas of all clusters that were in sync with their primaries; for each replica, the time until which reads
/// may ask it for rows. Concurrency: any thread. `service/remote/replicas.py` finds these times.
#[derive(Debug, Default)]
pub(super) struct InSync(Mutex<HashMap<Node, Instant>>);

impl InSync {
    /// Notes until when the rows of these replicas may be read.
    pub(super) fn set(&self, nodes: impl Iterator<Item = (Node, Instant)>) {
        let mut known = lock(&self.0);
        known.retain(|_, until| network::now() < *until);
        known.extend(nodes);
    }

    fn has(&self, node: &Node) -> bool {
        lock(&self.0).get(node).is_some_and(|until| network::now() < *until)
    }
}

/// An open table, which may have rows of the cluster in the row cache.
pub(super) trait ForgetSlots: Send + Sync {
    /// Removes from the cache the table's rows of the slots for which `has_moved` is true.
    fn forget_slots(&self, has_moved: &[bool]);
}

/// One Valkey or Redis cluster, or a single server without cluster mode. Concurrency: any thread.
pub(super) struct Topology {
    pub(super) address: Address,
    map: ArcSwap<Map>,
    /// Nodes without an answer since they failed, or since a read of theirs ended late.
    down: Mutex<HashMap<Node, Silence>>,
    has_down: AtomicBool,
    /// Idle connections to nodes, by whether a node answers reads on them also if it is a replica.
    idle: Mutex<HashMap<(Node, bool), Vec<Connection>>>,
    asked: Mutex<Asked>,
    /// How long the recent answers of each node took.
    times: Mutex<HashMap<Node, Times>>,
    /// The budget of hedged reads, in which a second node is asked, too.
    pub(super) budget: Budget,
    in_sync: Arc<InSync>,
    /// The open tables whose rows lie in the cluster.
    pub(super) tables: Mutex<Vec<Weak<dyn ForgetSlots>>>,
}

/// When a node last gave the slot map, and when all nodes last failed to give it; the cluster's epoch in the node that gave
/// it; and the last known primary of each slot.
#[derive(Default)]
struct Asked {
    at: Option<Instant>,
    epoch: u64,
    in_vain: Option<Instant>,
    primaries: Vec<Option<Node>>,
}

/// Notes of reads on a node since its last answer.
#[derive(Default)]
struct Silence {
    /// The time until which reads avoid the node; None if it has not failed.
    avoided_until: Option<Instant>,
    /// When the first of the last late reads asked the node, and when the last of them ended.
    late: Option<(Instant, Instant)>,
}

/// A node's slot map, with what the node knows of its cluster; 0 and true if the user may not ask for it.
struct Told {
    /// A number that grows with each takeover and each slot that moves.
    epoch: u64,
    /// Whether the node hears most of the primaries, and knows of no slots without a primary.
    is_whole: bool,
    map: Map,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps and lists behind these locks stay usable after a panic of another thread, so poisoned locks are used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Topology {
    pub(super) fn new(address: Address, in_sync: Arc<InSync>) -> Self {
        Topology {
            in_sync,
            tables: Mutex::default(),
            budget: Budget::new(address.hedge_percent),
            times: Mutex::default(),
            address,
            map: ArcSwap::default(),
            down: Mutex::default(),
            has_down: AtomicBool::new(false),
            idle: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }

    /// Returns the nodes from which rows of a hash slot may be read: the primary, and replicas that are in sync.
    pub(super) fn readable<'n>(&'n self, map: &'n Map, slot: u16) -> impl Iterator<Item = &'n Node> {
        let primary = map.primary(slot);
        map.nodes(slot).iter().filter(move |node| Some(*node) == primary || self.in_sync.has(node))
    }

    /// Says whether reads must avoid a node because it failed a moment ago. The first caller after that time gets
    /// false, so that its read tries the node; other callers get true until the node has answered, or for [`BREAK`]
    /// again.
    pub(super) fn is_out(&self, node: &Node) -> bool {
        if !self.has_down.load(Relaxed) {
            return false;
        }
        let now = network::now();
        match lock(&self.down).get_mut(node).and_then(|silence| silence.avoided_until.as_mut()) {
            None => false,
            Some(until) if now < *until => true,
            Some(until) => {
                *until = now + BREAK;
                false
            }
        }
    }

    /// Says whether a node failed less than [`BREAK`] ago. Unlike [`Self::is_out`], this method never reserves the next
    /// try of the node for its caller.
    pub(super) fn is_down(&self, node: &Node) -> bool {
        let until = |silence: &Silence| silence.avoided_until;
        self.has_down.load(Relaxed)
            && lock(&self.down).get(node).and_then(until).is_some_and(|until| network::now() < until)
    }

    /// Records that a node failed: reads avoid the node for a moment, and its idle connections are closed.
    pub(super) fn failed(&self, node: &Node) {
        lock(&self.down).entry(node.clone()).or_default().avoided_until = Some(network::now() + BREAK);
        self.has_down.store(true, Relaxed);
        self.drop_idle(node);
    }

    /// Records that a read that asked a node at `asked` ended late, without an answer. The deadline of one request says
    /// nothing about a node: the node failed if late reads have followed each other, without an answer to any read, for as
    /// long as the settings let one read wait for a node.
    pub(super) fn late(&self, node: &Node, asked: Instant) {
        let now = network::now();
        let mut down = lock(&self.down);
        let late = &mut down.entry(node.clone()).or_default().late;
        let since = late.filter(|(_, end)| asked < *end + BREAK).map_or(asked, |(since, _)| since.min(asked));
        *late = Some((since, now));
        self.has_down.store(true, Relaxed);
        drop(down);
        if now >= since + self.patience() {
            self.failed(node);
        }
    }

    fn patience(&self) -> Duration {
        self.address.node_timeout().min(self.address.timeout() / 2)
    }

    /// Records that a node answered, so that reads no longer avoid the node.
    pub(super) fn answered(&self, node: &Node) {
        if self.has_down.load(Relaxed) {
            let mut down = lock(&self.down);
            down.remove(node);
            self.has_down.store(!down.is_empty(), Relaxed);
        }
    }

    /// Returns an idle connection to a node, or opens a new one. `is_for_replica`: the node answers reads as a replica,
    /// too.
    ///
    /// # Errors
    /// A new connection is not open before `until`, or the node refuses the user.
    pub(super) fn connection(&self, node: &Node, is_for_replica: bool, until: Instant) -> io::Result<Connection> {
        let idle = lock(&self.idle).get_mut(&(node.clone(), is_for_replica)).and_then(Vec::pop);
        idle.map_or_else(|| Connection::open(node, is_for_replica, &self.address, until), Ok)
    }

    /// Keeps a connection for later reads, unless an answer was read only in part or the node owes too many answers.
    pub(super) fn give_back(&self, node: &Node, mut connection: Connection) {
        if !connection.is_idle() || connection.owed > MOST_OWED {
            return;
        }
        connection.is_reused = true;
        let mut idle = lock(&self.idle);
        let kept = idle.entry((node.clone(), connection.is_for_replica())).or_default();
        if kept.len() < IDLE_CONNECTIONS {
            // A read takes the last connection of the list, so a connection on which the node owes answers goes to the
            // front.
            let place = if connection.owed > 0 { 0 } else { kept.len() };
            kept.insert(place, connection);
        }
    }

    pub(super) fn drop_idle(&self, node: &Node) {
        let mut idle = lock(&self.idle);
        let closed = [false, true].map(|is_for_replica| idle.remove(&(node.clone(), is_for_replica)));
        drop(idle);
        drop(closed);
    }

    /// Records how long a node took to answer, for the time that [`Self::slow`] returns.
    pub(super) fn took(&self, node: &Node, time: Duration) {
        let mut times = lock(&self.times);
        if let Some(of_node) = times.get_mut(node) {
            of_node.add(time);
        } else {
            times.entry(node.clone()).or_default().add(time);
        }
    }

    /// Returns the time within which 95 of 100 recent answers of a node came; None while too few came.
    pub(super) fn slow(&self, node: &Node) -> Option<Duration> {
        lock(&self.times).get(node).and_then(Times::slow)
    }

    /// Reads the slot map from a node, unless another thread is reading it or has just read it. `is_patient`: reads the
    /// map even if all nodes failed to give it a moment ago. After the time `until`, no node is asked. `first`: asked before all
    /// others.
    ///
    /// # Errors
    /// The reason why no node gave the slot map.
    pub(super) fn refresh(&self, until: Instant, is_patient: bool, first: Option<Node>) -> Result<(), Reason> {
        let Ok(mut asked) = self.asked.try_lock() else {
            return Ok(());
        };
        if asked.at.is_some_and(|at| (network::now() - at) < REFRESH) {
            return Ok(());
        }
        if !is_patient && asked.in_vain.is_some_and(|at| (network::now() - at) < BREAK) {
            return Ok(());
        }
        let (mut why, begun) = (Reason::default(), network::now());
        let mut nodes: Vec<Node> = first.into_iter().collect();
        nodes.extend(self.map.load().holders.iter().flatten().cloned());
        nodes.extend(self.address.nodes.iter().map(|(host, port)| Node::new(host, *port)));
        let (out, mut ordered): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| self.is_down(node));
        ordered.extend(out);
        let mut best: Option<Told> = None;
        for (index, node) in ordered.iter().enumerate() {
            let left = until.saturating_duration_since(network::now());
            if left.is_zero() || (best.is_some() && self.is_down(node)) {
                break;
            }
            if ordered[..index].contains(node) {
                continue;
            }
            // The server asks one node after the other for the slot map. It waits for each node only a part of the time
            // that is left, so that a node that hangs leaves time for the next.
            let share = left.min((left / 3).max(self.address.node_timeout()));
            let asked_at = network::now();
            let late_at = asked_at + share;
            let mut told = self.ask_for_map(node, late_at);
            if told.as_ref().is_err_and(is_closed) {
                // A node that closes one connection, as CLIENT KILL does, has not failed: it is asked once more.
                told = self.ask_for_map(node, late_at);
            }
            match told {
                // A node that was frozen or is cut off from the others does not know which nodes took over meanwhile.
                Ok(told) if told.epoch < asked.epoch && asked.at.is_some_and(|at| network::now() < at + EPOCH) => {
                    why.note(Reason::passing(format!("{node}: its slot map is outdated")));
                }
                Ok(told) => {
                    let is_whole = told.is_whole;
                    if is_whole || best.as_ref().is_none_or(|best| told.epoch > best.epoch) {
                        best = Some(told);
                    }
                    if is_whole {
                        break;
                    }
                }
                Err(error) => {
                    why.failed(node, &error);
                    match error.kind() {
                        ErrorKind::TimedOut => self.late(node, asked_at),
                        _ => self.failed(node),
                    }
                }
            }
        }
        let Some(Told { epoch, map, .. }) = best else {
            if why.text.is_empty() {
                // The caller's time was over before a node was asked, which says nothing about the nodes.
                return Ok(());
            }
            // That the caller had less time than a node needs says nothing about the nodes, either.
            if network::now() < until || until >= begun + self.patience() / 2 {
                asked.in_vain = Some(network::now());
            }
            return Err(why);
        };
        self.map.store(Arc::new(map));
        (asked.at, asked.in_vain, asked.epoch) = (Some(network::now()), None, epoch);
        self.forget_moved(&mut asked.primaries);
        Ok(())
    }

    /// Removes from the cache the rows of hash slots whose primary is another node now. The former primary may already
    /// have been a replica when the rows were read, or may have had changes that are lost.
    pub(super) fn forget_moved(&self, primaries: &mut Vec<Option<Node>>) {
        let map = self.map.load();
        primaries.resize(NUM_SLOTS, None);
        let mut has_moved = vec![false; NUM_SLOTS];
        for (slot, (before, has_moved)) in (0..).zip(primaries.iter_mut().zip(&mut has_moved)) {
            if let Some(primary) = map.primary(slot)
                && before.as_ref() != Some(primary)
            {
                *has_moved = before.is_some();
                *before = Some(primary.clone());
            }
        }
        if has_moved.contains(&true) {
            let mut tables = lock(&self.tables);
            tables.retain(|table| table.strong_count() > 0);
            tables.iter().filter_map(Weak::upgrade).for_each(|table| table.forget_slots(&has_moved));
        }
    }

    #[cfg(all(test, not(feature = "model")))]
    pub(super) fn set_one_holder(&self, nodes: Vec<Node>) {
        self.map.store(Arc::new(Map {
            holders: vec![nodes],
            has_primary: vec![true],
            by_slot: vec![Some(0); NUM_SLOTS],
        }));
        lock(&self.asked).at = Some(network::now() + Duration::from_secs(3600));
    }

    fn ask_for_map(&self, node: &Node, until: Instant) -> io::Result<Told> {
        // The slot map is read on a new connection, because the process behind an idle connection may have ended.
        let mut connection = Connection::open(node, false, &self.address, until)?;
        let commands = [command(&["CLUSTER", "INFO"]), command(&["CLUSTER", "SHARDS"])].concat();
        connection.send(&commands, until)?;
        let info = connection.answer(until)?;
        let map = match connection.answer(until)? {
            OwnedFrame::Error(text) if is_single(&text) => {
                let by_slot = vec![Some(0); NUM_SLOTS];
                Map { holders: vec![vec![node.clone()]], has_primary: vec![true], by_slot }
            }
            OwnedFrame::Error(text) => return Err(io::Error::other(text)),
            frame => map_of(&frame, node, self.address.has_tls).ok_or_else(|| {
                io::Error::new(ErrorKind::InvalidData, "the node's answer to CLUSTER SHARDS can not be read")
            })?,
        };
        self.give_back(node, connection);
        let info = text(&info).unwrap_or_default();
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.parse().ok());
        Ok(Told { epoch: epoch.unwrap_or_default(), is_whole: !info.contains("cluster_state:fail"), map })
    }
}

/// Converts the answer to CLUSTER SHARDS to a slot map, without the nodes that failed; returns None if the answer is
/// malformed.
pub(super) fn map_of(frame: &OwnedFrame, asked: &Node, has_tls: bool) -> Option<Map> {
    let mut map = Map { holders: Vec::new(), has_primary: Vec::new(), by_slot: vec![None; NUM_SLOTS] };
    for shard in items(frame)? {
        let mut nodes = Vec::new();
        for node in items(field(shard, "nodes")?)? {
            // The map may contain a primary that was just killed: CLUSTER SHARDS says `online` for it until the other
            // nodes agree that it failed.
            if text(field(node, "health")?)? == "fail" {
                continue;
            }
            let mut hosts = ["endpoint", "ip"].into_iter().filter_map(|name| text(field(node, name)?));
            let host = hosts.find(|host| !host.is_empty());
            let ports = if has_tls { ["tls-port", "port"] } else { ["port", "tls-port"] };
            let port = ports.into_iter().filter_map(|name| number(field(node, name)?)).find(|port| *port > 0)?;
            let port = u16::try_from(port).ok()?;
            let is_replica = text(field(node, "role")?)? != "master";
            nodes.push((is_replica, Node::new(host.unwrap_or(&asked.host), port)));
        }
        nodes.sort_by_key(|(is_replica, _)| *is_replica);
        if nodes.is_empty() {
            continue;
        }
        let holder = u16::try_from(map.holders.len()).ok()?;
        map.has_primary.push(!nodes[0].0);
        map.holders.push(nodes.into_iter().map(|(_, node)| node).collect());
        for range in items(field(shard, "slots")?)?.chunks_exact(2) {
            let (first, last) = (usize::try_from(number(&range[0])?).ok()?, usize::try_from(number(&range[1])?).ok()?);
            map.by_slot.get_mut(first..=last)?.fill(Some(holder));
        }
    }
    Some(map)
}

fn items(frame: &OwnedFrame) -> Option<&[OwnedFrame]> {
    match frame {
        OwnedFrame::Array(items) => Some(items),
        _ => None,
    }
}

/// Returns the value that follows a name in a RESP list of alternate names and values; None if the list lacks the name.
fn field<'f>(frame: &'f OwnedFrame, name: &str) -> Option<&'f OwnedFrame> {
    items(frame)?.chunks_exact(2).find(|pair| text(&pair[0]) == Some(name)).map(|pair| &pair[1])
}

fn text(frame: &OwnedFrame) -> Option<&str> {
    match frame {
        OwnedFrame::BulkString(bytes) | OwnedFrame::SimpleString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn number(frame: &OwnedFrame) -> Option<i64> {
    match frame {
        OwnedFrame::Integer(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}
