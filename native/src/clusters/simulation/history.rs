//! Checks what the reads of a run got against what was written. The run is simulated, or one of real processes, whose reads
//! are in a text.

use std::collections::BTreeMap;

use super::Time;
use super::server::Written;

/// A row that a read got: the number of the change that wrote it.
#[derive(Clone, Copy)]
pub(super) struct Got {
    pub(super) begun: Time,
    pub(super) ended: Time,
    pub(super) cell: usize,
    pub(super) number: u64,
    /// How old the row may be when the read begins.
    pub(super) oldest: Time,
}

/// A failover: reads that end after `from` may lack changes that were acknowledged from `since` until `until`, unless all
/// replicas had them, or they were made on the primary that took over. `place`: its shard and the time of its takeover;
/// None: any.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    pub(super) from: Time,
    pub(super) since: Time,
    pub(super) until: Time,
    pub(super) place: Option<(usize, Time)>,
}

impl Loss {
    /// Says whether all that was written of a change in this shard was written after the takeover.
    fn spares(&self, written: &Written) -> bool {
        let Some((shard, at)) = self.place else { return false };
        let mut here = written.places.iter().filter(|(one, _)| *one == shard).peekable();
        here.peek().is_some() && here.all(|(_, since)| *since >= at)
    }
}

/// Checks that no row is older than it may be, also not older than a row that a read got before. Only a failover may lose
/// a change that not all replicas had. Returns the first fault, and how many rows were older than one that was read
/// before.
///
/// `reads` are in the order of their ends; `written` has changes by cell and number.
pub(super) fn check(
    reads: &[Got],
    written: &BTreeMap<(usize, u64), Written>,
    losses: &[Loss],
) -> (Option<String>, u32) {
    let (mut fault, mut num_back) = (None, 0);
    let mut of_cells = BTreeMap::<usize, Vec<Got>>::new();
    for &read in reads {
        let Got { begun, ended, cell, number, oldest } = read;
        let before = of_cells.entry(cell).or_default();
        let is_lost = |loss: &Loss, at: Time| loss.from <= ended && (loss.since..=loss.until).contains(&at);
        let is_kept = |at: Time| !losses.iter().any(|loss| is_lost(loss, at));
        let is_over = |at: Time| at + oldest < begun;
        let is_due = |at: Time| is_over(at) && is_kept(at);
        for (&(_, newer), written) in written.range((cell, number + 1)..=(cell, u64::MAX)) {
            let is_lost = |at: Time| losses.iter().any(|loss| is_lost(loss, at) && !loss.spares(written));
            let is_due = |at: Time| is_over(at) && !is_lost(at);
            if written.settled.is_some_and(is_over) || written.acknowledged.is_some_and(is_due) {
                let told = format!("row {cell} is number {number} at {begun:?}, and {newer} was written: {written:?}");
                fault.get_or_insert(told);
            }
        }
        let mut newer = before.iter().filter(|one| one.number > number);
        num_back += u32::from(newer.clone().any(|one| one.ended < begun));
        if let Some(one) = newer.find(|one| is_due(one.ended)) {
            let told = format!("row {cell} is number {number} at {begun:?}, and was {} at {:?}", one.number, one.ended);
            fault.get_or_insert(told);
        }
        before.push(read);
    }
    (fault, num_back)
}

/// Checks a history of lines `change CELL NUMBER ACKNOWLEDGED SETTLED`, `read CELL NUMBER BEGUN ENDED OLDEST` and
/// `loss FROM UNTIL`. Times are in microseconds, `-` is for none.
fn check_text(text: &str) -> (Option<String>, u32) {
    let (mut reads, mut written, mut losses) = (Vec::new(), BTreeMap::new(), Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next().expect("a line has a kind");
        let numbers: Vec<Option<u64>> = words.map(|word| word.parse().ok()).collect();
        let time = |place: usize| numbers[place].map(Time::from_micros);
        let at = |place: usize| time(place).expect("a time");
        let row = || (numbers[0].expect("a cell") as usize, numbers[1].expect("a number"));
        match kind {
            "change" => {
                _ = written.insert(row(), Written { acknowledged: time(2), settled: time(3), places: Vec::new() });
            }
            "read" => reads.push(Got { cell: row().0, number: row().1, begun: at(2), ended: at(3), oldest: at(4) }),
            "loss" => losses.push(Loss { from: at(0), since: Time::ZERO, until: at(1), place: None }),
            other => panic!("a history has no line {other}"),
        }
    }
    check(&reads, &written, &losses)
}

#[test]
fn each_kind_of_fault_is_found_in_a_history() {
    let at = |begun: u64, number: u64| format!("read 5 {number} {begun} {} 2000\n", begun + 100);
    let of = |lines: &[&str]| {
        let (fault, num_back) = check_text(&lines.concat());
        (fault.unwrap_or_default(), num_back)
    };
    let none = (String::new(), 0);
    let (acknowledged, settled, loss) = ("change 5 7 1000 -\n", "change 5 7 1000 1500\n", "loss 500 1500\n");
    assert_eq!(of(&[acknowledged, &at(3000, 6)]), none);
    assert!(of(&[acknowledged, &at(3001, 6)]).0.contains("and 7 was written"));
    assert_eq!(of(&[acknowledged, &at(3001, 6), loss]), none, "the failover may have lost the change");
    assert!(of(&[acknowledged, &at(3001, 6), "loss 3102 3102\n"]).0.contains("and 7 was"), "it came after the read");
    assert_eq!(of(&[settled, &at(3501, 6).replace("2000", "2001"), "loss 500 1500\n"]), none);
    assert!(of(&[settled, &at(3501, 6), loss]).0.contains("and 7 was written"), "no failover loses it");
    let unwritten = "change 5 7 - -\n";
    assert_eq!(of(&[unwritten, &at(0, 7), &at(2100, 6)]), (String::new(), 1));
    assert!(of(&[unwritten, &at(0, 7), &at(2101, 6)]).0.contains("and was 7"));
    assert_eq!(of(&[unwritten, &at(0, 7), &at(50, 6), &at(9000, 7)]), none, "two reads at the same time");
}

#[test]
fn a_takeover_loses_no_change_that_the_new_primary_made() {
    let at = Time::from_secs;
    let read = Got { begun: at(9), ended: at(9), cell: 5, number: 6, oldest: at(2) };
    let loss = Loss { from: at(3), since: at(0), until: at(7), place: Some((1, at(3))) };
    let is_excused = |places: &[(usize, Time)]| {
        let written = Written { acknowledged: Some(at(4)), settled: None, places: places.to_vec() };
        check(&[read], &BTreeMap::from([((5, 7), written)]), &[loss]).0.is_none()
    };
    assert!(is_excused(&[(1, at(0)), (0, at(0))]), "the former primary made it");
    assert!(is_excused(&[(1, at(3)), (1, at(0))]), "its entry is lost");
    assert!(is_excused(&[(0, at(5)), (0, at(5))]), "a slot moved to this shard later");
    assert!(!is_excused(&[(1, at(3)), (0, at(0))]));
}

/// `HISTORY=PATH cargo test --lib clusters::simulation::history` checks the history that `loadtest.cluster_faults` wrote.
#[test]
fn a_history_of_real_processes_breaks_no_promise() {
    if let Some(path) = std::env::var_os("HISTORY") {
        let (fault, num_back) = check_text(&std::fs::read_to_string(path).expect("a history"));
        println!("{num_back} rows were older than one that was read before");
        assert_eq!(fault, None);
    }
}
