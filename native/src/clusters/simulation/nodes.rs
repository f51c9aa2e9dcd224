//! A model of the nodes of a Valkey cluster: rows and a stream that are replicated, slots that move, failovers, and what
//! each node knows of them. Source: the cluster specification and the replication guide of Valkey.

use std::collections::BTreeMap;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use super::super::connection::Node;
use super::search::heal;
use super::{Time, World, ms, world};

/// Shards of the cluster, and nodes of each, the first of which is a primary at the begin.
pub(super) const SHARDS: usize = 2;
pub(super) const NODES: usize = 3;
/// Rows of a block, blocks of each of the two versions of the table, and blocks of both; each has a slot of its own.
pub(super) const BLOCK_ROWS: usize = 2;
const VERSION_BLOCKS: usize = 4;
pub(super) const BLOCKS: usize = 2 * VERSION_BLOCKS;
/// Rows of each version of the table.
pub(super) const ROWS: usize = VERSION_BLOCKS * BLOCK_ROWS;
/// Longest time until a node learns what is so, in milliseconds.
pub(super) const SPREAD: u64 = 300;
/// The two versions of the table.
pub(super) const VERSIONS: [i64; 2] = [1, 2];
/// Bytes of a row: its version, its cell, and the number of the change that wrote it.
pub(super) const ROW_BYTES: usize = 24;

/// One node's knowledge of the cluster: the shard of each block's slot, the primary of each shard, failed nodes, and a
/// number that grows with each change of the first two.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) epoch: u64,
    pub(super) owner: [usize; BLOCKS],
    pub(super) primary: [usize; SHARDS],
    pub(super) failed: [bool; SHARDS * NODES],
}

/// An entry of the stream of changes: its number, the changed row, and the digest of all entries up to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) cell: usize,
    pub(super) digest: u64,
}

/// A command that writes, as replicas get it.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Row `cell` gets this number, unless it has a higher one. Rows of the second version follow those of the first.
    Row {
        cell: usize,
        number: u64,
    },
    Block {
        block: usize,
        rows: Option<Vec<u64>>,
    },
    /// An upsert is held until an entry releases it.
    Hold {
        cell: usize,
        number: u64,
    },
    Entry {
        cell: usize,
        nonce: u64,
        released: Option<u64>,
    },
    /// A sign of life (repl-ping-replica-period).
    Ping,
}

/// A node. Its host and port are `n` and its number, and 7000 and its number.
#[allow(clippy::struct_excessive_bools, reason = "faults come in any combination")]
pub(super) struct Member {
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    pub(super) has_readers: bool,
    pub(super) has_peers: bool,
    /// Whether a replica gets its primary's changes.
    pub(super) has_link: bool,
    /// Whether a frozen primary goes on soon after another node has taken over.
    pub(super) wakes: bool,
    pub(super) slow_us: u64,
    /// When the other nodes last heard from the node, and until when it refuses commands after its start.
    heard_at: Time,
    pub(super) closed_until: Time,
    /// When a node that follows another history may have copied it.
    pub(super) copied_at: Time,
    pub(super) view: View,
    /// Block -> the number of the change that wrote each row.
    pub(super) blocks: BTreeMap<usize, Vec<u64>>,
    pub(super) stream: Vec<Entry>,
    /// Number -> cell of each unfinished upsert.
    pub(super) held: BTreeMap<u64, usize>,
    /// The name of the sequence of changes, and how many of them the node has; the last ones that a primary made.
    pub(super) history: u64,
    pub(super) offset: usize,
    /// When the node last took over.
    pub(super) primary_since: Time,
    log: Vec<(Time, Change)>,
    /// How long after the primary a replica runs a change.
    pub(super) lag: Time,
}

