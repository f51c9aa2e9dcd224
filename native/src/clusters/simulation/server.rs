//! A model of the parts in Python of a server: it follows the stream of changes, compares replicas with primaries, and
//! writes changes. It does what `service/remote/changes.py`, `replicas.py` and `topology.py` do, without waiting.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::super::Clusters;
use super::nodes::{BLOCK_ROWS, Change, Entry, NODES, ROWS, SHARDS, VERSIONS, View, members, name, shard_of};
use super::{Time, World, ms, world};

/// Longest waits for a node's reply to a look at the stream, to a comparison, and to a write.
const LOOK: Time = ms(200);
const REPORT: Time = ms(300);
const WRITE: Time = ms(1000);
/// The shard of the stream of changes.
const STREAM: usize = 0;

/// A change: when it was acknowledged, and when all replicas had it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) acknowledged: Option<Time>,
    pub(super) settled: Option<Time>,
}

pub(super) struct Server {
    clusters: Arc<Clusters>,
    view: View,
    /// The entry of the stream that was heard last.
    told: Option<Entry>,
    down_until: Vec<Time>,
    in_sync_until: Vec<Time>,
    was_in_sync: Vec<bool>,
    /// (Cell, number) -> what is known of this change.
    pub(super) written: BTreeMap<(usize, u64), Written>,
    last_number: u64,
}

pub(super) type Shared = Rc<RefCell<Server>>;

/// Sends a command to a node, which does `work`; `then` gets the result, or None if none came in time.
fn ask<R: 'static>(
    node: usize,
    limit: Time,
    work: impl FnOnce(&mut World, usize) -> R + 'static,
    then: impl FnOnce(Option<R>) + 'static,
) {
    let (delay, back) = world(|world| (world.delay(Some(node)), world.delay(Some(node))));
    let arrive = move || {
        let result = world(|world| {
            let member = &world.cluster.nodes[node];
            if !member.has_readers || member.is_frozen {
                return Err(limit.saturating_sub(delay));
            }
            let is_up = member.is_up;
            world.catch_up(node);
            Ok(is_up.then(|| work(world, node)))
        });
        let (wait, result) = result.map_or_else(|wait| (wait, None), |result| (back, result));
        let end = move || {
            let is_lost = world(|world| !world.cluster.nodes[node].has_readers) || delay + back > limit;
            then(result.filter(|_| !is_lost));
        };
        world(|world| world.later(wait, end));
    };
    world(|world| world.later(delay, arrive));
}

/// A node's report on its replication: whether it is a primary, its history and offset, and the seconds since it heard
/// from its primary.
type Report = (bool, u64, usize, Option<u64>);

fn report(world: &mut World, node: usize) -> Report {
    let now = world.now;
    let member = &world.cluster.nodes[node];
    let primary = member.view.primary[shard_of(node)];
    let is_copying = member.history != world.cluster.nodes[primary].history;
    let heard_s = (!is_copying).then(|| now.saturating_sub(member.linked_at).as_secs());
    (primary == node, member.history, member.offset, heard_s)
}

