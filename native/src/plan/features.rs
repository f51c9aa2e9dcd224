//! Looks up the vectors of one feature, and writes them to an answer or to a tensor that is fed to a graph.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::batch::BatchPlace;
use super::declined::Declined;
use super::effort::{Effort, Waiting};
use super::faults::{self, BoxedFault};
use super::feature_inputs::{FeatureInputs, feature_inputs, refused, uses};
use super::inputs::{Dims, Inputs, Tensor};
use super::instead::Instead;
use super::paged_rows::read_table;
use super::remote_rows;
use super::rows_read::{RemoteRows, RowsRead};
use super::servable::{FeaturePlan, LookupKind, NeedsIds, Servable, Signature};
use crate::tables::table::{Ints, LookupError, LookupResult, OnBadId, OutputRows, Table, Weights};

pub(super) fn vector_dims(
    servable: &Servable,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    is_flat: bool,
) -> Result<Dims, Declined> {
    let dim = servable.tables()[feature.table].embedding_dim;
    let rows = sent.rows();
    let mut dims: Dims = match feature.lookup {
        LookupKind::Combine(_) => [rows, dim].into_iter().collect(),
        LookupKind::Sequence { length } => [rows, length, dim].into_iter().collect(),
        LookupKind::Gather { ids_rank } => {
            if ids_rank.is_some_and(|rank| sent.sizes.len() != rank) {
                return Err(Declined::NotNative);
            }
            sent.sizes.iter().copied().chain([dim]).collect()
        }
    };
    if is_flat && dims.len() > 2 {
        let width =
            dims[1..].iter().try_fold(1_usize, |size, dim| size.checked_mul(*dim)).ok_or(Declined::NotNative)?;
        dims = [dims[0], width].into_iter().collect();
    }
    Ok(dims)
}

/// Returns how many columns of an output the feature fills; a column is an index of the output's innermost dimension.
pub(super) fn vector_width(
    servable: &Servable,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    is_flat: bool,
) -> usize {
    vector_dims(servable, feature, sent, is_flat).map_or(0, |dims| dims[dims.len() - 1])
}

/// The position of one feature's vectors in an output's memory: `skip` is the offset of the first vector, `stride` the
/// distance from one row to the next, both in bytes.
pub(super) struct Placement {
    pub(super) skip: usize,
    pub(super) stride: usize,
    pub(super) is_flat: bool,
}

/// Writes the vectors of one feature to an output's memory; returns how many ids lie outside the table. `remote` has the
/// rows of a table in a cluster.
pub(super) fn read(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    remote: Option<&RemoteRows>,
    to: &mut [MaybeUninit<u8>],
    placement: &Placement,
) -> Result<usize, Declined> {
    let (table, ids, policy, read_instead) = match remote {
        None => (&servable.tables()[feature.table], sent.ids(), feature.policy, 0),
        Some(rows) => (&rows.table, rows.ids(), RemoteRows::POLICY, rows.num_read_instead),
    };
    if feature.as_stored {
        return read_stored(table, ids, to, placement, sent)
            .map_err(|error| refused(servable, plan, feature, sent, error, 0));
    }
    let row_bytes = table.embedding_dim * 4;
    let looked = match feature.lookup {
        LookupKind::Gather { .. } if placement.is_flat && sent.sizes.len() > 1 => {
            let (rows, per_row) = (sent.sizes[0], sent.sizes[1..].iter().product::<usize>());
            let mut missing = 0;
            for row in 0..rows {
                let out = OutputRows::new(to, placement.skip + row * placement.stride, row_bytes, row_bytes, per_row);
                let first = row * per_row;
                missing += table
                    .gather(ids.slice(first, first + per_row), policy, out)
                    .map_err(|error| refused(servable, plan, feature, sent, error, first))?;
            }
            Ok(missing)
        }
        LookupKind::Gather { .. } => {
            table.gather(ids, policy, OutputRows::new(to, placement.skip, placement.stride, row_bytes, ids.len()))
        }
        LookupKind::Combine(how) => {
            let splits = sent.splits().ok_or(Declined::NotNative)?;
            let weights = sent.weights.as_deref().map(Weights::new);
            let out = OutputRows::new(to, placement.skip, placement.stride, row_bytes, splits.len() - 1);
            table.combine(ids, splits, weights, &how, policy, out)
        }
        LookupKind::Sequence { length } => {
            let splits = sent.splits().ok_or(Declined::NotNative)?;
            let width = length * row_bytes;
            // If a sequence is not flattened, its rows of vectors lie end to end in the output, because
            // Servable::compile refuses a description in which such an output has a second feature.
            let stride = if placement.is_flat { placement.stride } else { width };
            table.sequence(
                ids,
                splits,
                length,
                policy,
                OutputRows::new(to, placement.skip, stride, width, splits.len() - 1),
            )
        }
    };
    let missing = looked.map_err(|error| refused(servable, plan, feature, sent, error, 0))? + read_instead;
    let drops = matches!(feature.policy.on_bad_id, OnBadId::Drop | OnBadId::DropNegative);
    if missing > 0 && feature.needs_ids != NeedsIds::None && drops {
        // The policy has dropped ids, perhaps all ids of a row that must have at least one id. Only the reference
        // server handles such a row.
        return Err(Declined::NotNative);
    }
    Ok(missing)
}

