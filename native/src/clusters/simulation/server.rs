//! A model of the parts in Python of a server: it follows the stream of changes, compares replicas with primaries, and
//! writes changes. It does what `service/remote/changes.py`, `replicas.py` and `topology.py` do, without waiting.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::super::Clusters;
use super::nodes::{BLOCK_ROWS, Change, Entry, NODES, ROWS, SHARDS, VERSIONS, View, members, name, shard_of};
use super::{Time, World, ms, nest, world};

/// Longest waits for a node's reply to a look at the stream, to a comparison, and to a write.
const LOOK: Time = ms(200);
const REPORT: Time = ms(300);
const WRITE: Time = ms(1000);
/// How old rows may be (FRESH_S in `service/remote/core_clusters.py`).
pub(super) const FRESH: Time = ms(2000);
/// A replica that had all changes so shortly before its primary ended counts as complete (`_GONE_S` in `replicas.py`).
pub(super) const GONE: Time = ms(1000);
/// A replica is read for so long after it was asked for a report (`_REPORTED_S` in `replicas.py`).
const REPORTED: Time = ms(900);
/// If an upsert is unfinished for so long, this server finishes it (`_HELD_S` in `changes.py`).
const HELD: Time = ms(1000);
/// Longest wait until replicas have a write (`_COPY_MS` in `topology.py`).
const COPY: Time = ms(200);
/// The shard of the stream of changes. The reader asks the other shard's primary first for the map of slots; changes are
/// written while that node is frozen.
const STREAM: usize = 1;

/// A change: when it was acknowledged, and when all replicas had it; the shards of its row and its entry as they were
/// acknowledged, and since when the node that wrote each was a primary.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub(super) acknowledged: Option<Time>,
    pub(super) settled: Option<Time>,
    pub(super) places: Vec<(usize, Time)>,
}

pub(super) struct Server {
    clusters: Arc<Clusters>,
    view: View,
    /// The entry of the stream that was heard last.
    told: Option<Entry>,
    /// The time up to which the server heard all changes, but for those of unfinished upserts, by their number.
    heard: Time,
    held: BTreeMap<u64, Held>,
    down_until: Vec<Time>,
    /// The time up to which each node has all changes of its primary, its newest report, and the newest as a primary.
    as_of: Vec<Option<Time>>,
    reports: Vec<Option<Report>>,
    primaries: Vec<Option<Report>>,
    /// Since when no process listens on a primary's port.
    gone: Vec<Option<Time>>,
    /// (Cell, number) -> what is known of this change.
    pub(super) written: BTreeMap<(usize, u64), Written>,
    last_number: u64,
}

impl Server {
    /// Returns the time until which a replica may be read.
    fn until(&self, node: usize) -> Time {
        let until =
            self.as_of[node].zip(self.reports[node]).map(|(as_of, own)| (as_of + FRESH).min(own.asked + REPORTED));
        until.unwrap_or(Time::ZERO)
    }
}

/// An unfinished upsert: when the server saw it first or tried last to finish it, the time up to which the server heard the
/// row that it changed, and whether the server knows this row, and is writing it.
#[derive(Clone, Copy)]
struct Held {
    tried: Time,
    told: Time,
    is_read: bool,
    is_finishing: bool,
}

/// A change that is written: its cell and number, whether another server writes it, and whether this one finishes it.
#[derive(Clone, Copy)]
struct Upsert {
    cell: usize,
    number: u64,
    is_other: bool,
    is_finishing: bool,
}

pub(super) type Shared = Rc<RefCell<Server>>;

/// Sends a command to a node, which does `work`; `then` gets the result, or None if none came in time. `is_other`: another
/// server asks, which reaches all nodes.
fn ask<R: 'static>(
    node: usize,
    limit: Time,
    is_other: bool,
    work: impl FnOnce(&mut World, usize) -> R + 'static,
    then: impl FnOnce(Option<R>) + 'static,
) {
    let (delay, back) = world(|world| (world.delay(Some(node)), world.delay(Some(node))));
    let arrive = move || {
        let result = world(|world| {
            let member = &world.cluster.nodes[node];
            if !(member.has_readers || is_other) || member.is_frozen {
                return Err(limit.saturating_sub(delay));
            }
            let is_up = member.is_up;
            world.catch_up(node);
            Ok(is_up.then(|| work(world, node)))
        });
        let (wait, result) = result.map_or_else(|wait| (wait, None), |result| (back, result));
        let end = move || {
            let is_lost = world(|world| !world.cluster.nodes[node].has_readers && !is_other) || delay + back > limit;
            then(result.filter(|_| !is_lost));
        };
        world(|world| world.later(wait, end));
    };
    world(|world| world.later(delay, arrive));
}

