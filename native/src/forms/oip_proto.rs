//! Handles the gRPC method `inference.GRPCInferenceService/ModelInfer`: answers a `ModelInferRequest` with a
//! `ModelInferResponse`.
//!
//! Field numbers are those of
//! `service/artifact/open_inference.proto`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use super::built_size::{check_num_messages, check_num_strings};
use super::oip_binary::{
    DATATYPE_PARAMETER, REFUSED_PARAMETERS, SIGNATURE_PARAMETER, append_binary, binary_size, binary_tensor, booleans,
    check_datatypes, checked_shape, datatype_of, dtype_of, find, inputs_and_outputs, output_half, version,
};
use super::protobuf::{
    Fields, Value, delimited_len, extend_varints, read_varint, varint_len, write_delimited, write_delimited_header,
    write_varint,
};
use super::record::Recording;
use super::usual::{INFER_REQUEST, answer_usual};
use super::{Answered, Call};
use crate::plan::{Data, DataType, Declined, Dims, Effort, Servable, Strings, Tensor, Work, faults};
use crate::tables::halves::Half;

/// A message with more bytes is parsed on the thread pool for large work; parsing integers runs at some 1 GB/s.
const SMALL_MESSAGE_BYTES: usize = 64 << 10;

/// The names of more inputs are compared by a hash set.
const FEW_INPUTS: usize = 32;

type Result<T> = std::result::Result<T, Declined>;

/// Full name of the request's message, for its error text.
const REQUEST: &str = "inference.ModelInferRequest";

/// Answers a `ModelInferRequest`.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(call: &Call<'_>, message: &[u8]) -> Result<Answered> {
    if call.effort == Effort::Small && message.len() > SMALL_MESSAGE_BYTES {
        return Err(Declined::TooLarge);
    }
    let answer = |message: &[u8]| answer_plain(call, message);
    answer_usual(&INFER_REQUEST, message, answer).map_err(|declined| declined.of_message(REQUEST, message))
}

fn answer_plain(call: &Call<'_>, message: &[u8]) -> Result<Answered> {
    let request = Request::read(message)?;
    let (servable, signature_index) = find(call, request.model, version(request.version)?, request.signature)?;
    let run =
        || run(call, &request, servable, signature_index).map_err(|declined| declined.of_message(REQUEST, message));
    run().map_err(|declined| declined.at(|| servable.subject(signature_index)))
}

fn run(call: &Call<'_>, request: &Request<'_>, servable: &Arc<Servable>, signature_index: usize) -> Result<Answered> {
    let signature = &servable.signatures()[signature_index];
    signature.check_effort(call.effort)?;
    let tensors = request.tensors()?.into_iter().map(|(name, tensor)| (Cow::Borrowed(name), tensor));
    let (inputs, wanted) = inputs_and_outputs(signature, tensors, &request.outputs)?;
    let started = Instant::now();
    let recording = Recording::begin(call, servable, signature_index, &inputs, &wanted);
    let mut work = Work::prepare(servable, signature_index, inputs, &wanted, call.effort, call.max_response_bytes)?;
    check_datatypes(signature, work.outputs())?;
    work.round_to(request.half);

    let outputs: SmallVec<[Output<'_>; 8]> = work
        .outputs()
        .iter()
        .enumerate()
        .map(|(i, shape)| Output {
            name: signature.outputs[shape.output].name.as_bytes(),
            datatype: datatype_of(shape.dtype).as_bytes(),
            dims: shape.dims.clone(),
            num_bytes: binary_size(&work, i),
        })
        .collect();
    let mut number_text = itoa::Buffer::new();
    let version = number_text.format(servable.version()).as_bytes();
    let names = [servable.model().as_bytes(), version, request.id.as_bytes(), signature.name.as_bytes()];
    // In the answer, 64 bytes suffice for the protobuf tags and lengths of the names and of the parameter.
    let capacity =
        64 + names.iter().map(|name| name.len()).sum::<usize>() + outputs.iter().map(Output::len).sum::<usize>();
    let mut out = Vec::with_capacity(capacity);
    write_delimited(&mut out, 1, names[0]);
    write_delimited(&mut out, 2, names[1]);
    if !request.id.is_empty() {
        write_delimited(&mut out, 3, names[2]);
    }
    write_signature_parameter(&mut out, names[3]);
    for output in &outputs {
        output.write_tensor(&mut out);
    }
    for (i, output) in outputs.iter().enumerate() {
        write_delimited_header(&mut out, 6, output.num_bytes);
        append_binary(&mut work, i, &mut out)?;
    }
    let body = Bytes::from(out);
    Ok(Answered { body, ..Answered::end(work, recording, servable, signature_index, started)? })
}

/// Returns the model name in a request whose first bytes are `message`; "" if they have no readable name.
#[must_use]
pub fn model(message: &[u8]) -> &str {
    let named = Fields::of(message).map_while(std::result::Result::ok).find_map(|field| match field {
        (1, Value::Delimited(name)) => Some(name),
        _ => None,
    });
    named.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("")
}

/// Writes the parameter with the signature's name: a map entry (key is field 1, value field 2) whose value is a
/// `string_param`.
fn write_signature_parameter(out: &mut Vec<u8>, name: &[u8]) {
    let value = delimited_len(3, name.len());
    write_delimited_header(out, 4, delimited_len(1, SIGNATURE_PARAMETER.len()) + delimited_len(2, value));
    write_delimited(out, 1, SIGNATURE_PARAMETER.as_bytes());
    write_delimited_header(out, 2, value);
    write_delimited(out, 3, name);
}

/// One output tensor of a `ModelInferResponse`, before it is written.
struct Output<'a> {
    name: &'a [u8],
    datatype: &'a [u8],
    dims: Dims,
    num_bytes: usize,
}