/// Copies the row of each id in the table's own dtype; refuses ids outside the table. Returns 0, the number of ids that
/// lie outside.
fn read_stored(
    table: &Table,
    ids: Ints<'_>,
    to: &mut [MaybeUninit<u8>],
    placement: &Placement,
    sent: &FeatureInputs<'_>,
) -> LookupResult {
    // In a tensor that joins features, the rows of all ids of one row of the request stand end to end.
    let per_row = if placement.is_flat { sent.sizes.iter().skip(1).product::<usize>().max(1) } else { 1 };
    let stride = if placement.is_flat { placement.stride } else { table.row_bytes() };
    for (at, id) in ids.iter().enumerate() {
        let row = table.stored_row(id).ok_or(LookupError::BadId(at))?;
        let begin = placement.skip + at / per_row * stride + at % per_row * row.len();
        for (to, byte) in to[begin..begin + row.len()].iter_mut().zip(row) {
            to.write(*byte);
        }
    }
    Ok(0)
}

/// The feature inputs of one predict request; the graph's code writes their vectors to the tensors that the graph is
/// fed.
pub struct Features<'s, 'r> {
    servable: &'s Servable,
    plan: &'s Signature,
    sent: SmallVec<[Option<FeatureInputs<'r>>; 8]>,
    /// For each feature, the rows that were read from a Valkey or Redis cluster; empty before `read_remote`, or if no
    /// feature has its table in a cluster.
    remote: Vec<Option<RemoteRows>>,
}

impl<'s, 'r> Features<'s, 'r> {
    /// Wraps inputs that [`Work::prepare`] has validated, and the id tensors that the graph has computed.
    ///
    /// # Errors
    /// A row has no id although it must have one, or the graph computed another number of id tensors than the signature
    /// says.
    pub fn new(
        servable: &'s Servable,
        plan: &'s Signature,
        inputs: &Inputs<'r>,
        computed: Vec<Tensor<'r>>,
    ) -> Result<Self, Declined> {
        if computed.len() != plan.num_computed {
            return Err(
                faults::internal("the graph computed another number of id tensors than its description says").into()
            );
        }
        let of_features = (0..plan.inputs.len()).map(|index| {
            let is_read = plan.features.iter().any(|feature| uses(feature, index));
            if !is_read {
                return None;
            }
            inputs[index].clone().or_else(|| plan.inputs[index].default.clone())
        });
        let sent = feature_inputs(servable, plan, of_features.chain(computed.into_iter().map(Some)).collect())?;
        if sent.iter().flatten().any(|one| one.sizes.iter().product::<usize>() != one.ids().len()) {
            // A lookup would leave a part of its output unwritten.
            return Err(faults::internal("a tensor of ids has not as many elements as its shape says").into());
        }
        Ok(Features { servable, plan, sent, remote: Vec::new() })
    }

