//! Writes outputs as JSON, as `service/wire/json_tensor.py` and `json_lookup.py` lay them out.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use super::floats::{NonFinite, write_numbers, write_string, write_strings};
use crate::declined::Declined;
use crate::forms::{Answered, Call};
use crate::plan::{DataType, Effort, Inputs, OutputShape, Servable, Work};

/// A longer body is large work: each id takes 10 ns to read, and each row takes more.
const SMALL_BODY_BYTES: usize = 8 << 10;
/// More numbers in an answer are large work: each number takes some 10 to 20 ns to write.
const SMALL_NUMBERS: usize = 4096;
/// Bytes of text to reserve for each number.
const NUMBER_BYTES: usize = 12;

/// The JSON layout of an answer's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `{"embeddings": {name: [...]}}`
    Embeddings,
    /// `{"outputs": {name: [...]}}`, or without the name of the only output.
    Columns,
    /// `{"predictions": [{name: ...}, ...]}`, or without the name of the only output.
    Rows,
}

/// Checks that this thread may read a body.
///
/// # Errors
/// [`Declined::TooLarge`].
pub fn check_body(effort: Effort, body: &[u8]) -> Result<(), Declined> {
    if effort == Effort::Small && body.len() > SMALL_BODY_BYTES {
        return Err(Declined::TooLarge);
    }
    Ok(())
}

/// Checks that this thread may write `count` numbers.
///
/// # Errors
/// [`Declined::TooLarge`].
pub fn check_numbers(effort: Effort, count: usize) -> Result<(), Declined> {
    if effort == Effort::Small && count > SMALL_NUMBERS {
        return Err(Declined::TooLarge);
    }
    Ok(())
}

/// Returns memory for the text of `count` numbers.
#[must_use]
pub fn text_of(count: usize) -> Vec<u8> {
    Vec::with_capacity(count.saturating_mul(NUMBER_BYTES).saturating_add(64))
}

/// Runs a signature on the inputs of a request, and writes all outputs of the signature.
///
/// # Errors
/// The reason why the reference must answer.
pub fn answer(
    call: &Call<'_>,
    servable: &Arc<Servable>,
    signature: usize,
    inputs: Inputs<'_>,
    layout: Layout,
) -> Result<Answered, Declined> {
    let started = Instant::now();
    let mut work = Work::prepare(servable, signature, inputs, &[], call.effort, call.max_response_bytes)?;
    let count = work.outputs().iter().map(size).sum();
    check_numbers(call.effort, count)?;
    let plan = &servable.signatures()[signature];
    let shapes: SmallVec<[OutputShape; 4]> = work.outputs().into();
    let outputs = shapes.iter().enumerate().map(|(number, shape)| {
        Ok(Output { name: &plan.outputs[shape.output].name, shape, content: content(&mut work, number, shape)? })
    });
    let outputs = outputs.collect::<Result<SmallVec<[Output<'_>; 4]>, Declined>>()?;
    let rows = work.rows();
    work.finish()?;
    let ran = started.elapsed();
    let mut body = text_of(count);
    write(&outputs, layout, NonFinite::of(call.strict_json), &mut body)?;
    Ok(Answered { body: Bytes::from(body), rows, servable: Arc::clone(servable), signature, ran, json_length: None })
}

fn size(shape: &OutputShape) -> usize {
    shape.dims.iter().product()
}

/// Appends the body of an answer.
fn write(outputs: &[Output<'_>], layout: Layout, non_finite: NonFinite, out: &mut Vec<u8>) -> Result<(), Declined> {
    match (layout, outputs) {
        (Layout::Rows, outputs) => rows(outputs, non_finite, out)?,
        (Layout::Columns, [only]) => {
            out.extend_from_slice(b"{\"outputs\":");
            only.write(non_finite, out);
        }
        (_, outputs) => {
            let key: &[u8] = if layout == Layout::Columns { b"{\"outputs\":" } else { b"{\"embeddings\":" };
            out.extend_from_slice(key);
            for (number, output) in outputs.iter().enumerate() {
                out.push(if number == 0 { b'{' } else { b',' });
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

enum Content {
    Numbers(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

struct Output<'a> {
    name: &'a str,
    shape: &'a OutputShape,
    content: Content,
}

fn content(work: &mut Work<'_, '_>, number: usize, shape: &OutputShape) -> Result<Content, Declined> {
    if shape.dtype == DataType::String {
        let strings = work.strings(number).to_vec();
        return if strings.len() == size(shape) { Ok(Content::Strings(strings)) } else { Err(Declined::Graph) };
    }
    let num_bytes = shape.num_bytes();
    let mut bytes = Vec::with_capacity(num_bytes);
    work.fill(number, &mut bytes.spare_capacity_mut()[..num_bytes])?;
    // SAFETY: fill has written all `num_bytes` bytes.
    unsafe { bytes.set_len(num_bytes) };
    Ok(Content::Numbers(bytes))
}

impl Output<'_> {
    /// Appends the whole output.
    fn write(&self, non_finite: NonFinite, out: &mut Vec<u8>) {
        self.write_part(&self.shape.dims, 0, non_finite, out);
    }

    /// Appends one part of the output: the part number `place` among parts of the sizes `dims`.
    fn write_part(&self, dims: &[usize], place: usize, non_finite: NonFinite, out: &mut Vec<u8>) {
        let count: usize = dims.iter().product();
        let begin = place * count;
        match &self.content {
            Content::Numbers(bytes) => {
                let size = self.shape.dtype.size();
                let part = &bytes[begin * size..(begin + count) * size];
                write_numbers(self.shape.dtype, dims, part, non_finite, out);
            }
            Content::Strings(strings) => {
                let as_bytes = self.name.ends_with("_bytes");
                write_strings(dims, &strings[begin..begin + count], as_bytes, out);
            }
        }
    }
}

/// Appends the outputs row by row.
fn rows(outputs: &[Output<'_>], non_finite: NonFinite, out: &mut Vec<u8>) -> Result<(), Declined> {
    let rows = outputs.first().and_then(|output| output.shape.dims.first());
    let &rows = rows.ok_or(Declined::Unfit)?;
    if outputs.iter().any(|output| output.shape.dims.first() != Some(&rows)) {
        return Err(Declined::Unfit);
    }
    out.extend_from_slice(b"{\"predictions\":");
    if let [only] = outputs {
        only.write(non_finite, out);
        return Ok(());
    }
    let mut keys = SmallVec::<[Vec<u8>; 4]>::new();
    for (number, output) in outputs.iter().enumerate() {
        let mut key = vec![if number == 0 { b'{' } else { b',' }];
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