impl Member {
    pub(super) fn is_awake(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    /// Starts the node's process with the rows that it has saved, or without keys.
    pub(super) fn start(&mut self, blocks: BTreeMap<usize, Vec<u64>>, history: u64) {
        (self.stream, self.held, self.log) = Default::default();
        (self.is_up, self.blocks) = (true, blocks);
        (self.history, self.offset) = (history, 0);
    }

    fn run(&mut self, change: &Change) {
        match change {
            Change::Row { cell, number } => {
                if let Some(rows) = self.blocks.get_mut(&(cell / BLOCK_ROWS)) {
                    rows[cell % BLOCK_ROWS] = rows[cell % BLOCK_ROWS].max(*number);
                }
            }
            Change::Block { block, rows: Some(rows) } => {
                self.blocks.insert(*block, rows.clone());
            }
            Change::Block { block, rows: None } => {
                self.blocks.remove(block);
            }
            Change::Hold { cell, number } => _ = self.held.insert(*number, *cell),
            Change::Entry { cell, nonce, released } => {
                let (number, before) = self.stream.last().map_or((0, 0), |last| (last.number, last.digest));
                let digest = (before ^ nonce).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                self.stream.push(Entry { number: number + 1, cell: *cell, digest });
                released.map(|number| self.held.remove(&number));
            }
            Change::Ping => {}
        }
        self.offset += 1;
    }
}

/// Returns the blocks of a shard as they were pushed.
pub(super) fn blocks_of(shard: usize, owner: &[usize; BLOCKS]) -> BTreeMap<usize, Vec<u64>> {
    (0..BLOCKS).filter(|block| owner[*block] == shard).map(|block| (block, vec![0; BLOCK_ROWS])).collect()
}

pub(super) fn shard_of(node: usize) -> usize {
    node / NODES
}

/// Returns the nodes of a shard.
pub(super) fn members(shard: usize) -> std::ops::Range<usize> {
    shard * NODES..(shard + 1) * NODES
}

pub(super) struct Cluster {
    pub(super) nodes: Vec<Member>,
    /// The true state of the cluster, which nodes learn by and by.
    pub(super) truth: View,
    /// The slot of each block, and the shard to which it is moving.
    pub(super) slots: [u16; BLOCKS],
    pub(super) moving: [Option<usize>; BLOCKS],
    /// When each failed primary was heard last, when a replica took over from it, and their shard.
    pub(super) failovers: Vec<(Time, Time, usize)>,
    /// Until when a fault that ends reads lasts, or what follows from it.
    pub(super) ill_until: Time,
    /// Until when other servers do not know of the replicas of each shard, and write without them.
    pub(super) unknown_until: [Time; SHARDS],
    /// The other nodes take a node for failed that is silent for this time (cluster-node-timeout).
    pub(super) node_timeout: Time,
    /// Whether all nodes refuse reads while a primary has failed (cluster-require-full-coverage).
    needs_all: bool,
    electing: [bool; SHARDS],
}

impl Cluster {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let slots = std::array::from_fn(slot_of);
        let owner = std::array::from_fn(|block| block % SHARDS);
        let primary = std::array::from_fn(|shard| shard * NODES);
        let view = View { epoch: 0, owner, primary, failed: [false; SHARDS * NODES] };
        let member = |node: usize| Member {
            is_up: true,
            is_frozen: false,
            has_readers: true,
            has_peers: true,
            has_link: true,
            wakes: false,
            slow_us: 0,
            heard_at: Time::ZERO,
            closed_until: Time::ZERO,
            copied_at: Time::ZERO,
            view: view.clone(),
            blocks: blocks_of(shard_of(node), &owner),
            stream: Vec::new(),
            held: BTreeMap::new(),
            history: shard_of(node) as u64,
            offset: 0,
            primary_since: Time::ZERO,
            log: Vec::new(),
            lag: ms(1),
        };
        let nodes = (0..SHARDS * NODES).map(member).collect();
        let (moving, electing) = ([None; BLOCKS], [false; SHARDS]);
        Cluster {
            nodes,
            truth: view,
            slots,
            moving,
            failovers: Vec::new(),
            ill_until: Time::ZERO,
            unknown_until: [Time::ZERO; SHARDS],
            node_timeout: ms(if rng.bool() { 4000 } else { 1000 }),
            needs_all: rng.bool(),
            electing,
        }
    }

    pub(super) fn number(&self, host: &str, port: u16) -> Option<usize> {
        (0..self.nodes.len()).find(|number| name(*number) == Node::new(host, port))
    }

