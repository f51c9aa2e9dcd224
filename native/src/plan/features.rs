//! Looks up the vectors of one feature, and writes them to an answer or to a tensor that is fed to a graph.

use std::mem::MaybeUninit;

use super::batch::BatchPlace;
use super::declined::Declined;
use super::effort::{Effort, Waiting};
use super::faults::{self, BoxedFault};
use super::feature_inputs::{FeatureInputs, feature_inputs, refused};
use super::feature_lookup::{Placement, VectorForm, look_up};
use super::inputs::{DataType, Dims, Inputs, Tensor, UnknownKeyCounts};
use super::notes::{Instead, Notes};
use super::paged_rows::read_feature;
use super::remote_rows;
use super::rows_read::{RemoteRows, RowsRead};
use super::servable::{FeaturePlan, LookupKind, Servable, Signature};
use super::small_table::{Reading, SmallTable};
use super::sparse::Sparse;
use super::validation::ids_of_keys;

/// Returns the shape of a feature's vectors; if `is_flat`, vectors of shape `[K, D]` are `K * D` numbers.
pub(super) fn vector_dims(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    is_flat: bool,
) -> Result<Dims, BoxedFault> {
    let dim = servable.tables()[feature.table].embedding_dim;
    let mut dims = match feature.lookup {
        LookupKind::Combine(_) => Dims::from_slice(&[sent.kept_rows(), dim]),
        LookupKind::Sequence { length } => Dims::from_slice(&[sent.rows(), length, dim]),
        LookupKind::Gather => {
            let mut dims = Dims::from_slice(&sent.sizes);
            dims.push(dim);
            dims
        }
    };
    if is_flat && dims.len() > 2 {
        let width = product(&dims[1..]).ok_or_else(|| shape_too_large(plan, feature, sent))?;
        dims = Dims::from_slice(&[dims[0], width]);
    }
    Ok(dims)
}

/// Returns the error for ids whose vectors have more numbers than the memory of a machine.
#[cold]
pub(super) fn shape_too_large(plan: &Signature, feature: &FeaturePlan, sent: &FeatureInputs<'_>) -> BoxedFault {
    let name = plan.inputs.get(feature.ids).map_or("", |input| &*input.name);
    faults::shape_too_large(name, &format!("{:?}", &sent.sizes[..]))
}

/// Multiplies sizes; None if the product does not fit.
pub(super) fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size))
}

/// Returns how many columns of an output the feature fills; a column is an index of the output's innermost dimension.
pub(super) fn vector_width(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    is_flat: bool,
) -> usize {
    vector_dims(servable, plan, feature, sent, is_flat).map_or(0, |dims| dims[dims.len() - 1])
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
    let reading = match remote {
        None => Reading {
            table: &servable.tables()[feature.table],
            ids: sent.ids(),
            policy: feature.policy,
            num_read_instead: 0,
        },
        Some(rows) => rows.small.reading(),
    };
    let looked = if feature.copies_rows {
        SmallTable::of_float32(reading, feature.max_norm, feature.default_row_if_read().is_some())
            .and_then(|small| look_up(feature, sent, small.reading(), to, placement))
    } else {
        look_up(feature, sent, reading, to, placement)
    };
    looked.map_err(|error| refused(servable, plan, feature, sent, error).into())
}

/// Returns the unknown keys of one request of a batch, whose features get keys: [`Features`] has counted those of the
/// batch.
#[must_use]
pub fn unknown_keys_of(servable: &Servable, plan: &Signature, inputs: &Inputs<'_>, instead: Vec<Instead>) -> Notes {
    let mut notes = Notes::of_instead(instead);
    for feature in &plan.features {
        let Some(vocabulary) = feature.vocabulary.filter(|_| feature.ids < plan.inputs.len()) else { continue };
        let is_counted = notes.unknown_keys.iter().any(|one| (one.input, one.vocabulary) == (feature.ids, vocabulary));
        if let Some(keys) = inputs.get(feature.ids).filter(|_| !is_counted).cloned() {
            // The graph has run, so no vocabulary refuses a key.
            let _ = ids_of_keys(servable, plan, (feature.ids, vocabulary), keys, &mut notes.unknown_keys);
        }
    }
    notes
}

/// The feature inputs of one predict request; the graph's code writes their vectors to the tensors that the graph is
/// fed.
pub struct Features<'s, 'r> {
    servable: &'s Servable,
    plan: &'s Signature,
    sent: Sparse<FeatureInputs<'r>>,
    unknown_keys: UnknownKeyCounts,
    /// For each feature, the rows that were read from a Valkey or Redis cluster; empty before `read_remote`, or if no
    /// feature has its table in a cluster.
    remote: Vec<Option<RemoteRows>>,
}

