//! Validates the inputs of a request against its signature: names, dtypes, shapes, row splits, and the bounds of a
//! predict's ids.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::declined::Declined;
use super::description::{RaggedNames, SignatureKind};
use super::faults::{self, BoxedFault, Names};
use super::inputs::{Data, DataType, Dims, Inputs, Tensor, UnknownKeyCount, UnknownKeyCounts};
use super::numbers::{int64_bytes, integers};
use super::servable::{InputPlan, InputRole, Ragged, Servable, Signature};
use crate::tables::table::Ints;
use crate::tables::vocabulary::UnknownKey;

/// Checks the names of a request's inputs. `extra` has the names that the signature lacks.
///
/// # Errors
/// The signature's error for these names; for a predict it is TensorFlow Serving's.
pub fn check_names(plan: &Signature, inputs: &Inputs<'_>, extra: &[&str]) -> Result<(), BoxedFault> {
    let is_sent = |index: usize| inputs.has(index);
    let is_half = |names: &RaggedNames| {
        is_sent(names.values) != is_sent(names.row_splits)
            || (names.weights_input.is_some_and(is_sent) && !is_sent(names.values))
    };
    let is_nothing = plan.kind == SignatureKind::Lookup && inputs.iter().next().is_none();
    let fits = extra.is_empty() && plan.has_required(inputs) && !is_nothing;
    if fits && !plan.ragged_names_of_values(inputs).any(is_half) {
        return Ok(());
    }
    let sent = |index: &usize| is_sent(*index);
    match plan.kind {
        SignatureKind::Lookup => Err(lookup_names(plan, &sent, extra)),
        SignatureKind::Predict => predict_names(plan, &sent, extra),
    }
}

/// Sets the inputs of a ragged feature to no rows, if this tensor has the feature's name and is an empty list, as JSON may
/// send it; returns whether it is. A client that does not know the signature can not tell the two forms of no ids apart.
pub fn set_no_rows(plan: &Signature, name: &str, tensor: &Tensor<'_>, inputs: &mut Inputs<'_>) -> bool {
    let Some(names) = plan.ragged(name).filter(|_| tensor.dims[..] == [0]) else { return false };
    if inputs.has(names.values) || inputs.has(names.row_splits) {
        return false;
    }
    inputs.insert(names.values, Tensor::empty(plan.inputs[names.values].dtype, Dims::from_slice(&[0])));
    let splits = plan.inputs[names.row_splits].dtype;
    let no_rows = Tensor { dtype: splits, dims: Dims::from_slice(&[1]), data: Data::Ints(vec![0]) };
    inputs.insert(names.row_splits, no_rows);
    true
}

fn lookup_names(plan: &Signature, is_sent: &dyn Fn(&usize) -> bool, extra: &[&str]) -> BoxedFault {
    let features = Names::sorted(plan.json_names());
    if extra.is_empty() && !(0..plan.inputs.len()).any(|index| is_sent(&index)) {
        return faults::no_features(&plan.name, features);
    }
    let required = (0..plan.inputs.len()).filter(|&index| !plan.inputs[index].is_optional);
    let mut missing: Vec<usize> = required.filter(|index| !is_sent(index)).collect();
    for names in &plan.ragged_names {
        let ids = [names.values, names.row_splits];
        let has_weights = names.weights_input.as_ref().is_some_and(is_sent);
        if has_weights && extra.is_empty() && !ids.iter().any(is_sent) {
            return faults::weights_without_ids(&names.feature);
        }
        if has_weights || ids.iter().any(is_sent) {
            missing.extend(ids.iter().filter(|index| !is_sent(index)));
        }
    }
    let missing = Names::sorted(missing.iter().map(|&index| &plan.inputs[index].name));
    let mixed = mixed_up(plan, extra);
    if mixed.len() == extra.len() && !mixed.is_empty() {
        return mixed.into_iter().next().unwrap_or_else(|| faults::internal("no feature is mixed up"));
    }
    faults::lookup_names(&plan.name, Names::sorted(extra), missing, features)
}

