//! Validates the inputs of a request against its signature: names, dtypes, shapes, row splits, and the bounds of a
//! predict's ids.

use super::declined::Declined;
use super::description::SignatureKind;
use super::inputs::{Data, DataType, Inputs, Tensor, UnknownKeyCounts};
use super::numbers::{int64_bytes, integers};
use super::servable::{InputPlan, InputRole, Servable, Signature};
use crate::tables::table::Ints;

pub(super) fn check_names(plan: &Signature, inputs: &Inputs<'_>) -> Result<(), Declined> {
    let is_sent = |index: usize| inputs[index].is_some();
    let lacks = plan.inputs.iter().zip(inputs).any(|(input, sent)| !input.is_optional && sent.is_none());
    if lacks || (plan.kind == SignatureKind::Lookup && inputs.iter().all(Option::is_none)) {
        return Err(Declined::Unfit);
    }
    for feature in &plan.features {
        if let Some(splits) = feature.row_splits {
            let has_weights = feature.weights.is_some_and(is_sent);
            if is_sent(feature.ids) != is_sent(splits) || (has_weights && !is_sent(feature.ids)) {
                return Err(Declined::Unfit);
            }
        }
    }
    Ok(())
}

/// Validates dtypes, ranks, sizes and id bounds of all tensors, and replaces keys by the ids that the vocabularies
/// give.
pub(super) fn validate_tensors<'r>(
    servable: &Servable,
    plan: &Signature,
    mut inputs: Inputs<'r>,
) -> Result<(Inputs<'r>, UnknownKeyCounts), Declined> {
    let mut unknown_keys = UnknownKeyCounts::new();
    for (slot, input) in inputs.iter_mut().zip(&plan.inputs) {
        let Some(tensor) = slot else { continue };
        let is_lookup = plan.kind == SignatureKind::Lookup;
        check_shape(plan, input, tensor)?;
        let is_key = match (tensor.dtype, input.dtype) {
            (DataType::String, _) if input.takes_strings => {
                input.vocabulary.is_some() && (is_lookup || !input.takes_keys)
            }
            (DataType::Int64 | DataType::Int32, DataType::Int64 | DataType::Int32)
                if tensor.dtype == input.dtype || input.role != InputRole::Unread =>
            {
                input.takes_keys && is_lookup
            }
            (sent, wanted) if sent == wanted => false,
            _ => return Err(Declined::Unfit),
        };
        if is_key {
            let index = input.vocabulary.ok_or(Declined::Unfit)?;
            let vocabulary = &servable.vocabularies()[index];
            let (ids, lacking) = match &tensor.data {
                Data::Strings(keys) => vocabulary.rows_of_strings(keys.parts.iter().map(AsRef::as_ref)),
                _ => vocabulary.rows_of_integers(integers(tensor).iter().copied()),
            }
            .map_err(|_| Declined::Unfit)?;
            if lacking > 0 {
                unknown_keys.push((index, lacking));
            }
            tensor.data = Data::Ints(ids);
            // Vocabularies return int64 ids; the check below declines a request with an id that does not fit its int32
            // input.
            tensor.dtype = DataType::Int64;
        }
        if tensor.dtype == DataType::Int64 && input.dtype == DataType::Int32 {
            let fits = |id: i64| i32::try_from(id).is_ok();
            if !integers(tensor).iter().all(|&id| fits(id)) {
                return Err(Declined::Unfit);
            }
        }
        let (low, high) = input.bounds;
        if (low, high) != (i64::MIN, i64::MAX)
            && !input.takes_keys
            && integers(tensor).iter().any(|&id| id < low || id >= high)
        {
            return Err(Declined::Unfit);
        }
    }
    Ok((inputs, unknown_keys))
}

fn check_shape(plan: &Signature, input: &InputPlan, tensor: &Tensor<'_>) -> Result<(), Declined> {
    let Some(shape) = &input.shape else { return Ok(()) };
    let is_lookup = plan.kind == SignatureKind::Lookup;
    let has_wrong_rank = shape.len() != tensor.dims.len();
    if has_wrong_rank && (is_lookup || plan.strict_shapes || input.role != InputRole::Unread) {
        return Err(Declined::Unfit);
    }
    // A lookup has its own rules for the number of rows, which a static size of the first dimension does not limit.
    let mut sizes = shape.iter().zip(&tensor.dims).skip(usize::from(is_lookup));
    if (is_lookup || plan.strict_shapes) && sizes.any(|(wanted, sent)| wanted.is_some_and(|wanted| wanted != *sent)) {
        return Err(Declined::Unfit);
    }
    Ok(())
}

/// Validates the row splits of all ragged features, and returns B, the number of rows of the request.
pub(super) fn count_rows(plan: &Signature, inputs: &Inputs<'_>) -> Result<usize, Declined> {
    let mut most = 0;
    let mut first = None;
    let mut differ = false;
    let mut see = |rows: usize| {
        most = most.max(rows);
        differ |= *first.get_or_insert(rows) != rows;
    };
    let mut is_ragged = false;
    for (index, (tensor, input)) in inputs.iter().zip(&plan.inputs).enumerate() {
        let Some(tensor) = tensor else { continue };
        let ragged = plan.features.iter().find(|feature| feature.ids == index && feature.row_splits.is_some());
        if ragged.is_some() || input.role == InputRole::SplitsOrWeights {
            continue;
        }
        let is_open = |shape: &Vec<Option<usize>>| shape.get(1).is_none_or(Option::is_none);
        if plan.kind == SignatureKind::Lookup && tensor.dims.len() == 2 && input.shape.as_ref().is_some_and(is_open) {
            see(tensor.dims.iter().product());
        } else {
            see(tensor.dims.first().copied().unwrap_or(1));
        }
    }
    for feature in &plan.features {
        let Some(splits) = feature.row_splits else { continue };
        is_ragged = true;
        let (Some(ids), Some(splits)) = (&inputs[feature.ids], &inputs[splits]) else {
            continue;
        };
        let weights = feature.weights.and_then(|weights| inputs[weights].as_ref());
        see(check_ragged(ids, splits, weights)?);
    }
    if plan.kind == SignatureKind::Predict && is_ragged && differ {
        return Err(Declined::Unfit);
    }
    Ok(most)
}

fn check_ragged(ids: &Tensor<'_>, splits: &Tensor<'_>, weights: Option<&Tensor<'_>>) -> Result<usize, Declined> {
    if ids.dims.len() != 1 || splits.dims.len() != 1 {
        return Err(Declined::Unfit);
    }
    let num_ids = ids.dims[0];
    let splits = int64_bytes(splits);
    let splits = Ints::new(&splits);
    let mut last = 0;
    for (i, split) in splits.iter().enumerate() {
        if split < last || (i == 0 && split != 0) {
            return Err(Declined::Unfit);
        }
        last = split;
    }
    if splits.is_empty() || usize::try_from(last) != Ok(num_ids) {
        return Err(Declined::Unfit);
    }
    if let Some(weights) = weights
        && (weights.dims.len() != 1 || (weights.dims[0] != 0 && weights.dims[0] != num_ids))
    {
        return Err(Declined::Unfit);
    }
    Ok(splits.len() - 1)
}
