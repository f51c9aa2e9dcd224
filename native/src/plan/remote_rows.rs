//! Reads the rows that a request's features need from Valkey or Redis clusters into small tables, one for each feature.
//!
//! The kernels then work on a small table as they do on a mapped one, in the same order, so answers agree to the bit.
//! The reference is `service/tables/remote_table.py`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use super::declined::Declined;
use super::effort::Effort;
use super::faults::{self, BoxedFault};
use super::feature_inputs::{FeatureInputs, bad_id};
use super::instead::Instead;
use super::rows_read::RemoteRows;
use super::servable::{FeaturePlan, LookupKind, Servable, Signature};
use crate::clusters::{self, Want};
use crate::tables::memory::Memory;
use crate::tables::table::{Dtype, Ints, Policy, Table};

/// Says whether a feature of the request reads a table whose rows lie in a Valkey or Redis cluster.
pub(super) fn reads_any(servable: &Servable, plan: &Signature, sent: &[Option<FeatureInputs<'_>>]) -> bool {
    let mut features = plan.features.iter().zip(sent);
    features.any(|(feature, sent)| sent.is_some() && servable.remote_table(feature.table).is_some())
}

/// The remote rows that a feature reads: the distinct rows, and for each id its place among these rows.
struct Distinct {
    rows: Vec<u64>,
    places: Vec<i64>,
    num_read_instead: usize,
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
    sent: &[Option<FeatureInputs<'_>>],
    is_needed: &dyn Fn(usize) -> bool,
    effort: Effort<'_>,
) -> Result<Vec<Option<RemoteRows>>, Declined> {
    let remote = |feature: &FeaturePlan| servable.remote_table(feature.table);
    let all = || plan.features.iter().zip(sent).enumerate().filter(|(index, _)| is_needed(*index));
    let features = || all().map(|(_, one)| one).filter(|(_, sent)| sent.is_some());
    let is_waiting = matches!(effort, Effort::Wait(_));
    if !is_waiting && features().any(|(feature, _)| remote(feature).is_some_and(|(table, _)| !table.has_cache())) {
        return Err(Declined::Waits);
    }
    let mut wants = Vec::new();
    let mut indexes = Vec::new();
    for (index, (feature, sent)) in all() {
        let (Some(sent), Some((table, size))) = (sent, remote(feature)) else { continue };
        let Distinct { rows, places, num_read_instead } = distinct(sent.ids(), feature.policy, size).map_err(|at| {
            // A sequence reads only the first ids of a row, and so does a combiner that truncates rows: the refused id may
            // be none of them, which the reference server knows.
            let reads_all = match feature.lookup {
                LookupKind::Gather { .. } => true,
                LookupKind::Combine(how) => !how.truncates,
                LookupKind::Sequence { .. } => false,
            };
            let input = plan.inputs.get(feature.ids).filter(|_| reads_all).map(|input| &*input.name);
            input.map_or(Declined::NotNative, |input| bad_id(servable, feature, input, sent.ids(), at).into())
        })?;
        wants.push(Want::new(table, rows));
        indexes.push((index, places, num_read_instead));
    }
    let deadline = match effort {
        Effort::Wait(waiting) => waiting.deadline,
        _ if wants.iter().any(|want| !want.left.is_empty()) => return Err(Declined::Waits),
        _ => None,
    };
    let why = clusters::read(&mut wants, deadline);
    let mut found: Vec<Option<RemoteRows>> = plan.features.iter().map(|_| None).collect();
    for (want, (index, places, num_read_instead)) in wants.into_iter().zip(indexes) {
        let feature = &plan.features[index];
        let table = &servable.tables()[feature.table];
        let (num_stale, num_default) = (want.num_stale, want.left.len());
        let Some((rows, count)) = with_default_rows(want, feature.policy.default_row) else {
            return Err(failure(servable.table_name(feature.table), &why, deadline).into());
        };
        let small = small_table(table, rows, count, places, num_read_instead)?;
        found[index] = Some(RemoteRows { num_stale, num_default, ..small });
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

/// Maps ids to distinct rows by a feature's policy; `size` is V, the number of rows of the table.
///
/// # Errors
/// The position of an id that the policy refuses.
fn distinct(ids: Ints<'_>, policy: Policy, size: usize) -> Result<Distinct, usize> {
    let size = size as u64;
    let mut found = Distinct { rows: Vec::new(), places: Vec::with_capacity(ids.len()), num_read_instead: 0 };
    let mut known: HashMap<u64, i64, quick_cache::DefaultHashBuilder> =
        HashMap::with_capacity_and_hasher(ids.len(), quick_cache::DefaultHashBuilder::default());
    for (at, id) in ids.iter().enumerate() {
        let row = if id.cast_unsigned() < size {
            id
        } else {
            let Some(row) = policy.replacement(id, size).map_err(|_| at)? else {
                found.places.push(-1);
                continue;
            };
            found.num_read_instead += 1;
            row
        };
        let row = row.cast_unsigned();
        let next = found.rows.len() as u64;
        let place = match known.entry(row) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                found.rows.push(row);
                *place.insert(next.cast_signed())
            }
        };
        found.places.push(place);
    }
    Ok(found)
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

fn small_table(
    table: &Table,
    octets: Vec<u8>,
    count: usize,
    places: Vec<i64>,
    num_read_instead: usize,
) -> Result<RemoteRows, Declined> {
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
    RemoteRows::new(table, Memory::of(rows), Memory::of(scales), count, places, num_read_instead)
}

fn failure(table: &str, why: &str, deadline: Option<Instant>) -> BoxedFault {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        faults::late_for_rows(table)
    } else {
        faults::rows_unreadable(table, why.trim_end_matches('.'))
    }
}
