//! Reads tables from a real Valkey or Redis server, if one is installed, and compares the rows with the written rows.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_protocol::resp2::types::OwnedFrame;

use super::connection::{Connection, Node, Reason, is_too_deep};
use super::topology::{Topology, map_of};
use super::*;

/// The sizes of the test table: rows of a block (the value of one key), bytes of a row, and rows of the table.
const BLOCK_ROWS: usize = 10;
const ROW_BYTES: usize = 8;
const ROWS: usize = 95;

/// A Valkey or Redis server process; dropping this value kills the process.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts a Valkey or Redis server; returns None if none is installed.
    fn start(port: Option<u16>) -> Option<Self> {
        let port = port.unwrap_or_else(|| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
        let spawn = |program: &str| {
            let mut command = Command::new(program);
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.stdout(Stdio::null()).spawn().ok()
        };
        let Some(process) = spawn("valkey-server").or_else(|| spawn("redis-server")) else {
            let _ = writeln!(std::io::stderr(), "no valkey-server or redis-server is installed: NO READ WAS TESTED");
            return None;
        };
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Server { process, port })
    }

    fn node(&self) -> Node {
        Node::new("127.0.0.1", self.port)
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap().success());
    }

    fn description(&self, tag: &str, default_rows: Vec<u64>) -> RemoteDescription {
        let (tag, block_rows, row_bytes) = (tag.to_owned(), BLOCK_ROWS, ROW_BYTES);
        RemoteDescription {
            address: address(self.port),
            tag,
            block_rows,
            num_shards: 4,
            row_bytes,
            default_rows,
            serves_stale: false,
            fresh_ms: None,
        }
    }

    /// Writes the blocks of the test table to the Valkey or Redis server, under keys that begin with `tag`; leaves out
    /// block `skipped`.
    fn write(&self, tag: &str, skipped: Option<usize>) {
        for block in (0..ROWS.div_ceil(BLOCK_ROWS)).filter(|block| Some(*block) != skipped) {
            let rows = block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(ROWS);
            self.set(tag, block, &rows.flat_map(row).collect::<Vec<u8>>());
        }
    }

    /// Writes one block of a table.
    fn set(&self, tag: &str, block: usize, value: &[u8]) {
        let until = Instant::now() + Duration::from_secs(5);
        let mut connection =
            Connection::open(&self.node(), false, &self.description(tag, Vec::new()).address, until).unwrap();
        let key = format!("{tag}{:04x}}}{block:08x}", block % 4);
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
        connection.send(&[head.as_bytes(), value, b"\r\n"].concat(), until).unwrap();
        assert_eq!(connection.answer(until).unwrap(), OwnedFrame::SimpleString(b"OK".to_vec()));
    }
}

/// Returns the address of a node on this machine, without TLS and without a password.
fn address(port: u16) -> Address {
    Address {
        nodes: vec![("127.0.0.1".to_owned(), port)],
        has_tls: false,
        ca_file: String::new(),
        user: String::new(),
        password_file: String::new(),
        own_password: String::new(),
        timeout_ms: 2000,
        node_timeout_ms: 1000,
        hedge_percent: 5,
    }
}

fn row(number: usize) -> [u8; ROW_BYTES] {
    (number as u64 * 0x0101_0001).to_le_bytes()
}

fn rows_of(ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| row(*id as usize)).collect()
}

fn read_one(table: &RemoteTable, ids: &[u64]) -> (Vec<u8>, Vec<u32>, String) {
    let mut wants = [Want::new(table, ids.to_vec())];
    let why = read(&mut wants, None);
    let [want] = wants;
    (want.rows, want.left, why)
}

#[test]
fn rows_are_read_and_counted() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let clusters = Clusters::new(0);
    let table = clusters.open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    let all: Vec<u64> = (0..ROWS as u64).rev().collect();
    for ids in [&all[..], &[94, 0, 9, 10], &[]] {
        assert_eq!(read_one(&table, ids), (rows_of(ids), vec![], String::new()));
    }
    let counts = &clusters.counts()[0];
    assert_eq!((counts.model.as_str(), counts.version, counts.table.as_str()), ("m", 1, "t"));
    assert_eq!((counts.reads, counts.rows, counts.bytes, counts.errors), (2, 99, 99 * 8, 0));
    drop(table);
    assert_eq!(clusters.counts(), vec![]);
}

