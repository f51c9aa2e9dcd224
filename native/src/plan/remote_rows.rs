//! Reads the rows that a request's features need from Valkey or Redis clusters into small tables, one for each feature.
//!
//! The kernels then work on a small table as they do on a mapped one, in the same order, so answers agree to the bit.

use std::time::Instant;

use super::declined::Declined;
use super::effort::Effort;
use super::faults::{self, BoxedFault};
use super::feature_inputs::{FeatureInputs, refused};
use super::feature_lookup::check_ids;
use super::notes::Instead;
use super::paged_rows::read_pages;
use super::rows_read::RemoteRows;
use super::servable::{FeaturePlan, Servable, Signature};
use super::small_table::Distinct;
use super::sparse::Sparse;
use crate::clusters::{self, Want};
use crate::tables::memory::Memory;
use crate::tables::table::{Dtype, Ints, LookupError, OnBadId, OutputRows, Policy, Table};

/// Says whether a feature of the request reads a table whose rows lie in a Valkey or Redis cluster.
pub(super) fn reads_any(servable: &Servable, plan: &Signature, sent: &Sparse<FeatureInputs<'_>>) -> bool {
    plan.is_remote && sent.iter().any(|(index, _)| servable.remote_table(plan.features[index].table).is_some())
}

/// Reads from Valkey or Redis clusters the rows of each feature; returns None for a feature of a mapped table, and for
/// a feature that the request lacks.
///
/// `is_needed` says whether a feature's rows are needed: an output that the request does not want needs none.
///
/// # Errors
/// [`Declined::Waits`]: a row must be read from a cluster, and the effort is not [`Effort::Wait`].
/// [`Declined::Fault`]: rows could not be read, or the policy refuses an id.
pub(super) fn read(
    servable: &Servable,
    plan: &Signature,
    sent: &Sparse<FeatureInputs<'_>>,
    is_needed: &dyn Fn(usize) -> bool,
    effort: Effort<'_>,
) -> Result<Vec<Option<RemoteRows>>, Declined> {
    let remote = |feature: &FeaturePlan| servable.remote_table(feature.table);
    let all = || sent.iter().filter(|(index, _)| is_needed(*index));
    let mut features = all().map(|(index, _)| &plan.features[index]);
    let is_waiting = matches!(effort, Effort::Wait(_));
    if !is_waiting && features.any(|feature| remote(feature).is_some_and(|(table, _)| !table.has_cache())) {
        return Err(Declined::Waits);
    }
    let mut wants = Vec::new();
    let mut found_at = Vec::new();
    for (index, sent) in all() {
        let feature = &plan.features[index];
        let Some((table, size)) = remote(feature) else { continue };
        let mut distinct = Distinct::of(sent.ids(), feature.policy, size, feature.default_row_if_read());
        if distinct.has_refused {
            // The lookup may read none of the refused ids. If it reads one, the request waits for no row.
            check_ids(feature, sent).map_err(|error| refused(servable, plan, feature, sent, error))?;
        }
        wants.push(Want::new(table, std::mem::take(&mut distinct.rows)));
        found_at.push((index, distinct));
    }
    let deadline = match effort {
        Effort::Wait(waiting) => waiting.deadline,
        _ if wants.iter().any(|want| !want.left.is_empty()) => return Err(Declined::Waits),
        _ => None,
    };
    let why = clusters::read(&mut wants, deadline);
    let mut found: Vec<Option<RemoteRows>> = plan.features.iter().map(|_| None).collect();
    for (want, (index, distinct)) in wants.into_iter().zip(found_at) {
        let feature = &plan.features[index];
        let table = &servable.tables()[feature.table];
        let (num_stale, num_default) = (want.num_stale, want.left.len());
        let Some((octets, count)) = with_default_rows(want, feature.policy.default_row) else {
            return Err(failure(servable.table_name(feature.table), &why, deadline).into());
        };
        let mut rows = remote_rows(table, octets, distinct, count);
        (rows.num_stale, rows.num_default) = (num_stale, num_default);
        found[index] = Some(rows);
    }
    Ok(found)
}

