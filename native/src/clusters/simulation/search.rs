//! Searches seeds for a run in which a read breaks a promise of `docs/scaling.md`.
//!
//! - A read ends by its time limit.
//! - Each row is that of the version and the id that were asked for, as some change wrote it.
//! - A row is at most `FRESH` older than the newest acknowledged change. Only a failover may lose a change that not all
//!   replicas had, and only until the change is written again.
//! - Once all is well, each row is the one that the cluster has.
//! - While slots move, replicas take over as planned, nodes are slow or connections end, reads succeed, and some seconds
//!   after any other fault.
//!
//! `SEED=7 cargo test --lib clusters::simulation -- --nocapture` prints what happens in the run of seed 7, and `SEEDS=0-5000`
//! searches others than the tests do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::super::{Address, Clusters, RemoteDescription, RemoteTable, Want, network, read};
use super::history::{self, Got, Loss};
use super::nodes::{
    BLOCK_ROWS, BLOCKS, Change, NODES, ROW_BYTES, ROWS, SHARDS, SPREAD, VERSIONS, blocks_of, members, shard_of, tag,
};
use super::server::{self, FRESH, GONE, Shared};
use super::{Time, WORLD, World, ms, nest, world};

/// How much later than its primary a replica runs changes in a fault.
const LAG: Time = ms(5000);
/// For how long a node is frozen that goes on with an old map of slots; less than the longest `node_timeout`.
const OLD_MAPS: Time = ms(3800);
/// Longest time until a replica has taken over from a failed node, and all nodes know.
const ELECTION: Time = ms(1500);
/// For how long a node is silent that stops for a moment: a read asks it again within its time limit.
const BLINK: Time = ms(300);
/// How long a node takes to start with what it had saved: longer than from one comparison of replicas to the next.
const START: Time = ms(700);
/// For how long other servers do not know of replicas that joined.
const UNKNOWN: Time = ms(2000);
const TIMEOUT: Time = ms(1000);
/// A read succeeds if what ran within its waits took less time.
const NESTED: Time = ms(50);
/// How long faults come in each run, and how long the cluster then has until all reads succeed, and until all is written.
const FAULTS: Time = ms(12_000);
const CALM: Time = ms(4000);
const QUIET: Time = ms(6000);

/// One run: the tables of both versions, the model of the server, and what reads have seen.
struct Run {
    tables: [Arc<RemoteTable>; 2],
    server: Shared,
    history: RefCell<Vec<Got>>,
    depth: Cell<u32>,
    /// Whether no other read runs within the present one.
    is_alone: Cell<bool>,
    failure: RefCell<Option<String>>,
    reads: Cell<u32>,
    failed_reads: Cell<u32>,
}

/// Counts of all runs of a search.
#[derive(Debug, Default)]
struct Totals {
    reads: u32,
    failed_reads: u32,
    hedges: u64,
    cache_hits: u64,
    older_than_before: u32,
    failovers: usize,
}

/// Opens the tables of both versions.
pub(super) fn open(clusters: &Clusters, serves_stale: bool) -> [Arc<RemoteTable>; 2] {
    let description = |version: i64| RemoteDescription {
        address: Address {
            nodes: vec![("n0".to_owned(), 7000), ("n3".to_owned(), 7003)],
            has_tls: false,
            ca_file: String::new(),
            user: String::new(),
            password_file: String::new(),
            own_password: String::new(),
            timeout_ms: u64::try_from(TIMEOUT.as_millis()).unwrap(),
            node_timeout_ms: 200,
            hedge_percent: 20,
        },
        tag: tag(version),
        block_rows: BLOCK_ROWS,
        num_shards: ROWS / BLOCK_ROWS,
        row_bytes: ROW_BYTES,
        default_rows: Vec::new(),
        serves_stale,
        fresh_ms: Some(u64::try_from(FRESH.as_millis()).unwrap()),
    };
    VERSIONS.map(|version| clusters.open("m", version, "t", ROWS, &description(version)))
}

