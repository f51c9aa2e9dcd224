//! Histories of few events, each of which shows why a rule of the reader is needed.

use std::time::Duration;

use super::super::{Clusters, RemoteTable, Want, network, read};
use super::nodes::{BLOCK_ROWS, Change};
use super::search::{heal, open};
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

#[test]
fn a_former_primary_gives_no_rows_but_the_map() {
    with_table(|clusters, table| {
        // n3 hears of the takeover, and has not copied n4 yet. The map of n0 is as old as the reader's.
        take_over(Some(0));
        world(|world| {
            world.cluster.nodes[3].has_link = false;
            world.learn(3);
        });
        clusters.forget("m", 1, "t", Some(&[ROW]));
        assert_eq!(number(table), 7);
    });
}

#[test]
fn a_node_that_is_cut_off_does_not_hide_a_takeover() {
    with_table(|_, table| {
        world(|world| {
            world.cluster.nodes[0].has_peers = false;
            world.cluster.nodes[3].is_up = false;
            world.cut_links(3);
        });
        network::sleep(ms(6000));
        assert_eq!(number(table), 0);
    });
}

/// Lets the replica n4 be read, which lacks a change of the row that the reader has heard.
fn cut_replica(clusters: &Clusters) {
    clusters.set_in_sync([("n4".to_owned(), 7004, ms(2000))]);
    world(|world| {
        world.cluster.nodes[4].has_link = false;
        world.write(3, Change::Row { cell: ROW as usize, number: 7 });
    });
    clusters.forget("m", 1, "t", Some(&[ROW]));
}

#[test]
fn a_row_that_a_replica_gave_does_not_stay_in_the_cache() {
    with_table(|clusters, table| {
        cut_replica(clusters);
        world(|world| world.cluster.nodes[3].has_readers = false);
        assert_eq!(number(table), 0);
        world(|world| world.cluster.nodes[3].has_readers = true);
        network::sleep(ms(600));
        assert_eq!(number(table), 7);
    });
}

#[test]
fn a_row_that_a_second_node_gave_does_not_stay_in_the_cache() {
    with_table(|clusters, table| {
        let read_anew = || {
            clusters.forget("m", 1, "t", Some(&[ROW]));
            number(table)
        };
        // Afterwards, the times of n3 are known.
        (0..100).for_each(|_| _ = read_anew());
        cut_replica(clusters);
        world(|world| world.cluster.nodes[3].slow_us = 60_000);
        assert!((0..9).any(|_| read_anew() == 0), "n4 never answers first");
        clusters.set_in_sync([("n4".to_owned(), 7004, Duration::ZERO)]);
        assert_eq!(number(table), 7);
    });
}

#[test]
fn a_key_that_moved_is_asked_of_its_primary_though_all_replicas_lack_it() {
    with_table(|clusters, table| {
        clusters.set_in_sync([4, 5].map(|node| (format!("n{node}"), 7000 + node, ms(2000))));
        let block = ROW as usize / BLOCK_ROWS;
        world(|world| {
            world.cluster.moving[block] = Some(0);
            world.write(0, Change::Block { block, rows: Some(vec![7; BLOCK_ROWS]) });
            world.write(3, Change::Block { block, rows: None });
        });
        network::sleep(ms(60));
        world(|world| {
            world.cluster.nodes[3].is_frozen = true;
            world.later(ms(300), || super::world(|world| heal(world, 3)));
        });
        clusters.forget("m", 1, "t", Some(&[ROW]));
        assert_eq!(number(table), 7);
    });
}
