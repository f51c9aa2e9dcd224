//! `POST /v1/models/{model}:lookup`: returns embeddings by feature.
//!
//! The reference is `service/wire/json_lookup.py`.

use super::json::outputs::{self, Layout};
use super::json::reader::{LookupBody, read_lookup};
use super::json::tensors::{add_dense, add_ragged, is_ragged_part, nothing};
use super::{Answered, Call, Version};
use crate::declined::Declined;
use crate::plan::{Inputs, Signature};

const DEFAULT_SIGNATURE: &str = "lookup";

/// Answers a lookup.
///
/// # Errors
/// The reason why the reference must answer.
pub fn answer(call: &Call<'_>, model: &str, version: Version<'_>, body: &[u8]) -> Result<Answered, Declined> {
    outputs::check_body(call.effort, body)?;
    let body = read_lookup(body)?;
    let servable = call.find(model, version)?;
    let name = match &*body.signature_name {
        "" => DEFAULT_SIGNATURE,
        name => name,
    };
    let number = servable.signature(name, "").ok_or(Declined::Unknown)?;
    let inputs = inputs_of(&servable.signatures()[number], body)?;
    outputs::answer(call, servable, number, inputs, Layout::Embeddings)
}

/// Returns the inputs that a body holds.
pub(super) fn inputs_of<'a>(signature: &Signature, body: LookupBody<'a>) -> Result<Inputs<'a>, Declined> {
    let mut inputs = nothing(signature);
    let mut all_weights = body.weights;
    for column in body.features {
        let of_column = all_weights.iter().position(|weights| weights.name == column.name);
        let weights = of_column.map(|place| all_weights.swap_remove(place).value);
        if let Some(feature) = signature.ragged_feature(column.name.as_bytes()) {
            add_ragged(&mut inputs, signature, feature, column.value, weights)?;
            continue;
        }
        let number = signature.input(column.name.as_bytes()).ok_or(Declined::Unfit)?;
        if weights.is_some() || is_ragged_part(signature, number) {
            return Err(Declined::Unfit);
        }
        add_dense(&mut inputs, signature, number, column.value)?;
    }
    // The remaining weights have no ids.
    if all_weights.is_empty() { Ok(inputs) } else { Err(Declined::Unfit) }
}