fn run_seed(seed: u64, totals: &mut Totals) -> Result<(), String> {
    WORLD.set(Some(World::new(seed)));
    let clusters = Arc::new(Clusters::new(if world(|world| world.rng.bool()) { 1 << 20 } else { 0 }));
    let serves_stale = world(|world| world.rng.u8(..4) == 0);
    let tables = open(&clusters, serves_stale);
    let run = Rc::new(Run {
        tables,
        server: server::start(&clusters),
        history: RefCell::default(),
        depth: Cell::new(0),
        is_alone: Cell::new(false),
        failure: RefCell::default(),
        reads: Cell::new(0),
        failed_reads: Cell::new(0),
    });
    world(World::look_around);
    world(World::ping);
    write(&run);
    read_within(&run);
    read_elsewhere(&run);
    renew(&run, &clusters);
    fault();
    let all: Vec<usize> = (0..2 * ROWS).collect();
    let end = || world(|world| world.cluster.ill_until.clamp(FAULTS + CALM + QUIET, 2 * FAULTS + QUIET));
    while run.failure.borrow().is_none() && world(|world| world.now) < end() {
        let pause = world(|world| ms(world.rng.u64(1..120)));
        network::sleep(pause);
        let some: Vec<usize> =
            (0..world(|world| world.rng.usize(1..6))).map(|_| world(|world| world.rng.usize(..2 * ROWS))).collect();
        run.read(&some);
    }
    if run.failure.borrow().is_none() {
        let num_before = run.history.borrow().len();
        run.read(&all);
        if world(|world| world.now >= world.cluster.ill_until) {
            run.check_end(num_before);
        }
    }
    // A former primary takes changes for a while after another node has taken over, unless it knows of that.
    let losses = world(|world| {
        let cluster = &world.cluster;
        // A primary that ends may take changes with it that it made shortly before.
        let of_failover = |&(end, at, shard): &(Time, Time, usize)| {
            let (until, place) = (at + cluster.node_timeout, Some((shard, at)));
            let all = Loss { from: at, since: Time::ZERO, until, place };
            [all, Loss { from: end, since: end.saturating_sub(GONE), ..all }]
        };
        cluster.failovers.iter().flat_map(of_failover).collect::<Vec<_>>()
    });
    let (fault, num_back) = history::check(&run.history.borrow(), &run.server.borrow().written, &losses);
    if let Some(fault) = fault {
        run.fail(&fault);
    }
    let counts = clusters.counts();
    totals.older_than_before += num_back;
    totals.reads += run.reads.get();
    totals.failed_reads += run.failed_reads.get();
    totals.hedges += counts.iter().map(|one| one.hedges).sum::<u64>();
    totals.cache_hits += counts.iter().map(|one| one.cache_hits).sum::<u64>();
    totals.failovers += world(|world| world.cluster.failovers.len());
    let failure = run.failure.take();
    if std::env::var_os("SEED").is_some() {
        world(|world| world.lines.iter().for_each(|line| println!("{line}")));
    }
    drop((run, clusters));
    // What the world still had to do holds tables, whose sockets look for the world when they are dropped.
    let ended = WORLD.take();
    drop(ended);
    failure.map_or(Ok(()), Err)
}

/// Writes a change from time to time, until all must be written.
fn write(run: &Rc<Run>) {
    if world(|world| world.now) < FAULTS + CALM {
        let cell = world(|world| world.rng.usize(..2 * ROWS));
        server::upsert(&run.server, cell);
        again(run, 300, write);
    }
}

/// Reads within the waits of other reads.
fn read_within(run: &Rc<Run>) {
    if (1..3).contains(&run.depth.get()) && !run.is_alone.get() {
        let cell = world(|world| world.rng.usize(..2 * ROWS));
        nest(|| run.read(&[cell]));
    }
    again(run, 200, read_within);
}

/// Reads a row as another server does that has no cache.
fn read_elsewhere(run: &Rc<Run>) {
    let got = world(|world| {
        let (cell, truth) = (world.rng.usize(..2 * ROWS), &world.cluster.truth);
        let node = truth.primary[truth.owner[cell / BLOCK_ROWS]];
        let member = Some(&world.cluster.nodes[node]).filter(|member| member.is_awake() && !world.is_closed(node))?;
        let number = member.blocks.get(&(cell / BLOCK_ROWS))?[cell % BLOCK_ROWS];
        Some(Got { begun: world.now, ended: world.now, cell, number, oldest: FRESH })
    });
    run.history.borrow_mut().extend(got);
    again(run, 100, read_elsewhere);
}

/// Asks for the map of slots each second, as the server's thread does.
fn renew(run: &Rc<Run>, clusters: &Arc<Clusters>) {
    nest(|| clusters.refresh());
    let (run, clusters) = (Rc::clone(run), Arc::clone(clusters));
    world(|world| world.later(ms(1000), move || renew(&run, &clusters)));
}