impl Output<'_> {
    /// Returns the size of the `InferOutputTensor` and of its raw contents, with their tags and lengths.
    fn len(&self) -> usize {
        delimited_len(5, self.tensor_len()) + delimited_len(6, self.num_bytes)
    }

    fn tensor_len(&self) -> usize {
        let names = delimited_len(1, self.name.len()) + delimited_len(2, self.datatype.len());
        names + if self.dims.is_empty() { 0 } else { delimited_len(3, self.sizes_len()) }
    }

    fn sizes_len(&self) -> usize {
        self.dims.iter().map(|&size| varint_len(size as u64)).sum()
    }

    fn write_tensor(&self, out: &mut Vec<u8>) {
        write_delimited_header(out, 5, self.tensor_len());
        write_delimited(out, 1, self.name);
        write_delimited(out, 2, self.datatype);
        if !self.dims.is_empty() {
            write_delimited_header(out, 3, self.sizes_len());
            for &size in &self.dims {
                write_varint(out, size as u64);
            }
        }
    }
}

/// A parsed `ModelInferRequest`, whose tensors are not decoded yet. If the message has a field twice that is not
/// declared repeated, the last value counts.
#[derive(Default)]
struct Request<'a> {
    model: &'a str,
    version: &'a str,
    id: &'a str,
    signature: &'a str,
    /// The 16 bits to which outputs of FP32 are rounded; None if they are not.
    half: Option<Half>,
    inputs: SmallVec<[Input<'a>; 4]>,
    outputs: SmallVec<[&'a str; 4]>,
    raw: SmallVec<[&'a [u8]; 4]>,
}

/// A parsed `InferInputTensor`, whose contents are not decoded yet.
#[derive(Default)]
struct Input<'a> {
    name: &'a str,
    datatype: &'a str,
    sizes: SmallVec<[i64; 4]>,
    contents: Option<&'a [u8]>,
    /// The first of its parameters that the server refuses.
    refused: Option<&'static str>,
}

impl<'a> Request<'a> {
    fn read(message: &'a [u8]) -> Result<Self> {
        let mut request = Request::default();
        let (mut is_signature_text, mut refused_output) = (true, None);
        for field in Fields::of(message) {
            match field? {
                (1, Value::Delimited(name)) => request.model = text(name)?,
                (2, Value::Delimited(version)) => request.version = text(version)?,
                (3, Value::Delimited(id)) => request.id = text(id)?,
                (4, Value::Delimited(entry)) => match parameter(entry)? {
                    (SIGNATURE_PARAMETER, Some(name)) => {
                        request.signature = name;
                        is_signature_text = true;
                    }
                    (SIGNATURE_PARAMETER, None) => is_signature_text = false,
                    (DATATYPE_PARAMETER, datatype) => request.half = output_half(datatype.unwrap_or_default())?,
                    _ => {}
                },
                (5, Value::Delimited(tensor)) => request.inputs.push(Input::read(tensor)?),
                (6, Value::Delimited(tensor)) => {
                    let (name, refused) = output_name(tensor)?;
                    request.outputs.push(name);
                    refused_output = refused_output.or(refused.map(|parameter| (name, parameter)));
                }
                (7, Value::Delimited(contents)) => request.raw.push(contents),
                _ => return Err(Declined::Unusual),
            }
            check_num_messages(request.inputs.len() + request.outputs.len() + request.raw.len())?;
        }
        if request.model.is_empty() {
            return Err(faults::no_model().into());
        }
        version(request.version)?;
        for input in &request.inputs {
            if let Some(parameter) = input.refused {
                return Err(faults::tensor_parameter("input", input.name, parameter).into());
            }
        }
        if let Some((name, parameter)) = refused_output {
            return Err(faults::tensor_parameter("output", name, parameter).into());
        }
        if !is_signature_text {
            return Err(faults::signature_parameter().into());
        }
        Ok(request)
    }

    /// Decodes the tensors of all inputs of the request; returns each tensor with its name.
    fn tensors(&self) -> Result<SmallVec<[(&'a str, Tensor<'a>); 4]>> {
        if !self.raw.is_empty() && self.raw.len() != self.inputs.len() {
            return Err(faults::raw_contents(self.raw.len(), self.inputs.len()).into());
        }
        let mut seen = None;
        let tensors = self.inputs.iter().enumerate().map(|(i, input)| {
            let Input { name, datatype, sizes, contents, .. } = input;
            let is_twice = if i < FEW_INPUTS {
                self.inputs[..i].iter().any(|other| other.name == *name)
            } else {
                !seen
                    .get_or_insert_with(|| self.inputs[..i].iter().map(|other| other.name).collect::<HashSet<_>>())
                    .insert(name)
            };
            if is_twice {
                return Err(faults::input_twice(name).into());
            }
            if !self.raw.is_empty() && contents.is_some() {
                return Err(faults::contents_and_raw(name).into());
            }
            let dtype = dtype_of(datatype.as_bytes()).ok_or_else(|| faults::unknown_datatype(name, datatype))?;
            let tensor = match self.raw.get(i) {
                Some(raw) => binary_tensor(name, dtype, sizes, raw)?,
                None => typed_tensor(name, dtype, sizes, contents.unwrap_or_default())?,
            };
            Ok((*name, tensor))
        });
        tensors.collect()
    }
}

impl<'a> Input<'a> {
    fn read(message: &'a [u8]) -> Result<Self> {
        let mut input = Input::default();
        for field in Fields::of(message) {
            match field? {
                (1, Value::Delimited(name)) => input.name = text(name)?,
                (2, Value::Delimited(datatype)) => input.datatype = text(datatype)?,
                (3, Value::Varint(size)) => input.sizes.push(size.cast_signed()),
                (3, Value::Delimited(mut sizes)) => {
                    while !sizes.is_empty() {
                        input.sizes.push(read_varint(&mut sizes)?.cast_signed());
                    }
                }
                (4, Value::Delimited(entry)) => input.refused = refused_parameter(input.refused, entry)?,
                (5, Value::Delimited(contents)) if input.contents.is_none() => input.contents = Some(contents),
                _ => return Err(Declined::Unusual),
            }
        }
        Ok(input)
    }
}

/// Returns the output's name in an `InferRequestedOutputTensor`, "" if it has none; and the first of its parameters that
/// the server refuses.
fn output_name(message: &[u8]) -> Result<(&str, Option<&'static str>)> {
    let (mut name, mut refused) = ("", None);
    for field in Fields::of(message) {
        match field? {
            (1, Value::Delimited(bytes)) => name = text(bytes)?,
            (2, Value::Delimited(entry)) => refused = refused_parameter(refused, entry)?,
            _ => return Err(Declined::Unusual),
        }
    }
    Ok((name, refused))
}

/// Returns the first parameter, in the order of the list, that the server refuses: `before`, or that of this entry.
fn refused_parameter(before: Option<&'static str>, entry: &[u8]) -> Result<Option<&'static str>> {
    let key = parameter(entry)?.0;
    let sent = |name: &&&'static str| before == Some(**name) || key == **name;
    Ok(REFUSED_PARAMETERS.iter().find(sent).copied())
}

/// Returns the key of an entry in a map of parameters, and its value if that is a `string_param`.
fn parameter(entry: &[u8]) -> Result<(&str, Option<&str>)> {
    let (mut key, mut string, mut has_value) = ("", None, false);
    for field in Fields::of(entry) {
        match field? {
            (1, Value::Delimited(bytes)) => key = text(bytes)?,
            (2, Value::Delimited(value)) if !has_value => {
                has_value = true;
                for field in Fields::of(value) {
                    string = match field? {
                        (3, Value::Delimited(bytes)) => Some(text(bytes)?),
                        (1 | 2 | 5, Value::Varint(_)) | (4, Value::Fixed64(_)) => None,
                        _ => return Err(Declined::Unusual),
                    }
                }
            }
            _ => return Err(Declined::Unusual),
        }
    }
    Ok((key, string))
}

/// Decodes the numbers or strings of an input from an `InferTensorContents` message.
fn typed_tensor<'a>(input: &str, dtype: DataType, sizes: &[i64], contents: &'a [u8]) -> Result<Tensor<'a>> {
    let (dims, size) = checked_shape(input, sizes)?;
    let (wanted, field_name) = match dtype {
        DataType::Bool => (1, "bool_contents"),
        DataType::Int8 | DataType::Int16 | DataType::Int32 => (2, "int_contents"),
        DataType::Int64 => (3, "int64_contents"),
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => (4, "uint_contents"),
        DataType::Uint64 => (5, "uint64_contents"),
        DataType::Float32 => (6, "fp32_contents"),
        DataType::Float64 => (7, "fp64_contents"),
        DataType::String => (8, "bytes_contents"),
        DataType::Float16 | DataType::Bfloat16 | DataType::Complex64 | DataType::Complex128 => {
            return Err(faults::no_contents_field(input, datatype_of(dtype)).into());
        }
    };
    let mut parts: SmallVec<[&'a [u8]; 1]> = SmallVec::new();
    for field in Fields::of(contents) {
        match field? {
            (field, Value::Delimited(part)) if field == wanted => {
                check_num_strings(parts.len())?;
                parts.push(part);
            }
            // The values of other datatypes do not count.
            (1..=8, Value::Delimited(_)) => {}
            _ => return Err(Declined::Unusual),
        }
    }
    let (data, count) = if dtype == DataType::String {
        let count = parts.len();
        let parts = parts.into_iter().map(Cow::Borrowed).collect();
        (Data::Strings(Strings { parts }), count)
    } else {
        // Protobuf serializers write all numbers of a tensor as one packed field, so other encodings are declined.
        match parts[..] {
            [] => numbers(input, dtype, &[])?,
            [packed] => numbers(input, dtype, packed)?,
            _ => return Err(Declined::Unusual),
        }
    };
    if count != size {
        let (datatype, shape) = (datatype_of(dtype), format!("{dims:?}"));
        return Err(faults::number_of_contents(input, count, field_name, datatype, &shape, size).into());
    }
    Ok(Tensor { dtype, dims, data })
}

/// Decodes the numbers of a packed field as elements of the dtype; returns the elements and their number.
fn numbers<'a>(input: &str, dtype: DataType, packed: &'a [u8]) -> Result<(Data<'a>, usize)> {
    let is_short = |byte: &u8| *byte < 0x80;
    let size = dtype.size();
    if matches!(dtype, DataType::Float32 | DataType::Float64) {
        return if packed.len().is_multiple_of(size) {
            Ok((Data::Raw(packed), packed.len() / size))
        } else {
            Err(Declined::Malformed)
        };
    }
    if dtype == DataType::Bool && packed.iter().all(is_short) {
        return Ok((booleans(packed), packed.len()));
    }
    let mut found = Vec::new();
    extend_varints(&mut found, packed)?;
    let count = found.len();
    let data = match dtype {
        DataType::Int64 => Data::Ints(found),
        DataType::Int32 if found.iter().all(|&number| i32::try_from(number).is_ok()) => Data::Ints(found),
        DataType::Int16 => narrowed(input, dtype, &found, i16::to_le_bytes)?,
        DataType::Int8 => narrowed(input, dtype, &found, i8::to_le_bytes)?,
        DataType::Uint8 => narrowed(input, dtype, &found, u8::to_le_bytes)?,
        DataType::Uint16 => narrowed(input, dtype, &found, u16::to_le_bytes)?,
        DataType::Uint32 => narrowed(input, dtype, &found, u32::to_le_bytes)?,
        DataType::Uint64 => Data::Bytes(found.iter().flat_map(|number| number.to_le_bytes()).collect()),
        DataType::Bool => Data::Bytes(found.iter().map(|&number| u8::from(number != 0)).collect()),
        _ => return Err(Declined::Unusual),
    };
    Ok((data, count))
}

