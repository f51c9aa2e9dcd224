//! `tensorflow.TensorProto`: tensors of requests in place, outputs of answers byte for byte as the reference's.
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

/// Elements over which the values of a request are spread here, and by the reference at least.
const MAX_SPREAD: usize = 1 << 16;
const REFERENCE_SPREAD: usize = 1 << 20;
/// As in the reference: the highest rank, and the largest product of the sizes that are not 0.
const MAX_RANK: usize = 64;
const MAX_PRODUCT: usize = usize::MAX >> 5;

// Numbers of fields; see field_of_values for the others.
const DTYPE: u32 = 1;
const SHAPE: u32 = 2;
const VERSION_NUMBER: u32 = 3;
const CONTENT: u32 = 4;
const STRING_VAL: u32 = 8;

/// How many elements the tensors of a request may still have.
pub struct Allowance {
    elements: usize,
    /// Of those that are not sent, because the last value stands for all that follow.
    spread: usize,
}

impl Allowance {
    /// Takes how many bytes a request has: an element that was sent takes one at least.
    #[must_use]
    pub fn of_request(num_bytes: usize) -> Self {
        Allowance {
            elements: num_bytes.max(REFERENCE_SPREAD),
            spread: MAX_SPREAD,
        }
    }
}

/// A message whose values are still on the wire.
#[derive(Default)]
struct TensorProto<'a> {
    message: &'a [u8],
    shape: &'a [u8],
    content: &'a [u8],
    /// Number of the field of its values; 0: it has none.
    field: u32,
    /// The last of the pieces that its values came in, and how many there are.
    piece: Option<Value<'a>>,
    num_pieces: usize,
}

impl<'a> TensorProto<'a> {
    fn read(message: &'a [u8]) -> Result<(DataType, Self), Declined> {
        let (mut dtype, mut shape, mut content, mut version) = (None, None, None, None);
        let mut tensor = TensorProto {
            message,
            ..TensorProto::default()
        };
        for field in Fields::of(message) {
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
                }
            }
        }
        tensor.shape = shape.unwrap_or_default();
        tensor.content = content.unwrap_or_default();
        let dtype = dtype.and_then(DataType::of_number).ok_or(Declined::Unusual)?;
        Ok((dtype, tensor))
    }

    /// Iterates over the pieces of its values.
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
/// [`Declined::Unusual`]: its parts do not fit each other, or only the reference reads them.
pub fn read_tensor<'a>(message: &'a [u8], allowance: &mut Allowance) -> Result<Tensor<'a>, Declined> {
    let (dtype, proto) = TensorProto::read(message)?;
    let (dims, size) = read_shape(proto.shape)?;
    allowance.elements = allowance.elements.checked_sub(size).ok_or(Declined::Unusual)?;
    let data = match (proto.num_pieces, proto.content, dtype) {
        (0, [_, ..], DataType::String) => Data::Strings(Strings {
            parts: split_strings(proto.content, size)?,
        }),
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
        // No more than the product.
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

/// Undoes `port::EncodeStringList`: all lengths as varints, then all bytes.
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
    if bytes.is_empty() {
        Ok(parts)
    } else {
        Err(Declined::Unusual)
    }
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
            for piece in proto.pieces() {
                let Value::Delimited(bytes) = piece else {
                    return Err(Declined::Unusual);
                };
                parts.push(Cow::Borrowed(bytes));
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

/// Returns packed and single values of four or eight bytes end to end.
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

/// Brings values to the number that the shape asks for: the last one is repeated, or else the default.
fn spread<T: Clone>(values: &mut Vec<T>, default: T, size: usize, allowance: &mut Allowance) -> Result<(), Declined> {
    // There may be no more values than the shape asks for.
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

/// Returns decoded integers as numbers of their dtype; bits beyond it are lost, as in protobuf and numpy.
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
            let bytes = numbers
                .iter()
                .flat_map(|number| number.to_le_bytes().into_iter().take(width));
            Data::Bytes(bytes.collect())
        }
    }
}

