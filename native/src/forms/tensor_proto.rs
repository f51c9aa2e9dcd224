//! Reads and writes `tensorflow.TensorProto`. The reader borrows numbers from the request if it can.
//!
//! Source: `tensorflow/core/framework/{tensor,tensor_shape}.proto` and `Tensor::FromProto` in tensor.cc (2.21).

use std::borrow::Cow;
use std::fmt::Write;

use super::MAX_RANK;
use super::built_size::{check_num_messages, check_num_strings};
use super::protobuf::{
    Fields, Value, delimited_len, extend_varints, read_varint32, set_once, text, varint_field_len, varint_len,
    write_delimited, write_delimited_header, write_varint, write_varint_field,
};
use crate::plan::faults::{self, BoxedFault};
use crate::plan::{Data, DataType, Declined, Dims, Effort, Strings, Tensor, Work};

/// How many elements the tensors of a request may leave out, in all, on a thread that serves connections: a `TensorProto`
/// with fewer values than its shape says repeats its last value. Requests that leave out more run on a pool.
const MAX_REPEATS: usize = 1 << 16;
/// How many elements the tensors of a request may have, in all, however few bytes it has.
const MIN_ELEMENTS: usize = 1 << 20;
/// The largest product of a shape's sizes that are not 0.
const MAX_PRODUCT: usize = usize::MAX >> 5;

// Field numbers of `TensorProto`; field_of_values has those of typed values.
const DTYPE: u32 = 1;
const SHAPE: u32 = 2;
const VERSION_NUMBER: u32 = 3;
const CONTENT: u32 = 4;
const STRING_VAL: u32 = 8;

/// The number of elements that the tensors of one request may still have; a request that exceeds it is declined.
pub struct Allowance {
    elements: usize,
    /// The number of elements that the request's tensors may still leave out, because they repeat a tensor's last
    /// value.
    repeats: usize,
}

impl Allowance {
    /// Returns the allowance of a request of `num_bytes` bytes: one element for each byte, because an element that is
    /// sent takes at least one byte, but never fewer than `MIN_ELEMENTS` elements.
    #[must_use]
    pub fn of_request(num_bytes: usize, effort: Effort<'_>) -> Self {
        let repeats = if effort == Effort::Small { MAX_REPEATS } else { usize::MAX };
        Allowance { elements: num_bytes.max(MIN_ELEMENTS), repeats }
    }
}

/// A parsed `TensorProto`, whose values are not decoded yet.
#[derive(Default)]
struct TensorProto<'a> {
    message: &'a [u8],
    shape: &'a [u8],
    content: &'a [u8],
    /// Number of the protobuf field that has the tensor's values; 0 for a tensor without values.
    field: u32,
    /// The last occurrence of the protobuf field with the tensor's values; `num_pieces` counts its occurrences.
    piece: Option<Value<'a>>,
    num_pieces: usize,
}

impl<'a> TensorProto<'a> {
    /// Returns the tensor, and the number of its dtype; 0 if it has none.
    fn read(message: &'a [u8]) -> Result<(u64, Self), Declined> {
        let (mut dtype, mut shape, mut content, mut version) = (None, None, None, None);
        let mut tensor = TensorProto { message, ..TensorProto::default() };
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next() {
            match field? {
                (DTYPE, Value::Varint(number)) => set_once(&mut dtype, number)?,
                (SHAPE, Value::Delimited(bytes)) => set_once(&mut shape, bytes)?,
                (VERSION_NUMBER, Value::Varint(number)) => set_once(&mut version, number)?,
                (CONTENT, Value::Delimited(bytes)) => set_once(&mut content, bytes)?,
                (DTYPE..=CONTENT, _) => return Err(Declined::Unusual),
                (number, piece) => {
                    if tensor.num_pieces > 0 && tensor.field != number {
                        return Err(Declined::Unusual);
                    }
                    tensor.field = number;
                    tensor.piece = Some(piece);
                    tensor.num_pieces += 1;
                    if number == STRING_VAL {
                        fields.for_each_short_string(STRING_VAL, |_| tensor.num_pieces += 1);
                    }
                }
            }
        }
        tensor.shape = shape.unwrap_or_default();
        tensor.content = content.unwrap_or_default();
        Ok((dtype.unwrap_or(0), tensor))
    }