/// Returns the errors for those names of inputs that belong to a feature of the signature which is sent in another form:
/// ragged in place of plain, or plain in place of ragged.
fn mixed_up(plan: &Signature, extra: &[&str]) -> Vec<BoxedFault> {
    let is_dense = |name: &str| plan.input(name.as_bytes()).is_some_and(|index| plan.ragged_owner(index).is_none());
    let told = |name: &&str| {
        if let Some(one) = plan.ragged(name) {
            return Some(faults::takes_lists(&one.feature, one.values(plan), one.row_splits(plan)));
        }
        let (feature, part) = name.rsplit_once("__").filter(|(_, part)| RAGGED_PARTS.contains(part))?;
        let is_of_weights = part == "weights" && !extra.contains(&format!("{feature}__values").as_str());
        is_dense(feature).then(|| {
            if is_of_weights {
                faults::weights_of_dense(feature)
            } else {
                faults::takes_no_lists(feature, array_of(plan, feature))
            }
        })
    };
    extra.iter().filter_map(told).collect()
}

/// Says in words which array a dense feature takes.
#[must_use]
pub fn array_of(plan: &Signature, feature: &str) -> &'static str {
    let shape = plan.input(feature.as_bytes()).and_then(|index| plan.inputs[index].shape.as_ref());
    match shape {
        Some(shape) if shape.len() == 1 => "a flat list, one id per row",
        _ => "one array of the shape that the signature declares",
    }
}

/// Returns what a client may have meant by wrong names of a predict's inputs, in the names that its user knows.
fn hints(plan: &Signature, is_sent: &dyn Fn(&usize) -> bool, extra: &[&str]) -> Vec<String> {
    let mut told: Vec<String> = mixed_up(plan, extra).into_iter().map(|fault| fault.text).collect();
    told.sort_unstable();
    told.dedup();
    if plan.ragged_names.is_empty() {
        return told;
    }
    let unknown: Vec<&str> = extra.iter().copied().filter(|name| mixed_up(plan, &[name]).is_empty()).collect();
    told.extend(faults::unknown_inputs(&unknown, &plan.json_names().collect::<Vec<_>>()));
    let is_mixed = |name: &str| extra.iter().any(|sent| sent.strip_prefix(name).is_some_and(is_part));
    let (mut missing, mut form): (Vec<&str>, Option<String>) = Default::default();
    for one in &plan.ragged_names {
        let parts = [one.values, one.row_splits];
        let is_optional = parts.iter().all(|&index| plan.inputs[index].is_optional);
        match parts.map(|index| is_sent(&index)) {
            [false, false] if !is_optional && !is_mixed(&one.feature) => {
                missing.push(&one.feature);
                form = Some(faults::form_of_lists(&one.feature, one.values(plan), one.row_splits(plan)));
            }
            [true, false] | [false, true] => {
                told.push(faults::half_of_ragged(&one.feature, one.values(plan), one.row_splits(plan)).text);
            }
            _ => {}
        }
    }
    for (index, input) in plan.inputs.iter().enumerate() {
        let is_owned = plan.ragged_owner(index).is_some();
        if !is_owned && !input.is_optional && !is_sent(&index) && !is_mixed(&input.name) {
            missing.push(&input.name);
        }
    }
    missing.sort_unstable();
    if !missing.is_empty() {
        let form = form.filter(|_| missing.len() == 1);
        told.splice(0..0, std::iter::once(faults::missing_features(&missing)).chain(form));
    }
    told
}

/// The ends of the names of a ragged feature's inputs, after `__`.
const RAGGED_PARTS: [&str; 3] = ["values", "row_splits", "weights"];

fn is_part(end: &str) -> bool {
    end.is_empty() || end.strip_prefix("__").is_some_and(|part| RAGGED_PARTS.contains(&part))
}

