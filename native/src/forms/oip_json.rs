//! `POST /v2/models/{model}[/versions/{version}]/infer`: JSON, and behind it the binary data of the tensors that say so.
//!
//! The reference is `service/codecs/oip_json.py`. This form answers bodies of its plain kind: no key that the reference
//! does not read holds a list or an object, no number is `NaN` or `Infinity`, and 16-bit floats are binary.

mod cursor;
mod request;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use self::request::Request;
use super::json::floats::{self, NonFinite};
use super::oip_binary::{
    SIGNATURE_PARAMETER, append_binary, append_numbers, binary_size, by_number, datatype_of, find, output_numbers,
};
use super::{Answered, Call, Version};
use crate::declined::Declined;
use crate::plan::{DataType, Effort, OutputShape, Servable, Signature, Work};

/// A longer JSON text is large work: it is read at some 500 MB a second.
const SMALL_JSON_BYTES: usize = 32 << 10;
/// More numbers in the answer's JSON are large work: each takes some 15 ns.
const SMALL_JSON_NUMBERS: usize = 4096;
/// Bytes to reserve for the text of one number.
const NUMBER_BYTES: usize = 12;

type Result<T> = std::result::Result<T, Declined>;

/// Answers an inference request.
///
/// `header_length` is the value of the header Inference-Header-Content-Length.
///
/// # Errors
/// The reason why the reference must answer.
pub fn answer(
    call: &Call<'_>,
    model: &str,
    version: Version<'_>,
    header_length: Option<usize>,
    body: &[u8],
) -> Result<Answered> {
    let (json, binary) = body
        .split_at_checked(header_length.unwrap_or(body.len()))
        .ok_or(Declined::Unusual)?;
    if call.effort == Effort::Small && json.len() > SMALL_JSON_BYTES {
        return Err(Declined::TooLarge);
    }
    let request = Request::read(json, binary, header_length.is_some())?;
    let (servable, number) = find(call, model, version, &request.signature)?;
    let signature = &servable.signatures()[number];
    let wanted = output_numbers(signature, request.outputs.iter().map(|output| &output.name))?;
    let forms = Forms::of(&request, &wanted);
    let named = request.inputs.into_iter().map(|input| (input.name, input.tensor));
    let inputs = by_number(signature, named)?;
    let started = Instant::now();
    let mut work = Work::prepare(servable, number, inputs, &wanted, call.effort, call.max_response_bytes)?;
    let mut ran = started.elapsed();
    if call.effort == Effort::Small && json_numbers(&work, &forms) > SMALL_JSON_NUMBERS {
        return Err(Declined::TooLarge);
    }
    let rows = work.rows();

    let mut out = Vec::with_capacity(answer_capacity(&work, &forms));
    write_head(servable, request.id.as_deref(), signature, &mut out);
    let mut numbers = Vec::new();
    let mut has_binary = false;
    for i in 0..work.outputs().len() {
        let shape = work.outputs()[i].clone();
        out.extend_from_slice(if i == 0 { b"{\"name\":" } else { b",{\"name\":" });
        floats::write_string(&signature.outputs[shape.output].name, &mut out);
        write_shape(&shape, &mut out);
        if forms.is_binary(shape.output) {
            let num_bytes = binary_size(&work, i);
            // For a BYTES output of no elements the reference sends no header of the JSON's length.
            has_binary |= shape.dtype != DataType::String || num_bytes > 0;
            out.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            write_size(num_bytes, &mut out);
            out.extend_from_slice(b"}}");
            continue;
        }
        out.extend_from_slice(b",\"data\":");
        if shape.dtype == DataType::String {
            write_strings(work.strings(i), &mut out)?;
        } else {
            numbers.clear();
            let started = Instant::now();
            append_numbers(&mut work, i, &mut numbers)?;
            ran += started.elapsed();
            let count = numbers.len() / shape.dtype.size();
            floats::write_numbers(
                shape.dtype,
                &[count],
                &numbers,
                NonFinite::of(call.strict_json),
                &mut out,
            );
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    let json_length = has_binary.then_some(out.len());
    let started = Instant::now();
    for i in 0..work.outputs().len() {
        if forms.is_binary(work.outputs()[i].output) {
            append_binary(&mut work, i, &mut out)?;
        }
    }
    work.finish()?;
    ran += started.elapsed();
    Ok(Answered {
        body: Bytes::from(out),
        rows,
        servable: Arc::clone(servable),
        signature: number,
        ran,
        json_length,
    })
}

/// In which form each output of an answer goes.
struct Forms {
    /// Whether outputs that do not say so themselves are binary.
    is_binary: bool,
    /// Of the outputs that the request names: their numbers, and the form that it names.
    of_output: SmallVec<[(usize, Option<bool>); 8]>,
}

impl Forms {
    /// `wanted` are the numbers of the outputs that the request names.
    fn of(request: &Request<'_>, wanted: &[usize]) -> Self {
        let own = request.outputs.iter().map(|output| output.is_binary);
        Forms {
            is_binary: request.is_binary,
            of_output: wanted.iter().copied().zip(own).collect(),
        }
    }

    fn is_binary(&self, output: usize) -> bool {
        let named = self.of_output.iter().find(|(number, _)| *number == output);
        named.and_then(|(_, form)| *form).unwrap_or(self.is_binary)
    }
}

fn json_numbers(work: &Work<'_>, forms: &Forms) -> usize {
    let shapes = work.outputs().iter().filter(|shape| !forms.is_binary(shape.output));
    shapes.map(|shape| shape.dims.iter().product::<usize>()).sum()
}

fn answer_capacity(work: &Work<'_>, forms: &Forms) -> usize {
    let binary = (0..work.outputs().len()).filter(|&i| forms.is_binary(work.outputs()[i].output));
    let binary: usize = binary.map(|i| binary_size(work, i)).sum();
    256 + 128 * work.outputs().len() + NUMBER_BYTES * json_numbers(work, forms) + binary
}

/// Writes the document up to its first output.
fn write_head(servable: &Servable, id: Option<&str>, signature: &Signature, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"model_name\":");
    floats::write_string(servable.model(), out);
    out.extend_from_slice(b",\"model_version\":\"");
    out.extend_from_slice(itoa::Buffer::new().format(servable.version()).as_bytes());
    out.push(b'"');
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        floats::write_string(id, out);
    }
    out.extend_from_slice(b",\"parameters\":{\"");
    out.extend_from_slice(SIGNATURE_PARAMETER.as_bytes());
    out.extend_from_slice(b"\":");
    floats::write_string(&signature.name, out);
    out.extend_from_slice(b"},\"outputs\":[");
}

/// Writes an output's datatype and sizes.
fn write_shape(shape: &OutputShape, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"datatype\":\"");
    out.extend_from_slice(datatype_of(shape.dtype).as_bytes());
    out.extend_from_slice(b"\",\"shape\":[");
    for (i, &size) in shape.dims.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_size(size, out);
    }
    out.push(b']');
}

fn write_size(size: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
}

fn write_strings(strings: &[Vec<u8>], out: &mut Vec<u8>) -> Result<()> {
    out.push(b'[');
    for (i, string) in strings.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        // The reference tells the client to ask for binary data.
        floats::write_string(std::str::from_utf8(string).map_err(|_| Declined::Unfit)?, out);
    }
    out.push(b']');
    Ok(())
}