/// A node's report on its replication, for which the server asked at a time.
#[derive(Clone, Copy)]
struct Report {
    asked: Time,
    is_primary: bool,
    history: u64,
    offset: usize,
}

fn ask_report(node: usize, then: impl FnOnce(Option<Report>) + 'static) {
    let asked = world(|world| world.now);
    let report = move |world: &mut World, node: usize| {
        let member = &world.cluster.nodes[node];
        let is_primary = member.view.primary[shard_of(node)] == node;
        Report { asked, is_primary, history: member.history, offset: member.offset }
    };
    ask(node, REPORT, false, report, then);
}

pub(super) fn start(clusters: &Arc<Clusters>) -> Shared {
    let view = world(|world| world.cluster.truth.clone());
    let nodes = SHARDS * NODES;
    let server = Rc::new(RefCell::new(Server {
        clusters: Arc::clone(clusters),
        view,
        told: None,
        heard: Time::ZERO,
        held: BTreeMap::new(),
        down_until: vec![Time::ZERO; nodes],
        as_of: vec![None; nodes],
        reports: vec![None; nodes],
        primaries: vec![None; nodes],
        gone: vec![None; nodes],
        written: BTreeMap::new(),
        last_number: 0,
    }));
    follow(&server);
    compare(&server);
    renew(&server);
    server
}

/// Calls `again` after a pause.
fn repeat(server: &Shared, pause: Time, again: fn(&Shared)) {
    let server = Rc::clone(server);
    world(|world| world.later(pause, move || again(&server)));
}

/// Reads the map of slots from some node, each second.
fn renew(server: &Shared) {
    learn_map(server);
    repeat(server, ms(1000), renew);
}

fn learn_map(server: &Shared) {
    let node = world(|world| world.rng.usize(..SHARDS * NODES));
    let server = Rc::clone(server);
    ask(
        node,
        LOOK,
        false,
        |world, node| (!world.is_closed(node)).then(|| world.cluster.nodes[node].view.clone()),
        move |view| match view.flatten().filter(|view| view.epoch >= server.borrow().view.epoch) {
            Some(view) => server.borrow_mut().view = view,
            None => repeat(&server, ms(50), learn_map),
        },
    );
}

/// Reads the stream of changes, as TableChanges.follow() does.
fn follow(server: &Shared) {
    let now = world(|world| world.now);
    let (node, primary, as_of, told) = {
        let own = server.borrow();
        let primary = own.view.primary[STREAM];
        let is_up = |node: &usize| now >= own.down_until[*node];
        let as_of = |node: usize| own.as_of[node].filter(|_| node != primary && now < own.until(node));
        let replica = members(STREAM).filter(is_up).find_map(|node| Some((node, as_of(node)?)));
        let (node, as_of) = replica.filter(|_| !is_up(&primary)).unwrap_or((primary, now));
        (node, primary, as_of, own.told.clone())
    };
    let server = Rc::clone(server);
    let look = move |world: &mut World, node: usize| {
        let member = &world.cluster.nodes[node];
        let is_here = node != primary || member.view.primary[STREAM] == node;
        (is_here && !world.is_closed(node)).then(|| (member.stream.clone(), member.held.clone()))
    };
    ask(node, LOOK, false, look, move |found| {
        if let Some((stream, held)) = found.flatten() {
            hear(&server, told, &stream);
            note_held(&server, &held, as_of);
        } else {
            server.borrow_mut().down_until[node] = world(|world| world.now) + ms(500);
            learn_map(&server);
        }
        repeat(&server, ms(200), follow);
    });
}

