//! Handles `POST /v1/models/{model}:predict` in TensorFlow Serving's row format (`instances`) and column format
//! (`inputs`).
//!
//! Clients send a ragged feature under its own name, as one list of ids for each row; in the column format, they may also
//! send values and row splits.

use smallvec::SmallVec;

use super::json::explain::{Decoded, PredictDocument};
use super::json::outputs::{self, JsonLayout};
use super::json::reader::{Column, Payload, PredictBody, read_predict};
use super::json::tensors::{add_dense, add_ragged};
use super::{Answered, Call, Version};
use crate::plan::faults::{Asked, Code};
use crate::plan::{Declined, Inputs, Signature, check_names};

/// Answers a `:predict` request.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer<'a>(call: &Call<'_>, model: &str, version: Version<'_>, body: &'a [u8]) -> Result<Answered, Declined> {
    outputs::check_body(call.effort, body)?;
    let parsed = match read_predict(body) {
        Ok(parsed) => Parsed::Plain(parsed),
        Err(_) => Parsed::Whole(PredictDocument::parse(body, call.strict_json)?),
    };
    let servable = call.find(model, version)?;
    let (name, is_by_row) = match &parsed {
        Parsed::Plain(parsed) => (&*parsed.signature_name, parsed.is_by_row),
        Parsed::Whole(document) => (&*document.signature_name, document.is_by_row()),
    };
    let index = match servable.find_signature(name, "", Asked::RestPredict, version == Version::Latest) {
        Ok(index) => index,
        Err(fault) => {
            // A signature that this server does not run is there for TensorFlow Serving, which reads the body next.
            if let Parsed::Whole(document) = &parsed
                && matches!(fault.code, Code::Unimplemented | Code::FailedPrecondition)
            {
                document.sent()?;
            }
            return Err(fault.into());
        }
    };
    let signature = &servable.signatures()[index];
    signature.check_effort(call.effort)?;
    let layout = if is_by_row { JsonLayout::Rows } else { JsonLayout::Columns };
    let whole = |document: &PredictDocument<'a>| {
        let Decoded { inputs, extra } = document.inputs(signature)?;
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        check_names(signature, &inputs, &extra)?;
        Ok::<_, Declined>(inputs)
    };
    let run = || {
        let inputs = match parsed {
            Parsed::Plain(PredictBody { payload, is_by_row, .. }) => match inputs_of(signature, payload, is_by_row) {
                // TensorFlow Serving's REST API has texts of its own for missing inputs.
                Ok(inputs) if signature.is_described() || signature.has_required(&inputs) => inputs,
                _ => whole(&PredictDocument::parse(body, call.strict_json)?)?,
            },
            Parsed::Whole(document) => whole(&document)?,
        };
        outputs::answer(call, servable, index, inputs, layout)
    };
    run().map_err(|mut declined| {
        if let Declined::Fault(fault) = &mut declined
            && is_by_row
            && !fault.text_of_instances.is_empty()
        {
            fault.text = std::mem::take(&mut fault.text_of_instances);
        }
        declined.at(|| servable.subject(index))
    })
}

