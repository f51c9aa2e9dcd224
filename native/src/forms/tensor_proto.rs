//! Reads and writes `tensorflow.TensorProto`: tensors of requests in place, outputs of answers byte for byte as the
//! reference's.
//!
//! Source: `tensorflow/core/framework/{tensor,tensor_shape}.proto` and `Tensor::FromProto` in tensor.cc (2.21).

use std::borrow::Cow;
use std::mem::MaybeUninit;

use super::protobuf::{
    Fields, Value, delimited_len, extend_varints, once, put_delimited, put_head, put_varint, put_varint_field,
    take_short, text, varint_field_len, varint_len,
};
use crate::declined::Declined;
use crate::plan::{Data, DataType, Dims, OutputShape, Strings, Tensor, Work};

/// Most elements that a request's tensors repeat here; the reference repeats at least as many.
const MAX_SPREAD: usize = 1 << 16;
const REFERENCE_SPREAD: usize = 1 << 20;
/// Limits of the reference: the highest rank, and the largest product of the sizes that are not 0.
const MAX_RANK: usize = 64;
const MAX_PRODUCT: usize = usize::MAX >> 5;

// Numbers of fields; see field_of_values for the others.
const DTYPE: u32 = 1;
const SHAPE: u32 = 2;
const VERSION_NUMBER: u32 = 3;
const CONTENT: u32 = 4;
const STRING_VAL: u32 = 8;

/// Limits the elements that the tensors of a request may have.
pub struct Allowance {
    elements: usize,
    /// Number of elements that may still repeat a tensor's last value, which are not sent.
    spread: usize,
}

impl Allowance {
    /// Takes the number of bytes of a request: each sent element takes at least one byte.
    #[must_use]
    pub fn of_request(num_bytes: usize) -> Self {
        Allowance { elements: num_bytes.max(REFERENCE_SPREAD), spread: MAX_SPREAD }
    }
}

/// A message whose values are still on the wire.
#[derive(Default)]
struct TensorProto<'a> {
    message: &'a [u8],
    shape: &'a [u8],
    content: &'a [u8],
    /// Number of the field with the tensor's values; 0 for a tensor without values.
    field: u32,
    /// The last piece of the tensor's values, and the number of pieces.
    piece: Option<Value<'a>>,
    num_pieces: usize,
}

impl<'a> TensorProto<'a> {
    fn read(message: &'a [u8]) -> Result<(DataType, Self), Declined> {
        let (mut dtype, mut shape, mut content, mut version) = (None, None, None, None);
        let mut tensor = TensorProto { message, ..TensorProto::default() };
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next() {
            match field? {
                (DTYPE, Value::Varint(number)) => once(&mut dtype, number)?,
                (SHAPE, Value::Delimited(bytes)) => once(&mut shape, bytes)?,
                (VERSION_NUMBER, Value::Varint(number)) => once(&mut version, number)?,
                (CONTENT, Value::Delimited(bytes)) => once(&mut content, bytes)?,
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
        let dtype = dtype.and_then(DataType::of_number).ok_or(Declined::Unusual)?;
        Ok((dtype, tensor))
    }

    /// Iterates over the pieces of the tensor's values.
    fn pieces(&self) -> impl Iterator<Item = Value<'a>> {
        let field = self.field;
        // TensorProto::read has seen the end of the message.
        Fields::of(self.message)
            .map_while(Result::ok)
            .filter_map(move |(number, value)| (number == field).then_some(value))
    }
}

/// Reads one tensor of a request.
///
/// # Errors
/// [`Declined::Unusual`]: the parts of the tensor do not fit each other, or only the reference reads them.
pub fn read_tensor<'a>(message: &'a [u8], allowance: &mut Allowance) -> Result<Tensor<'a>, Declined> {
    let (dtype, proto) = TensorProto::read(message)?;
    let (dims, size) = read_shape(proto.shape)?;
    allowance.elements = allowance.elements.checked_sub(size).ok_or(Declined::Unusual)?;
    let data = match (proto.num_pieces, proto.content, dtype) {
        (0, [_, ..], DataType::String) => Data::Strings(Strings { parts: split_strings(proto.content, size)? }),
        (0, content @ [_, ..], _) => {
            if size.checked_mul(dtype.size()) != Some(content.len()) {
                return Err(Declined::Unusual);
            }
            if dtype == DataType::Bool && content.iter().any(|&byte| byte > 1) {
                // Any byte but 0 is true.
                Data::Bytes(content.iter().map(|&byte| u8::from(byte != 0)).collect())
            } else {
                Data::Raw(content)
            }
        }
        // The reference prefers the content, and still reads the values.
        (_, [_, ..], _) => return Err(Declined::Unusual),
        _ => {
            if proto.num_pieces > 0 && proto.field != field_of_values(dtype) {
                return Err(Declined::Unusual);
            }
            read_values(&proto, dtype, size, allowance)?
        }
    };
    Ok(Tensor { dtype, dims, data })
}

