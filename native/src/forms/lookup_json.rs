//! Handles `POST /v1/models/{model}:lookup`, which returns a vector for each feature and row of the request.
//!
//! The reference implementation is `service/wire/json_lookup.py`.

use super::json::outputs::{self, JsonLayout};
use super::json::reader::{LookupBody, read_lookup};
use super::json::tensors::{add_dense, add_ragged, is_ragged_part, no_inputs};
use super::{Answered, Call, Version};
use crate::plan::{Declined, Inputs, Signature};

const DEFAULT_SIGNATURE: &str = "lookup";

/// Answers a `:lookup` request.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(call: &Call<'_>, model: &str, version: Version<'_>, body: &[u8]) -> Result<Answered, Declined> {
    outputs::check_body(call.effort, body)?;
    let body = read_lookup(body)?;
    let servable = call.find(model, version)?;
    let name = match &*body.signature_name {
        "" => DEFAULT_SIGNATURE,
        name => name,
    };
    let index = servable.signature(name, "").ok_or(Declined::Unknown)?;
    let inputs = inputs_of(&servable.signatures()[index], body)?;
    outputs::answer(call, servable, index, inputs, JsonLayout::Embeddings)
}

/// Converts a parsed `:lookup` body to the inputs of the signature.
pub(super) fn inputs_of<'a>(signature: &Signature, body: LookupBody<'a>) -> Result<Inputs<'a>, Declined> {
    let mut inputs = no_inputs(signature);
    let mut all_weights = body.weights;
    for column in body.features {
        let of_column = all_weights.iter().position(|weights| weights.name == column.name);
        let weights = of_column.map(|column| all_weights.swap_remove(column).value);
        if let Some(feature) = signature.ragged_feature(column.name.as_bytes()) {
            add_ragged(&mut inputs, signature, feature, column.value, weights)?;
            continue;
        }
        let index = signature.input(column.name.as_bytes()).ok_or(Declined::Unfit)?;
        if weights.is_some() || is_ragged_part(signature, index) {
            return Err(Declined::Unfit);
        }
        add_dense(&mut inputs, signature, index, column.value)?;
    }
    // The body is declined if it has weights for a feature, but not the feature's ids.
    if all_weights.is_empty() { Ok(inputs) } else { Err(Declined::Unfit) }
}