/// A `:predict` body as the fast reader gives it, or as a whole document.
enum Parsed<'a> {
    Plain(PredictBody<'a>),
    Whole(PredictDocument<'a>),
}

/// The kind of one column of a `:predict` body: ids of a feature, weights of a feature, or a whole input.
#[derive(Clone, Copy)]
enum ColumnRole {
    /// The column has a list of values for each row, for the ragged tensor with this index.
    Ragged(usize),
    /// The column has lists of weights, which are read together with the values of their ragged tensor.
    Weights,
    /// The column has the whole value of the signature's input with this index.
    Input(usize),
}

/// Converts a parsed `:predict` body to the signature's inputs.
pub(super) fn inputs_of<'a>(
    signature: &Signature,
    payload: Payload<'a>,
    is_by_row: bool,
) -> Result<Inputs<'a>, Declined> {
    // TensorFlow Serving answers such a signature over gRPC only, so `explain` refuses the request.
    if signature.inputs.is_empty() {
        return Err(Declined::Unusual);
    }
    let mut inputs = Inputs::new(signature.inputs.len());
    let columns = match payload {
        Payload::Columns(columns) => columns,
        Payload::Value(value) => {
            match only_feature(signature)? {
                ColumnRole::Ragged(ragged) => add_ragged(&mut inputs, signature, ragged, value, None)?,
                ColumnRole::Input(index) => add_dense(&mut inputs, signature, index, value)?,
                ColumnRole::Weights => return Err(Declined::Unusual),
            }
            return Ok(inputs);
        }
    };
    let roles = columns.iter().map(|column| role(signature, &columns, &column.name, is_by_row));
    let roles = roles.collect::<Result<SmallVec<[ColumnRole; 8]>, Declined>>()?;
    let weights: SmallVec<[Option<usize>; 8]> =
        roles.iter().map(|role| weights_of(signature, &columns, *role)).collect();
    let mut values: SmallVec<[_; 8]> = columns.into_iter().map(|column| Some(column.value)).collect();
    for (column, (role, weights)) in roles.into_iter().zip(weights).enumerate() {
        match role {
            ColumnRole::Ragged(ragged) => {
                let weights = weights.and_then(|weights| values[weights].take());
                let ids = values[column].take().ok_or(Declined::Unusual)?;
                add_ragged(&mut inputs, signature, ragged, ids, weights)?;
            }
            ColumnRole::Input(index) => {
                let value = values[column].take().ok_or(Declined::Unusual)?;
                add_dense(&mut inputs, signature, index, value)?;
            }
            ColumnRole::Weights => {}
        }
    }
    Ok(inputs)
}

/// Returns the only ragged tensor or the only other input of a signature; declines a signature with several of them.
fn only_feature(signature: &Signature) -> Result<ColumnRole, Declined> {
    let ragged = (0..signature.ragged.len()).map(ColumnRole::Ragged);
    let inputs = (0..signature.inputs.len()).filter(|&index| !signature.is_ragged_part(index)).map(ColumnRole::Input);
    let mut all = ragged.chain(inputs);
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Declined::Unusual),
    }
}

fn is_sent(columns: &[Column<'_>], name: &str) -> bool {
    columns.iter().any(|column| column.name == name)
}

/// Returns the index of the ragged tensor whose values are sent as lists under this name; None if the name has another
/// meaning.
fn ragged(signature: &Signature, columns: &[Column<'_>], name: &str) -> Option<usize> {
    let index = signature.ragged_index(name.as_bytes())?;
    let splits = signature.ragged[index].row_splits;
    // A ragged tensor and its input of values may have the same name. If the row splits are sent too, the value under
    // this name is the flat values, not lists of values.
    let is_flat = signature.input(name.as_bytes()).is_some() && is_sent(columns, &signature.inputs[splits].name);
    (!is_flat).then_some(index)
}

fn role(signature: &Signature, columns: &[Column<'_>], name: &str, is_by_row: bool) -> Result<ColumnRole, Declined> {
    if let Some(index) = ragged(signature, columns, name) {
        let tensor = &signature.ragged[index];
        let is_twice = |part: usize| {
            let part = &signature.inputs[part].name;
            part != name && is_sent(columns, part)
        };
        if is_twice(tensor.values) || is_twice(tensor.row_splits) {
            return Err(Declined::Unusual);
        }
        return Ok(ColumnRole::Ragged(index));
    }
    let index = signature.input(name.as_bytes()).ok_or(Declined::Unusual)?;
    let is_ragged = |name: &str| is_sent(columns, name) && ragged(signature, columns, name).is_some();
    if signature.ragged_of(index).any(|one| one.weights == Some(index) && is_ragged(&one.name)) {
        return Ok(ColumnRole::Weights);
    }
    if is_by_row && signature.is_ragged_part(index) {
        return Err(Declined::Unusual);
    }
    Ok(ColumnRole::Input(index))
}

/// Returns the position of the column with the weights for a column of lists of ids; None if there is no such column.
fn weights_of(signature: &Signature, columns: &[Column<'_>], role: ColumnRole) -> Option<usize> {
    let ColumnRole::Ragged(ragged) = role else { return None };
    let name = &signature.inputs[signature.ragged[ragged].weights?].name;
    columns.iter().position(|column| column.name == *name)
}