    /// Iterates over the values of all occurrences of the protobuf field with the tensor's values.
    fn pieces(&self) -> impl Iterator<Item = Value<'a>> {
        let field = self.field;
        // The iterator meets no malformed field, because TensorProto::read has already read the whole message without
        // an error.
        Fields::of(self.message)
            .map_while(Result::ok)
            .filter_map(move |(number, value)| (number == field).then_some(value))
    }
}

/// Parses the tensor of one input of a request, and lowers the request's allowance of elements.
///
/// # Errors
/// [`Declined::Fault`]: the tensor's dtype, shape and values contradict each other. [`Declined::Malformed`]: the bytes
/// are no such message. [`Declined::Unusual`]: the tensor is in a rare encoding. [`Declined::TooLarge`]: it repeats a value
/// too often for a thread of connections.
pub fn read_tensor<'a>(name: &str, message: &'a [u8], allowance: &mut Allowance) -> Result<Tensor<'a>, Declined> {
    let (number, proto) = TensorProto::read(message)?;
    let undecodable = || Declined::from(faults::undecodable_tensor(name));
    let unsupported =
        || proto_name(number).map_or_else(undecodable, |dtype| faults::dtype_not_supported(name, dtype).into());
    let dtype = DataType::of_number(number).ok_or_else(unsupported)?;
    let (dims, size) = read_shape(name, proto.shape, allowance.elements)?;
    allowance.elements -= size;
    let data = match (proto.num_pieces, proto.content, dtype) {
        (0, [_, ..], DataType::String) => {
            let parts = split_strings(proto.content, size)?.ok_or_else(undecodable)?;
            Data::Strings(Strings { parts })
        }
        (0, content @ [_, ..], _) => {
            let wanted = size.saturating_mul(dtype.size());
            if content.len() != wanted {
                return Err(faults::wrong_content_size(name, content.len(), wanted).into());
            }
            if dtype == DataType::Bool && content.iter().any(|&byte| byte > 1) {
                // In `tensor_content` of a boolean tensor, any nonzero byte means true.
                Data::Bytes(content.iter().map(|&byte| u8::from(byte != 0)).collect())
            } else {
                Data::Raw(content)
            }
        }
        // A tensor with both `tensor_content` and typed values is left to the other reader, which uses `tensor_content`
        // but parses the typed values, too.
        (_, [_, ..], _) => return Err(Declined::Unusual),
        _ => {
            if proto.num_pieces > 0 && proto.field != field_of_values(dtype) {
                return Err(Declined::Unusual);
            }
            let too_many = |count| faults::too_many_values(name, count, size);
            read_values(&proto, dtype, size, allowance, &too_many)?
        }
    };
    Ok(Tensor { dtype, dims, data })
}

/// Returns the name in `types.proto` of a dtype that no request can carry; None if `types.proto` has no such number, or
/// one for references (above 100).
///
/// Source: `tensorflow/core/framework/types.proto` (2.21).
fn proto_name(number: u64) -> Option<&'static str> {
    Some(match number {
        11 => "DT_QINT8",
        12 => "DT_QUINT8",
        13 => "DT_QINT32",
        15 => "DT_QINT16",
        16 => "DT_QUINT16",
        20 => "DT_RESOURCE",
        21 => "DT_VARIANT",
        24 => "DT_FLOAT8_E5M2",
        25 => "DT_FLOAT8_E4M3FN",
        26 => "DT_FLOAT8_E4M3FNUZ",
        27 => "DT_FLOAT8_E4M3B11FNUZ",
        28 => "DT_FLOAT8_E5M2FNUZ",
        29 => "DT_INT4",
        30 => "DT_UINT4",
        31 => "DT_INT2",
        32 => "DT_UINT2",
        33 => "DT_FLOAT4_E2M1FN",
        _ => return None,
    })
}

/// Returns the number of the `TensorProto` field that has the values of a dtype, given by its number; None for a dtype
/// that the core lacks.
#[must_use]
pub fn value_field(dtype: u64) -> Option<u32> {
    DataType::of_number(dtype).map(field_of_values)
}