/// Returns TensorFlow Serving's error for wrong names of a predict's inputs.
///
/// Source: `tensorflow_serving/servables/tensorflow/predict_util.cc` (9d981c5), `VerifyRequestInputsSize`;
/// `tensorflow/cc/saved_model/util.cc` (2.21), `GetInputValues`.
fn predict_names(plan: &Signature, is_sent: &dyn Fn(&usize) -> bool, extra: &[&str]) -> Result<(), BoxedFault> {
    let mut all: Vec<(&str, usize)> = plan.inputs.iter().enumerate().map(|(i, input)| (&*input.name, i)).collect();
    all.sort_unstable();
    let names = |keep: &dyn Fn(usize) -> bool| -> Vec<&str> {
        all.iter().filter(|(_, index)| keep(*index)).map(|(name, _)| *name).collect()
    };
    let known = names(&|_| true);
    let used = names(&|index| is_sent(&index));
    let optional = names(&|index| plan.inputs[index].is_optional);
    let mut sent = [&used, extra].concat();
    sent.sort_unstable();
    let mut extra = extra.to_vec();
    extra.sort_unstable();
    let hinted = |mut fault: BoxedFault| -> BoxedFault {
        let hints = hints(plan, is_sent, &extra).join(" ");
        // TensorFlow Serving has no ragged features, so its text would name inputs that the client never sent.
        match hints.is_empty() {
            true => {}
            false if plan.ragged_names.is_empty() => fault.text = format!("{} {hints}", fault.text),
            false => fault.text = hints,
        }
        fault
    };
    if sent.len() > known.len() || (sent.len() < known.len() && optional.is_empty()) {
        let missing = names(&|index| !is_sent(&index));
        return Err(hinted(faults::number_of_inputs(
            sent.len(),
            known.len(),
            &sent.join(","),
            &known.join(","),
            &extra.join(","),
            &missing.join(","),
        )));
    }
    for &(name, index) in &all {
        if !is_sent(&index) && !plan.inputs[index].is_optional {
            let feed = &plan.inputs[index].tensor_name;
            return Err(hinted(faults::missing_input(name, feed, &sent.join(","), &optional.join(","))));
        }
    }
    if !extra.is_empty() {
        return Err(faults::invalid_names(&used.join(","), &sent.join(",")));
    }
    let is_begun = |names: &&RaggedNames| {
        [Some(names.values), Some(names.row_splits), names.weights_input].iter().flatten().any(is_sent)
    };
    match plan.ragged_names.iter().find(is_begun) {
        Some(one) => Err(faults::half_of_ragged(&one.feature, one.values(plan), one.row_splits(plan))),
        None => Ok(()),
    }
}

/// Validates dtypes, ranks, sizes and id bounds of all tensors, and replaces keys by the ids that the vocabularies
/// give.
pub(super) fn validate_tensors(
    servable: &Servable,
    plan: &Signature,
    inputs: &mut Inputs<'_>,
) -> Result<UnknownKeyCounts, Declined> {
    let mut unknown_keys = UnknownKeyCounts::new();
    let is_lookup = plan.kind == SignatureKind::Lookup;
    for index in 0..plan.inputs.len() {
        let (input, Some(tensor)) = (&plan.inputs[index], inputs.get_mut(index)) else { continue };
        let vocabulary = input
            .vocabulary
            .filter(|_| tensor.dtype == DataType::String && input.dtype != DataType::String && input.takes_strings);
        if let Some(vocabulary) = vocabulary {
            replace_keys(servable, plan, (index, vocabulary), tensor, &mut unknown_keys)?;
        }
        if is_lookup && tensor.dims.contains(&0) {
            // An empty list of a client has no dtype: over JSON it fits each feature.
            *tensor = Tensor::empty(input.dtype, std::mem::take(&mut tensor.dims));
        } else if tensor.dtype != input.dtype {
            convert(plan, input, tensor)?;
        }
        check_shape(plan, index, tensor)?;
        if input.takes_keys {
            if let Some(vocabulary) = input.vocabulary.filter(|_| is_lookup) {
                replace_keys(servable, plan, (index, vocabulary), tensor, &mut unknown_keys)?;
            }
            continue;
        }
        let (low, high) = input.bounds;
        if (low, high) != (i64::MIN, i64::MAX) {
            let is_bad = |id: i64| id < low || id >= high;
            if let Some((position, &id)) = integers(tensor).iter().enumerate().find(|(_, id)| is_bad(**id)) {
                return Err(faults::bad_id(plan.told_name(index), id, position, high - 1).into());
            }
        }
    }
    Ok(unknown_keys)
}

