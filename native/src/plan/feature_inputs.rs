//! Takes the validated inputs of each feature out of a request.

use smallvec::SmallVec;

use super::declined::Declined;
use super::faults::{self, BoxedFault};
use super::inputs::{Dims, Inputs};
use super::numbers::{NumberBytes, number_bytes};
use super::servable::{FeaturePlan, LookupKind, NeedsIds, Servable, Signature};
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
        self.splits().map_or(self.sizes[0], |splits| splits.len() - 1)
    }
}

pub(super) fn feature_inputs<'r>(
    plan: &Signature,
    mut inputs: Inputs<'r>,
) -> Result<SmallVec<[Option<FeatureInputs<'r>>; 8]>, Declined> {
    // Several features may read one input: the last of these features takes the input's tensor, the others clone it.
    let mut sent = SmallVec::new();
    for (f, feature) in plan.features.iter().enumerate() {
        let later = &plan.features[f + 1..];
        let is_last = |index: usize| !later.iter().any(|other| uses(other, index));
        let mut take_or_clone = |index: usize| {
            let tensor = if is_last(index) { inputs[index].take() } else { inputs[index].clone() };
            tensor.map(|tensor| (tensor.dims.clone(), number_bytes(tensor)))
        };
        let Some((sizes, ids)) = take_or_clone(feature.ids) else {
            sent.push(None);
            continue;
        };
        let splits = feature.row_splits.and_then(&mut take_or_clone).map(|(_, splits)| splits);
        // An empty tensor of weights is the input's default, and means weight 1 for every id.
        let weights =
            feature.weights.and_then(&mut take_or_clone).map(|(_, weights)| weights).filter(|w| !w.is_empty());
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
    let Some(input) = plan.inputs.get(feature.ids).map(|input| &*input.name) else {
        // The graph computed the ids, so its own error says more to the client.
        return Declined::NotNative;
    };
    match error {
        LookupError::BadId(at) => bad_id(servable, feature, input, sent.ids(), first + at).into(),
        LookupError::TooMany(row) => {
            let (Some(splits), LookupKind::Combine(how)) = (sent.splits(), feature.lookup) else {
                return Declined::NotNative;
            };
            faults::too_many_ids(input, row, splits.get(row + 1) - splits.get(row), how.max_ids).into()
        }
    }
}

/// Returns the error for the id at a position, which lies outside the feature's table.
#[cold]
pub(super) fn bad_id(
    servable: &Servable,
    feature: &FeaturePlan,
    input: &str,
    ids: Ints<'_>,
    position: usize,
) -> BoxedFault {
    let last = i64::try_from(servable.vocabulary_size(feature.table)).unwrap_or(i64::MAX) - 1;
    faults::bad_id(input, ids.get(position), position, last)
}
