//! `POST /v1/models/{model}:predict`: TensorFlow Serving's rows (`instances`) and columns (`inputs`).
//!
//! The reference is `service/wire/json_tensor.py`. A ragged feature is sent under its own name, as one list of ids for
//! each row, or by column as values and row splits.

use smallvec::SmallVec;

use super::json::outputs::{self, Layout};
use super::json::reader::{Column, Payload, read_predict};
use super::json::tensors::{add_dense, add_ragged, is_ragged_part, nothing};
use super::{Answered, Call, Version};
use crate::declined::Declined;
use crate::plan::{Inputs, Signature};

/// Answers a predict.
///
/// # Errors
/// The reason why the reference must answer.
pub fn answer(call: &Call<'_>, model: &str, version: Version<'_>, body: &[u8]) -> Result<Answered, Declined> {
    outputs::check_body(call.effort, body)?;
    let body = read_predict(body)?;
    let servable = call.find(model, version)?;
    let number = servable.signature(&body.signature_name, "").ok_or(Declined::Unknown)?;
    let signature = &servable.signatures()[number];
    signature.admit(call.effort)?;
    let inputs = inputs_of(signature, body.payload, body.is_by_row)?;
    let layout = if body.is_by_row { Layout::Rows } else { Layout::Columns };
    outputs::answer(call, servable, number, inputs, layout)
}

/// The role of a column in the body of a predict.
#[derive(Clone, Copy)]
enum Role {
    /// Lists of ids for this feature.
    Ragged(usize),
    /// Weights of a feature whose ids came in lists; the form reads these weights together with the ids.
    Weights,
    /// The whole value of this input.
    Input(usize),
}

/// Returns the inputs that a body holds.
pub(super) fn inputs_of<'a>(
    signature: &Signature,
    payload: Payload<'a>,
    is_by_row: bool,
) -> Result<Inputs<'a>, Declined> {
    let mut inputs = nothing(signature);
    let columns = match payload {
        Payload::Columns(columns) => columns,
        Payload::Value(value) => {
            match only_feature(signature)? {
                Role::Ragged(feature) => add_ragged(&mut inputs, signature, feature, value, None)?,
                Role::Input(number) => add_dense(&mut inputs, signature, number, value)?,
                Role::Weights => return Err(Declined::Unfit),
            }
            return Ok(inputs);
        }
    };
    let roles = columns.iter().map(|column| role(signature, &columns, &column.name, is_by_row));
    let roles = roles.collect::<Result<SmallVec<[Role; 8]>, Declined>>()?;
    let weights: SmallVec<[Option<usize>; 8]> =
        roles.iter().map(|role| weights_of(signature, &columns, *role)).collect();
    let mut values: SmallVec<[_; 8]> = columns.into_iter().map(|column| Some(column.value)).collect();
    for (place, (role, weights)) in roles.into_iter().zip(weights).enumerate() {
        match role {
            Role::Ragged(feature) => {
                let weights = weights.and_then(|weights| values[weights].take());
                let ids = values[place].take().ok_or(Declined::Unfit)?;
                add_ragged(&mut inputs, signature, feature, ids, weights)?;
            }
            Role::Input(number) => {
                let value = values[place].take().ok_or(Declined::Unfit)?;
                add_dense(&mut inputs, signature, number, value)?;
            }
            Role::Weights => {}
        }
    }
    Ok(inputs)
}

/// Returns the only feature of a signature, or its only input with a single id for each row.
fn only_feature(signature: &Signature) -> Result<Role, Declined> {
    let ragged = signature.features.iter().enumerate().filter(|(_, feature)| feature.row_splits.is_some());
    let ragged = ragged.map(|(number, _)| Role::Ragged(number));
    let inputs = (0..signature.inputs.len()).filter(|&number| !is_ragged_part(signature, number)).map(Role::Input);
    let mut all = ragged.chain(inputs);
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Declined::Unfit),
    }
}

fn is_sent(columns: &[Column<'_>], name: &str) -> bool {
    columns.iter().any(|column| column.name == name)
}

/// Returns the feature whose ids come as lists under the name `name`.
fn ragged(signature: &Signature, columns: &[Column<'_>], name: &str) -> Option<usize> {
    let feature = signature.ragged_feature(name.as_bytes())?;
    let splits = signature.features[feature].row_splits?;
    // A feature may have the name of its ids input; if its row splits are sent too, the ids are flat.
    let is_flat = signature.input(name.as_bytes()).is_some() && is_sent(columns, &signature.inputs[splits].name);
    (!is_flat).then_some(feature)
}

fn role(signature: &Signature, columns: &[Column<'_>], name: &str, is_by_row: bool) -> Result<Role, Declined> {
    if let Some(number) = ragged(signature, columns, name) {
        let feature = &signature.features[number];
        let is_twice = |part: usize| {
            let part = &signature.inputs[part].name;
            part != name && is_sent(columns, part)
        };
        if is_twice(feature.ids) || feature.row_splits.is_some_and(is_twice) {
            return Err(Declined::Unfit);
        }
        return Ok(Role::Ragged(number));
    }
    let number = signature.input(name.as_bytes()).ok_or(Declined::Unfit)?;
    let is_ragged = |name: &str| is_sent(columns, name) && ragged(signature, columns, name).is_some();
    let mut features = signature.features.iter();
    if features.any(|one| one.weights == Some(number) && is_ragged(&one.name)) {
        return Ok(Role::Weights);
    }
    if is_by_row && is_ragged_part(signature, number) {
        return Err(Declined::Unfit);
    }
    Ok(Role::Input(number))
}

/// Returns which column holds the weights of a ragged feature.
fn weights_of(signature: &Signature, columns: &[Column<'_>], role: Role) -> Option<usize> {
    let Role::Ragged(feature) = role else { return None };
    let name = &signature.inputs[signature.features[feature].weights?].name;
    columns.iter().position(|column| column.name == *name)
}