/// Replaces the keys of a tensor by the ids that a vocabulary gives.
fn replace_keys(
    servable: &Servable,
    plan: &Signature,
    of: (usize, usize),
    tensor: &mut Tensor<'_>,
    unknown_keys: &mut UnknownKeyCounts,
) -> Result<(), BoxedFault> {
    let keys = std::mem::replace(tensor, Tensor { dtype: DataType::Int64, dims: Dims::new(), data: Data::Raw(&[]) });
    *tensor = ids_of_keys(servable, plan, of, keys, unknown_keys)?;
    Ok(())
}

/// Returns the ids that a vocabulary gives for the keys of an input's tensor; `(input, index)`: the indexes of both.
pub(super) fn ids_of_keys<'r>(
    servable: &Servable,
    plan: &Signature,
    (input, index): (usize, usize),
    keys: Tensor<'r>,
    unknown_keys: &mut UnknownKeyCounts,
) -> Result<Tensor<'r>, BoxedFault> {
    let vocabulary = &servable.vocabularies()[index];
    let found = match &keys.data {
        Data::Strings(keys) => vocabulary.rows_of_strings(keys.parts.iter().map(AsRef::as_ref)),
        _ => vocabulary.rows_of_integers(integers(&keys).iter().copied()),
    };
    let (ids, lacking) = found.map_err(|UnknownKey { position, count }| {
        servable.unknown_keys()[index].fetch_add(count as u64, Ordering::Relaxed);
        let (key, kind) = match &keys.data {
            Data::Strings(keys) => (python_repr(&String::from_utf8_lossy(&keys.parts[position])), "strings"),
            _ => (integers(&keys)[position].to_string(), "integers"),
        };
        faults::unknown_key(&plan.inputs[input].name, &key, position, &format!("{} {kind}", vocabulary.num_keys()))
    })?;
    if lacking > 0 {
        unknown_keys.push(UnknownKeyCount { input, vocabulary: index, count: lacking });
    }
    // Vocabularies return int64 ids; convert() refuses an id that does not fit its int32 input.
    Ok(Tensor { dtype: DataType::Int64, dims: keys.dims, data: Data::Ints(ids) })
}

/// Converts the ids or row splits of a request between int64 and int32; refuses a tensor of any other wrong dtype.
fn convert(plan: &Signature, input: &InputPlan, tensor: &Tensor<'_>) -> Result<(), BoxedFault> {
    let are_ids = |dtype| matches!(dtype, DataType::Int64 | DataType::Int32);
    if are_ids(tensor.dtype) && are_ids(input.dtype) && input.role != InputRole::Unread {
        let fits = |id: i64| i32::try_from(id).is_ok();
        if input.dtype == DataType::Int32 && !integers(tensor).iter().all(|&id| fits(id)) {
            return Err(faults::value_does_not_fit(&input.name, input.dtype.name()));
        }
        return Ok(());
    }
    if plan.kind == SignatureKind::Lookup {
        return Err(faults::wrong_dtype(&input.name, input.dtype.name(), tensor.dtype.name()));
    }
    let position = plan.inputs.iter().filter(|other| other.tensor_name < input.tensor_name).count();
    Err(faults::wrong_graph_dtype(position, input.dtype.graph_name(), tensor.dtype.graph_name(), &input.name))
}