/// Converts integers to the little-endian bytes of dtype `N`, and refuses integers that do not fit.
fn narrowed<'a, N: TryFrom<i64>, const SIZE: usize>(
    input: &str,
    dtype: DataType,
    found: &[i64],
    bytes: fn(N) -> [u8; SIZE],
) -> Result<Data<'a>> {
    let mut data = Vec::with_capacity(found.len() * SIZE);
    for &number in found {
        let narrow = N::try_from(number);
        let narrow = narrow.map_err(|_| faults::number_does_not_fit(input, &number.to_string(), datatype_of(dtype)))?;
        data.extend_from_slice(&bytes(narrow));
    }
    Ok(Data::Bytes(data))
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Declined::Malformed)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::super::oip_fixture::{Elements, Lookup, SentTensor, call, lookups, mutated, routes, tensors};
    use super::super::protobuf::write_varint_field;
    use super::*;
    use crate::plan::tests::is_fault;

    fn message_of(fields: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut message = vec![];
        fields(&mut message);
        message
    }

    fn packed(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
        message_of(|to| numbers.for_each(|number| write_varint(to, number)))
    }

    fn signature_entry(name: &str) -> Vec<u8> {
        text_entry("signature_name", name)
    }

    fn text_entry(key: &str, text: &str) -> Vec<u8> {
        message_of(|entry| {
            write_delimited(entry, 1, key.as_bytes());
            write_delimited(entry, 2, &message_of(|value| write_delimited(value, 3, text.as_bytes())));
        })
    }

    /// Returns the integers of a tensor as 64-bit words, as protobuf encodes them: numbers of signed dtypes are
    /// sign-extended.
    fn whole(sent: &SentTensor, bytes: &[u8]) -> Vec<u64> {
        let is_signed = matches!(sent.dtype, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
        let number = |bytes: &[u8]| {
            let fill = if is_signed && bytes.last().is_some_and(|byte| byte >> 7 == 1) { 0xFF } else { 0 };
            let mut eight = [fill; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(eight)
        };
        bytes.chunks_exact(sent.dtype.size()).map(number).collect()
    }

    fn contents(sent: &SentTensor) -> Vec<u8> {
        let field = match sent.dtype {
            DataType::Bool => 1,
            DataType::Int8 | DataType::Int16 | DataType::Int32 => 2,
            DataType::Int64 => 3,
            DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => 4,
            DataType::Uint64 => 5,
            DataType::Float32 => 6,
            DataType::Float64 => 7,
            _ => 8,
        };
        message_of(|to| match &sent.elements {
            Elements::Strings(strings) => strings.iter().for_each(|string| write_delimited(to, field, string)),
            Elements::Numbers(bytes) if bytes.is_empty() => {}
            Elements::Numbers(bytes) if field == 6 || field == 7 => write_delimited(to, field, bytes),
            Elements::Numbers(bytes) => write_delimited(to, field, &packed(whole(sent, bytes).into_iter())),
        })
    }

    fn request(signature: &str, id: &str, tensors: &[(&str, SentTensor)], is_raw: bool, outputs: &[&str]) -> Vec<u8> {
        message_of(|to| {
            write_delimited(to, 1, b"m");
            write_delimited(to, 3, id.as_bytes());
            write_delimited(to, 4, &signature_entry(signature));
            for (name, sent) in tensors {
                let tensor = message_of(|to| {
                    write_delimited(to, 1, name.as_bytes());
                    write_delimited(to, 2, datatype_of(sent.dtype).as_bytes());
                    write_delimited(to, 3, &packed(sent.dims.iter().map(|&size| size as u64)));
                    if !is_raw {
                        write_delimited(to, 5, &contents(sent));
                    }
                });
                write_delimited(to, 5, &tensor);
            }
            for output in outputs {
                write_delimited(to, 6, &message_of(|to| write_delimited(to, 1, output.as_bytes())));
            }
            for (_, sent) in tensors.iter().filter(|_| is_raw) {
                write_delimited(to, 7, &sent.elements.binary());
            }
        })
    }

    fn response(signature: &str, id: &str, outputs: &[(&str, SentTensor)]) -> Vec<u8> {
        message_of(|to| {
            write_delimited(to, 1, b"m");
            write_delimited(to, 2, b"3");
            if !id.is_empty() {
                write_delimited(to, 3, id.as_bytes());
            }
            write_delimited(to, 4, &signature_entry(signature));
            for (name, output) in outputs {
                let tensor = message_of(|to| {
                    write_delimited(to, 1, name.as_bytes());
                    write_delimited(to, 2, datatype_of(output.dtype).as_bytes());
                    if !output.dims.is_empty() {
                        write_delimited(to, 3, &packed(output.dims.iter().map(|&size| size as u64)));
                    }
                });
                write_delimited(to, 5, &tensor);
            }
            for (_, output) in outputs {
                write_delimited(to, 6, &output.elements.binary());
            }
        })
    }

    fn body(message: &[u8]) -> Result<Vec<u8>> {
        answer(&call(&routes()), message).map(|answered| answered.body.to_vec())
    }

    fn named(tensors: Vec<SentTensor>) -> Vec<(&'static str, SentTensor)> {
        tensors.into_iter().map(|sent| (datatype_of(sent.dtype), sent)).collect()
    }

    fn any_request() -> impl Strategy<Value = Vec<u8>> {
        let lookup =
            (lookups(), any::<bool>()).prop_map(|(l, is_raw)| request("lookup", "7", &l.tensors(), is_raw, &["user"]));
        let echo = (tensors(), any::<bool>()).prop_map(|(sent, is_raw)| request("echo", "", &named(sent), is_raw, &[]));
        prop_oneof![lookup, echo]
    }

    proptest! {
        #[test]
        fn raw_tensors_come_back(sent in tensors(), id in "\\PC{0,5}") {
            let sent = named(sent);
            let names: Vec<&str> = sent.iter().map(|(name, _)| *name).collect();
            let message = request("echo", &id, &sent, true, &names);
            prop_assert_eq!(body(&message), Ok(response("echo", &id, &sent)));
        }

        #[test]
        fn typed_tensors_come_back(sent in tensors()) {
            let has_contents = |(_, sent): &(&str, SentTensor)| !matches!(sent.dtype, DataType::Float16 | DataType::Bfloat16);
            let sent: Vec<_> = named(sent).into_iter().filter(has_contents).collect();
            prop_assume!(!sent.is_empty());
            let names: Vec<&str> = sent.iter().map(|(name, _)| *name).collect();
            prop_assert_eq!(body(&request("echo", "i", &sent, false, &names)), Ok(response("echo", "i", &sent)));
        }

        #[test]
        fn lookups_are_answered(lookup in lookups(), is_raw: bool, wanted in proptest::option::of(0_usize..3)) {
            let mut outputs = lookup.answer();
            let names: Vec<&str> = wanted.iter().map(|&number| outputs[number].0).collect();
            let message = request("lookup", "a", &lookup.tensors(), is_raw, &names);
            outputs.retain(|(name, _)| names.is_empty() || names.contains(name));
            prop_assert_eq!(body(&message), Ok(response("lookup", "a", &outputs)));
        }

        #[test]
        fn any_bytes_end(message: Vec<u8>) {
            let _ = body(&message);
        }

        #[test]
        fn mutated_requests_end(message in any_request().prop_flat_map(mutated)) {
            if let Ok(body) = body(&message) {
                prop_assert!(Fields::of(&body).all(|field| field.is_ok()));
            }
        }
    }

    /// Compares an answer with the bytes that the former implementation in Python wrote for the same arrays.
    #[test]
    fn equals_the_reference() {
        let lookup = Lookup { users: vec![1, 42], items: vec![3, 4], tags: vec![vec![5, 6], vec![]], weights: None };
        let message = request("lookup", "42", &lookup.tensors(), true, &[]);
        let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let wanted: Vec<u8> = REFERENCE.as_bytes().chunks_exact(2).map(hex).collect();
        assert_eq!(body(&message), Ok(wanted));
    }

    const REFERENCE: &str = concat!(
        "0a016d1201331a023432221a0a0e7369676e61747572655f6e616d6512081a066c6f6f6b7570",
        "2a100a04757365721204465033321a0202032a100a046974656d1204465033321a020202",
        "2a100a04746167731204465033321a020202",
        "32180000003e0000903f000008400000a8400000c8400000e840",
        "3210000090c0cdcc8cc00000c0c0cdccbcc0",
        "3210000084c1666682c10000000000000000",
    );

    #[test]
    fn unusual_requests_are_declined() {
        let lookup = Lookup { users: vec![1], items: vec![2], tags: vec![vec![3]], weights: None };
        let good = request("", "", &lookup.tensors(), true, &[]);
        assert!(body(&good).is_ok(), "the fallback signature");
        let with = |fields: &dyn Fn(&mut Vec<u8>)| body(&[good.clone(), message_of(fields)].concat());
        assert!(with(&|to| write_delimited(to, 2, b"stable")).is_ok());
        assert!(with(&|to| write_delimited(to, 2, b"03")).is_ok());
        assert!(is_fault(with(&|to| write_delimited(to, 2, b"4"))));
        assert!(is_fault(with(&|to| write_delimited(to, 2, b"none"))));
        assert!(is_fault(with(&|to| write_delimited(to, 1, b"other"))));
        assert!(is_fault(with(&|to| write_delimited(to, 1, b""))));
        assert!(is_fault(with(&|to| write_delimited(to, 3, b"\xff"))));
        assert!(is_fault(with(&|to| write_delimited(to, 4, &signature_entry("no such")))));
        assert!(is_fault(with(&|to| write_delimited(to, 7, b""))));
        assert_eq!(with(&|to| write_varint_field(to, 99, 1)), body(&good));
        let output = |name: &str| message_of(|to| write_delimited(to, 1, name.as_bytes()));
        assert!(is_fault(with(&|to| write_delimited(to, 6, &output("no such")))));
        let twice = |to: &mut Vec<u8>| (0..2).for_each(|_| write_delimited(to, 6, &output("user")));
        assert!(is_fault(with(&twice)));
        let parameter = |key: &str| {
            let value = message_of(|value| write_varint_field(value, 1, 1));
            message_of(|entry| {
                write_delimited(entry, 1, key.as_bytes());
                write_delimited(entry, 2, &value);
            })
        };
        assert!(with(&|to| write_delimited(to, 4, &parameter("priority"))).is_ok());
        assert!(is_fault(with(&|to| write_delimited(to, 4, &parameter("signature_name")))));
        let classified = |to: &mut Vec<u8>| write_delimited(to, 2, &parameter("classification"));
        let output = |to: &mut Vec<u8>| write_delimited(to, 6, &message_of(classified));
        assert!(is_fault(with(&output)));
    }

    #[test]
    fn outputs_come_in_the_datatype_that_is_asked_for() {
        let lookup = Lookup { users: vec![1, 42], items: vec![3, 4], tags: vec![vec![5, 6], vec![]], weights: None };
        let asked = |datatype: &str| {
            let parameter = message_of(|to| write_delimited(to, 4, &text_entry("output_datatype", datatype)));
            body(&[request("lookup", "", &lookup.tensors(), true, &[]), parameter].concat())
        };
        assert_eq!(asked("FP32"), Ok(response("lookup", "", &lookup.answer())));
        for (datatype, half, dtype) in
            [("FP16", Half::Float16, DataType::Float16), ("BF16", Half::Bfloat16, DataType::Bfloat16)]
        {
            let rounded = lookup.answer().into_iter().map(|(name, sent)| {
                let Elements::Numbers(numbers) = sent.elements else { panic!("no numbers") };
                let halves = half.rounded(&numbers);
                (name, SentTensor { dtype, elements: Elements::Numbers(halves), ..sent })
            });
            assert_eq!(asked(datatype), Ok(response("lookup", "", &rounded.collect::<Vec<_>>())));
        }
        assert!(["", "fp16", "INT8", "FP64", "BYTES"].iter().all(|datatype| is_fault(asked(datatype))));
    }

    #[test]
    fn large_messages_are_large_work() {
        let routes = routes();
        let call = Call { effort: Effort::Small, ..call(&routes) };
        assert!(matches!(answer(&call, &vec![0; SMALL_MESSAGE_BYTES + 1]), Err(Declined::TooLarge)));
    }
}
