//! Reads rows of a request from the disk if they are not in memory.

use super::declined::Declined;
use super::effort::Effort;
use super::feature_inputs::FeatureInputs;
use super::servable::{FeaturePlan, Servable, Signature};
use super::sparse::Sparse;
use crate::tables::paged::read_rows;
use crate::tables::table::{Ints, OnBadId, Policy};

/// An id for which [`OnBadId::DefaultRow`] reads the default row.
const NO_ID: [i64; 1] = [-1];

/// Reads the rows of all features with paged tables into memory, if the thread may wait for the disk; if not, checks
/// that they are there.
///
/// # Errors
/// [`Declined::Waits`]: a row is not in memory, and the effort is not [`Effort::Wait`].
#[cold]
pub(super) fn read(
    servable: &Servable,
    plan: &Signature,
    sent: &Sparse<FeatureInputs<'_>>,
    effort: Effort<'_>,
) -> Result<(), Declined> {
    read_or_check(servable, sent.iter().flat_map(|(index, sent)| wanted(&plan.features[index], sent)), effort)
}

/// Reads the rows of one feature into memory, as [`read`] does.
pub(super) fn read_feature(
    servable: &Servable,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    effort: Effort<'_>,
) -> Result<(), Declined> {
    read_or_check(servable, wanted(feature, sent), effort)
}

/// Returns the ids whose rows a feature reads, with the number of their table: those of the request, and the default row
/// of empty rows.
fn wanted<'a>(
    feature: &'a FeaturePlan,
    sent: &'a FeatureInputs<'_>,
) -> impl Iterator<Item = (usize, Ints<'a>, Policy)> {
    let of_ids = (feature.table, sent.ids(), feature.policy);
    let of_default_row = feature
        .default_row_if_read()
        .map(|default_row| (feature.table, Ints::of(&NO_ID), Policy { on_bad_id: OnBadId::DefaultRow, default_row }));
    std::iter::once(of_ids).chain(of_default_row)
}

fn read_or_check<'a>(
    servable: &'a Servable,
    wanted: impl Iterator<Item = (usize, Ints<'a>, Policy)>,
    effort: Effort<'_>,
) -> Result<(), Declined> {
    let mut wanted = wanted.filter_map(|(table, ids, policy)| Some((servable.paged_table(table)?, ids, policy)));
    if matches!(effort, Effort::Wait(_)) {
        read_rows(wanted);
    } else if !wanted.all(|(table, ids, policy)| table.has_rows(ids, policy)) {
        return Err(Declined::Waits);
    }
    Ok(())
}

/// Reads the rows of the given ids of one paged table into memory, if the thread may wait for the disk; if not, checks
/// that the rows are there.
///
/// # Errors
/// [`Declined::Waits`]: a row is not in memory, and the thread may not wait for the disk.
pub(super) fn read_pages(
    servable: &Servable,
    table: usize,
    ids: Ints<'_>,
    policy: Policy,
    effort: Effort<'_>,
) -> Result<(), Declined> {
    read_or_check(servable, std::iter::once((table, ids, policy)), effort)
}