#[test]
fn a_row_that_is_not_there_is_never_made_up() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", Some(2));
    let clusters = Clusters::new(0);
    let table = clusters.open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    let (rows, left, why) = read_one(&table, &[5, 25, 35, 20]);
    assert_eq!(left, vec![1, 3]);
    let told = "is not in the cluster, or ends before the row; run \"model-export push\"";
    assert!(why.starts_with("block 2 of table \"t\" (slot ") && why.ends_with(told), "{why}");
    assert_eq!(clusters.lost("m", 1, "t"), (vec![2], 1, 1));
    assert_eq!(clusters.lost("m", 1, "t"), (vec![], 1, 1));
    assert_eq!((&rows[..8], &rows[16..24]), (&row(5)[..], &row(35)[..]));
    assert_eq!(clusters.counts()[0].errors, 1);
}

#[test]
fn default_rows_are_read_at_the_opening_and_when_they_change() {
    let Some(server) = Server::start(None) else { return };
    let tag = "{es:m/t/f/";
    server.write(tag, Some(2));
    let clusters = Clusters::new(0);
    let lacking = clusters.open_with_default_rows("m", 1, "t", ROWS, &server.description(tag, vec![3, 25]));
    assert!(lacking.unwrap_err().contains("not in the cluster"));
    let table = clusters.open_with_default_rows("m", 1, "t", ROWS, &server.description(tag, vec![3])).unwrap();
    let bytes = |number| table.default_row(number).map(|row| row.to_vec());
    assert_eq!((bytes(3), bytes(4)), (Some(row(3).to_vec()), None));
    server.set(tag, 0, &rows_of(&[9; BLOCK_ROWS]));
    clusters.forget("m", 1, "t", Some(&[4]));
    assert_eq!(bytes(3), Some(row(3).to_vec()), "no default row has changed");
    clusters.forget("m", 1, "t", Some(&[4, 3]));
    assert_eq!(bytes(3), Some(row(9).to_vec()));
    server.set(tag, 0, b"");
    clusters.forget("m", 1, "t", None);
    assert_eq!(bytes(3), Some(row(9).to_vec()), "a row that can not be read stays as it was");
}

#[test]
fn a_server_that_ends_fails_reads_until_it_is_back() {
    let Some(mut server) = Server::start(None) else { return };
    let tag = "{es:m/t/f/";
    server.write(tag, None);
    let table = Clusters::new(0).open("m", 1, "t", ROWS, &server.description(tag, Vec::new()));
    assert!(read_one(&table, &[7]).1.is_empty());
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let (_, left, why) = read_one(&table, &[7]);
    assert_eq!(left, [0]);
    assert!(why.contains(&format!("127.0.0.1:{}", server.port)), "{why}");
    server = Server::start(Some(server.port)).unwrap();
    assert_eq!(read_one(&table, &[7]).1, [0], "it came back without its keys");
    server.write(tag, None);
    assert_eq!(read_one(&table, &[7]), (row(7).to_vec(), vec![], String::new()));
}

#[test]
fn a_frozen_server_ends_a_read_at_the_deadline() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let table = Clusters::new(0).open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    assert!(read_one(&table, &[1]).1.is_empty());
    server.signal("-STOP");
    let mut wants = [Want::new(&table, vec![1])];
    let why = read(&mut wants, Some(Instant::now() + Duration::from_millis(50)));
    server.signal("-CONT");
    assert_eq!(wants[0].left, [0]);
    assert!(why.ends_with("timed out"), "{why}");
    // A read whose deadline has passed already tells the same, also on a busy machine.
    let mut wants = [Want::new(&table, vec![1])];
    let why = read(&mut wants, Some(Instant::now()));
    assert!(wants[0].left == [0] && why.ends_with("timed out"), "{why}");
    // The server's late answer for row 1 is never read, because the read of row 1 timed out and closed its connection.
    assert_eq!(read_one(&table, &[2]).0, row(2));
}

#[test]
fn the_deadline_of_a_request_says_nothing_about_a_node() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let mut description = server.description("{es:m/t/f/", Vec::new());
    description.address.node_timeout_ms = 300;
    let table = Clusters::new(0).open("m", 1, "t", ROWS, &description);
    assert!(read_one(&table, &[1]).1.is_empty());
    let read_in = |millis| {
        let mut wants = [Want::new(&table, vec![1])];
        read(&mut wants, Some(Instant::now() + Duration::from_millis(millis)));
        wants[0].left.is_empty()
    };
    server.signal("-STOP");
    let begun = Instant::now();
    assert!(!read_in(20) && !table.topology.is_down(&server.node()));
    // A node that answers none of the requests that follow each other is down, although each of them waits for a moment.
    while !table.topology.is_down(&server.node()) {
        assert!(!read_in(20) && begun.elapsed() < Duration::from_secs(60));
    }
    assert!(begun.elapsed() > Duration::from_millis(250));
    server.signal("-CONT");
    while !read_in(1000) {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(!table.topology.is_down(&server.node()), "it has answered");
}

