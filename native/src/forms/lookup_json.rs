//! Handles `POST /v1/models/{model}:lookup`, which returns a vector for each feature and row of the request.

use super::json::explain::LookupDocument;
use super::json::outputs::{self, JsonLayout};
use super::json::reader::{LookupBody, read_lookup};
use super::json::tensors::{add_dense, add_ragged};
use super::{Answered, Call, Version};
use crate::plan::faults::{self, Asked, Names};
use crate::plan::{Declined, Inputs, Signature, SignatureKind};

const DEFAULT_SIGNATURE: &str = "lookup";

/// Answers a `:lookup` request.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(call: &Call<'_>, model: &str, version: Version<'_>, body: &[u8]) -> Result<Answered, Declined> {
    outputs::check_body(call.effort, body)?;
    let parsed = match read_lookup(body) {
        Ok(parsed) => Parsed::Plain(parsed),
        Err(_) => Parsed::Whole(LookupDocument::parse(body, call.strict_json)?),
    };
    let servable = call.find(model, version)?;
    let name = match &parsed {
        Parsed::Plain(parsed) => &*parsed.signature_name,
        Parsed::Whole(document) => &document.signature_name,
    };
    let name = if name.is_empty() { DEFAULT_SIGNATURE } else { name };
    let index = servable.find_signature(name, "", Asked::Predict, version == Version::Latest)?;
    let signature = &servable.signatures()[index];
    let run = || {
        let inputs = match parsed {
            Parsed::Plain(parsed) => match inputs_of(signature, parsed) {
                Ok(inputs) => inputs,
                Err(_) => LookupDocument::parse(body, call.strict_json)?.inputs(signature)?.inputs,
            },
            Parsed::Whole(document) => document.inputs(signature)?.inputs,
        };
        let is_misplaced = signature.kind == SignatureKind::Predict && !signature.has_required(&inputs);
        let answered = outputs::answer(call, servable, index, inputs, JsonLayout::Embeddings);
        match answered {
            Err(Declined::Fault(_)) if is_misplaced => {
                let lookups = servable.signatures().iter().filter(|one| one.kind == SignatureKind::Lookup);
                let mut names: Vec<&str> = lookups.map(|one| &*one.name).collect();
                names.sort_unstable();
                let instead = match &names[..] {
                    [] => String::new(),
                    names if names.contains(&DEFAULT_SIGNATURE) => {
                        ", or leave out \"signature_name\" for a lookup".to_owned()
                    }
                    names => format!(", or name a lookup: {}", Names::listed(names)),
                };
                Err(faults::no_lookup(&signature.name, &instead).into())
            }
            answered => answered,
        }
    };
    run().map_err(|declined| declined.at(|| servable.subject(index)))
}

/// A `:lookup` body as the fast reader gives it, or as a whole document.
enum Parsed<'a> {
    Plain(LookupBody<'a>),
    Whole(LookupDocument<'a>),
}

/// Converts a parsed `:lookup` body to the inputs of the signature.
pub(super) fn inputs_of<'a>(signature: &Signature, body: LookupBody<'a>) -> Result<Inputs<'a>, Declined> {
    let mut inputs = Inputs::new(signature.inputs.len());
    let mut all_weights = body.weights;
    for column in body.features {
        let of_column = all_weights.iter().position(|weights| weights.name == column.name);
        let weights = of_column.map(|column| all_weights.swap_remove(column).value);
        if let Some(ragged) = signature.ragged_index(column.name.as_bytes()) {
            add_ragged(&mut inputs, signature, ragged, column.value, weights)?;
            continue;
        }
        let index = signature.input(column.name.as_bytes()).ok_or(Declined::Unusual)?;
        if weights.is_some() || signature.is_ragged_part(index) {
            return Err(Declined::Unusual);
        }
        add_dense(&mut inputs, signature, index, column.value)?;
    }
    // The body is declined if it has weights for a feature, but not the feature's ids.
    if all_weights.is_empty() { Ok(inputs) } else { Err(Declined::Unusual) }
}