/// Returns the number of the `TensorProto` field, such as `int_val`, that has the values of a dtype.
fn field_of_values(dtype: DataType) -> u32 {
    match dtype {
        DataType::Float32 => 5,
        DataType::Float64 => 6,
        DataType::Int32 | DataType::Int16 | DataType::Int8 | DataType::Uint8 | DataType::Uint16 => 7,
        DataType::String => STRING_VAL,
        DataType::Complex64 => 9,
        DataType::Int64 => 10,
        DataType::Bool => 11,
        DataType::Complex128 => 12,
        DataType::Float16 | DataType::Bfloat16 => 13,
        DataType::Uint32 => 16,
        DataType::Uint64 => 17,
    }
}

/// Parses a `TensorShapeProto`; returns its sizes and their product, which may be `max_elements` at most.
fn read_shape(name: &str, message: &[u8], max_elements: usize) -> Result<(Dims, usize), Declined> {
    let undecodable = || Declined::from(faults::undecodable_tensor(name));
    let mut dims = Dims::new();
    let (mut has_unknown_rank, mut has_negative) = (false, false);
    for field in Fields::of(message) {
        match field? {
            (2, Value::Delimited(dim)) => {
                let size = read_dim(dim)?;
                has_negative |= size < 0;
                dims.push(usize::try_from(size).unwrap_or(usize::MAX));
            }
            (3, Value::Varint(value)) => has_unknown_rank = value != 0,
            _ => return Err(Declined::Unusual),
        }
        check_num_messages(dims.len())?;
    }
    if has_unknown_rank || has_negative || dims.len() > MAX_RANK {
        return Err(undecodable());
    }
    if dims.contains(&0) {
        // A shape with a size of 0 has no elements, but its other sizes must still fit numpy's index type.
        let product = dims.iter().try_fold(1_usize, |product, &size| product.checked_mul(size.max(1)));
        return if product.is_none_or(|product| product > MAX_PRODUCT) { Err(undecodable()) } else { Ok((dims, 0)) };
    }
    match dims.iter().try_fold(1_usize, |product, &size| product.checked_mul(size)) {
        Some(size) if size <= max_elements => Ok((dims, size)),
        Some(size) => {
            let shape = format!("{dims:?}");
            Err(faults::tensor_too_large(name, &shape, &size.to_string(), max_elements).into())
        }
        None => Err(faults::tensor_too_large(name, &format!("{dims:?}"), &product(&dims), max_elements).into()),
    }
}

/// Returns the product of sizes, which may be beyond 64 bits, in decimal digits.
fn product(sizes: &[usize]) -> String {
    const BASE: u128 = 1_000_000_000_000_000_000;
    // The parts of the number, the lowest first.
    let mut parts: Vec<u128> = vec![1];
    for &size in sizes {
        let mut carry = 0;
        for part in &mut parts {
            let number = *part * size as u128 + carry;
            (*part, carry) = (number % BASE, number / BASE);
        }
        while carry > 0 {
            parts.push(carry % BASE);
            carry /= BASE;
        }
    }
    let mut digits = parts.pop().unwrap_or(0).to_string();
    for part in parts.iter().rev() {
        let _ = write!(digits, "{part:018}");
    }
    digits
}

fn read_dim(message: &[u8]) -> Result<i64, Declined> {
    let (mut size, mut name) = (None, None);
    for field in Fields::of(message) {
        match field? {
            (1, Value::Varint(value)) => set_once(&mut size, value.cast_signed())?,
            (2, Value::Delimited(bytes)) => set_once(&mut name, text(bytes)?)?,
            _ => return Err(Declined::Unusual),
        }
    }
    Ok(size.unwrap_or(0))
}