#[test]
fn late_reads_with_a_pause_between_them_are_no_series() {
    let topology = Topology::new(address(1), Arc::default());
    let (node, now) = (Node::new("a", 1), Instant::now());
    let after = |millis| now + Duration::from_millis(millis);
    for asked in [now, after(1000)] {
        topology.late(&node, asked);
        assert!(!topology.is_down(&node));
    }
    topology.late(&node, now.checked_sub(Duration::from_secs(1)).unwrap());
    assert!(topology.is_down(&node), "it had as long as a read waits for a node");
}

#[test]
fn a_time_limit_replaces_no_refusal() {
    let (node, late) = (Node::new("a", 1), std::io::Error::from(std::io::ErrorKind::TimedOut));
    let mut why = Reason::passing("MOVED".to_owned());
    why.failed(&node, &late);
    assert_eq!(why.text, "a:1: timed out");
    why.failed(&node, &std::io::Error::other("WRONGPASS"));
    why.failed(&node, &late);
    assert_eq!(why.text, "a:1: WRONGPASS");
    why.note(Reason::refusal("NOAUTH".to_owned()));
    assert_eq!(why.text, "NOAUTH");
}

#[test]
fn rows_that_are_read_often_come_from_the_cache() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let clusters = Clusters::new(1 << 20);
    let table = clusters.open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    assert_eq!(read_one(&table, &[1, 2]).0, rows_of(&[1, 2]));
    assert_eq!(read_one(&table, &[3, 2, 1]).0, rows_of(&[3, 2, 1]));
    let counts = &clusters.counts()[0];
    assert_eq!((counts.cache_hits, counts.cache_misses, counts.rows), (2, 3, 3));
    assert_eq!(clusters.cache_counts().unwrap().rows, 3);
    // Row 1 is reported as changed, so it is read from the cluster again.
    clusters.forget("m", 1, "t", Some(&[1]));
    assert_eq!(read_one(&table, &[1, 2]).0, rows_of(&[1, 2]));
    let counts = &clusters.counts()[0];
    assert_eq!((counts.cache_hits, counts.cache_misses, counts.rows), (3, 4, 4));
    // A read that began before the table's rows were reported as changed does not add its rows to the cache.
    let mut wants = [Want::new(&table, vec![7])];
    clusters.forget("m", 1, "t", None);
    assert_eq!(clusters.cache_counts().unwrap().rows, 0);
    read(&mut wants, None);
    assert_eq!(Want::new(&table, vec![7]).left, [0]);
    // The cluster has no row 1 of version 2 of the table, and the cached row 1 of version 1 must not be read in its
    // place.
    server.write("{es:m/t/g/", Some(0));
    let other = clusters.open("m", 2, "t", ROWS, &server.description("{es:m/t/g/", Vec::new()));
    assert_eq!(read_one(&other, &[1]).1, [0]);
    drop(table);
    assert_eq!(clusters.cache_counts().unwrap().rows, 0);
}