pub(super) fn start(clusters: &Arc<Clusters>) -> Shared {
    let view = world(|world| world.cluster.truth.clone());
    let nodes = SHARDS * NODES;
    let server = Rc::new(RefCell::new(Server {
        clusters: Arc::clone(clusters),
        view,
        told: None,
        down_until: vec![Time::ZERO; nodes],
        in_sync_until: vec![Time::ZERO; nodes],
        was_in_sync: vec![false; nodes],
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
        |world, node| world.cluster.nodes[node].view.clone(),
        move |view| match view {
            Some(view) => server.borrow_mut().view = view,
            None => repeat(&server, ms(50), learn_map),
        },
    );
}

/// Reads the stream of changes, as TableChanges.follow() does.
fn follow(server: &Shared) {
    let now = world(|world| world.now);
    let (node, told) = {
        let own = server.borrow();
        let primary = own.view.primary[STREAM];
        let is_up = |node: &usize| now >= own.down_until[*node];
        let replica = members(STREAM).find(|node| *node != primary && now < own.in_sync_until[*node] && is_up(node));
        (if is_up(&primary) { primary } else { replica.unwrap_or(primary) }, own.told.clone())
    };
    let server = Rc::clone(server);
    let look =
        |world: &mut World, node: usize| (!world.is_closed(node)).then(|| world.cluster.nodes[node].stream.clone());
    ask(node, LOOK, look, move |stream| {
        if let Some(stream) = stream.flatten() {
            hear(&server, told, &stream);
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
    for version in VERSIONS {
        if heard.is_none() {
            clusters.forget("m", version, "t", None);
        }
        clusters.heard("m", version, "t");
    }
}

fn forget(clusters: &Clusters, cell: usize) {
    clusters.forget("m", VERSIONS[cell / ROWS], "t", Some(&[(cell % ROWS) as u64]));
}

/// Compares replicas with their primaries, as Replicas.compare() does.
fn compare(server: &Shared) {
    let until = world(|world| world.now) + ms(1000);
    for shard in 0..SHARDS {
        let own = Rc::clone(server);
        let primary = server.borrow().view.primary[shard];
        ask(primary, REPORT, report, move |found| {
            let is_gone = world(|world| found.is_none() && !world.cluster.nodes[primary].is_up);
            for node in members(shard).filter(|node| *node != primary) {
                let own = Rc::clone(&own);
                ask(node, REPORT, report, move |told| {
                    if let Some(told) = told {
                        note(&own, node, told, found, is_gone, until);
                    }
                });
            }
        });
    }
    repeat(server, ms(300), compare);
}

fn note(server: &Shared, node: usize, told: Report, primary: Option<Report>, is_gone: bool, until: Time) {
    let is_old = told.0 || primary.is_some_and(|primary| !primary.0);
    {
        let mut own = server.borrow_mut();
        if !is_gone {
            own.was_in_sync[node] = match primary {
                Some((true, history, offset, _)) => told.1 == history && told.2 >= offset,
                _ => told.3.is_some_and(|seconds| seconds <= 1),
            };
        }
        let left = until.saturating_sub(world(|world| world.now));
        if told.0 || own.was_in_sync[node] {
            own.in_sync_until[node] = until;
            let place = name(node);
            own.clusters.set_in_sync(&[(place.host.to_string(), place.port)], left);
        }
    }
    if is_old {
        learn_map(server);
        let clusters = Arc::clone(&server.borrow().clusters);
        clusters.refresh();
    }
}

/// Writes a change of a row, as TableChanges.upsert() does.
pub(super) fn upsert(server: &Shared, cell: usize) {
    let number = {
        let mut own = server.borrow_mut();
        own.last_number += 1;
        let number = own.last_number;
        own.written.insert((cell, number), Written::default());
        number
    };
    write_row(server, cell, number, None);
}

/// Writes a row to the primary of its slot, or to the node `told` that an ASK error named; again until it is written.
fn write_row(server: &Shared, cell: usize, number: u64, told: Option<usize>) {
    let block = cell / BLOCK_ROWS;
    let node = told.unwrap_or_else(|| {
        let own = server.borrow();
        own.view.primary[own.view.owner[block]]
    });
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
    ask(node, WRITE, work, move |done| match done {
        Some(Ok(row)) => write_entry(&server, cell, number, (node, row)),
        Some(Err(Some(told))) => write_row(&server, cell, number, Some(told)),
        Some(Err(None)) | None => {
            learn_map(&server);
            let server = Rc::clone(&server);
            world(|world| world.later(ms(50), move || write_row(&server, cell, number, None)));
        }
    });
}

/// A node with the history and the offset of a change that was written to it.
type Place = (usize, (u64, usize));

fn write_entry(server: &Shared, cell: usize, number: u64, row: Place) {
    let node = server.borrow().view.primary[STREAM];
    let server = Rc::clone(server);
    let work = move |world: &mut World, node: usize| {
        let is_primary = world.cluster.nodes[node].view.primary[STREAM] == node && !world.is_closed(node);
        is_primary.then(|| {
            let nonce = world.rng.u64(..);
            world.write(node, Change::Entry { cell, nonce });
            (world.cluster.nodes[node].history, world.cluster.nodes[node].offset)
        })
    };
    ask(node, WRITE, work, move |done| {
        let Some(entry) = done.flatten() else {
            learn_map(&server);
            let server = Rc::clone(&server);
            return world(|world| world.later(ms(50), move || write_entry(&server, cell, number, row)));
        };
        let clusters = {
            let mut own = server.borrow_mut();
            let now = world(|world| world.now);
            let written = own.written.get_mut(&(cell, number)).expect("the change is known");
            written.acknowledged.get_or_insert(now);
            Arc::clone(&own.clusters)
        };
        // Another server, or this one, which does not wait for the stream.
        if world(|world| world.rng.bool()) {
            forget(&clusters, cell);
        }
        world(|world| world.later(ms(200), move || settle(&server, cell, number, row, (node, entry))));
    });
}

/// Ends a change if all replicas have it, and writes it again a second later if not.
fn settle(server: &Shared, cell: usize, number: u64, row: Place, entry: Place) {
    let view = server.borrow().view.clone();
    let is_copied = world(|world| {
        world.catch_up_all();
        [row, entry].into_iter().all(|(node, (history, offset))| {
            members(shard_of(node)).all(|member| {
                let has =
                    world.cluster.nodes[member].history == history && world.cluster.nodes[member].offset >= offset;
                has || view.failed[member]
            })
        })
    });
    if is_copied {
        let now = world(|world| world.now);
        server.borrow_mut().written.get_mut(&(cell, number)).expect("the change is known").settled = Some(now);
    } else {
        let server = Rc::clone(server);
        world(|world| world.later(ms(1000), move || write_row(&server, cell, number, None)));
    }
}