fn again(run: &Rc<Run>, most_ms: u64, call: fn(&Rc<Run>)) {
    let run = Rc::clone(run);
    world(|world| {
        let pause = ms(world.rng.u64(1..most_ms));
        world.later(pause, move || call(&run));
    });
}

impl Run {
    fn read(&self, cells: &[usize]) {
        let (begun, nested) = world(|world| (world.now, world.nested));
        let limit = world(|world| if world.rng.bool() { ms(world.rng.u64(20..1500)) } else { TIMEOUT });
        let is_well = || begun >= world(|world| world.cluster.ill_until);
        let was_well = is_well();
        // The read within which this one runs may just read the map of slots, and only one read at a time does.
        let is_outermost = self.depth.get() == 0;
        if is_outermost {
            self.is_alone.set(world(|world| world.rng.bool()));
        }
        self.depth.set(self.depth.get() + 1);
        let of = |version: usize| cells.iter().filter(move |cell| *cell / ROWS == version);
        let ids = |version: usize| of(version).map(|cell| (cell % ROWS) as u64).collect();
        let mut wants = [Want::new(&self.tables[0], ids(0)), Want::new(&self.tables[1], ids(1))];
        let why = read(&mut wants, Some(network::now() + limit));
        self.depth.set(self.depth.get() - 1);
        self.reads.set(self.reads.get() + 1);
        let now = world(|world| world.now);
        let took = now.saturating_sub(begun);
        let nested = world(|world| world.nested).saturating_sub(nested);
        let must_succeed = was_well && is_well() && is_outermost && nested < NESTED && limit >= TIMEOUT;
        if took > limit.min(TIMEOUT) + nested + ms(1) {
            self.fail(&format!("a read of at most {limit:?} took {took:?}"));
        }
        for (version, want) in wants.iter().enumerate() {
            for (position, cell) in of(version).enumerate() {
                if want.left.contains(&(position as u32)) {
                    self.failed_reads.set(self.failed_reads.get() + 1);
                    world(|world| world.tell(&format!("row {cell} can not be read: {why}")));
                    if must_succeed {
                        self.fail(&format!("row {cell} can not be read, and all nodes are well: {why}"));
                    }
                } else {
                    let row = &want.rows[position * ROW_BYTES..][..ROW_BYTES];
                    self.check(*cell, row, begun, want.num_stale > 0);
                }
            }
        }
    }

    fn check(&self, cell: usize, row: &[u8], begun: Time, is_stale: bool) {
        let word = |place: usize| u64::from_le_bytes(row[8 * place..][..8].try_into().expect("8 bytes"));
        let number = word(2);
        let stale = if is_stale { ", perhaps stale" } else { "" };
        world(|world| world.tell(&format!("row {cell} is number {number}{stale}")));
        let server = self.server.borrow();
        let is_known = number == 0 || server.written.contains_key(&(cell, number));
        if (word(0), word(1)) != (1 + (cell / ROWS) as u64, cell as u64) || !is_known {
            return self.fail(&format!("row {cell} is {row:?}"));
        }
        if !is_stale {
            let ended = world(|world| world.now);
            self.history.borrow_mut().push(Got { begun, ended, cell, number, oldest: FRESH });
        }
    }

    /// Checks that the last reads got the rows that the primaries have.
    fn check_end(&self, num_before: usize) {
        for &Got { cell, number, .. } in &self.history.borrow()[num_before..] {
            let found = world(|world| {
                let mut primaries = world.cluster.truth.primary.iter().map(|node| &world.cluster.nodes[*node]);
                primaries.find_map(|one| Some(one.blocks.get(&(cell / BLOCK_ROWS))?[cell % BLOCK_ROWS]))
            });
            if found != Some(number) {
                self.fail(&format!("row {cell} is number {number} at the end, and the cluster has {found:?}"));
            }
        }
    }

    fn fail(&self, failure: &str) {
        world(|world| world.tell(failure));
        self.failure.borrow_mut().get_or_insert_with(|| failure.to_owned());
    }
}