#[test]
fn rows_whose_changes_are_not_heard_are_read_anew_and_served_only_where_the_table_allows_it() {
    let Some(mut server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    server.write("{es:m/t/g/", None);
    let clusters = Clusters::new(1 << 20);
    let plain = server.description("{es:m/t/f/", Vec::new());
    let strict = RemoteDescription { fresh_ms: Some(200), ..plain.clone() };
    let stale = RemoteDescription { tag: "{es:m/t/g/".to_owned(), serves_stale: true, ..strict.clone() };
    let (strict, stale) = (clusters.open("m", 1, "t", ROWS, &strict), clusters.open("m", 2, "t", ROWS, &stale));
    for table in [&strict, &stale] {
        assert_eq!(read_one(table, &[1, 2, 3]).0, rows_of(&[1, 2, 3]));
    }
    // Between two steps, a busy machine may need more than the 200 ms for which a cached row is valid, so the steps are
    // repeated.
    let holds_when_heard = || {
        (0..1000).any(|_| {
            clusters.heard("m", 1, "t", Duration::ZERO);
            Want::new(&strict, vec![1]).left.is_empty()
        })
    };
    assert!(holds_when_heard());
    std::thread::sleep(Duration::from_millis(250));
    for table in [&strict, &stale] {
        assert_eq!(Want::new(table, vec![1]).left, [0], "the cached row may be old");
        assert_eq!(read_one(table, &[1]), (rows_of(&[1]), vec![], String::new()), "it is read anew");
    }
    assert!(holds_when_heard(), "the changes are heard again");
    std::thread::sleep(Duration::from_millis(250));
    // Row 3 is reported as changed, so the cache does not have the old row any more.
    clusters.forget("m", 2, "t", Some(&[3]));
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert_eq!(read_one(&strict, &[1]).1, [0]);
    let mut wants = [Want::new(&stale, vec![2, 9, 1, 3])];
    assert!(read(&mut wants, None).contains("127.0.0.1"));
    assert_eq!((&wants[0].rows[..8], &wants[0].rows[16..24]), (&row(2)[..], &row(1)[..]));
    assert_eq!((&wants[0].left[..], wants[0].num_stale), (&[1, 3][..], 2));
    let counts = |version| clusters.counts().into_iter().find(|one| one.version == version).unwrap();
    assert_eq!((counts(1).stale_rows, counts(2).stale_rows), (0, 2));
    // A read of version 3 gets no cached rows of version 2.
    let newer = RemoteDescription { tag: "{es:m/t/h/".to_owned(), serves_stale: true, ..plain };
    assert_eq!(read_one(&clusters.open("m", 3, "t", ROWS, &newer), &[1, 2]).1, [0, 1]);
    assert!(clusters.table("{es:m/t/h/", 3).is_none() && clusters.table("{es:m/t/g/", 2).is_some());
    server = Server::start(Some(server.port)).unwrap();
    server.write("{es:m/t/g/", None);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(read_one(&stale, &[9, 1]), (rows_of(&[9, 1]), vec![], String::new()));
    assert_eq!(counts(2).stale_rows, 2, "the node is asked again");
}

#[test]
fn cached_rows_are_served_without_a_wait_while_a_node_is_frozen() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let clusters = Clusters::new(1 << 20);
    let mut description = server.description("{es:m/t/f/", Vec::new());
    (description.serves_stale, description.fresh_ms) = (true, Some(0));
    description.address.timeout_ms = 60_000;
    let table = clusters.open("m", 1, "t", ROWS, &description);
    let all: Vec<u64> = (0..ROWS as u64).collect();
    assert_eq!(read_one(&table, &all).0, rows_of(&all));
    server.signal("-STOP");
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let (rows, left, _) = read_one(&table, &all);
        assert_eq!((rows, left), (rows_of(&all), vec![]));
        reads += 1;
    }
    server.signal("-CONT");
    // In these three seconds, at most three reads wait for the frozen node, each for one second: only one read in half a
    // second tries the node.
    assert!(reads > 30, "{reads} reads in three seconds");
    assert_eq!(clusters.counts()[0].stale_rows, reads * ROWS as u64);
}

/// Starts two Valkey or Redis servers which the test treats as primary and replica of all slots, and opens a table
/// there. Runs 40 reads, so that the answer times of the primary are known. Returns None if no such server is
/// installed. The second server counts as in sync.
fn primary_and_replica(
    replica_has: Option<&str>,
    node_timeout_ms: u64,
) -> Option<(Server, Server, Clusters, std::sync::Arc<RemoteTable>)> {
    let (primary, replica) = (Server::start(None)?, Server::start(None)?);
    primary.write("{es:m/t/f/", None);
    if let Some(tag) = replica_has {
        replica.write(tag, None);
    }
    let clusters = Clusters::new(1 << 20);
    let mut description = primary.description("{es:m/t/f/", Vec::new());
    (description.address.timeout_ms, description.address.node_timeout_ms) = (60_000, node_timeout_ms);
    let table = clusters.open("m", 1, "t", ROWS, &description);
    table.topology.set_one_holder(vec![primary.node(), replica.node()]);
    clusters.set_in_sync([("127.0.0.1".to_owned(), replica.port, Duration::from_secs(3600))]);
    // A hedged read waits only briefly for a new connection to the second node, so the test opens the connection
    // before.
    let until = Instant::now() + Duration::from_secs(60);
    let connection = table.topology.connection(&replica.node(), true, until).unwrap();
    table.topology.give_back(&replica.node(), connection);
    for id in 0..40 {
        assert_eq!(read_one(&table, &[id]).0, row(id as usize));
    }
    Some((primary, replica, clusters, table))
}