/// Splits `tensor_content` of strings, as TensorFlow's `port::EncodeStringList` writes it: all lengths as varints, then
/// all bytes.
///
/// None: the bytes are no such strings.
fn split_strings(content: &[u8], size: usize) -> Result<Option<Vec<Cow<'_, [u8]>>>, Declined> {
    if size > content.len() {
        return Ok(None);
    }
    check_num_strings(size)?;
    let split = || {
        let mut bytes = content;
        for _ in 0..size {
            read_varint32(&mut bytes).ok()?;
        }
        let mut lengths = content;
        let mut parts = Vec::with_capacity(size);
        for _ in 0..size {
            let length = read_varint32(&mut lengths).ok()? as usize;
            let (part, rest) = bytes.split_at_checked(length)?;
            parts.push(Cow::Borrowed(part));
            bytes = rest;
        }
        bytes.is_empty().then_some(parts)
    };
    Ok(split())
}

/// Returns the error for a tensor with more values than its shape says.
type TooManyValues<'f> = dyn Fn(usize) -> BoxedFault + 'f;

fn read_values<'a>(
    proto: &TensorProto<'a>,
    dtype: DataType,
    size: usize,
    allowance: &mut Allowance,
    too_many: &TooManyValues<'_>,
) -> Result<Data<'a>, Declined> {
    match dtype {
        DataType::Float32 | DataType::Float64 | DataType::Complex64 | DataType::Complex128 => {
            let width = dtype.size();
            let of_part = if dtype.is_complex() { width / 2 } else { width };
            match proto.piece {
                Some(Value::Delimited(packed)) if proto.num_pieces == 1 && packed.len() == size * width => {
                    Ok(Data::Raw(packed))
                }
                _ => {
                    let mut bytes = fixed_values(proto, of_part)?;
                    // As in TensorFlow, a part of a complex number without its other part is ignored.
                    bytes.truncate(bytes.len() - bytes.len() % width);
                    repeat_last_bytes(bytes, width, size, allowance, too_many)
                }
            }
        }
        DataType::String => {
            check_num_strings(proto.num_pieces)?;
            let mut parts = Vec::with_capacity(proto.num_pieces);
            let mut fields = Fields::of(proto.message);
            while let Some(field) = fields.next() {
                match field? {
                    (STRING_VAL, Value::Delimited(bytes)) => parts.push(Cow::Borrowed(bytes)),
                    (STRING_VAL, _) => return Err(Declined::Unusual),
                    _ => continue,
                }
                fields.for_each_short_string(STRING_VAL, |bytes| parts.push(Cow::Borrowed(bytes)));
            }
            repeat_last(&mut parts, Cow::Borrowed(&[]), size, allowance, too_many)?;
            Ok(Data::Strings(Strings { parts }))
        }
        _ => {
            let mut numbers = Vec::new();
            for piece in proto.pieces() {
                match piece {
                    Value::Delimited(packed) => extend_varints(&mut numbers, packed)?,
                    Value::Varint(number) => numbers.push(number.cast_signed()),
                    _ => return Err(Declined::Unusual),
                }
            }
            repeat_last(&mut numbers, 0, size, allowance, too_many)?;
            Ok(of_dtype(numbers, dtype))
        }
    }
}

/// Returns the bytes of all numbers in the field with the tensor's values, packed or single, end to end; each number
/// has `width` bytes.
fn fixed_values(proto: &TensorProto<'_>, width: usize) -> Result<Vec<u8>, Declined> {
    let mut bytes = Vec::new();
    for piece in proto.pieces() {
        match piece {
            Value::Delimited(packed) if packed.len().is_multiple_of(width) => bytes.extend_from_slice(packed),
            Value::Delimited(_) => return Err(Declined::Malformed),
            Value::Fixed32(number) if width == 4 => bytes.extend_from_slice(number),
            Value::Fixed64(number) if width == 8 => bytes.extend_from_slice(number),
            _ => return Err(Declined::Unusual),
        }
    }
    Ok(bytes)
}

/// Extends `values` to `size` elements by repeating the last value, or `default` if there is none.
fn repeat_last<T: Clone>(
    values: &mut Vec<T>,
    default: T,
    size: usize,
    allowance: &mut Allowance,
    too_many: &TooManyValues<'_>,
) -> Result<(), Declined> {
    let lacking = size.checked_sub(values.len()).ok_or_else(|| too_many(values.len()))?;
    allowance.repeats = allowance.repeats.checked_sub(lacking).ok_or(Declined::TooLarge)?;
    if lacking > 0 {
        let last = values.last().cloned().unwrap_or(default);
        values.resize(size, last);
    }
    Ok(())
}