/// Begins one or two faults of nodes of one shard, and ends them some time later, before the next.
fn fault() {
    world(|world| {
        if world.now > FAULTS {
            return;
        }
        let node = world.rng.usize(..SHARDS * NODES);
        let kind = world.rng.u8(..17);
        let other = (world.rng.u8(..4) == 0).then(|| {
            let node = shard_of(node) * NODES + world.rng.usize(..NODES);
            (node, [0, 1, 2, 3, 4, 5, 6, 10][world.rng.usize(..8)])
        });
        let faults: Vec<(usize, u8)> = std::iter::once((node, kind)).chain(other).collect();
        let has = |kinds: &[u8]| faults.iter().any(|(_, kind)| kinds.contains(kind));
        let is_ill = has(&[0, 1, 2, 3, 9]) || (11..16).contains(&kind);
        if (is_ill || kind == 16) && world.cluster.moving.iter().any(Option::is_some) {
            // A replica lacks a key that moves away. If its primary can not be asked, either, or does not know which node has
            // it, the row can not be read.
            return world.later(ms(100), fault);
        }
        let long = match kind {
            15 => world.cluster.node_timeout + OLD_MAPS,
            16 => world.cluster.node_timeout.saturating_sub(BLINK),
            3 => ms(world.rng.u64(100..15_000)),
            9 | 11..15 => ms(world.rng.u64(100..9000)),
            _ => ms(world.rng.u64(100..4000)),
        };
        world.catch_up_all();
        if is_ill {
            // Once a replica has taken over from a primary that is cut off, reads need this node no longer. Only a replica
            // that has copied the primary can take over.
            let history = |node: usize| world.cluster.nodes[node].history;
            let has_copy = members(shard_of(node)).any(|one| one != node && history(one) == history(node));
            let is_parted = kind == 3 && faults.len() == 1 && has_copy;
            let short = if is_parted { long.min(world.cluster.node_timeout + ELECTION) } else { long };
            world.cluster.ill_until = world.cluster.ill_until.max(world.now + short + CALM);
        }
        for (node, kind) in faults {
            begin(world, node, kind, long);
        }
        let pause = ms(world.rng.u64(100..2500));
        world.later(long, world_heal);
        world.later(long + pause, fault);
    });
}

fn begin(world: &mut World, node: usize, kind: u8, long: Time) {
    world.tell(&format!("fault {kind} of n{node} for {long:?}"));
    let member = &mut world.cluster.nodes[node];
    match kind {
        0 => {
            member.is_up = false;
            world.cut_links(node);
        }
        1 => member.is_frozen = true,
        2 => member.has_readers = false,
        3 => member.has_peers = false,
        4 => member.slow_us = 60_000,
        5 => member.lag = LAG,
        6 => world.cut_links(node),
        7 => take_over(world, node),
        8 => move_block(world, node),
        9 => cut_replicas(world, node, long),
        10 => member.has_link = false,
        11 | 12 => freeze_both(world, node, long),
        13 => hold_back(world, node),
        15 => keep_old_maps(world),
        16 => hide_takeover(world),
        _ => {
            let primary = world.cluster.truth.primary[shard_of(node)];
            (world.cluster.nodes[primary].is_frozen, world.cluster.nodes[primary].wakes) = (true, true);
        }
    }
}

fn world_heal() {
    world(|world| {
        world.tell("all nodes are well");
        for node in 0..SHARDS * NODES {
            heal(world, node);
        }
    });
}

pub(super) fn heal(world: &mut World, node: usize) {
    world.catch_up(node);
    let (now, own) = (world.now, shard_of(node));
    let (is_needed, is_cut) = (world.cluster.truth.primary[own] == node, world.is_cut(node));
    let (resync, history, has_saved) = (ms(world.rng.u64(..1500)), world.rng.u64(..), world.rng.bool());
    let member = &mut world.cluster.nodes[node];
    if !member.is_up {
        if is_needed {
            world.cluster.ill_until = world.cluster.ill_until.max(world.now + CALM);
            // A process that is started before a replica has taken over would be an empty primary.
            return world.later(ms(100), move || heal_later(node));
        }
        // It hears of the takeover before its replicas copy it. Until it has copied the primary, it answers from what it
        // had saved long ago, or refuses.
        let owner = world.cluster.truth.owner;
        let (blocks, closed) = if has_saved { (blocks_of(own, &owner), START) } else { (BTreeMap::new(), ms(2000)) };
        member.view = world.cluster.truth.clone();
        member.start(blocks, history);
        (member.closed_until, member.copied_at) = (now + closed, now + resync);
    }
    if is_cut {
        // A node that was cut off refuses commands until it has heard what is so.
        member.closed_until = now + ms(500);
    }
    (member.is_frozen, member.has_readers, member.has_peers) = (false, true, true);
    (member.slow_us, member.lag, member.has_link, member.wakes) = (0, ms(1), true, false);
    let links: Vec<usize> = (0..world.links.len()).filter(|link| world.links[*link].node == node).collect();
    for link in links {
        if world.links[link].is_cut {
            world.links[link].is_ended = true;
        } else {
            world.handle(link);
        }
    }
    // A node sends others what it takes for the map of slots, and is told of takeovers then.
    let delay = ms(world.rng.u64(..1000));
    world.later(delay, move || super::world(|world| world.learn(node)));
}