fn hear(server: &Shared, told: Option<Entry>, stream: &[Entry]) {
    let clusters = Arc::clone(&server.borrow().clusters);
    let heard = told.map_or(Some(0), |told| stream.iter().position(|one| *one == told).map(|place| place + 1));
    server.borrow_mut().told = stream.last().cloned();
    for entry in heard.map_or(&[][..], |heard| &stream[heard..]) {
        forget(&clusters, entry.cell);
    }
    if heard.is_none() {
        for version in VERSIONS {
            clusters.forget("m", version, "t", None);
        }
    }
}

/// Notes which upserts are unfinished, and finishes those that have been for long; drops their rows from the cache at each
/// look.
fn note_held(server: &Shared, held: &BTreeMap<u64, usize>, as_of: Time) {
    let now = world(|world| world.now);
    let (mut late, mut known) = (Vec::new(), Vec::new());
    let clusters = {
        let mut own = server.borrow_mut();
        let new = Held { tried: now, told: own.heard, is_read: false, is_finishing: false };
        let before = std::mem::take(&mut own.held);
        for (&number, &cell) in held {
            let mut one = before.get(&number).copied().unwrap_or(new);
            if now >= one.tried + HELD && !one.is_finishing {
                (one.tried, one.is_read, one.is_finishing) = (now, true, true);
                late.push(Upsert { cell, number, is_other: false, is_finishing: true });
            }
            if one.is_read {
                one.told = now;
                known.push(cell);
            }
            own.held.insert(number, one);
        }
        own.heard = as_of;
        Arc::clone(&own.clusters)
    };
    for cell in known {
        forget(&clusters, cell);
    }
    let heard = server.borrow().held.values().map(|held| held.told).fold(as_of, Time::min);
    for version in VERSIONS {
        clusters.heard("m", version, "t", now.saturating_sub(heard));
    }
    for upsert in late {
        write_row(server, upsert, None);
    }
}

fn forget(clusters: &Clusters, cell: usize) {
    clusters.forget("m", VERSIONS[cell / ROWS], "t", Some(&[(cell % ROWS) as u64]));
}

/// Compares replicas with their primaries, as Replicas.compare() does.
fn compare(server: &Shared) {
    for shard in 0..SHARDS {
        let own = Rc::clone(server);
        let primary = server.borrow().view.primary[shard];
        ask_report(primary, move |found| {
            let is_gone = world(|world| {
                let member = &world.cluster.nodes[primary];
                found.is_none() && member.has_readers && !member.is_up
            });
            let gone = is_gone.then(|| own.borrow().gone[primary].unwrap_or(world(|world| world.now)));
            own.borrow_mut().gone[primary] = gone;
            if found.is_some_and(|found| found.is_primary) {
                own.borrow_mut().primaries[primary] = found;
            }
            for node in members(shard).filter(|node| *node != primary) {
                let own = Rc::clone(&own);
                ask_report(node, move |told| {
                    if let Some(told) = told {
                        note(&own, node, told, primary, found);
                    }
                });
            }
        });
    }
    repeat(server, ms(300), compare);
}

fn note(server: &Shared, node: usize, told: Report, primary: usize, found: Option<Report>) {
    let is_answered = found.is_some_and(|found| found.is_primary);
    let clusters = {
        let mut own = server.borrow_mut();
        let before = own.reports[node].replace(told);
        let is_former = own.primaries[node].is_some_and(|former| former.history == told.history);
        let as_of = if told.is_primary {
            own.as_of[node].max((!is_answered && !is_former).then_some(told.asked))
        } else {
            has_all(told, before, own.primaries[primary], own.gone[primary], own.as_of[node])
        };
        own.as_of[node] = as_of;
        let left = own.until(node).saturating_sub(world(|world| world.now));
        let place = name(node);
        own.clusters.set_in_sync([(place.host.to_string(), place.port, left)]);
        Arc::clone(&own.clusters)
    };
    if told.is_primary || (found.is_some() && !is_answered) {
        learn_map(server);
        nest(|| clusters.refresh());
    }
}

