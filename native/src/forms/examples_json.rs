//! Handles `POST /v1/models/{model}:classify` and `:regress`, whose bodies have tf.Examples as JSON objects.
//!
//! Source: `tensorflow_serving/util/json_tensor.cc` (9d981c5), `FillClassifyRegressRequestFromJson`,
//! `MakeExampleFromJsonObject`, `MakeJsonFromClassificationResult` and `MakeJsonFromRegressionResult`.

use std::borrow::Cow;

use super::examples::{Inferred, Method, Run, Task, record, response};
use super::json::document::parse_object;
use super::json::explain::{Object, from_base64, is_base64, member, signature_name};
use super::json::floats::{NonFinite, write_numbers, write_string};
use super::json::outputs::{check_body, text_buffer};
use super::json::shown::{shown_object, type_name};
use super::json::values::Json;
use super::protobuf::{delimited_len, write_delimited, write_delimited_header, write_varint};
use super::{Answered, Call, Version};
use crate::plan::faults::{self, Asked, BoxedFault};
use crate::plan::{DataType, Declined};

/// Answers a `:classify` or `:regress` request.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(
    call: &Call<'_>,
    method: Method,
    model: &str,
    version: Version<'_>,
    body: &[u8],
) -> Result<Answered, Declined> {
    check_body(call.effort, body)?;
    let document = parse_object(body, call.strict_json)?;
    let name = signature_name(&document)?;
    let examples = examples(&document)?;
    let servable = call.find(model, version)?;
    let signature = servable.find_signature(&name, "", Asked::Examples, version == Version::Latest)?;
    let run = || {
        let task = Task::new(servable, signature, method, call.effort)?;
        let run = Run::new(call, servable, &[task], &examples)?;
        let result = &run.results[0];
        let body = answer_text(result, NonFinite::of(call.strict_json));
        let record = record(call, servable, method, signature, &examples, || response(servable, signature, result));
        Ok(run.answered(signature, body.into(), record))
    };
    run().map_err(|declined: Declined| declined.at(|| servable.subject(signature)))
}

/// Returns the serialized Examples of a body, with the shared context before each.
fn examples(document: &Object<'_>) -> Result<Vec<Cow<'static, [u8]>>, BoxedFault> {
    let context = member(document, "context").map(example).transpose()?.unwrap_or_default();
    let text = || shown_object(document);
    let list = match member(document, "examples") {
        None => return Err(faults::no_examples_key(&text())),
        Some(Json::List(list)) if !list.is_empty() => list,
        Some(Json::List(_)) => return Err(faults::no_examples(&text())),
        Some(_) => return Err(faults::examples_no_list(&text())),
    };
    list.iter().map(|one| Ok([&*context, &example(&one)?].concat().into())).collect()
}

/// Returns the serialized Example of a JSON object.
fn example(value: &Json<'_>) -> Result<Vec<u8>, BoxedFault> {
    let Json::Object(members) = value else { return Err(faults::example_no_object(type_name(value))) };
    let mut features = Vec::new();
    for (name, content) in members {
        let feature = feature(name, content)?;
        write_delimited_header(&mut features, 1, delimited_len(1, name.len()) + delimited_len(2, feature.len()));
        write_delimited(&mut features, 1, name.as_bytes());
        write_delimited(&mut features, 2, &feature);
    }
    let mut example = Vec::with_capacity(features.len() + 8);
    if !features.is_empty() {
        write_delimited(&mut example, 1, &features);
    }
    Ok(example)
}

/// The values of a feature, which have one kind.
enum Values {
    None,
    Bytes(Vec<u8>),
    Floats(Vec<u8>),
    Integers(Vec<u8>),
}

impl Values {
    /// Adds a value to the list of its kind.
    fn add(&mut self, name: &str, value: &Json<'_>) -> Result<(), BoxedFault> {
        let are_bytes = matches!(value, Json::Text(_)) || is_base64(value);
        if matches!(self, Values::None) {
            *self = match value {
                _ if are_bytes => Values::Bytes(Vec::new()),
                Json::Bool(_) | Json::Int(_) => Values::Integers(Vec::new()),
                Json::Float(_) => Values::Floats(Vec::new()),
                _ => return Err(faults::feature_element(name, type_name(value))),
            };
        }
        let of_kinds = |kind| Err(faults::feature_of_kinds(name, kind));
        match (self, value) {
            (Values::Bytes(list), Json::Text(text)) => write_delimited(list, 1, text.as_bytes()),
            (Values::Bytes(list), _) if are_bytes => write_delimited(list, 1, &from_base64(value)?),
            (Values::Integers(list), Json::Bool(value)) => write_varint(list, u64::from(*value)),
            (Values::Integers(list), Json::Int(number)) => match i64::try_from(*number) {
                Ok(number) => write_varint(list, number.cast_unsigned()),
                Err(_) => return Err(faults::feature_beyond_int64(name)),
            },
            #[allow(clippy::cast_possible_truncation, reason = "the number is rounded to float32")]
            (Values::Floats(list), Json::Float(number)) => list.extend((*number as f32).to_le_bytes()),
            (_, Json::Null | Json::List(_) | Json::Object(_)) if !are_bytes => {
                return Err(faults::feature_element(name, type_name(value)));
            }
            (Values::Bytes(_), ..) => return of_kinds("bytes"),
            (Values::Floats(_), ..) => return of_kinds("float"),
            (Values::Integers(_), ..) => return of_kinds("int64"),
            (Values::None, ..) => {}
        }
        Ok(())
    }
}

/// Returns the serialized Feature of a JSON value, or of a list of them.
fn feature(name: &str, content: &Json<'_>) -> Result<Vec<u8>, BoxedFault> {
    let mut values = Values::None;
    match content {
        Json::List(list) => list.iter().try_for_each(|value| values.add(name, &value))?,
        value => values.add(name, value)?,
    }
    let mut feature = Vec::new();
    let mut packed = |field, list: &[u8]| {
        write_delimited_header(&mut feature, field, delimited_len(1, list.len()));
        write_delimited(&mut feature, 1, list);
    };
    match values {
        Values::None => {}
        Values::Floats(list) => packed(2, &list),
        Values::Integers(list) => packed(3, &list),
        Values::Bytes(list) => write_delimited(&mut feature, 1, &list),
    }
    Ok(feature)
}

/// Returns the body of an answer: for each Example a value, or a list of labels with their scores.
fn answer_text(result: &Inferred, non_finite: NonFinite) -> Vec<u8> {
    let mut out = text_buffer(0);
    out.extend_from_slice(b"{\"results\":");
    match result {
        Inferred::Values(bytes) => {
            write_numbers(DataType::Float32, &[bytes.len() / 4], bytes, non_finite, &mut out);
        }
        Inferred::Classes { num_rows, num_classes, .. } => {
            let mut all = result.classes();
            let list = |out: &mut Vec<u8>, count: usize, each: &mut dyn FnMut(&mut Vec<u8>)| {
                out.push(b'[');
                for at in 0..count {
                    if at > 0 {
                        out.push(b',');
                    }
                    each(out);
                }
                out.push(b']');
            };
            list(&mut out, *num_rows, &mut |out| {
                list(out, *num_classes, &mut |out| {
                    let Some((label, score)) = all.next() else { return };
                    out.push(b'[');
                    write_string(&label, out);
                    out.push(b',');
                    write_numbers(DataType::Float32, &[], &score, non_finite, out);
                    out.push(b']');
                });
            });
        }
    }
    out.push(b'}');
    out
}
