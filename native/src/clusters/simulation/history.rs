//! Checks what the reads of a run got against what was written.

use std::collections::BTreeMap;

use super::Time;
use super::nodes::NODE_TIMEOUT;
use super::server::Written;

/// A row that a read got: the number of the change that wrote it.
pub(super) struct Got {
    pub(super) begun: Time,
    pub(super) ended: Time,
    pub(super) cell: usize,
    pub(super) number: u64,
    /// How old the row may be when the read begins.
    pub(super) oldest: Time,
}

/// Checks that no row is older than it may be, also not older than a row that a read got before. Only a failover may lose
/// a change that not all replicas had. Returns the first fault, and how many rows were older than one that was read
/// before.
pub(super) fn check(
    reads: &[Got],
    written: &BTreeMap<(usize, u64), Written>,
    failovers: &[Time],
) -> (Option<String>, u32) {
    let is_kept = |at: Time| !failovers.iter().any(|failover| *failover + NODE_TIMEOUT >= at);
    let (mut fault, mut num_back) = (None, 0);
    for (place, read) in reads.iter().enumerate() {
        let Got { begun, cell, number, oldest, .. } = *read;
        let is_over = |at: Time| at + oldest < begun;
        let is_due = |at: Time| is_over(at) && is_kept(at);
        for (&(_, newer), written) in written.range((cell, number + 1)..=(cell, u64::MAX)) {
            if written.settled.is_some_and(is_over) || written.acknowledged.is_some_and(is_due) {
                let told = format!("row {cell} is number {number} at {begun:?}, and {newer} was written: {written:?}");
                fault.get_or_insert(told);
            }
        }
        let mut before = reads[..place].iter().filter(|one| one.cell == cell && one.number > number);
        num_back += u32::from(before.clone().any(|one| one.ended < begun));
        if let Some(one) = before.find(|one| is_due(one.ended)) {
            let told = format!("row {cell} is number {number} at {begun:?}, and was {} at {:?}", one.number, one.ended);
            fault.get_or_insert(told);
        }
    }
    (fault, num_back)
}

#[cfg(test)]
mod tests {
    use super::super::ms;
    use super::*;

    fn got(begun: u64, number: u64) -> Got {
        Got { begun: ms(begun), ended: ms(begun + 100), cell: 5, number, oldest: ms(2000) }
    }

    #[test]
    fn each_kind_of_fault_is_found_in_a_history() {
        let acknowledged = Written { acknowledged: Some(ms(1000)), settled: None };
        let settled = Written { settled: Some(ms(1500)), ..acknowledged };
        let of = |reads: &[Got], written: Written, failovers: &[Time]| {
            let (fault, num_back) = check(reads, &BTreeMap::from([((5, 7), written)]), failovers);
            (fault.unwrap_or_default(), num_back)
        };
        let none = (String::new(), 0);
        assert_eq!(of(&[got(3000, 6)], acknowledged, &[]), none);
        assert!(of(&[got(3001, 6)], acknowledged, &[]).0.contains("and 7 was written"));
        assert_eq!(of(&[got(3001, 6)], acknowledged, &[ms(500)]), none, "the failover may have lost the change");
        assert_eq!(of(&[got(3501, 6)], acknowledged, &[ms(500)]), none);
        assert!(of(&[got(3501, 6)], settled, &[ms(500)]).0.contains("and 7 was written"), "no failover loses it");
        let unwritten = Written::default();
        assert_eq!(of(&[got(0, 7), got(2100, 6)], unwritten, &[]), (String::new(), 1));
        assert!(of(&[got(0, 7), got(2101, 6)], unwritten, &[]).0.contains("and was 7"));
        assert_eq!(of(&[got(0, 7), got(50, 6), got(9000, 7)], unwritten, &[]), none, "two reads at the same time");
    }
}