fn repeat_last_bytes<'a>(
    mut bytes: Vec<u8>,
    width: usize,
    size: usize,
    allowance: &mut Allowance,
    too_many: &TooManyValues<'_>,
) -> Result<Data<'a>, Declined> {
    let count = bytes.len() / width;
    let lacking = size.checked_sub(count).ok_or_else(|| too_many(count))?;
    allowance.repeats = allowance.repeats.checked_sub(lacking).ok_or(Declined::TooLarge)?;
    match bytes.len().checked_sub(width) {
        Some(last) => (0..lacking).for_each(|_| bytes.extend_from_within(last..last + width)),
        None => bytes.resize(size * width, 0),
    }
    Ok(Data::Bytes(bytes))
}

/// Converts decoded integers to `dtype`: cuts off higher bits, as protobuf and numpy do; for booleans, any nonzero
/// number is true.
#[allow(clippy::cast_possible_truncation)]
fn of_dtype<'a>(mut numbers: Vec<i64>, dtype: DataType) -> Data<'a> {
    match dtype {
        DataType::Int64 => Data::Ints(numbers),
        DataType::Int32 => {
            for number in &mut numbers {
                *number = i64::from(*number as i32);
            }
            Data::Ints(numbers)
        }
        DataType::Bool => Data::Bytes(numbers.into_iter().map(|number| u8::from(number != 0)).collect()),
        _ => {
            let width = dtype.size();
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width));
            Data::Bytes(bytes.collect())
        }
    }
}

/// How the values of one output are encoded in the output's `TensorProto`.
enum Values {
    /// The tensor has no elements, so its `TensorProto` has no field of values.
    None,
    /// The values are encoded as their bytes in memory; holds the number of the field, and the size of the bytes.
    Raw(u32, usize),
    /// The values are encoded as packed varints; holds the number of the field, and the varints.
    Packed(u32, Vec<u8>),
    /// The values are strings, each encoded as one field `string_val`.
    Strings,
    /// The values are strings, joined in the field `tensor_content`; holds the size of that field's bytes.
    JoinedStrings(usize),
}

/// The sizes of one output's `TensorProto` and of its parts, which are computed before it is written.
pub struct MessageLayout {
    /// Size of the encoded `TensorProto` in bytes.
    pub len: usize,
    dims_len: usize,
    values: Values,
}

impl MessageLayout {
    /// Computes the sizes of the `TensorProto` of output `index`. Values that are encoded as varints are looked up and
    /// encoded here, because their size depends on the values.
    ///
    /// # Errors
    /// As [`Work::append`].
    pub fn of(work: &mut Work<'_, '_>, index: usize, as_content: bool) -> Result<Self, Declined> {
        let shape = &work.outputs()[index];
        let (dtype, is_empty, num_bytes) = (shape.dtype, shape.dims.contains(&0), shape.num_bytes());
        let dims_len = shape.dims.iter().map(|&size| delimited_len(2, dim_len(size))).sum();
        let field = field_of_values(dtype);
        let (values, values_len) = match dtype {
            _ if is_empty => (Values::None, 0),
            DataType::String if as_content => {
                let lengths = work.strings(index).iter().map(|one| varint_len(one.len() as u64) + one.len());
                let num_bytes = lengths.sum();
                (Values::JoinedStrings(num_bytes), delimited_len(CONTENT, num_bytes))
            }
            DataType::String => {
                let lengths = work.strings(index).iter().map(|one| delimited_len(STRING_VAL, one.len()));
                (Values::Strings, lengths.sum())
            }
            _ if as_content => (Values::Raw(CONTENT, num_bytes), delimited_len(CONTENT, num_bytes)),
            dtype if is_packed_as_in_memory(dtype) => (Values::Raw(field, num_bytes), delimited_len(field, num_bytes)),
            dtype => {
                let mut numbers = Vec::new();
                work.append(index, &mut numbers)?;
                let packed = pack(&numbers, dtype);
                let length = delimited_len(field, packed.len());
                (Values::Packed(field, packed), length)
            }
        };
        let len = varint_field_len(DTYPE, dtype as u64) + delimited_len(SHAPE, dims_len) + values_len;
        Ok(MessageLayout { len, dims_len, values })
    }