impl<'s, 'r> Features<'s, 'r> {
    /// Wraps inputs that [`Work::prepare`] has validated, and the id tensors that the graph has computed.
    ///
    /// # Errors
    /// The graph computed another number of id tensors than the signature says, or ids that do not fill their shape.
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
            plan.last_reader(index)?;
            inputs.get(index).cloned().or_else(|| plan.inputs[index].default.clone())
        });
        let tensors: Inputs<'r> = of_features.chain(computed.into_iter().map(Some)).collect();
        let mut unknown_keys = UnknownKeyCounts::new();
        let mut of_keys: Sparse<Tensor<'r>> = Sparse::new(plan.features.len());
        for (f, feature) in plan.features.iter().enumerate() {
            let is_same = |other: &FeaturePlan| (other.ids, other.vocabulary) == (feature.ids, feature.vocabulary);
            let ids = match (feature.vocabulary, plan.inputs.get(feature.ids)) {
                (Some(vocabulary), Some(_)) => match plan.features[..f].iter().position(is_same) {
                    Some(earlier) => of_keys.get(earlier).cloned(),
                    None => tensors
                        .get(feature.ids)
                        .cloned()
                        .map(|keys| ids_of_keys(servable, plan, (feature.ids, vocabulary), keys, &mut unknown_keys))
                        .transpose()?,
                },
                _ => None,
            };
            ids.map(|ids| of_keys.insert(f, ids));
        }
        let sent = feature_inputs(plan, tensors, of_keys);
        if sent.iter().any(|(_, one)| one.sizes.iter().product::<usize>() != one.ids().len()) {
            // A lookup would leave a part of its output unwritten.
            return Err(faults::internal("a tensor of ids has not as many elements as its shape says").into());
        }
        Ok(Features { servable, plan, sent, unknown_keys, remote: Vec::new() })
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

    /// Adds the keys that vocabularies of features lack to the counts, and returns what the client is told beside the
    /// answer. Call this once, when the graph has run.
    #[must_use]
    pub fn finish(self) -> Notes {
        self.servable.count_unknown_keys(&self.unknown_keys);
        Notes { instead: self.instead(), unknown_keys: self.unknown_keys }
    }

    /// Returns the tables whose rows `read_remote` could not all read.
    fn instead(&self) -> Vec<Instead> {
        remote_rows::instead(self.servable, self.plan, &self.remote)
    }

    /// Returns the dtype of a feature's vectors.
    #[must_use]
    pub fn dtype(&self, feature: usize) -> DataType {
        self.plan.features[feature].dtype
    }

    fn sent_ids(&self, feature: usize) -> Result<&FeatureInputs<'r>, BoxedFault> {
        self.sent
            .get(feature)
            .ok_or_else(|| faults::internal("a predict lacks the ids of a feature, and its signature has no default"))
    }

    /// Returns the shape of a feature's vectors; if `is_flat` is true, the shape `[B, K, D]` becomes `[B, K * D]`.
    ///
    /// # Errors
    /// The request lacks the feature, or its ids have the wrong rank.
    pub fn dims(&self, feature: usize, is_flat: bool) -> Result<Dims, Declined> {
        let sent = self.sent_ids(feature)?;
        Ok(vector_dims(self.servable, self.plan, &self.plan.features[feature], sent, is_flat)?)
    }

    /// Writes a feature's vectors to `to`, one after the other.
    ///
    /// # Errors
    /// The request lacks the feature, or the feature's policy refuses an id.
    ///
    /// # Panics
    /// `to` is too short.
    pub fn read(&self, feature: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        let plan = &self.plan.features[feature];
        let stride = self.servable.tables()[plan.table].embedding_dim * plan.dtype.size();
        let placement = Placement { skip: 0, stride, is_flat: false, form: VectorForm::of(plan, None) };
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
        let form = VectorForm::of(&self.plan.features[feature], None);
        self.read_at(feature, to, &Placement { skip, stride, is_flat: true, form })
    }

    fn read_at(&self, feature: usize, to: &mut [MaybeUninit<u8>], placement: &Placement) -> Result<(), Declined> {
        let sent = self.sent_ids(feature)?;
        let plan = &self.plan.features[feature];
        self.servable.see(plan.table, sent.ids());
        // Reading pages of the table may wait for the disk, because a predict runs on a thread of a pool.
        read_feature(self.servable, plan, sent, Effort::Wait(&Waiting::default()))?;
        let remote = self.remote.get(feature).and_then(Option::as_ref);
        read(self.servable, self.plan, plan, sent, remote, to, placement).map(drop)
    }
}