fn check_shape(plan: &Signature, index: usize, tensor: &Tensor<'_>) -> Result<(), Declined> {
    let input = &plan.inputs[index];
    let Some(shape) = &input.shape else { return Ok(()) };
    let is_lookup = plan.kind == SignatureKind::Lookup;
    let has_wrong_rank = shape.len() != tensor.dims.len();
    if has_wrong_rank && (is_lookup || input.vocabulary_size.is_some()) {
        if shape.len() == 1 && plan.ragged_owner(index).is_none() {
            let one = if input.vocabulary_size.is_some() || is_lookup { "id" } else { "value" };
            return Err(faults::not_flat(&input.name, one, &tensor.dims).into());
        }
        return Err(faults::wrong_shape(&shape_fault(input, &tensor.dims)).into());
    }
    // A lookup has its own rules for the number of rows, which a static size of the first dimension does not limit.
    let mut sizes = shape.iter().zip(&tensor.dims).skip(1);
    if is_lookup && sizes.any(|(wanted, sent)| wanted.is_some_and(|wanted| wanted != *sent)) {
        return Err(faults::wrong_shape(&shape_fault(input, &tensor.dims)).into());
    }
    Ok(())
}

/// Returns the sentence for an input whose shape contradicts the signature; "" if the shape agrees with it.
fn shape_fault(input: &InputPlan, dims: &[usize]) -> String {
    let Some(shape) = &input.shape else { return String::new() };
    let agrees = |(wanted, sent): (&Option<usize>, &usize)| wanted.is_none_or(|wanted| wanted == *sent);
    if shape.len() == dims.len() && shape.iter().zip(dims).all(agrees) {
        return String::new();
    }
    let declared: Vec<String> = shape.iter().map(|size| size.map_or("?".to_owned(), |size| size.to_string())).collect();
    let declared = declared.join(", ");
    format!("input \"{}\": the signature declares [{declared}], the request has {dims:?}.", input.name)
}

/// Returns the sentences for all inputs whose shapes contradict the signature; "" if there are none.
pub(super) fn shape_faults(plan: &Signature, inputs: &Inputs<'_>) -> String {
    let found: Vec<String> =
        inputs.iter().map(|(index, tensor)| shape_fault(&plan.inputs[index], &tensor.dims)).collect();
    let found: Vec<&str> = found.iter().map(String::as_str).filter(|fault| !fault.is_empty()).collect();
    found.join(" ")
}

/// Returns a sentence with the numbers of rows of the inputs of a predict that has features; "" if they are equal.
pub(super) fn row_counts(plan: &Signature, inputs: &Inputs<'_>) -> String {
    let sent = |index: usize| inputs.get(index).map(|tensor| tensor.dims.first().copied().unwrap_or(1));
    let has_rows = |input: &InputPlan| {
        input.vocabulary_size.is_some() || input.shape.as_ref().is_some_and(|shape| shape.first() == Some(&None))
    };
    let flat = plan.inputs.iter().enumerate().filter(|(index, input)| {
        has_rows(input) && input.role != InputRole::SplitsOrWeights && !plan.is_ragged_part(*index)
    });
    let flat = flat.filter_map(|(index, input)| Some((&*input.name, sent(index)?)));
    let ragged = plan.ragged.iter().filter_map(|one| Some((&*one.name, sent(one.row_splits)?.saturating_sub(1))));
    let mut counts: Vec<(&str, usize)> = flat.chain(ragged).collect();
    let has_features = plan.inputs.iter().any(|input| input.vocabulary_size.is_some());
    if !has_features || counts.iter().all(|(_, rows)| *rows == counts[0].1) {
        return String::new();
    }
    counts.sort_unstable();
    let told: Vec<String> = counts.iter().map(|(name, rows)| format!("\"{name}\" has {rows}")).collect();
    format!("inputs differ in their number of rows: {}.", told.join(", "))
}

/// Returns a text in quotes, as Python's `repr` writes it.
fn python_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ if character.is_control() || character.escape_debug().count() > 1 => match u32::from(character) {
                code @ 0..=0xFF => drop(write!(out, "\\x{code:02x}")),
                code @ 0..=0xFFFF => drop(write!(out, "\\u{code:04x}")),
                code => drop(write!(out, "\\U{code:08x}")),
            },
            _ => out.push(character),
        }
    }
    out.push(quote);
    out
}

