//! Writes the outputs of an answer as JSON.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use super::floats::{MAX_BYTES, NonFinite, write_numbers, write_string, write_strings};
use crate::forms::record::Recording;
use crate::forms::{Answered, Call};
use crate::plan::faults;
use crate::plan::{DataType, Declined, Effort, Inputs, OutputShape, Servable, Work, has_room};

/// A JSON body with more bytes than this is parsed on the thread pool for large work, because parsing an id takes 10
/// ns, and looking up its row takes longer.
const SMALL_BODY_BYTES: usize = 8 << 10;
/// An answer with more numbers is written on the thread pool for large work, because writing a number as text takes 10
/// to 20 ns.
const SMALL_NUMBERS: usize = 4096;

/// How the JSON body of an answer arranges the outputs of the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLayout {
    /// `{"embeddings": {name: [...]}}`
    Embeddings,
    /// `{"outputs": {name: [...]}}`, one list for each output, or `{"outputs": [...]}` for a single output.
    Columns,
    /// `{"predictions": [{name: ...}, ...]}`, one object for each row, or `{"predictions": [...]}` for a single output.
    Rows,
}

/// Checks that the current thread may parse a JSON body of this size: threads of connections parse only small bodies.
///
/// # Errors
/// [`Declined::TooLarge`].
pub fn check_body(effort: Effort<'_>, body: &[u8]) -> Result<(), Declined> {
    if effort == Effort::Small && body.len() > SMALL_BODY_BYTES {
        return Err(Declined::TooLarge);
    }
    Ok(())
}

/// Checks that the thread may write `count` numbers as JSON: a thread that serves connections writes only few.
///
/// # Errors
/// [`Declined::TooLarge`].
pub fn check_numbers(effort: Effort<'_>, count: usize) -> Result<(), Declined> {
    if effort == Effort::Small && count > SMALL_NUMBERS {
        return Err(Declined::TooLarge);
    }
    Ok(())
}

/// Returns an empty buffer with capacity for the JSON text of `count` numbers: usually they take two thirds of it, and
/// with less a buffer that is nearly full would grow, which copies it.
#[must_use]
pub fn text_buffer(count: usize) -> Vec<u8> {
    Vec::with_capacity(count.saturating_mul(MAX_BYTES).saturating_add(64))
}