fn hedges(clusters: &Clusters) -> (u64, u64, u64) {
    let counts = &clusters.counts()[0];
    (counts.hedges, counts.hedge_wins, counts.errors)
}

#[test]
fn a_slow_nodes_rows_are_asked_of_its_replica_within_the_budget() {
    let Some((primary, _replica, clusters, table)) = primary_and_replica(Some("{es:m/t/f/"), 50_000) else { return };
    let hedged_before = hedges(&clusters).0;
    assert!(hedged_before <= 2, "40 reads allow two at most");
    while table.topology.budget.take() {}
    // Each read adds 5 hundredths of a hedged read to the budget, so twenty reads allow one hedged read.
    (0..20).for_each(|_| table.topology.budget.earn());
    primary.signal("-STOP");
    let (rows, left, _) = read_one(&table, &[60, 50, 61]);
    assert_eq!((rows, left), (rows_of(&[60, 50, 61]), vec![]));
    assert_eq!(hedges(&clusters).0 - hedged_before, 1);
    assert!(hedges(&clusters).1 >= 1);
    assert_eq!(Want::new(&table, vec![60]).left, [0], "a replica's row is not cached");
    // Without a hedged read in the budget, the read waits for the frozen node, here until the request's deadline.
    while table.topology.budget.take() {}
    let mut wants = [Want::new(&table, vec![70])];
    read(&mut wants, Some(Instant::now() + Duration::from_millis(300)));
    assert_eq!(wants[0].left, [0]);
    assert_eq!(hedges(&clusters).0 - hedged_before, 1);
    primary.signal("-CONT");
    assert_eq!(read_one(&table, &[70]).0, row(70));
}

#[test]
fn a_replica_that_is_not_in_sync_is_not_asked() {
    let Some((primary, replica, clusters, table)) = primary_and_replica(Some("{es:m/t/f/"), 200) else { return };
    let is_in_sync = |time| clusters.set_in_sync([("127.0.0.1".to_owned(), replica.port, time)]);
    is_in_sync(Duration::ZERO);
    let hedged_before = hedges(&clusters).0;
    (0..100).for_each(|_| table.topology.budget.earn());
    primary.signal("-STOP");
    let mut wants = [Want::new(&table, vec![60])];
    // The primary is frozen. The replica has the row, but is not in sync, so the read must not ask it.
    read(&mut wants, Some(Instant::now() + Duration::from_millis(700)));
    assert_eq!((&wants[0].left[..], hedges(&clusters).0), (&[0][..], hedged_before));
    is_in_sync(Duration::from_secs(3600));
    assert_eq!(read_one(&table, &[60]), (rows_of(&[60]), vec![], String::new()));
    primary.signal("-CONT");
}

#[test]
fn answers_that_come_after_the_replicas_are_never_taken_for_later_rows() {
    // The test's node timeout is 2 seconds, not 50, because a read may wait that long for the frozen node if a busy
    // machine connects to the second node too late.
    let Some((primary, _replica, clusters, table)) = primary_and_replica(Some("{es:m/t/f/"), 2_000) else { return };
    let all: Vec<u64> = (0..ROWS as u64).collect();
    for turn in 0..20 {
        (0..40).for_each(|_| table.topology.budget.earn());
        primary.signal("-STOP");
        let some = [turn, 90 - turn, 40 + turn];
        assert_eq!(read_one(&table, &some).0, rows_of(&some));
        if turn % 3 == 0 {
            assert_eq!(read_one(&table, &[93]).0, row(93), "the primary owes the answers of two reads");
        }
        primary.signal("-CONT");
        assert_eq!(read_one(&table, &all), (rows_of(&all), vec![], String::new()));
        clusters.forget("m", 1, "t", None);
    }
    // At least one hedged read must have got its rows from the second node, before the frozen first node answered. On a
    // busy machine, other reads give up the frozen node before their hedged read is due.
    assert!(hedges(&clusters).1 >= 1);
}

#[test]
fn a_replica_without_the_versions_rows_is_not_believed() {
    // The replica has no rows of the table version that the test reads, only rows of another version.
    let Some((primary, _replica, clusters, table)) = primary_and_replica(Some("{es:m/t/e/"), 50_000) else { return };
    let hedged_before = hedges(&clusters).0;
    (0..40).for_each(|_| table.topology.budget.earn());
    primary.signal("-STOP");
    let thaw = std::thread::spawn({
        let process = primary.process.id().to_string();
        move || {
            std::thread::sleep(Duration::from_millis(500));
            assert!(Command::new("kill").args(["-CONT", &process]).status().unwrap().success());
        }
    });
    let (rows, left, _) = read_one(&table, &[60, 50]);
    thaw.join().unwrap();
    assert_eq!((rows, left), (rows_of(&[60, 50]), vec![]));
    let (asked, won, errors) = hedges(&clusters);
    assert_eq!((asked - hedged_before, won, errors), (1, 0, 0));
    assert_eq!(Want::new(&table, vec![60]).left, [0_u32; 0], "the primary's row is cached");
}