    /// Reads the rows of all features whose tables lie in clusters, together; for a batch, takes those that its requests
    /// have read. Call this once, before the first `read`.
    ///
    /// # Errors
    /// [`Declined::Fault`]: rows could not be read, or a table's policy refuses an id.
    pub fn read_remote(&mut self, effort: Effort<'_>) -> Result<(), Declined> {
        if let Some(read) = effort.batch().and_then(BatchPlace::take_rows) {
            self.remote = read.rows;
        } else if remote_rows::reads_any(self.servable, self.plan, &self.sent) {
            self.remote = remote_rows::read(self.servable, self.plan, &self.sent, &|_| true, effort)?;
        }
        Ok(())
    }

    /// Returns the rows that `read_remote` has read, for the batch that the request joins.
    pub(super) fn into_rows_read(self) -> RowsRead {
        RowsRead { instead: self.instead(), rows: self.remote }
    }

    /// Returns the tables whose rows `read_remote` could not all read.
    #[must_use]
    pub fn instead(&self) -> Vec<Instead> {
        remote_rows::instead(self.servable, self.plan, &self.remote)
    }

    fn sent_ids(&self, feature: usize) -> Result<&FeatureInputs<'r>, BoxedFault> {
        let found = self.sent.get(feature).and_then(Option::as_ref);
        found.ok_or_else(|| faults::internal("a predict lacks the ids of a feature, and its signature has no default"))
    }

    /// Returns the shape of a feature's vectors; if `is_flat` is true, the shape `[B, K, D]` becomes `[B, K * D]`.
    ///
    /// # Errors
    /// The request lacks the feature, or its ids have the wrong rank.
    pub fn dims(&self, feature: usize, is_flat: bool) -> Result<Dims, Declined> {
        let sent = self.sent_ids(feature)?;
        vector_dims(self.servable, &self.plan.features[feature], sent, is_flat)
    }

    /// Writes a feature's vectors to `to`, one after the other.
    ///
    /// # Errors
    /// The request lacks the feature, its ids do not fill their shape, or its policy refuses an id or drops one that a
    /// row may need.
    ///
    /// # Panics
    /// `to` is too short.
    pub fn read(&self, feature: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        let stride = self.servable.tables()[self.plan.features[feature].table].embedding_dim * 4;
        let placement = Placement { skip: 0, stride, is_flat: false };
        self.read_at(feature, to, &placement)
    }

    /// Writes a feature's vectors as some columns of a matrix: row 0 at byte `skip` of `to`, each further row `stride`
    /// bytes later.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Panics
    /// As `read`.
    pub fn read_column(
        &self,
        feature: usize,
        to: &mut [MaybeUninit<u8>],
        skip: usize,
        stride: usize,
    ) -> Result<(), Declined> {
        self.read_at(feature, to, &Placement { skip, stride, is_flat: true })
    }

    fn read_at(&self, feature: usize, to: &mut [MaybeUninit<u8>], placement: &Placement) -> Result<(), Declined> {
        let sent = self.sent_ids(feature)?;
        let plan = &self.plan.features[feature];
        self.servable.see(plan.table, sent.ids());
        // Reading pages of the table may wait for the disk, because a predict runs on a thread of a pool.
        read_table(self.servable, plan.table, sent.ids(), plan.policy, Effort::Wait(&Waiting::default()))?;
        let remote = self.remote.get(feature).and_then(Option::as_ref);
        read(self.servable, self.plan, plan, sent, remote, to, placement).map(drop)
    }
}