fn heal_later(node: usize) {
    world(|world| heal(world, node));
}

/// Lets a replica take over as CLUSTER FAILOVER does: it has all changes, and its primary knows of it.
fn take_over(world: &mut World, node: usize) {
    let before = world.cluster.truth.primary[shard_of(node)];
    if before != node && world.cluster.is_linked(node, before) && !world.cluster.truth.failed[before] {
        world.cluster.nodes[node].lag = Time::ZERO;
        world.catch_up(node);
        if world.cluster.nodes[node].history == world.cluster.nodes[before].history {
            world.promote(node);
            world.learn(before);
        }
    }
}

/// Moves a block's slot to another shard: its key first, and a while later the slot.
fn move_block(world: &mut World, node: usize) {
    let block = world.rng.usize(..BLOCKS);
    if world.cluster.moving[block].is_some() {
        return;
    }
    let from = world.cluster.truth.owner[block];
    world.cluster.moving[block] = Some((from + 1 + node % (SHARDS - 1).max(1)) % SHARDS);
    let delays = [ms(world.rng.u64(..500)), ms(world.rng.u64(..3000))];
    world.later(delays[0], move || move_key(block, delays[1]));
}

fn move_key(block: usize, then: Time) {
    world(|world| {
        let truth = &world.cluster.truth;
        let target = world.cluster.moving[block].expect("the slot moves");
        let [from, to] = [truth.primary[truth.owner[block]], truth.primary[target]];
        if !world.cluster.is_linked(from, to) || world.is_closed(from) || world.is_closed(to) {
            return world.later(ms(100), move || move_key(block, then));
        }
        let rows = world.cluster.nodes[from].blocks.get(&block).cloned();
        world.write(to, Change::Block { block, rows });
        world.write(from, Change::Block { block, rows: None });
        if world.cluster.nodes.iter().all(|one| one.slow_us == 0) {
            // The replicas lack the key then, and the node alone says where the key is.
            world.later(ms(5), move || blink(from));
        }
        world.later(then, move || move_slot(block));
    });
}

fn blink(node: usize) {
    world(|world| {
        world.catch_up_all();
        world.cluster.nodes[node].is_frozen = true;
        world.later(BLINK, move || heal_later(node));
    });
}

fn move_slot(block: usize) {
    world(|world| {
        let truth = &world.cluster.truth;
        let target = world.cluster.moving[block].expect("the slot moves");
        let [from, to] = [truth.primary[truth.owner[block]], truth.primary[target]];
        if !world.cluster.is_linked(from, to) {
            return world.later(ms(100), move || move_slot(block));
        }
        world.cluster.truth.owner[block] = target;
        world.cluster.truth.epoch += 1;
        world.cluster.moving[block] = None;
        world.learn(from);
        world.learn(to);
        world.spread(SPREAD);
    });
}

/// Cuts the replicas of a shard off from its primary, so that they lack changes. Later freezes it, cuts it off from the
/// reader, or makes it slow; at once if other servers do not know of the replicas yet, and do not wait for them.
fn cut_replicas(world: &mut World, node: usize, long: Time) {
    let primary = world.cluster.truth.primary[shard_of(node)];
    for one in members(shard_of(node)).filter(|one| *one != primary) {
        world.cluster.nodes[one].has_link = false;
    }
    let (delay, kind) = match world.rng.u8(..4) {
        0 => (long.mul_f64(world.rng.f64()), [1, 2, 4][world.rng.usize(..3)]),
        1 => (Time::ZERO, [1, 2, 4][world.rng.usize(..3)]),
        _ => {
            world.cluster.unknown_until[shard_of(node)] = world.now + UNKNOWN;
            (Time::ZERO, [2, 4][world.rng.usize(..2)])
        }
    };
    world.later(delay, move || super::world(|world| begin(world, primary, kind, long)));
}