#[test]
fn a_row_that_only_a_replica_lacks_is_not_lost() {
    // A replica lacks a key that has moved away with its slot. Only the primary, which is frozen, knows that.
    let Some((primary, _replica, clusters, table)) = primary_and_replica(Some("{es:m/t/e/"), 200) else { return };
    primary.signal("-STOP");
    let mut wants = [Want::new(&table, vec![60])];
    let why = read(&mut wants, Some(Instant::now() + Duration::from_millis(900)));
    assert_eq!(wants[0].left, [0]);
    assert!(why.ends_with("timed out"), "{why}");
    assert_eq!(clusters.lost("m", 1, "t").0, [0_u64; 0]);
    primary.signal("-CONT");
    let (rows, left, _) = read_one(&table, &[60]);
    assert_eq!((rows, left), (rows_of(&[60]), vec![]));
}

#[test]
fn a_replica_that_was_asked_already_gives_the_rows_of_a_node_that_is_given_up() {
    let Some((primary, replica, clusters, table)) = primary_and_replica(Some("{es:m/t/f/"), 50_000) else { return };
    (0..100).for_each(|_| table.topology.budget.earn());
    // After the next read, both nodes have an idle connection, and the frozen primary owes answers on its connection.
    primary.signal("-STOP");
    assert_eq!(read_one(&table, &[70]).0, row(70));
    let hedged = hedges(&clusters).0;
    replica.signal("-STOP");
    let change = std::thread::spawn({
        let (dying, process) = (primary.process.id().to_string(), replica.process.id().to_string());
        move || {
            std::thread::sleep(Duration::from_millis(300));
            assert!(Command::new("kill").args(["-KILL", &dying]).status().unwrap().success());
            std::thread::sleep(Duration::from_millis(300));
            assert!(Command::new("kill").args(["-CONT", &process]).status().unwrap().success());
        }
    });
    let (rows, left, _) = read_one(&table, &[60, 50]);
    change.join().unwrap();
    assert_eq!((rows, left), (rows_of(&[60, 50]), vec![]));
    // On a busy machine the primary may end before the second node is asked.
    let is_asked = hedges(&clusters).0 > hedged;
    assert!(!is_asked || clusters.counts()[0].retries == 0, "no further round was needed");
}

#[test]
fn a_signal_ends_no_read() {
    extern "C" fn ignore(_: libc::c_int) {}
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let clusters = Clusters::new(0);
    let mut description = server.description("{es:m/t/f/", Vec::new());
    (description.address.timeout_ms, description.address.node_timeout_ms) = (60_000, 50_000);
    // Without hedged reads the wait is in the read itself.
    description.address.hedge_percent = 0;
    let table = clusters.open("m", 1, "t", ROWS, &description);
    assert_eq!(read_one(&table, &[1]).0, row(1));
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR2, ignore as *const () as libc::sighandler_t) };
    server.signal("-STOP");
    // SAFETY: no argument.
    let reader = unsafe { libc::pthread_self() };
    let signals = std::thread::spawn({
        let process = server.process.id().to_string();
        move || {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(40));
                // SAFETY: the reader waits for this thread's end.
                unsafe { libc::pthread_kill(reader, libc::SIGUSR2) };
            }
            assert!(Command::new("kill").args(["-CONT", &process]).status().unwrap().success());
        }
    });
    assert_eq!(read_one(&table, &[2]), (rows_of(&[2]), vec![], String::new()));
    signals.join().unwrap();
    assert_eq!(clusters.counts()[0].retries, 0);
}

#[test]
fn the_map_of_slots_is_asked_for_without_a_read() {
    let Some(server) = Server::start(None) else { return };
    let clusters = Clusters::new(0);
    let table = clusters.open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    assert!(table.topology.map().holders.is_empty());
    clusters.refresh();
    assert_eq!(table.topology.map().holders, [[server.node()]]);
}

