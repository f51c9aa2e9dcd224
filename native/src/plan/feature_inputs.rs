//! Takes the validated inputs of each feature out of a request.

use smallvec::SmallVec;

use super::description::SignatureKind;
use super::faults::{self, BoxedFault};
use super::inputs::{Dims, Inputs, Tensor};
use super::numbers::{NumberBytes, number_bytes};
use super::servable::{FeaturePlan, LookupKind, Servable, Signature};
use super::sparse::Sparse;
use crate::tables::table::{Ints, LookupError, Weights};

/// The ids, row splits and weights of one feature in a request, all validated, except that ids may lie outside the
/// table.
pub(super) struct FeatureInputs<'r> {
    pub(super) ids: NumberBytes<'r>,
    /// The shape of the ids tensor, such as `[B, K]`; `[N]` for the N ids of a ragged feature.
    pub(super) sizes: Dims,
    splits: Option<NumberBytes<'r>>,
    pub(super) weights: Option<NumberBytes<'r>>,
    /// How many of the ids lie outside the table; None before the feature was looked up.
    pub(super) missing: Option<usize>,
    /// The number of rows up to the last one with an id that counts, for a feature that cuts the rows after it.
    kept: Option<usize>,
}

impl FeatureInputs<'_> {
    pub(super) fn ids(&self) -> Ints<'_> {
        Ints::new(&self.ids)
    }

    pub(super) fn splits(&self) -> Option<Ints<'_>> {
        self.splits.as_deref().map(Ints::new)
    }

    pub(super) fn rows(&self) -> usize {
        self.splits().map_or(self.sizes.first().copied().unwrap_or(1), |splits| splits.len() - 1)
    }

    /// Returns the number of rows that the feature's vectors have in an answer.
    pub(super) fn kept_rows(&self) -> usize {
        self.kept.unwrap_or_else(|| self.rows())
    }

    /// Says whether an id counts in a row of a feature with a combiner: it is neither dropped, nor cut off, nor left out
    /// for its weight. An id that the policy refuses counts.
    pub(super) fn has_ids(&self, feature: &FeaturePlan, row: usize) -> bool {
        let (Some(splits), LookupKind::Combine(how)) = (self.splits(), feature.lookup) else { return true };
        let position = |row: usize| usize::try_from(splits.get(row)).unwrap_or(0);
        let (start, mut end) = (position(row), position(row + 1));
        if how.max_ids > 0 && end - start > how.max_ids {
            if !how.truncates {
                return true;
            }
            end = start + how.max_ids;
        }
        let (ids, size) = (self.ids(), feature.vocabulary_size as u64);
        let weights = self.weights.as_deref().map(Weights::new).filter(|_| how.positive_only);
        (start..end).any(|i| {
            let id = ids.get(i);
            // A denormal weight is zero, as in the kernels.
            weights.is_none_or(|weights| weights.get(i) >= f32::MIN_POSITIVE)
                && (id.cast_unsigned() < size || !matches!(feature.policy.replacement(id, size), Ok(None)))
        })
    }
}

/// Takes the tensors of the features that a request has out of its inputs. `of_keys` may have the ids that a feature's
/// vocabulary gives for its keys.
pub(super) fn feature_inputs<'r>(
    plan: &Signature,
    mut inputs: Inputs<'r>,
    mut of_keys: Sparse<Tensor<'r>>,
) -> Sparse<FeatureInputs<'r>> {
    // Several features may read one input: the last of these features takes the input's tensor, the others clone it.
    let mut sent = Sparse::new(plan.features.len());
    for f in plan.features_of(&inputs) {
        let feature = &plan.features[f];
        let mut take_or_clone = |index: usize| {
            if plan.last_reader(index) == Some(f) { inputs.take(index) } else { inputs.get(index).cloned() }
        };
        let Some(mut ids) = of_keys.take(f).or_else(|| take_or_clone(feature.ids)) else { continue };
        let (sizes, ids) = (std::mem::take(&mut ids.dims), number_bytes(ids));
        let splits = feature.row_splits.and_then(&mut take_or_clone).map(number_bytes);
        // An empty tensor of weights is the input's default, and means weight 1 for every id.
        let weights = feature.weights.and_then(&mut take_or_clone).map(number_bytes).filter(|w| !w.is_empty());
        let mut one = FeatureInputs { ids, sizes, splits, weights, missing: None, kept: None };
        if feature.cuts_empty_rows {
            one.kept = Some((0..one.rows()).rev().find(|&row| one.has_ids(feature, row)).map_or(0, |row| row + 1));
        }
        sent.insert(f, one);
    }
    sent
}

/// Checks the numbers of rows of the features in the outputs of an answer, in their order; `outputs` has the indexes of
/// these outputs.
pub(super) fn check_rows(
    plan: &Signature,
    sent: &Sparse<FeatureInputs<'_>>,
    outputs: impl Iterator<Item = usize>,
) -> Result<(), BoxedFault> {
    let Some(most) = plan.max_rows else { return Ok(()) };
    for &part in outputs.flat_map(|output| &plan.outputs[output].parts) {
        if let Some(rows) = sent.get(part).map(FeatureInputs::rows).filter(|&rows| rows > most) {
            return Err(faults::too_many_rows(&plan.inputs[plan.features[part].ids].name, rows, most));
        }
    }
    Ok(())
}

/// Returns the error for an id that a feature's policy refuses, or for a row with too many ids.
#[cold]
pub(super) fn refused(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    error: LookupError,
) -> BoxedFault {
    let input = plan.inputs.get(feature.ids);
    let is_graphs = plan.kind == SignatureKind::Predict && feature.vocabulary.is_none();
    let name = plan.told_name(feature.ids);
    match error {
        LookupError::BadId(_) if is_graphs && input.is_none_or(|input| input.vocabulary_size.is_none()) => {
            not_in_table(feature, sent)
        }
        LookupError::BadId(at) => bad_id(servable, feature, name, sent.ids(), at),
        LookupError::TooMany(row) => {
            let count = sent.splits().map_or(0, |splits| splits.get(row + 1) - splits.get(row));
            let max_ids = if let LookupKind::Combine(how) = feature.lookup { how.max_ids } else { 0 };
            faults::too_many_ids(name, row, count, max_ids)
        }
    }
}

/// Returns the error that TensorFlow's gather has for the first id without a row; no manifest describes such ids.
fn not_in_table(feature: &FeaturePlan, sent: &FeatureInputs<'_>) -> BoxedFault {
    let size = feature.vocabulary_size;
    let is_bad = |id: i64| id.cast_unsigned() >= size as u64;
    let mut at = sent.ids().iter().position(is_bad).unwrap_or(0);
    let id = sent.ids().get(at);
    let mut places: SmallVec<[String; 4]> = SmallVec::new();
    for &size in sent.sizes.iter().rev() {
        places.insert(0, (at % size).to_string());
        at /= size;
    }
    let brackets = if places.is_empty() { String::new() } else { format!("[{}]", places.join(",")) };
    faults::not_in_table(&brackets, id, size)
}

/// Returns the error for the id at a position, which lies outside the feature's table.
#[cold]
fn bad_id(servable: &Servable, feature: &FeaturePlan, input: &str, ids: Ints<'_>, position: usize) -> BoxedFault {
    let last = i64::try_from(servable.vocabulary_size(feature.table)).unwrap_or(i64::MAX) - 1;
    faults::bad_id(input, ids.get(position), position, last)
}