/// Cuts a shard's replicas off from its primary, and the reader, too. Later the replicas get what the network held back, in
/// half a second; the reader may still not reach the primary then.
fn hold_back(world: &mut World, node: usize) {
    let primary = world.cluster.truth.primary[shard_of(node)];
    world.cluster.nodes[primary].has_readers = false;
    let (begun, delay) = (world.now, FRESH + ms(world.rng.u64(..1500)));
    for one in members(shard_of(node)).filter(|one| *one != primary) {
        world.cluster.nodes[one].has_link = false;
        world.later(delay, move || super::world(|world| let_go(world, one, begun)));
    }
}

fn let_go(world: &mut World, node: usize, begun: Time) {
    let now = world.now;
    let member = &mut world.cluster.nodes[node];
    if !member.has_link {
        // The first changes are those of the begin.
        (member.has_link, member.lag) = (true, now.saturating_sub(begun));
    }
    member.lag = member.lag * 3 / 4;
    if member.lag > ms(1) {
        world.later(ms(20), move || super::world(|world| let_go(world, node, begun)));
    }
}

/// Freezes a primary, and later that of another shard, which then does not hear who took over from the first. The one that
/// takes over may be cut off from the reader.
fn freeze_both(world: &mut World, node: usize, long: Time) {
    let [first, second] = [0, 1].map(|more| world.cluster.truth.primary[(shard_of(node) + more) % SHARDS]);
    world.cluster.nodes[first].is_frozen = true;
    if world.rng.bool() {
        let hidden = shard_of(first) * NODES + world.rng.usize(..NODES);
        world.cluster.nodes[hidden].has_readers = false;
    }
    let delay = long.mul_f64(world.rng.f64());
    world.later(delay, move || super::world(|world| world.cluster.nodes[second].is_frozen = true));
}

/// Freezes a primary until another node has taken over, and just before the takeover also the primary whose map of slots
/// the reader asks for first. Both go on at the same time, and know of no takeover.
fn keep_old_maps(world: &mut World) {
    let [asked, first] = [0, 1].map(|shard| world.cluster.truth.primary[shard]);
    world.cluster.nodes[first].is_frozen = true;
    let timeout = world.cluster.node_timeout;
    world.later(timeout, move || super::world(|world| world.cluster.nodes[asked].is_frozen = true));
}

/// Cuts the primary that the reader asks first for the map of slots off from the others, which do not take it for failed. In
/// the other shard, a replica takes over as planned, and the former primary gets no more changes.
fn hide_takeover(world: &mut World) {
    let [asked, before] = [0, 1].map(|shard| world.cluster.truth.primary[shard]);
    world.cluster.nodes[asked].has_peers = false;
    let place = world.rng.usize(..NODES - 1);
    let next = members(1).filter(|node| *node != before).nth(place).expect("a shard has replicas");
    take_over(world, next);
    world.cluster.nodes[before].has_link = false;
}

/// Runs seeds until three have failed; returns a line for each of these.
fn search(seeds: std::ops::Range<u64>) -> (Totals, Vec<String>) {
    let (mut totals, mut failures) = (Totals::default(), Vec::new());
    for seed in seeds {
        if failures.len() == 3 {
            break;
        }
        if let Err(failure) = run_seed(seed, &mut totals) {
            failures.push(format!("seed {seed}: {failure}"));
        }
    }
    (totals, failures)
}

#[test]
fn no_seed_breaks_a_promise() {
    let of = |name: &str| std::env::var(name).ok();
    let one = of("SEED").map(|seed| format!("{seed}-{}", seed.parse::<u64>().expect("a number") + 1));
    let seeds = one.or_else(|| of("SEEDS")).unwrap_or_else(|| "0-100".to_owned());
    let (first, end) = seeds.split_once('-').expect("the first seed and the end");
    let (totals, failures) = search(first.parse().expect("a number")..end.parse().expect("a number"));
    println!("{}\n{totals:?}", failures.join("\n"));
    assert!(failures.is_empty(), "replay a seed with SEED=N cargo test --lib clusters::simulation -- --nocapture");
}