#[test]
fn a_node_that_closes_a_connection_while_it_is_asked_for_the_map_of_slots_has_not_failed() {
    let Some(server) = Server::start(None) else { return };
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::new("127.0.0.1", proxy.local_addr().unwrap().port());
    let description = RemoteDescription { address: address(node.port), ..server.description("{es:m/t/f/", Vec::new()) };
    let clusters = Clusters::new(0);
    let table = clusters.open("m", 1, "t", ROWS, &description);
    let port = server.port;
    std::thread::spawn(move || {
        let mut ping = [0; 14];
        proxy.accept().unwrap().0.read_exact(&mut ping).unwrap();
        let (mut reader, mut node) = (proxy.accept().unwrap().0, TcpStream::connect(("127.0.0.1", port)).unwrap());
        let (mut answers, mut answered) = (node.try_clone().unwrap(), reader.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut reader, &mut node));
        let _ = std::io::copy(&mut answers, &mut answered);
    });
    let told = table.topology.refresh(Instant::now() + Duration::from_secs(60), true, None);
    assert_eq!(told.err().map(|why| why.text), None);
    assert_eq!(table.topology.map().holders, [[node.clone()]]);
    assert!(!table.topology.is_down(&node));
}

#[test]
fn rows_of_a_former_primary_leave_the_cache() {
    let Some(server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let clusters = Clusters::new(1 << 20);
    let table = clusters.open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    let (topology, mut primaries) = (&table.topology, Vec::new());
    topology.set_one_holder(vec![server.node()]);
    assert_eq!(read_one(&table, &[1, 2]).0, rows_of(&[1, 2]));
    for _ in 0..2 {
        topology.forget_moved(&mut primaries);
        assert_eq!(Want::new(&table, vec![1, 2]).left, [0_u32; 0], "the primary is the same");
    }
    // The read of row 3 begins before the slot map changes, so it does not cache the row, which may be that of the
    // former primary.
    let mut begun = [Want::new(&table, vec![3])];
    topology.set_one_holder(vec![Node::new("127.0.0.1", 1), server.node()]);
    topology.forget_moved(&mut primaries);
    topology.set_one_holder(vec![server.node()]);
    read(&mut begun, None);
    assert_eq!(begun[0].rows, rows_of(&[3]));
    assert_eq!(Want::new(&table, vec![1, 2, 3]).left, [0, 1, 2]);
}

#[test]
fn a_cache_is_filled_until_its_deadline() {
    let Some(mut server) = Server::start(None) else { return };
    server.write("{es:m/t/f/", None);
    let description = server.description("{es:m/t/f/", Vec::new());
    let (without, clusters) = (Clusters::new(0), Clusters::new(1 << 20));
    let soon = || Instant::now() + Duration::from_secs(60);
    let table = clusters.open("m", 1, "t", ROWS, &description);
    let _bare = without.open("m", 1, "t", ROWS, &description);
    assert_eq!(without.fill("{es:m/t/f/", 1, &[1], soon()), 0);
    assert_eq!(clusters.fill("{es:m/t/f/", 2, &[1], soon()), 0, "the version is not open");
    assert_eq!(clusters.fill("{es:m/t/f/", 1, &[7, ROWS as u64, 3, u64::MAX], soon()), 2);
    assert_eq!(clusters.cache_counts().unwrap().rows, 2);
    assert_eq!(clusters.fill("{es:m/t/f/", 1, &[8], Instant::now()), 0, "the time is over");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert_eq!(clusters.fill("{es:m/t/f/", 1, &[8, 9], soon()), 0);
    let (rows, left, _) = read_one(&table, &[3, 7]);
    assert_eq!((rows, left), (rows_of(&[3, 7]), vec![]));
}

#[test]
fn a_full_cache_keeps_the_rows_that_are_read_often() {
    let cache = cache::Cache::new(200 * (8 + 96), 8);
    let read = |row: u64| {
        let mut bytes = [0; 8];
        if !cache.copy(1, row, &mut bytes) {
            cache.offer(1, row, &row.to_le_bytes());
            return false;
        }
        assert_eq!(bytes, row.to_le_bytes());
        true
    };
    let mut hits = 0;
    for cold in 1000_u64..20_000 {
        hits += usize::from(read(cold % 20));
        read(cold);
    }
    assert!(hits > 18_000, "{hits} of 19000 reads of 20 hot rows were hits");
    let counts = cache.counts();
    assert!(counts.bytes <= 200 * (8 + 96) && counts.evictions > 10_000, "{counts:?}");
}

#[test]
fn a_node_that_sends_arrays_within_arrays_ends_its_connection_and_not_the_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::new("127.0.0.1", listener.local_addr().unwrap().port());
    let sending = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut ping = [0; 14];
        socket.read_exact(&mut ping).unwrap();
        // The reader may close the connection before it has read all.
        let _ = socket.write_all(&b"*1\r\n".repeat(1 << 20));
    });
    let until = Instant::now() + Duration::from_secs(60);
    let error = Connection::open(&node, false, &address(node.port), until).err().unwrap();
    assert_eq!(error.to_string(), "the node sent arrays within too many arrays");
    sending.join().unwrap();
}