    /// Appends the output's message; looks up the values if [`MessageLayout::of`] did not.
    ///
    /// # Errors
    /// As [`Work::append`].
    pub fn write(&self, work: &mut Work<'_, '_>, index: usize, to: &mut Vec<u8>) -> Result<(), Declined> {
        let shape = &work.outputs()[index];
        write_varint_field(to, DTYPE, shape.dtype as u64);
        write_delimited_header(to, SHAPE, self.dims_len);
        for &size in &shape.dims {
            write_delimited_header(to, 2, dim_len(size));
            write_varint_field(to, 1, size as u64);
        }
        match &self.values {
            Values::None => {}
            Values::Raw(field, num_bytes) => {
                write_delimited_header(to, *field, *num_bytes);
                work.append(index, to)?;
            }
            Values::Packed(field, bytes) => write_delimited(to, *field, bytes),
            Values::Strings => {
                for one in work.strings(index) {
                    write_delimited(to, STRING_VAL, one);
                }
            }
            Values::JoinedStrings(num_bytes) => {
                write_delimited_header(to, CONTENT, *num_bytes);
                for one in work.strings(index) {
                    write_varint(to, one.len() as u64);
                }
                for one in work.strings(index) {
                    to.extend_from_slice(one);
                }
            }
        }
        Ok(())
    }
}

/// Appends the `TensorProto` of an input tensor, with typed values.
pub fn write_input(to: &mut Vec<u8>, tensor: &Tensor<'_>) {
    write_varint_field(to, DTYPE, tensor.dtype as u64);
    write_delimited_header(to, SHAPE, tensor.dims.iter().map(|&size| delimited_len(2, dim_len(size))).sum());
    for &size in &tensor.dims {
        write_delimited_header(to, 2, dim_len(size));
        write_varint_field(to, 1, size as u64);
    }
    let field = field_of_values(tensor.dtype);
    let mut numbers = |bytes: &[u8]| match tensor.dtype {
        _ if bytes.is_empty() => {}
        dtype if is_packed_as_in_memory(dtype) => write_delimited(to, field, bytes),
        dtype => write_delimited(to, field, &pack(bytes, dtype)),
    };
    match &tensor.data {
        Data::Raw(bytes) => numbers(bytes),
        Data::Bytes(bytes) => numbers(bytes),
        Data::Floats(floats) => numbers(&floats.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()),
        Data::Ints(integers) => {
            let mut packed = Vec::with_capacity(integers.len());
            for number in integers {
                write_varint(&mut packed, number.cast_unsigned());
            }
            if !packed.is_empty() {
                write_delimited(to, field, &packed);
            }
        }
        Data::Strings(strings) => {
            for one in &strings.parts {
                write_delimited(to, STRING_VAL, one);
            }
        }
    }
}

/// Returns the size in bytes of a `Dim` message, which holds one size of a tensor's shape.
fn dim_len(size: usize) -> usize {
    varint_field_len(1, size as u64)
}

/// Says whether the packed values of a dtype are the bytes of the tensor in memory, so that they need not be encoded.
fn is_packed_as_in_memory(dtype: DataType) -> bool {
    use DataType as D;
    matches!(dtype, D::Float32 | D::Float64 | D::Bool | D::Complex64 | D::Complex128)
}

/// Encodes integers of a dtype as varints; negative ones are sign-extended to 64 bits.
fn pack(numbers: &[u8], dtype: DataType) -> Vec<u8> {
    let wide = |chunk: &[u8]| {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(bytes)
    };
    let width = dtype.size().max(1);
    let is_signed = matches!(dtype, DataType::Int8 | DataType::Int16 | DataType::Int32);
    let unused_bits = if is_signed { 64 - 8 * width } else { 0 };
    let mut packed = Vec::with_capacity(numbers.len());
    for chunk in numbers.chunks_exact(width) {
        let number = (wide(chunk) << unused_bits).cast_signed() >> unused_bits;
        write_varint(&mut packed, number.cast_unsigned());
    }
    packed
}

#[cfg(all(test, not(feature = "model")))]
pub(super) mod tests;