/// Does what `has_all_s()` of `service/remote/replicas.py` does.
fn has_all(
    own: Report,
    before: Option<Report>,
    known: Option<Report>,
    gone: Option<Time>,
    as_of: Option<Time>,
) -> Option<Time> {
    let as_of = as_of.filter(|_| before.is_none_or(|before| own.offset >= before.offset));
    let Some(known) = known.filter(|known| own.history == known.history && own.offset >= known.offset) else {
        return as_of;
    };
    let Some(as_of) = as_of.filter(|as_of| *as_of >= known.asked && own.asked < *as_of + FRESH) else {
        return as_of.max(Some(known.asked));
    };
    if gone.is_some_and(|gone| gone < as_of + GONE) {
        return Some(own.asked);
    }
    let before = before.filter(|before| before.history == own.history && before.offset < own.offset);
    before.map(|before| before.asked).max(Some(as_of))
}

/// Writes a change of a row, as TableChanges.upsert() does, on this server or another.
pub(super) fn upsert(server: &Shared, cell: usize) {
    let number = {
        let mut own = server.borrow_mut();
        own.last_number += 1;
        let number = own.last_number;
        own.written.insert((cell, number), Written::default());
        number
    };
    let is_other = world(|world| world.rng.bool());
    hold(server, Upsert { cell, number, is_other, is_finishing: false });
}

/// Holds a change in the cluster before its row is written.
fn hold(server: &Shared, upsert: Upsert) {
    let node = server.borrow().view.primary[STREAM];
    let Upsert { cell, number, is_other, .. } = upsert;
    let server = Rc::clone(server);
    let work = move |world: &mut World, node: usize| write_to_stream(world, node, Change::Hold { cell, number });
    ask(node, WRITE, is_other, work, move |done| {
        let Some(place) = done.flatten() else {
            learn_map(&server);
            return world(|world| world.later(ms(50), move || hold(&server, upsert)));
        };
        let then = move |server: &Shared, _| write_row(server, upsert, None);
        await_copies(&server, is_other, (node, place), Time::ZERO, then);
    });
}

/// Writes to the stream's shard; returns the history and the offset of the change, or None if the node is no primary.
fn write_to_stream(world: &mut World, node: usize, change: Change) -> Option<(u64, usize)> {
    let is_primary = world.cluster.nodes[node].view.primary[STREAM] == node && !world.is_closed(node);
    is_primary.then(|| {
        world.write(node, change);
        (world.cluster.nodes[node].history, world.cluster.nodes[node].offset)
    })
}

/// Waits until all replicas have a change, but no longer than `COPY`; `then` is told whether they have it.
fn await_copies(
    server: &Shared,
    is_other: bool,
    place: Place,
    waited: Time,
    then: impl FnOnce(&Shared, bool) + 'static,
) {
    let is_copied = !lacking(&[place]).into_iter().any(|member| awaits(server, is_other, member));
    if is_copied || waited >= COPY {
        return then(server, is_copied);
    }
    let (server, pause) = (Rc::clone(server), ms(20));
    world(|world| world.later(pause, move || await_copies(&server, is_other, place, waited + pause, then)));
}

/// Says whether a server waits for a node: it has not failed, and the server knows of it.
fn awaits(server: &Shared, is_other: bool, node: usize) -> bool {
    let is_unknown = is_other && world(|world| world.now < world.cluster.unknown_until[shard_of(node)]);
    !is_unknown && !server.borrow().view.failed[node]
}

/// Returns the nodes that lack changes that were written.
fn lacking(places: &[Place]) -> Vec<usize> {
    world(|world| {
        world.catch_up_all();
        let nodes = &world.cluster.nodes;
        let lacks = |member: usize, history, offset| nodes[member].history != history || nodes[member].offset < offset;
        let of_place = |&(node, (history, offset)): &Place| {
            members(shard_of(node)).filter(move |member| lacks(*member, history, offset))
        };
        places.iter().flat_map(of_place).collect()
    })
}