    pub(super) fn is_linked(&self, node: usize, other: usize) -> bool {
        [node, other].iter().all(|one| self.nodes[*one].is_awake() && self.nodes[*one].has_peers)
    }
}

pub(super) fn name(node: usize) -> Node {
    Node::new(&format!("n{node}"), 7000 + node as u16)
}

/// Returns the text with which the keys of a version's blocks begin.
pub(super) fn tag(version: i64) -> String {
    format!("{{es:m/t/{version}/")
}

fn slot_of(block: usize) -> u16 {
    let shard = format!("{}{:04x}}}", tag(VERSIONS[block / VERSION_BLOCKS]), block % VERSION_BLOCKS);
    redis_protocol::redis_keyslot(shard.as_bytes())
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn text(word: OwnedFrame) -> String {
    let OwnedFrame::BulkString(bytes) = word else { panic!("a word of a command is a string") };
    String::from_utf8(bytes).expect("the reader's words are texts")
}

impl World {
    /// Runs on a replica what has come from its primary by now.
    pub(super) fn catch_up(&mut self, node: usize) {
        let now = self.now;
        let primary = self.cluster.nodes[node].view.primary[shard_of(node)];
        if primary == node || !self.cluster.nodes[node].has_link || !self.cluster.is_linked(node, primary) {
            return;
        }
        let from = &self.cluster.nodes[primary];
        if from.view.primary[shard_of(node)] != primary {
            return;
        }
        let (history, offset, first) = (from.history, from.offset, from.offset - from.log.len());
        let own = &self.cluster.nodes[node];
        if own.history == history && own.offset >= first {
            let since = now.saturating_sub(own.lag);
            let new = from.log[own.offset - first..].iter().take_while(|(at, _)| *at <= since);
            let new: Vec<Change> = new.map(|(_, change)| change.clone()).collect();
            let own = &mut self.cluster.nodes[node];
            for change in &new {
                own.run(change);
            }
        } else if now >= own.copied_at {
            let (blocks, stream, held) = (from.blocks.clone(), from.stream.clone(), from.held.clone());
            let own = &mut self.cluster.nodes[node];
            (own.blocks, own.stream, own.held) = (blocks, stream, held);
            (own.history, own.offset) = (history, offset);
            own.log.clear();
        }
    }

    pub(super) fn catch_up_all(&mut self) {
        (0..self.cluster.nodes.len()).for_each(|node| self.catch_up(node));
    }

    /// Runs a change on a primary, which sends it to its replicas.
    pub(super) fn write(&mut self, node: usize, change: Change) {
        let now = self.now;
        let member = &mut self.cluster.nodes[node];
        member.run(&change);
        member.log.push((now, change));
    }

    /// Lets primaries send their replicas a sign of life, each second.
    pub(super) fn ping(&mut self) {
        for node in 0..self.cluster.nodes.len() {
            let member = &self.cluster.nodes[node];
            if member.is_awake() && member.view.primary[shard_of(node)] == node {
                self.write(node, Change::Ping);
            }
        }
        self.later(ms(1000), || world(World::ping));
    }

    /// Says whether a node takes no commands: it has just started, or knows that it is cut off or that the cluster
    /// lacks slots.
    pub(super) fn is_closed(&self, node: usize) -> bool {
        let member = &self.cluster.nodes[node];
        let lacks = self.cluster.needs_all && member.view.primary.iter().any(|primary| member.view.failed[*primary]);
        self.is_cut(node) || lacks || self.now < member.closed_until
    }

    /// Says whether a node knows that it is cut off.
    pub(super) fn is_cut(&self, node: usize) -> bool {
        let member = &self.cluster.nodes[node];
        !member.has_peers && self.now >= member.heard_at + self.cluster.node_timeout
    }

    /// Lets a node learn what is so, if it hears the others.
    pub(super) fn learn(&mut self, node: usize) {
        if !(self.cluster.nodes[node].is_awake() && self.cluster.nodes[node].has_peers) {
            return;
        }
        self.catch_up_all();
        let resync = ms(self.rng.u64(..1500));
        let (truth, now) = (self.cluster.truth.clone(), self.now);
        let member = &mut self.cluster.nodes[node];
        let before = member.view.primary[shard_of(node)];
        if before != truth.primary[shard_of(node)] {
            member.copied_at = now + resync;
        }
        member.view = truth;
    }

    /// Lets each node learn what is so, at a time of its own.
    pub(super) fn spread(&mut self, most_ms: u64) {
        for node in 0..self.cluster.nodes.len() {
            let delay = ms(self.rng.u64(..most_ms));
            self.later(delay, move || world(|world| world.learn(node)));
        }
    }

    /// Lets the nodes look at each other: silent nodes are marked as failed, and replaced if they are primaries.
    pub(super) fn look_around(&mut self) {
        self.catch_up_all();
        let timeout = self.cluster.node_timeout;
        let mut is_news = false;
        for node in 0..self.cluster.nodes.len() {
            let member = &mut self.cluster.nodes[node];
            if member.is_awake() && member.has_peers {
                member.heard_at = self.now;
                is_news |= std::mem::take(&mut self.cluster.truth.failed[node]);
            } else if self.now >= member.heard_at + timeout && !self.cluster.truth.failed[node] {
                self.cluster.truth.failed[node] = true;
                is_news = true;
                self.tell(&format!("n{node} is marked as failed"));
            }
            let shard = shard_of(node);
            if self.cluster.truth.primary[shard] == node
                && self.cluster.truth.failed[node]
                && !std::mem::replace(&mut self.cluster.electing[shard], true)
            {
                let delay = ms(self.rng.u64(100..800));
                self.later(delay, move || world(|world| world.elect(shard)));
            }
        }
        if is_news {
            self.spread(SPREAD);
        }
        self.later(ms(50), || world(World::look_around));
    }

    /// Makes the replica of a shard that has most of the changes its primary. One that has not copied the failed primary yet
    /// is not valid (cluster-replica-validity-factor).
    pub(super) fn elect(&mut self, shard: usize) {
        self.cluster.electing[shard] = false;
        let before = self.cluster.truth.primary[shard];
        let can = |node: &usize| {
            let member = &self.cluster.nodes[*node];
            let is_valid = member.history == self.cluster.nodes[before].history;
            *node != before && is_valid && member.is_awake() && member.has_peers && !self.cluster.truth.failed[*node]
        };
        let Some(next) = members(shard).filter(can).max_by_key(|node| self.cluster.nodes[*node].offset) else { return };
        self.promote(next);
    }

    pub(super) fn promote(&mut self, next: usize) {
        self.tell(&format!("n{next} takes over"));
        let before = std::mem::replace(&mut self.cluster.truth.primary[shard_of(next)], next);
        self.cluster.truth.epoch += 1;
        self.cluster.failovers.push((self.cluster.nodes[before].heard_at, self.now, shard_of(next)));
        self.learn(next);
        let (history, now) = (self.rng.u64(..), self.now);
        let member = &mut self.cluster.nodes[next];
        (member.history, member.log, member.primary_since) = (history, Vec::new(), now);
        let wakes = self.cluster.nodes[before].wakes;
        // Nodes that lose the news of a takeover learn it from the next sign of life.
        let most_ms = if wakes && self.rng.bool() { 1000 } else { SPREAD };
        self.spread(most_ms);
        if wakes {
            let delay = ms(self.rng.u64(..300));
            self.later(delay, move || world(|world| heal(world, before)));
        }
    }

    /// Handles the commands that a node has got on a link.
    pub(super) fn handle(&mut self, link: usize) {
        let mut replies = Vec::new();
        let received = std::mem::take(&mut self.links[link].at_node);
        let mut done = 0;
        while let Some((frame, size)) = decode(&received[done..]).expect("the reader sends commands") {
            done += size;
            let OwnedFrame::Array(words) = frame else { panic!("a command is an array") };
            let words: Vec<String> = words.into_iter().map(text).collect();
            replies.extend(self.reply(link, &words));
        }
        self.links[link].at_node = received[done..].to_vec();
        if !replies.is_empty() {
            self.post(link, &replies, false);
        }
    }

    fn reply(&mut self, link: usize, words: &[String]) -> Vec<u8> {
        let node = self.links[link].node;
        let is_asking = std::mem::take(&mut self.links[link].is_asking);
        match &*words[0] {
            "PING" => b"+PONG\r\n".to_vec(),
            "READONLY" => {
                self.links[link].is_readonly = true;
                b"+OK\r\n".to_vec()
            }
            "ASKING" => {
                self.links[link].is_asking = true;
                b"+OK\r\n".to_vec()
            }
            "CLUSTER" if words[1] == "INFO" => {
                let epoch = self.cluster.nodes[node].view.epoch;
                self.tell(&format!("n{node} tells the map of epoch {epoch}"));
                let state = if self.is_closed(node) { "fail" } else { "ok" };
                bulk(&format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n")).into_bytes()
            }
            "CLUSTER" => self.shards(node),
            "GETRANGE" => {
                self.catch_up(node);
                let reply = self.range(link, &words[1], words[2].parse().expect("a number"), is_asking);
                if reply.starts_with(b"-") {
                    self.tell(&format!("n{node} answers {}", String::from_utf8_lossy(&reply).trim_end()));
                } else {
                    self.tell(&format!("n{node} answers a row of {}", words[1]));
                }
                reply
            }
            other => panic!("the model has no command {other}"),
        }
    }

    fn range(&self, link: usize, key: &str, begin: usize, is_asking: bool) -> Vec<u8> {
        let node = self.links[link].node;
        if self.is_closed(node) {
            return b"-CLUSTERDOWN The cluster is down\r\n".to_vec();
        }
        let version = usize::from(key.starts_with(&tag(2)));
        let block = version * VERSION_BLOCKS + usize::from_str_radix(&key[key.len() - 8..], 16).expect("a block");
        let (member, slot) = (&self.cluster.nodes[node], self.cluster.slots[block]);
        let (owner, own) = (member.view.owner[block], shard_of(node));
        let found = member.blocks.get(&block);
        let is_primary = member.view.primary[own] == node;
        let target = self.cluster.moving[block];
        let is_here = owner == own && (is_primary || self.links[link].is_readonly);
        if !(is_here || is_primary && is_asking && target == Some(own)) {
            return format!("-MOVED {slot} {}\r\n", name(member.view.primary[owner])).into_bytes();
        }
        if let Some(target) = target.filter(|target| *target != own && is_primary && found.is_none()) {
            return format!("-ASK {slot} {}\r\n", name(member.view.primary[target])).into_bytes();
        }
        let Some(rows) = found else { return b"$0\r\n\r\n".to_vec() };
        let row = begin / ROW_BYTES;
        let words = [1 + version as u64, (block * BLOCK_ROWS + row) as u64, rows[row]].map(u64::to_le_bytes).concat();
        [format!("${ROW_BYTES}\r\n").as_bytes(), &words, b"\r\n"].concat()
    }

    /// Replies to CLUSTER SHARDS by what a node knows.
    fn shards(&self, node: usize) -> Vec<u8> {
        let view = &self.cluster.nodes[node].view;
        let member = |node: usize| {
            let (place, shard) = (name(node), shard_of(node));
            let role = if view.primary[shard] == node { "master" } else { "replica" };
            let health = if view.failed[node] { "fail" } else { "online" };
            let port = place.port.to_string();
            let words = ["endpoint", &*place.host, "port", &*port, "role", role, "health", health];
            format!("*8\r\n{}", words.map(bulk).concat())
        };
        let of_shard = |shard: usize| {
            let owned = (0..BLOCKS).filter(|block| view.owner[*block] == shard).map(|block| self.cluster.slots[block]);
            let ranges: Vec<String> = owned.map(|slot| format!(":{slot}\r\n:{slot}\r\n")).collect();
            let members: Vec<String> = members(shard).map(member).collect();
            let (slots, nodes) = (bulk("slots"), bulk("nodes"));
            format!("*4\r\n{slots}*{}\r\n{}{nodes}*{NODES}\r\n{}", ranges.len() * 2, ranges.concat(), members.concat())
        };
        let shards: Vec<String> = (0..SHARDS).map(of_shard).collect();
        format!("*{SHARDS}\r\n{}", shards.concat()).into_bytes()
    }
}