/// Returns the tables whose rows could not all be read, each once; `remote` has the rows of each feature.
pub(super) fn instead(servable: &Servable, plan: &Signature, remote: &[Option<RemoteRows>]) -> Vec<Instead> {
    let mut found: Vec<Instead> = Vec::new();
    for (feature, rows) in plan.features.iter().zip(remote) {
        let Some(rows) = rows.as_ref().filter(|rows| rows.num_stale + rows.num_default > 0) else { continue };
        let name = servable.table_name(feature.table);
        if !found.iter().any(|one| one.table == name) {
            found.push(Instead { table: name.to_owned(), stale_rows: 0, default_rows: 0 });
        }
        for one in found.iter_mut().filter(|one| one.table == name) {
            one.stale_rows += rows.num_stale;
            one.default_rows += rows.num_default;
        }
    }
    found
}

/// Writes rows of one table as float32 to `out`, by their ids, wherever the table's rows lie. Returns the tables whose
/// rows could not all be read.
///
/// # Errors
/// [`Declined::Fault`]: an id lies outside the table, or rows could not be read. [`Declined::Waits`]: rows must be read
/// from a cluster or the disk, and the effort is not [`Effort::Wait`].
///
/// # Panics
/// There are fewer ids than rows of `out`, or a row of `out` is too short.
pub fn read_table(
    servable: &Servable,
    table: usize,
    ids: Ints<'_>,
    out: OutputRows<'_>,
    effort: Effort<'_>,
) -> Result<Vec<Instead>, Declined> {
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    let size = servable.vocabulary_size(table);
    let refused = |error| {
        let (LookupError::BadId(position) | LookupError::TooMany(position)) = error;
        faults::bad_id("ids", ids.get(position), position, i64::try_from(size).unwrap_or(i64::MAX) - 1)
    };
    let Some((remote, _)) = servable.remote_table(table) else {
        read_pages(servable, table, ids, policy, effort)?;
        servable.tables()[table].gather_float32(ids, policy, out).map_err(refused)?;
        return Ok(Vec::new());
    };
    let checked = Table::without_columns(size).gather(ids, policy, OutputRows::new(&mut [], 0, 0, 0, ids.len()));
    checked.map_err(refused)?;
    let mut distinct = Distinct::of(ids, policy, size, None);
    let mut want = [Want::new(remote, std::mem::take(&mut distinct.rows))];
    let deadline = match effort {
        Effort::Wait(waiting) => waiting.deadline,
        _ if want[0].left.is_empty() => None,
        _ => return Err(Declined::Waits),
    };
    let why = clusters::read(&mut want, deadline);
    let [want] = want;
    if !want.left.is_empty() {
        return Err(failure(servable.table_name(table), &why, deadline).into());
    }
    let (num_stale, count) = (want.num_stale, want.ids.len());
    let rows = remote_rows(&servable.tables()[table], want.rows, distinct, count);
    let reading = rows.small.reading();
    reading.table.gather_float32(reading.ids, policy, out).map_err(refused)?;
    let name = servable.table_name(table).to_owned();
    let instead = Instead { table: name, stale_rows: num_stale, default_rows: 0 };
    Ok(if num_stale > 0 { vec![instead] } else { Vec::new() })
}

/// Copies the table's default row in place of each row that could not be read. Returns the bytes of all rows of `want`
/// and how many rows these are; None if a row could not be read and the table has no default row with the number
/// `default_row`.
fn with_default_rows(mut want: Want<'_>, default_row: usize) -> Option<(Vec<u8>, usize)> {
    if !want.left.is_empty() {
        let row = want.table.default_row(default_row as u64)?;
        for &position in &want.left {
            want.rows[position as usize * row.len()..][..row.len()].copy_from_slice(&row);
        }
        want.table.count_default_rows(want.left.len());
    }
    Some((want.rows, want.ids.len()))
}

fn remote_rows(table: &Table, octets: Vec<u8>, distinct: Distinct, count: usize) -> RemoteRows {
    let row_bytes = table.row_bytes();
    let (rows, scales): (Vec<u8>, Vec<u8>) = match table.dtype {
        // In the bytes of a quantized row from a Valkey or Redis cluster, the scale comes after the numbers.
        Dtype::Int8 | Dtype::Int4 => {
            let pieces = || octets.chunks_exact(row_bytes).map(|row| row.split_at(row_bytes - 4));
            (
                pieces().flat_map(|(numbers, _)| numbers).copied().collect(),
                pieces().flat_map(|(_, scale)| scale).copied().collect(),
            )
        }
        _ => (octets, Vec::new()),
    };
    RemoteRows::new(table, Memory::of(rows), Memory::of(scales), distinct, count)
}

fn failure(table: &str, why: &str, deadline: Option<Instant>) -> BoxedFault {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        faults::late_for_rows(table)
    } else {
        faults::rows_unreadable(table, why.trim_end_matches('.'))
    }
}