#[test]
fn a_device_in_place_of_the_password_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::new("127.0.0.1", listener.local_addr().unwrap().port());
    let address = Address { password_file: "/dev/null".to_owned(), ..address(node.port) };
    let error = Connection::open(&node, false, &address, Instant::now() + Duration::from_secs(60)).err().unwrap();
    assert_eq!(error.to_string(), "password_file /dev/null is no plain file");
}

#[test]
fn the_depth_of_an_answer_is_that_of_its_arrays() {
    let deep = |before: &str, times: usize| format!("{}:1\r\n", before.repeat(times));
    for before in [
        "*1\r\n",
        "*2\r\n:7\r\n",
        "*3\r\n$-1\r\n$4\r\n\r\n*1\r\n",
        "*4\r\n*-1\r\n*0\r\n+a\rb\r\n",
        "*2\r\n*1\r\n-x\r\n",
    ] {
        assert!(!is_too_deep(deep(before, 31).as_bytes()), "{before:?}");
        assert!(is_too_deep(deep(before, 33).as_bytes()), "{before:?}");
    }
    let wide = "*100\r\n".to_owned() + &"*1\r\n*1\r\n:1\r\n".repeat(100);
    // Bytes within a string, and bytes of the next answer, are not counted.
    for shallow in [wide, format!("$4000\r\n{}", deep("*1\r\n", 2000)), format!(":1\r\n{}", deep("*1\r\n", 2000))] {
        assert!(!is_too_deep(shallow.as_bytes()));
    }
}

fn words(items: &[&str]) -> OwnedFrame {
    OwnedFrame::Array(items.iter().map(|item| OwnedFrame::BulkString(item.as_bytes().to_vec())).collect())
}

#[test]
fn the_map_of_slots_has_primaries_first_and_no_failed_node() {
    let node = |ip: &str, role: &str, health: &str| {
        words(&[
            "id", "x", "port", "7000", "ip", ip, "endpoint", "", "role", role, "health", health, "tls-port", "7001",
        ])
    };
    let shard = |slots: [i64; 2], nodes: Vec<OwnedFrame>| {
        OwnedFrame::Array(vec![
            OwnedFrame::BulkString(b"slots".to_vec()),
            OwnedFrame::Array(slots.map(OwnedFrame::Integer).to_vec()),
            OwnedFrame::BulkString(b"nodes".to_vec()),
            OwnedFrame::Array(nodes),
        ])
    };
    let told = OwnedFrame::Array(vec![
        shard([0, 99], vec![node("b", "replica", "online"), node("a", "master", "online")]),
        shard([100, 16383], vec![node("c", "master", "fail"), node("d", "replica", "online")]),
    ]);
    let asked = Node::new("asked", 1);
    let map = map_of(&told, &asked, false).unwrap();
    assert_eq!(map.nodes(99), [Node::new("a", 7000), Node::new("b", 7000)]);
    assert_eq!(map.nodes(100), [Node::new("d", 7000)]);
    assert_eq!((map.primary(99), map.primary(100)), (Some(&Node::new("a", 7000)), None), "d is a replica");
    assert_eq!(map_of(&told, &asked, true).unwrap().nodes(0)[0], Node::new("a", 7001));
    assert!(map_of(&OwnedFrame::Array(vec![words(&["slots"])]), &asked, false).is_none());
}

#[test]
fn commands_are_those_of_the_layout() {
    let Some(server) = Server::start(None) else { return };
    let table = Clusters::new(0).open("m", 1, "t", ROWS, &server.description("{es:m/t/f/", Vec::new()));
    let mut command = Vec::new();
    table.write_command(63, &mut command);
    let key = "{es:m/t/f/0002}00000006";
    let expected = format!("*4\r\n$8\r\nGETRANGE\r\n$23\r\n{key}\r\n$2\r\n24\r\n$2\r\n31\r\n");
    assert_eq!(String::from_utf8(command).unwrap(), expected);
    assert_eq!(table.slot(63), redis_protocol::redis_keyslot(key.as_bytes()));
}