/// Writes a row to the primary of its slot, or to the node `told` that an ASK error named; again until it is written.
fn write_row(server: &Shared, upsert: Upsert, told: Option<usize>) {
    let Upsert { cell, number, is_other, .. } = upsert;
    let block = cell / BLOCK_ROWS;
    // Another server may know of a takeover earlier.
    let place = |view: &View| view.primary[view.owner[block]];
    let known = || if is_other { world(|world| place(&world.cluster.truth)) } else { place(&server.borrow().view) };
    let node = told.unwrap_or_else(known);
    let server = Rc::clone(server);
    let work = move |world: &mut World, node: usize| {
        let member = &world.cluster.nodes[node];
        let own = shard_of(node);
        let is_primary = member.view.primary[own] == node && !world.is_closed(node);
        let owns = member.view.owner[block] == own || told.is_some();
        if is_primary && owns && member.blocks.contains_key(&block) {
            world.write(node, Change::Row { cell, number });
            return Ok((world.cluster.nodes[node].history, world.cluster.nodes[node].offset));
        }
        let target = world.cluster.moving[block].filter(|target| is_primary && *target != own);
        Err(target.map(|target| world.cluster.nodes[node].view.primary[target]))
    };
    ask(node, WRITE, is_other, work, move |done| match done {
        Some(Ok(row)) => {
            let row = (node, row);
            let then = move |server: &Shared, is_copied| write_entry(server, upsert, row, is_copied);
            await_copies(&server, is_other, row, Time::ZERO, then);
        }
        Some(Err(Some(told))) => write_row(&server, upsert, Some(told)),
        Some(Err(None)) | None => {
            learn_map(&server);
            let server = Rc::clone(&server);
            world(|world| world.later(ms(50), move || write_row(&server, upsert, None)));
        }
    });
}

/// A node with the history and the offset of a change that was written to it.
type Place = (usize, (u64, usize));

/// Returns the shard of a place, and since when its node was the primary as it wrote there; 0 if it is none by now.
fn place_of((node, (history, _)): Place) -> (usize, Time) {
    world(|world| {
        let member = &world.cluster.nodes[node];
        (shard_of(node), if member.history == history { member.primary_since } else { Time::ZERO })
    })
}

/// Tells of a row that was written, and releases the change if all replicas have the row.
fn write_entry(server: &Shared, upsert: Upsert, row: Place, is_copied: bool) {
    let node = server.borrow().view.primary[STREAM];
    let Upsert { cell, number, is_other, is_finishing } = upsert;
    let server = Rc::clone(server);
    let work = move |world: &mut World, node: usize| {
        let nonce = world.rng.u64(..);
        write_to_stream(world, node, Change::Entry { cell, nonce, released: is_copied.then_some(number) })
    };
    ask(node, WRITE, is_other, work, move |done| {
        let Some(entry) = done.flatten() else {
            learn_map(&server);
            let server = Rc::clone(&server);
            return world(|world| world.later(ms(50), move || write_entry(&server, upsert, row, is_copied)));
        };
        let clusters = {
            let mut own = server.borrow_mut();
            let now = world(|world| world.now);
            let written = own.written.get_mut(&(cell, number)).expect("the change is known");
            if written.acknowledged.replace(written.acknowledged.unwrap_or(now)).is_none() {
                written.places = [row, (node, entry)].map(place_of).to_vec();
            }
            Arc::clone(&own.clusters)
        };
        if !is_other {
            // This server does not wait for the stream.
            forget(&clusters, cell);
        }
        if is_finishing {
            if let Some(held) = server.borrow_mut().held.get_mut(&number) {
                held.is_finishing = false;
            }
            return;
        }
        world(|world| world.later(ms(200), move || settle(&server, upsert, row, (node, entry))));
    });
}

/// Ends a change if all replicas have it that are waited for, and writes it again a second later if not. A failed one may
/// come back, and take over before it has copied its primary.
fn settle(server: &Shared, upsert: Upsert, row: Place, entry: Place) {
    let lacking = lacking(&[row, entry]);
    if lacking.is_empty() {
        let now = world(|world| world.now);
        server.borrow_mut().written.get_mut(&(upsert.cell, upsert.number)).expect("the change is known").settled =
            Some(now);
    } else if lacking.into_iter().any(|member| awaits(server, upsert.is_other, member)) {
        let server = Rc::clone(server);
        world(|world| world.later(ms(1000), move || write_row(&server, upsert, None)));
    }
}