/// The values of one output as they travel.
enum Values {
    /// There is no value and no field.
    None,
    /// As they lie in memory, so many bytes, in this field.
    Raw(u32, usize),
    /// Varints, encoded, in this field.
    Packed(u32, Vec<u8>),
    /// Each string in a field of its own.
    Strings,
    /// All strings in `tensor_content`, which has so many bytes.
    JoinedStrings(usize),
}

/// One output laid out: how long its parts are.
pub struct Layout {
    /// Bytes of the message.
    pub len: usize,
    dims_len: usize,
    values: Values,
}

impl Layout {
    /// Lays output `number` out; one of varints is run and encoded, since nothing else tells how long it is.
    ///
    /// # Errors
    /// As [`Work::fill`].
    pub fn of(work: &mut Work<'_, '_>, number: usize, shape: &OutputShape, as_content: bool) -> Result<Self, Declined> {
        let field = field_of_values(shape.dtype);
        let (is_empty, num_bytes) = (shape.dims.contains(&0), shape.num_bytes());
        let (values, values_len) = match shape.dtype {
            _ if is_empty => (Values::None, 0),
            DataType::String if as_content => {
                let lengths = work
                    .strings(number)
                    .iter()
                    .map(|one| varint_len(one.len() as u64) + one.len());
                let num_bytes = lengths.sum();
                (Values::JoinedStrings(num_bytes), delimited_len(CONTENT, num_bytes))
            }
            DataType::String => {
                let lengths = work
                    .strings(number)
                    .iter()
                    .map(|one| delimited_len(STRING_VAL, one.len()));
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

/// Bytes of a Dim message.
fn dim_len(size: usize) -> usize {
    varint_field_len(1, size as u64)
}

/// Runs an output into the room behind `to`.
fn fill(work: &mut Work<'_, '_>, number: usize, num_bytes: usize, to: &mut Vec<u8>) -> Result<(), Declined> {
    to.reserve(num_bytes);
    let room: &mut [MaybeUninit<u8>] = to
        .spare_capacity_mut()
        .get_mut(..num_bytes)
        .ok_or(Declined::OverLimit)?;
    work.fill(number, room)?;
    // SAFETY: so many bytes are reserved, and Work::fill has written each.
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
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    pub struct Dim {
        #[prost(int64, tag = "1")]
        size: i64,
        #[prost(string, tag = "2")]
        name: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Shape {
        #[prost(message, repeated, tag = "2")]
        dim: Vec<Dim>,
        #[prost(bool, tag = "3")]
        unknown_rank: bool,
    }

    /// The oracle: what a stock generator makes of the proto.
    #[derive(Clone, PartialEq, Message)]
    pub struct Stock {
        #[prost(int32, tag = "1")]
        dtype: i32,
        #[prost(message, optional, tag = "2")]
        tensor_shape: Option<Shape>,
        #[prost(int32, tag = "3")]
        version_number: i32,
        #[prost(bytes = "vec", tag = "4")]
        tensor_content: Vec<u8>,
        #[prost(int32, repeated, tag = "13")]
        half_val: Vec<i32>,
        #[prost(float, repeated, tag = "5")]
        float_val: Vec<f32>,
        #[prost(double, repeated, tag = "6")]
        double_val: Vec<f64>,
        #[prost(int32, repeated, tag = "7")]
        int_val: Vec<i32>,
        #[prost(bytes = "vec", repeated, tag = "8")]
        string_val: Vec<Vec<u8>>,
        #[prost(int64, repeated, tag = "10")]
        int64_val: Vec<i64>,
        #[prost(bool, repeated, tag = "11")]
        bool_val: Vec<bool>,
        #[prost(uint32, repeated, tag = "16")]
        uint32_val: Vec<u32>,
        #[prost(uint64, repeated, tag = "17")]
        uint64_val: Vec<u64>,
    }

    const DTYPES: [DataType; 13] = [
        DataType::Float32,
        DataType::Float64,
        DataType::Int32,
        DataType::Uint8,
        DataType::Int16,
        DataType::Int8,
        DataType::Int64,
        DataType::Bool,
        DataType::Bfloat16,
        DataType::Uint16,
        DataType::Float16,
        DataType::Uint32,
        DataType::Uint64,
    ];

    impl Stock {
        fn new(dtype: DataType, dims: &[usize]) -> Self {
            let dim = dims.iter().map(|&size| Dim {
                size: i64::try_from(size).expect("small"),
                name: "rows".to_owned(),
            });
            Stock {
                dtype: dtype as i32,
                tensor_shape: Some(Shape {
                    dim: dim.collect(),
                    unknown_rank: false,
                }),
                ..Stock::default()
            }
        }

        /// Adds little-endian numbers to the field of their dtype.
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        fn add(&mut self, dtype: DataType, bits: u64) {
            match dtype {
                DataType::Float32 => self.float_val.push(f32::from_bits(bits as u32)),
                DataType::Float64 => self.double_val.push(f64::from_bits(bits)),
                DataType::Int32 => self.int_val.push(bits as i32),
                DataType::Int16 => self.int_val.push(i32::from(bits as i16)),
                DataType::Int8 => self.int_val.push(i32::from(bits as i8)),
                DataType::Uint8 | DataType::Uint16 => self.int_val.push(bits as i32),
                DataType::Bfloat16 | DataType::Float16 => self.half_val.push(bits as i32),
                DataType::Int64 => self.int64_val.push(bits as i64),
                DataType::Bool => self.bool_val.push(bits != 0),
                DataType::Uint32 => self.uint32_val.push(bits as u32),
                DataType::Uint64 => self.uint64_val.push(bits),
                DataType::String => self.string_val.push(bits.to_le_bytes().to_vec()),
            }
        }
    }

    fn read(message: &[u8]) -> Result<Tensor<'_>, Declined> {
        read_tensor(message, &mut Allowance::of_request(message.len()))
    }

    /// Returns the numbers of a tensor, little end first.
    #[allow(clippy::cast_possible_truncation)]
    fn bytes_of(tensor: &Tensor<'_>) -> Vec<u8> {
        match &tensor.data {
            Data::Raw(bytes) => bytes.to_vec(),
            Data::Bytes(bytes) => bytes.clone(),
            Data::Ints(numbers) if tensor.dtype == DataType::Int64 => {
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
            }
            Data::Ints(numbers) => numbers
                .iter()
                .flat_map(|&number| i32::try_from(number).expect("an int32").to_le_bytes())
                .collect(),
            Data::Floats(_) | Data::Strings(_) => panic!("not numbers"),
        }
    }

    fn strings_of<'t>(tensor: &'t Tensor<'_>) -> Vec<&'t [u8]> {
        match &tensor.data {
            Data::Strings(strings) => strings.parts.iter().map(AsRef::as_ref).collect(),
            _ => panic!("no strings"),
        }
    }

    /// A dtype, and numbers of it as its unsigned bits.
    fn numbers() -> impl Strategy<Value = (DataType, Vec<u64>)> {
        (proptest::sample::select(&DTYPES[..]), vec(any::<u64>(), 1..80)).prop_map(|(dtype, mut bits)| {
            for one in &mut bits {
                // NaNs would not compare equal as stock floats, and still travel bit for bit here.
                *one &= match dtype {
                    DataType::Bool => 1,
                    _ => u64::MAX >> (64 - 8 * dtype.size()),
                };
            }
            (dtype, bits)
        })
    }

    fn little_end(dtype: DataType, bits: &[u64]) -> Vec<u8> {
        let each = bits
            .iter()
            .flat_map(|one| one.to_le_bytes().into_iter().take(dtype.size()));
        each.collect()
    }

    proptest! {
        #[test]
        fn packed_values_and_content_come_back((dtype, bits) in numbers()) {
            let mut stock = Stock::new(dtype, &[bits.len(), 1]);
            let content = little_end(dtype, &bits);
            let with_content = Stock { tensor_content: content.clone(), ..stock.clone() }.encode_to_vec();
            bits.iter().for_each(|&one| stock.add(dtype, one));
            let with_values = stock.encode_to_vec();
            for message in [with_content, with_values] {
                let tensor = read(&message).expect("plain");
                prop_assert_eq!((tensor.dtype, &tensor.dims[..]), (dtype, &[bits.len(), 1][..]));
                prop_assert_eq!(bytes_of(&tensor), &content[..]);
            }
        }

        #[test]
        fn values_come_back_in_any_pieces((dtype, bits) in numbers(), cut in 0..80_usize) {
            let mut message = Stock::new(dtype, &[bits.len()]).encode_to_vec();
            let (packed, single) = bits.split_at(cut.min(bits.len()));
            let field = field_of_values(dtype);
            for half in packed.chunks(packed.len() / 2 + 1) {
                let mut stock = Stock::default();
                half.iter().for_each(|&one| stock.add(dtype, one));
                message.extend(stock.encode_to_vec());
            }
            for one in single {
                match dtype {
                    DataType::Float32 => put_varint(&mut message, u64::from(field << 3 | 5)),
                    DataType::Float64 => put_varint(&mut message, u64::from(field << 3 | 1)),
                    _ => {
                        put_varint_field(&mut message, field, *one);
                        continue;
                    }
                }
                message.extend(one.to_le_bytes().into_iter().take(dtype.size()));
            }
            prop_assert_eq!(bytes_of(&read(&message).expect("plain")), little_end(dtype, &bits));
        }

        #[test]
        fn the_last_value_stands_for_all_that_follow((dtype, mut bits) in numbers(), more in 1..200_usize) {
            let mut stock = Stock::new(dtype, &[bits.len() + more]);
            bits.iter().for_each(|&one| stock.add(dtype, one));
            let message = stock.encode_to_vec();
            bits.resize(bits.len() + more, bits[bits.len() - 1]);
            prop_assert_eq!(bytes_of(&read(&message).expect("plain")), little_end(dtype, &bits));

            let nothing = Stock::new(dtype, &[more]).encode_to_vec();
            prop_assert_eq!(bytes_of(&read(&nothing).expect("plain")), vec![0; more * dtype.size()]);
        }

        #[test]
        fn strings_come_back(strings in vec(vec(any::<u8>(), 0..200), 1..20)) {
            let stock = Stock::new(DataType::String, &[strings.len()]);
            let with_values = Stock { string_val: strings.clone(), ..stock.clone() }.encode_to_vec();
            let mut content = Vec::new();
            strings.iter().for_each(|one| put_varint(&mut content, one.len() as u64));
            strings.iter().for_each(|one| content.extend(one));
            let with_content = Stock { tensor_content: content, ..stock }.encode_to_vec();
            for message in [with_values, with_content] {
                let tensor = read(&message).expect("plain");
                prop_assert_eq!(strings_of(&tensor), strings.iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn no_bytes_make_a_panic((dtype, bits) in numbers(), changes in vec((any::<u16>(), any::<u8>()), 0..4)) {
            let mut stock = Stock::new(dtype, &[bits.len()]);
            bits.iter().for_each(|&one| stock.add(dtype, one));
            let mut message = stock.encode_to_vec();
            for (at, byte) in changes {
                let at = usize::from(at) % message.len();
                message[at] = byte;
            }
            if let Ok(tensor) = read(&message) {
                let size = tensor.dims.iter().product::<usize>();
                match &tensor.data {
                    Data::Strings(strings) => prop_assert_eq!(strings.parts.len(), size),
                    _ => prop_assert_eq!(bytes_of(&tensor).len(), size * tensor.dtype.size()),
                }
            }
        }
    }

    #[test]
    fn integers_keep_the_bits_of_their_dtype() {
        let read_one = |dtype, number| {
            let mut message = Stock::new(dtype, &[]).encode_to_vec();
            put_varint_field(&mut message, field_of_values(dtype), number);
            bytes_of(&read(&message).expect("plain"))
        };
        assert_eq!(read_one(DataType::Int32, 1 << 40 | 0xFFFF_FFFE), (-2_i32).to_le_bytes());
        assert_eq!(read_one(DataType::Uint8, 0x1FF), [0xFF]);
        assert_eq!(read_one(DataType::Float16, 0x1_3C00), [0, 0x3C]);
        assert_eq!(read_one(DataType::Uint32, u64::MAX), [0xFF; 4]);
        assert_eq!(read_one(DataType::Bool, 1 << 40), [1]);
    }

    #[test]
    fn any_byte_but_0_is_true() {
        let content = Stock {
            tensor_content: vec![0, 2, 255],
            ..Stock::new(DataType::Bool, &[3])
        };
        assert_eq!(bytes_of(&read(&content.encode_to_vec()).expect("plain")), [0, 1, 1]);
    }

    #[test]
    fn shapes_are_bounded() {
        let shaped = |dims: &[i64], unknown_rank| {
            let stock = Stock {
                dtype: 9,
                tensor_shape: Some(Shape {
                    dim: dims
                        .iter()
                        .map(|&size| Dim {
                            size,
                            name: String::new(),
                        })
                        .collect(),
                    unknown_rank,
                }),
                ..Stock::default()
            };
            read(&stock.encode_to_vec()).map(|tensor| tensor.dims.into_vec())
        };
        assert_eq!(shaped(&[], false), Ok(vec![]));
        assert_eq!(shaped(&[0, 1 << 40], false), Ok(vec![0, 1 << 40]));
        assert_eq!(shaped(&[1; 64], false), Ok(vec![1; 64]));
        for dims in [
            &[1; 65][..],
            &[-1],
            &[0, i64::MAX],
            &[1 << 32, 1 << 32],
            &[i64::MAX],
            &[0, 1 << 40, 1 << 40],
            &[1 << 17],
        ] {
            assert_eq!(shaped(dims, false), Err(Declined::Unusual), "{dims:?}");
        }
        assert_eq!(shaped(&[], true), Err(Declined::Unusual));
    }

    #[test]
    fn the_reference_reads_what_is_not_plain() {
        let plain = Stock {
            int64_val: vec![1, 2],
            ..Stock::new(DataType::Int64, &[2])
        };
        let cases = [
            (
                "dtype",
                Stock {
                    dtype: 20,
                    ..plain.clone()
                },
            ),
            (
                "no dtype",
                Stock {
                    dtype: 0,
                    ..plain.clone()
                },
            ),
            (
                "a reference",
                Stock {
                    dtype: 109,
                    ..plain.clone()
                },
            ),
            (
                "below 0",
                Stock {
                    dtype: -1,
                    ..plain.clone()
                },
            ),
            (
                "too many values",
                Stock {
                    int64_val: vec![1, 2, 3],
                    ..plain.clone()
                },
            ),
            (
                "another field",
                Stock {
                    int_val: vec![1, 2],
                    int64_val: vec![],
                    ..plain.clone()
                },
            ),
            (
                "two fields",
                Stock {
                    int_val: vec![1],
                    ..plain.clone()
                },
            ),
            (
                "content and values",
                Stock {
                    tensor_content: vec![0; 16],
                    ..plain.clone()
                },
            ),
            (
                "short content",
                Stock {
                    tensor_content: vec![0; 15],
                    int64_val: vec![],
                    ..plain.clone()
                },
            ),
            (
                "no shape",
                Stock {
                    tensor_shape: None,
                    ..plain.clone()
                },
            ),
        ];
        for (case, stock) in cases {
            assert_eq!(
                read(&stock.encode_to_vec()).map(|_| ()),
                Err(Declined::Unusual),
                "{case}"
            );
        }
        let message = plain.encode_to_vec();
        assert!(read(&message).is_ok());
        for (case, more) in [
            ("a second dtype", &[0x08, 9][..]),
            ("a second shape", &[0x12, 0]),
            ("a newer field", &[0x98, 0x06, 1]),
            ("a fixed number", &[0x51, 0, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let longer = [&message, more].concat();
            assert_eq!(read(&longer).map(|_| ()), Err(Declined::Unusual), "{case}");
        }
    }
}