/// Runs a signature on the inputs of a request, and writes all its outputs.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(
    call: &Call<'_>,
    servable: &Arc<Servable>,
    signature: usize,
    inputs: Inputs<'_>,
    layout: JsonLayout,
) -> Result<Answered, Declined> {
    let started = Instant::now();
    let recording = Recording::begin(call, servable, signature, &inputs, &[]);
    let mut work = Work::prepare(servable, signature, inputs, &[], call.effort, call.max_response_bytes)?;
    let count = work.outputs().iter().map(size).sum();
    check_numbers(call.effort, count)?;
    let plan = &servable.signatures()[signature];
    let shapes: SmallVec<[OutputShape; 4]> = work.outputs().into();
    let outputs = shapes.iter().enumerate().map(|(index, shape)| {
        Ok(Output { name: &plan.outputs[shape.output].name, shape, values: values(&mut work, index, shape)? })
    });
    let outputs = outputs.collect::<Result<SmallVec<[Output<'_>; 4]>, Declined>>()?;
    if !has_room(count.saturating_mul(MAX_BYTES)) {
        return Err(faults::no_memory(&format!("The JSON text of an answer of {count} numbers is long")).into());
    }
    let answered = Answered::end(work, recording, servable, signature, started)?;
    let mut body = text_buffer(count);
    write(&outputs, layout, NonFinite::of(call.strict_json), &mut body)?;
    Ok(Answered { body: Bytes::from(body), ..answered })
}

fn size(shape: &OutputShape) -> usize {
    shape.dims.iter().product()
}

/// Appends the JSON body of an answer with these outputs, arranged by `layout`.
fn write(outputs: &[Output<'_>], layout: JsonLayout, non_finite: NonFinite, out: &mut Vec<u8>) -> Result<(), Declined> {
    match (layout, outputs) {
        (JsonLayout::Rows, outputs) => rows(outputs, non_finite, out)?,
        (JsonLayout::Columns, [only]) => {
            out.extend_from_slice(b"{\"outputs\":");
            only.write(non_finite, out);
        }
        (_, outputs) => {
            let key: &[u8] = if layout == JsonLayout::Columns { b"{\"outputs\":" } else { b"{\"embeddings\":" };
            out.extend_from_slice(key);
            for (index, output) in outputs.iter().enumerate() {
                out.push(if index == 0 { b'{' } else { b',' });
                write_string(output.name, out);
                out.push(b':');
                output.write(non_finite, out);
            }
            out.push(b'}');
        }
    }
    out.push(b'}');
    Ok(())
}

enum OutputValues {
    Numbers(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

struct Output<'a> {
    name: &'a str,
    shape: &'a OutputShape,
    values: OutputValues,
}

fn values(work: &mut Work<'_, '_>, index: usize, shape: &OutputShape) -> Result<OutputValues, Declined> {
    if shape.dtype == DataType::String {
        let strings = work.strings(index).to_vec();
        return if strings.len() == size(shape) {
            Ok(OutputValues::Strings(strings))
        } else {
            Err(faults::internal("an output has not as many strings as its shape says").into())
        };
    }
    if shape.dtype.is_complex() {
        return Err(faults::output_without_json(shape.dtype.graph_name()).into());
    }
    let mut bytes = Vec::new();
    work.append(index, &mut bytes)?;
    Ok(OutputValues::Numbers(bytes))
}

impl Output<'_> {
    /// Appends all numbers or strings of the output as nested JSON lists.
    fn write(&self, non_finite: NonFinite, out: &mut Vec<u8>) {
        self.write_part(&self.shape.dims, 0, non_finite, out);
    }

    /// Cuts the output into equal parts of shape `dims`, and appends the part with number `index` as JSON.
    fn write_part(&self, dims: &[usize], index: usize, non_finite: NonFinite, out: &mut Vec<u8>) {
        let count: usize = dims.iter().product();
        let start = index * count;
        match &self.values {
            OutputValues::Numbers(bytes) => {
                let size = self.shape.dtype.size();
                let part = &bytes[start * size..(start + count) * size];
                write_numbers(self.shape.dtype, dims, part, non_finite, out);
            }
            OutputValues::Strings(strings) => {
                let as_bytes = self.name.ends_with("_bytes");
                write_strings(dims, &strings[start..start + count], as_bytes, out);
            }
        }
    }
}

/// Appends the answer's JSON in the row format ([`JsonLayout::Rows`]), without its last brace.
fn rows(outputs: &[Output<'_>], non_finite: NonFinite, out: &mut Vec<u8>) -> Result<(), Declined> {
    let mut expected = None;
    for output in outputs {
        let Some(&size) = output.shape.dims.first() else { return Err(faults::scalar_output(output.name).into()) };
        let wanted = *expected.get_or_insert(size);
        if size != wanted {
            return Err(faults::batch_size(output.name, size, wanted).into());
        }
    }
    let rows = expected.unwrap_or(0);
    out.extend_from_slice(b"{\"predictions\":");
    if let [only] = outputs {
        only.write(non_finite, out);
        return Ok(());
    }
    let mut keys = SmallVec::<[Vec<u8>; 4]>::new();
    for (index, output) in outputs.iter().enumerate() {
        let mut key = vec![if index == 0 { b'{' } else { b',' }];
        write_string(output.name, &mut key);
        key.push(b':');
        keys.push(key);
    }
    out.push(b'[');
    for row in 0..rows {
        if row > 0 {
            out.push(b',');
        }
        for (output, key) in outputs.iter().zip(&keys) {
            out.extend_from_slice(key);
            output.write_part(&output.shape.dims[1..], row, non_finite, out);
        }
        out.push(b'}');
    }
    out.push(b']');
    Ok(())
}
