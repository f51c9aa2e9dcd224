//! Takes the validated inputs of each feature out of a request.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::declined::Declined;
use super::faults::{self, BoxedFault};
use super::inputs::{Dims, Inputs, UnknownKeyCounts};
use super::numbers::{NumberBytes, number_bytes};
use super::servable::{FeaturePlan, LookupKind, NeedsIds, Servable, Signature};
use super::validation::replace_keys;
use crate::tables::table::{Ints, LookupError};

/// The ids, row splits and weights of one feature in a request, all validated, except that ids may lie outside the
/// table.
pub(super) struct FeatureInputs<'r> {
    pub(super) ids: NumberBytes<'r>,
    /// The shape of the ids tensor, such as `[B, K]`; `[N]` for the N ids of a ragged feature.
    pub(super) sizes: Dims,
    splits: Option<NumberBytes<'r>>,
    pub(super) weights: Option<NumberBytes<'r>>,
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
}

pub(super) fn feature_inputs<'r>(
    servable: &Servable,
    plan: &Signature,
    mut inputs: Inputs<'r>,
) -> Result<SmallVec<[Option<FeatureInputs<'r>>; 8]>, Declined> {
    // Several features may read one input: the last of these features takes the input's tensor, the others clone it.
    let mut sent = SmallVec::new();
    for (f, feature) in plan.features.iter().enumerate() {
        let later = &plan.features[f + 1..];
        let is_last = |index: usize| !later.iter().any(|other| uses(other, index));
        let mut take_or_clone = |index: usize| {
            if is_last(index) { inputs[index].take() } else { inputs[index].clone() }
        };
        let Some(mut ids) = take_or_clone(feature.ids) else {
            sent.push(None);
            continue;
        };
        if feature.vocabulary.is_some() {
            let name = plan.inputs.get(feature.ids).map_or("", |input| &*input.name);
            let mut unknown_keys = UnknownKeyCounts::new();
            replace_keys(servable, feature.vocabulary, name, &mut ids, &mut unknown_keys)?;
            for (vocabulary, count) in unknown_keys {
                servable.unknown_keys()[vocabulary].fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        let (sizes, ids) = (ids.dims.clone(), number_bytes(ids));
        let splits = feature.row_splits.and_then(&mut take_or_clone).map(number_bytes);
        // An empty tensor of weights is the input's default, and means weight 1 for every id.
        let weights = feature.weights.and_then(&mut take_or_clone).map(number_bytes).filter(|w| !w.is_empty());
        let one = FeatureInputs { ids, sizes, splits, weights };
        if !has_needed_ids(feature, &one) {
            return Err(Declined::NotNative);
        }
        sent.push(Some(one));
    }
    Ok(sent)
}

/// Checks the numbers of rows of the features in the outputs of an answer, in their order; `outputs` has the indexes of
/// these outputs.
pub(super) fn check_rows(
    plan: &Signature,
    sent: &[Option<FeatureInputs<'_>>],
    outputs: impl Iterator<Item = usize>,
) -> Result<(), BoxedFault> {
    let Some(most) = plan.max_rows else { return Ok(()) };
    for &part in outputs.flat_map(|output| &plan.outputs[output].parts) {
        if let Some(rows) = sent[part].as_ref().map(FeatureInputs::rows).filter(|&rows| rows > most) {
            return Err(faults::too_many_rows(&plan.inputs[plan.features[part].ids].name, rows, most));
        }
    }
    Ok(())
}

pub(super) fn uses(feature: &FeaturePlan, input: usize) -> bool {
    feature.ids == input || feature.row_splits == Some(input) || feature.weights == Some(input)
}

fn has_needed_ids(feature: &FeaturePlan, sent: &FeatureInputs<'_>) -> bool {
    let Some(splits) = sent.splits() else { return true };
    let last = splits.len() - 1;
    let first = match feature.needs_ids {
        NeedsIds::None => return true,
        NeedsIds::Last => last.saturating_sub(1),
        NeedsIds::All => 0,
    };
    (first..last).all(|row| splits.get(row) < splits.get(row + 1))
}

/// Returns the error for an id that a feature's policy refuses, or for a row with too many ids. `first` is the position
/// in the request of the lookup's first id.
#[cold]
pub(super) fn refused(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    error: LookupError,
    first: usize,
) -> Declined {
    match error {
        LookupError::BadId(at) => bad_id(servable, plan, feature, sent, first + at).into(),
        LookupError::TooMany(row) => {
            let (Some(splits), LookupKind::Combine(how)) = (sent.splits(), feature.lookup) else {
                return faults::internal("a lookup that combines no rows has a limit on ids").into();
            };
            let input = plan.inputs.get(feature.ids).map_or("", |input| &*input.name);
            faults::too_many_ids(input, row, splits.get(row + 1) - splits.get(row), how.max_ids).into()
        }
    }
}

/// Returns the error for the id at a position, which lies outside the feature's table. For an id that the graph computed,
/// it is TensorFlow's text.
///
/// Source: `tensorflow/core/kernels/{gather_op,resource_variable_ops}.cc`, "indices... is not in" (2.21).
#[cold]
pub(super) fn bad_id(
    servable: &Servable,
    plan: &Signature,
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    position: usize,
) -> BoxedFault {
    let (id, size) = (sent.ids().get(position), servable.vocabulary_size(feature.table));
    if let Some(input) = plan.inputs.get(feature.ids) {
        return faults::bad_id(&input.name, id, position, i64::try_from(size).unwrap_or(i64::MAX) - 1);
    }
    let (mut rest, mut places) = (position, Vec::new());
    for size in sent.sizes.iter().rev() {
        places.push((rest % size).to_string());
        rest /= size;
    }
    places.reverse();
    let place = if places.is_empty() { String::new() } else { format!("[{}]", places.join(",")) };
    faults::bad_computed_id(&place, id, size)
}