/// Returns the number of the field in which values of a dtype travel.
fn field_of_values(dtype: DataType) -> u32 {
    match dtype {
        DataType::Float32 => 5,
        DataType::Float64 => 6,
        DataType::Int32 | DataType::Int16 | DataType::Int8 | DataType::Uint8 | DataType::Uint16 => 7,
        DataType::String => STRING_VAL,
        DataType::Int64 => 10,
        DataType::Bool => 11,
        DataType::Float16 | DataType::Bfloat16 => 13,
        DataType::Uint32 => 16,
        DataType::Uint64 => 17,
    }
}

/// Returns the sizes of a `TensorShapeProto` and their product.
fn read_shape(message: &[u8]) -> Result<(Dims, usize), Declined> {
    let mut dims = Dims::new();
    let (mut size, mut product) = (1_usize, 1_usize);
    for field in Fields::of(message) {
        let (2, Value::Delimited(dim)) = field? else {
            return Err(Declined::Unusual);
        };
        let dim = read_dim(dim)?;
        product = product.checked_mul(dim.max(1)).ok_or(Declined::Unusual)?;
        if dims.len() == MAX_RANK || product > MAX_PRODUCT {
            return Err(Declined::Unusual);
        }
        // `dim` is at most the product.
        size *= dim;
        dims.push(dim);
    }
    Ok((dims, size))
}

fn read_dim(message: &[u8]) -> Result<usize, Declined> {
    let (mut size, mut name) = (None, None);
    for field in Fields::of(message) {
        match field? {
            (1, Value::Varint(value)) => once(&mut size, value.cast_signed())?,
            (2, Value::Delimited(bytes)) => once(&mut name, text(bytes)?)?,
            _ => return Err(Declined::Unusual),
        }
    }
    usize::try_from(size.unwrap_or(0)).map_err(|_| Declined::Unusual)
}

/// Reads the strings that `port::EncodeStringList` wrote: all lengths as varints, then all bytes.
fn split_strings(content: &[u8], size: usize) -> Result<Vec<Cow<'_, [u8]>>, Declined> {
    if size > content.len() {
        return Err(Declined::Unusual);
    }
    let mut bytes = content;
    for _ in 0..size {
        take_short(&mut bytes)?;
    }
    let mut lengths = content;
    let mut parts = Vec::with_capacity(size);
    for _ in 0..size {
        let length = take_short(&mut lengths)? as usize;
        let (part, rest) = bytes.split_at_checked(length).ok_or(Declined::Unusual)?;
        parts.push(Cow::Borrowed(part));
        bytes = rest;
    }
    if bytes.is_empty() { Ok(parts) } else { Err(Declined::Unusual) }
}

fn read_values<'a>(
    proto: &TensorProto<'a>,
    dtype: DataType,
    size: usize,
    allowance: &mut Allowance,
) -> Result<Data<'a>, Declined> {
    match dtype {
        DataType::Float32 | DataType::Float64 => {
            let width = dtype.size();
            match proto.piece {
                Some(Value::Delimited(packed)) if proto.num_pieces == 1 && packed.len() == size * width => {
                    Ok(Data::Raw(packed))
                }
                _ => spread_fixed(fixed_values(proto, width)?, width, size, allowance),
            }
        }
        DataType::String => {
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
            spread(&mut parts, Cow::Borrowed(&[]), size, allowance)?;
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
            spread(&mut numbers, 0, size, allowance)?;
            Ok(of_dtype(numbers, dtype))
        }
    }
}

/// Returns the bytes of packed and of single values of four or eight bytes, end to end.
fn fixed_values(proto: &TensorProto<'_>, width: usize) -> Result<Vec<u8>, Declined> {
    let mut bytes = Vec::new();
    for piece in proto.pieces() {
        match piece {
            Value::Delimited(packed) if packed.len().is_multiple_of(width) => bytes.extend_from_slice(packed),
            Value::Fixed32(number) if width == 4 => bytes.extend_from_slice(number),
            Value::Fixed64(number) if width == 8 => bytes.extend_from_slice(number),
            _ => return Err(Declined::Unusual),
        }
    }
    Ok(bytes)
}

/// Brings values to the number that the shape asks for: repeats the last value, or `default` where there is none.
fn spread<T: Clone>(values: &mut Vec<T>, default: T, size: usize, allowance: &mut Allowance) -> Result<(), Declined> {
    // `values` may not be longer than the shape says.
    let lacking = size.checked_sub(values.len()).ok_or(Declined::Unusual)?;
    allowance.spread = allowance.spread.checked_sub(lacking).ok_or(Declined::Unusual)?;
    if lacking > 0 {
        let last = values.last().cloned().unwrap_or(default);
        values.resize(size, last);
    }
    Ok(())
}

fn spread_fixed<'a>(
    mut bytes: Vec<u8>,
    width: usize,
    size: usize,
    allowance: &mut Allowance,
) -> Result<Data<'a>, Declined> {
    let count = bytes.len() / width;
    let lacking = size.checked_sub(count).ok_or(Declined::Unusual)?;
    allowance.spread = allowance.spread.checked_sub(lacking).ok_or(Declined::Unusual)?;
    match bytes.len().checked_sub(width) {
        Some(last) => (0..lacking).for_each(|_| bytes.extend_from_within(last..last + width)),
        None => bytes.resize(size * width, 0),
    }
    Ok(Data::Bytes(bytes))
}