/// Validates the row splits of all ragged features, and returns B, the largest number of rows of an input.
///
/// Inputs of a predict may differ in it: only the graph knows which of them have a row for each example.
pub(super) fn count_rows(plan: &Signature, inputs: &Inputs<'_>) -> Result<usize, BoxedFault> {
    let mut most = 0;
    for (index, tensor) in inputs.iter() {
        let input = &plan.inputs[index];
        if input.role == InputRole::SplitsOrWeights || plan.is_ragged_part(index) {
            continue;
        }
        let is_open = |shape: &Vec<Option<usize>>| shape.get(1).is_none_or(Option::is_none);
        let rows = if plan.kind == SignatureKind::Lookup
            && tensor.dims.len() == 2
            && input.shape.as_ref().is_some_and(is_open)
        {
            tensor.dims.iter().product()
        } else {
            tensor.dims.first().copied().unwrap_or(1)
        };
        most = most.max(rows);
    }
    for ragged in plan.ragged_of_values(inputs) {
        let (values, splits) = (&plan.inputs[ragged.values], &plan.inputs[ragged.row_splits]);
        let is_sent = [ragged.values, ragged.row_splits].map(|index| inputs.has(index));
        if is_sent != [true; 2] {
            if is_sent != [false; 2] && values.default.is_none() && splits.default.is_none() {
                return Err(faults::half_of_ragged(&ragged.name, &values.name, &splits.name));
            }
            continue;
        }
        most = most.max(check_ragged(plan, ragged, inputs)?);
    }
    Ok(most)
}

fn check_ragged(plan: &Signature, ragged: &Ragged, inputs: &Inputs<'_>) -> Result<usize, BoxedFault> {
    let sent = |index: usize| Some((&*plan.inputs[index].name, inputs.get(index)?));
    let (Some((ids_name, ids)), Some((name, splits))) = (sent(ragged.values), sent(ragged.row_splits)) else {
        return Ok(0);
    };
    if ids.dims.len() != 1 || splits.dims.len() != 1 {
        return Err(faults::not_rank_1(&ragged.name));
    }
    let num_ids = ids.dims[0];
    let splits = int64_bytes(splits);
    let splits = Ints::new(&splits);
    if splits.is_empty() {
        return Err(faults::splits_start(name, "[]"));
    }
    if splits.get(0) != 0 {
        return Err(faults::splits_start(name, &format!("[{}]", splits.get(0))));
    }
    let last = splits.get(splits.len() - 1);
    if usize::try_from(last) != Ok(num_ids) {
        return Err(faults::splits_end(name, last, ids_name, num_ids));
    }
    let mut before = 0;
    for split in splits.iter() {
        if split < before {
            return Err(faults::splits_decrease(name, before, split));
        }
        before = split;
    }
    // An empty tensor of weights means weight 1 for every id only where it is the input's default. Of weights that no
    // feature reads, the graph decides.
    let may_be_empty = |index: usize| plan.inputs[index].default.is_some() || plan.last_reader(index).is_none();
    if let Some(index) = ragged.weights
        && let Some((name, weights)) = sent(index)
        && !matches!(weights.dims[..], [count] if count == num_ids || (count == 0 && may_be_empty(index)))
    {
        return Err(faults::wrong_weights(name, num_ids, &format!("{:?}", weights.dims)));
    }
    Ok(splits.len() - 1)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn keys_are_quoted_as_python_does() {
        for (text, expected) in [
            ("red", "'red'"),
            ("it's", "\"it's\""),
            ("a \"b\" 'c'", "'a \"b\" \\'c\\''"),
            ("gr\u{fc}n\n\\\u{0}\u{ad}\u{200b}", "'gr\u{fc}n\\n\\\\\\x00\\xad\\u200b'"),
        ] {
            assert_eq!(python_repr(text), expected);
        }
    }
}
