//! Histories of few events, each of which shows why a rule of the reader is needed.

use std::time::Duration;

use super::super::{Clusters, RemoteTable, Want, network, read};
use super::nodes::Change;
use super::search::open;
use super::{WORLD, World, ms, world};

/// A row whose primary is n3 until n4 takes over; n0 is the first node that is asked for the map of slots.
const ROW: u64 = 2;

/// Calls `check` with clusters and a table, all of whose changes are heard.
fn with_table(check: impl FnOnce(&Clusters, &RemoteTable)) {
    WORLD.set(Some(World::new(0)));
    world(World::look_around);
    let clusters = Clusters::new(1 << 20);
    let [table, _] = open(&clusters, false);
    clusters.heard("m", 1, "t", Duration::ZERO);
    assert_eq!(number(&table), 0);
    check(&clusters, &table);
    drop((table, clusters));
    // What the world still had to do is dropped while no one borrows the world.
    let ended = WORLD.take();
    drop(ended);
}

/// Reads the row; returns the number of the change that wrote it.
fn number(table: &RemoteTable) -> u64 {
    let mut wants = [Want::new(table, vec![ROW])];
    let why = read(&mut wants, None);
    assert!(wants[0].left.is_empty(), "{why}");
    u64::from_le_bytes(wants[0].rows[16..].try_into().unwrap())
}

/// Lets n4 take over from n3, and writes the row there. Neither n3 nor `frozen` hears of the takeover.
fn take_over(frozen: Option<usize>) {
    let unaware = || frozen.into_iter().chain([3]);
    world(|world| {
        unaware().for_each(|node| world.cluster.nodes[node].is_frozen = true);
        world.promote(4);
        world.write(4, Change::Row { cell: ROW as usize, number: 7 });
    });
    network::sleep(ms(400));
    world(|world| unaware().for_each(|node| world.cluster.nodes[node].is_frozen = false));
}

#[test]
fn a_node_that_missed_a_takeover_brings_no_old_map_back() {
    with_table(|clusters, table| {
        take_over(Some(0));
        // The reader learns of the takeover while n0 is silent.
        world(|world| world.cluster.nodes[0].is_frozen = true);
        clusters.refresh();
        world(|world| world.cluster.nodes[0].is_frozen = false);
        assert_eq!(number(table), 7);
        network::sleep(ms(600));
        clusters.refresh();
        assert_eq!(number(table), 7);
    });
}

#[test]
fn a_row_that_a_former_primary_gave_does_not_stay_in_the_cache() {
    with_table(|clusters, table| {
        take_over(None);
        clusters.forget("m", 1, "t", Some(&[ROW]));
        assert_eq!(number(table), 0, "the reader and n3 do not know of the takeover yet");
        clusters.refresh();
        assert_eq!(number(table), 7);
    });
}
