//! Handles the gRPC method `tensorflow.serving.PredictionService/Predict`.
//!
//! The form reads requests that have no singular field twice, no input twice, and no unknown field; `usual.rs` rewrites
//! all other messages to such ones.
//!
//! Source: `tensorflow_serving/apis/{predict,model}.proto` (9d981c5).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::built_size::{check_num_messages, check_num_strings};
use super::model_spec::ModelSpec;
use super::predict_response::write_response;
use super::protobuf::{Fields, Value, map_entry, text};
use super::record::Recording;
use super::tensor_proto::{Allowance, read_tensor};
use super::usual::{PREDICT_REQUEST, answer_usual};
use super::{Answered, Call, TensorEncoding};
use crate::plan::faults::{Asked, Code};
use crate::plan::{
    Data, DataType, Declined, Dims, Effort, Inputs, Servable, Signature, Tensor, Version, Work, check_names,
    set_no_rows,
};

/// A request with more bytes is parsed on the thread pool for large work; parsing integers of this many bytes takes
/// some 50 microseconds.
const SMALL_REQUEST: usize = 64 << 10;

/// The name in place of a signature's by which a predict searches for nearest rows.
const SEARCH: &str = "neighbors";

/// Full name of the request's message, for its error text.
const REQUEST: &str = "tensorflow.serving.PredictRequest";

/// Answers a `PredictRequest`. Request and answer are messages without gRPC's five-byte prefix.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    if call.effort == Effort::Small && message.len() > SMALL_REQUEST {
        return Err(Declined::TooLarge);
    }
    let answer = |message: &[u8]| answer_plain(call, message);
    answer_usual(&PREDICT_REQUEST, message, answer).map_err(|declined| declined.of_message(REQUEST, message))
}

fn answer_plain(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    let spec = ModelSpec::of_request(message)?;
    let found = call.find(spec.model, spec.version);
    if spec.signature == SEARCH {
        // Python searches also in a version that the core can not run.
        match &found {
            Ok(servable) if !servable.has_signature(SEARCH) => return Err(Declined::Search),
            Err(fault) if fault.code == Code::Unimplemented => return Err(Declined::Search),
            _ => {}
        }
    }
    let servable = found?;
    let index = servable.find_signature(spec.signature, "", Asked::Predict, spec.version == Version::Latest)?;
    let run = || run(call, message, servable, index).map_err(|declined| declined.of_message(REQUEST, message));
    run().map_err(|declined| declined.at(|| servable.subject(index)))
}

fn run(call: &Call<'_>, message: &[u8], servable: &Arc<Servable>, index: usize) -> Result<Answered, Declined> {
    let signature = &servable.signatures()[index];
    signature.check_effort(call.effort)?;
    let (inputs, wanted) = read(message, signature, call.effort)?;

    let started = Instant::now();
    let recording = Recording::begin(call, servable, index, &inputs, &wanted);
    let mut work = Work::prepare(servable, index, inputs, &wanted, call.effort, call.max_response_bytes)?;
    work.round_to(call.encoding.half());
    let as_content = call.encoding != TensorEncoding::Values;
    let body = write_response(&mut work, servable, signature, as_content)?;
    Ok(Answered { body, ..Answered::end(work, recording, servable, index, started)? })
}

/// Returns the model name in a request, of which perhaps only the first bytes are received; "" if there is no readable
/// name.
#[must_use]
pub fn model(message: &[u8]) -> &str {
    let spec = Fields::of(message).map_while(Result::ok).find_map(|field| match field {
        (1, Value::Delimited(spec)) => Some(spec),
        _ => None,
    });
    spec.and_then(|spec| ModelSpec::read(spec).ok()).map_or("", |spec| spec.model)
}

/// Parses any bytes as a `PredictRequest`, for the fuzz targets.
#[doc(hidden)]
pub fn fuzz(message: &[u8], signature: &Signature) {
    let _ = ModelSpec::of_request(message);
    let _ = read(message, signature, Effort::Any);
}

/// The indexes of a signature's outputs that a request names.
type OutputIndexes = SmallVec<[usize; 8]>;

/// Parses the inputs of a `PredictRequest`; returns them, and the indexes of the outputs that `output_filter` names.
///
/// The order of the checks decides which error a client sees, and is TensorFlow Serving's: input names, tensors that do
/// not parse, output filter.
fn read<'a>(
    message: &'a [u8],
    signature: &Signature,
    effort: Effort<'_>,
) -> Result<(Inputs<'a>, OutputIndexes), Declined> {
    let mut inputs = Inputs::new(signature.inputs.len());
    // The names that the signature lacks: a request may have very many.
    let mut extra: HashSet<&str> = HashSet::new();
    let mut filter: SmallVec<[&str; 4]> = SmallVec::new();
    let mut fault = None;
    let mut allowance = Allowance::of_request(message.len(), effort);
    for field in Fields::of(message) {
        match field? {
            (1, Value::Delimited(_)) => {}
            (2, Value::Delimited(entry)) => {
                let (name, tensor) = map_entry(entry)?;
                let known = signature.input(name);
                let name = known.map_or_else(|| text(name), |index| Ok(&*signature.inputs[index].name))?;
                let tensor = read_tensor(name, tensor, &mut allowance);
                let Some(index) = known else {
                    if let Ok(tensor) = &tensor
                        && set_no_rows(signature, name, tensor, &mut inputs)
                    {
                        continue;
                    }
                    if let Err(declined @ (Declined::Malformed | Declined::Unusual)) = tensor {
                        return Err(declined);
                    }
                    if !extra.insert(name) {
                        return Err(Declined::Unusual);
                    }
                    check_num_messages(extra.len())?;
                    continue;
                };
                if inputs.has(index) {
                    return Err(Declined::Unusual);
                }
                let tensor = match tensor {
                    Ok(tensor) => tensor,
                    Err(Declined::Fault(first)) => {
                        fault.get_or_insert(first);
                        // The names are checked before the fault is returned.
                        Tensor { dtype: DataType::Int64, dims: Dims::new(), data: Data::Raw(&[]) }
                    }
                    Err(declined) => return Err(declined),
                };
                inputs.insert(index, tensor);
            }
            (3, Value::Delimited(name)) => {
                filter.push(text(name)?);
                check_num_strings(filter.len())?;
            }
            _ => return Err(Declined::Unusual),
        }
    }
    if fault.is_some() || !extra.is_empty() || !filter.is_empty() {
        let extra: Vec<&str> = extra.iter().copied().collect();
        check_names(signature, &inputs, &extra)?;
    }
    if let Some(fault) = fault {
        return Err(fault.into());
    }
    Ok((inputs, signature.output_indexes(&filter.iter().copied())?))
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