/// Returns decoded integers as numbers of `dtype`; higher bits are lost, as in protobuf and numpy.
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

/// The values of one output in the form of the message.
enum Values {
    /// No value and no field.
    None,
    /// Number of the field, and number of bytes, of values that are sent as they lie in memory.
    Raw(u32, usize),
    /// Number of the field, and encoded varints.
    Packed(u32, Vec<u8>),
    /// Strings, each in a field of its own.
    Strings,
    /// Number of bytes of `tensor_content`, which holds all strings.
    JoinedStrings(usize),
}

/// The lengths of the parts of one output's message.
pub struct Layout {
    /// Bytes of the message.
    pub len: usize,
    dims_len: usize,
    values: Values,
}

impl Layout {
    /// Lays out output `number`. Runs and encodes an output of varints, since nothing else tells its length.
    ///
    /// # Errors
    /// As [`Work::fill`].
    pub fn of(work: &mut Work<'_, '_>, number: usize, shape: &OutputShape, as_content: bool) -> Result<Self, Declined> {
        let field = field_of_values(shape.dtype);
        let (is_empty, num_bytes) = (shape.dims.contains(&0), shape.num_bytes());
        let (values, values_len) = match shape.dtype {
            _ if is_empty => (Values::None, 0),
            DataType::String if as_content => {
                let lengths = work.strings(number).iter().map(|one| varint_len(one.len() as u64) + one.len());
                let num_bytes = lengths.sum();
                (Values::JoinedStrings(num_bytes), delimited_len(CONTENT, num_bytes))
            }
            DataType::String => {
                let lengths = work.strings(number).iter().map(|one| delimited_len(STRING_VAL, one.len()));
                (Values::Strings, lengths.sum())
            }
            _ if as_content => (Values::Raw(CONTENT, num_bytes), delimited_len(CONTENT, num_bytes)),
            DataType::Float32 | DataType::Float64 | DataType::Bool => {
                (Values::Raw(field, num_bytes), delimited_len(field, num_bytes))
            }
            dtype => {
                let mut numbers = Vec::new();
                fill(work, number, num_bytes, &mut numbers)?;
                let packed = pack(&numbers, dtype);
                let length = delimited_len(field, packed.len());
                (Values::Packed(field, packed), length)
            }
        };
        let dims_len = shape.dims.iter().map(|&size| delimited_len(2, dim_len(size))).sum();
        let len = varint_field_len(DTYPE, shape.dtype as u64) + delimited_len(SHAPE, dims_len) + values_len;
        Ok(Layout { len, dims_len, values })
    }

    /// Runs the output, if it has not run, and writes its message.
    ///
    /// # Errors
    /// As [`Work::fill`].
    pub fn write(
        &self,
        work: &mut Work<'_, '_>,
        number: usize,
        shape: &OutputShape,
        to: &mut Vec<u8>,
    ) -> Result<(), Declined> {
        put_varint_field(to, DTYPE, shape.dtype as u64);
        put_head(to, SHAPE, self.dims_len);
        for &size in &shape.dims {
            put_head(to, 2, dim_len(size));
            put_varint_field(to, 1, size as u64);
        }
        match &self.values {
            Values::None => {}
            Values::Raw(field, num_bytes) => {
                put_head(to, *field, *num_bytes);
                fill(work, number, *num_bytes, to)?;
            }
            Values::Packed(field, bytes) => put_delimited(to, *field, bytes),
            Values::Strings => {
                for one in work.strings(number) {
                    put_delimited(to, STRING_VAL, one);
                }
            }
            Values::JoinedStrings(num_bytes) => {
                put_head(to, CONTENT, *num_bytes);
                for one in work.strings(number) {
                    put_varint(to, one.len() as u64);
                }
                for one in work.strings(number) {
                    to.extend_from_slice(one);
                }
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a Dim message.
fn dim_len(size: usize) -> usize {
    varint_field_len(1, size as u64)
}

/// Runs an output and appends its `num_bytes` bytes to `to`.
fn fill(work: &mut Work<'_, '_>, number: usize, num_bytes: usize, to: &mut Vec<u8>) -> Result<(), Declined> {
    to.reserve(num_bytes);
    let room: &mut [MaybeUninit<u8>] = to.spare_capacity_mut().get_mut(..num_bytes).ok_or(Declined::OverLimit)?;
    work.fill(number, room)?;
    // SAFETY: `num_bytes` bytes are reserved, and Work::fill has written each.
    unsafe { to.set_len(to.len() + num_bytes) };
    Ok(())
}

/// Encodes numbers of a dtype as varints, negative ones as 64 bits.
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
        put_varint(&mut packed, number.cast_unsigned());
    }
    packed
}

#[cfg(test)]
pub(super) mod tests;
