//! Reads rows of a request from the disk if they are not in memory, for tables that are larger than memory.

use super::declined::Declined;
use super::effort::Effort;
use super::feature_inputs::FeatureInputs;
use super::servable::{Servable, Signature};
use crate::tables::paged::read_rows;
use crate::tables::table::{Ints, Policy};

/// Reads the rows of all features with paged tables into memory, if the thread may wait for the disk; if not, checks
/// that they are there.
///
/// # Errors
/// [`Declined::Waits`]: a row is not in memory, and the effort is not [`Effort::Wait`].
#[cold]
pub(super) fn read(
    servable: &Servable,
    plan: &Signature,
    sent: &[Option<FeatureInputs<'_>>],
    effort: Effort<'_>,
) -> Result<(), Declined> {
    let features = plan.features.iter().zip(sent);
    let mut wanted = features.filter_map(|(feature, sent)| {
        let table = servable.paged_table(feature.table)?;
        sent.as_ref().map(|sent| (table, sent.ids(), feature.policy))
    });
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
pub fn read_table(
    servable: &Servable,
    table: usize,
    ids: Ints<'_>,
    policy: Policy,
    effort: Effort<'_>,
) -> Result<(), Declined> {
    let Some(paged) = servable.paged_table(table) else { return Ok(()) };
    if matches!(effort, Effort::Wait(_)) {
        read_rows(std::iter::once((paged, ids, policy)));
    } else if !paged.has_rows(ids, policy) {
        return Err(Declined::Waits);
    }
    Ok(())
}
