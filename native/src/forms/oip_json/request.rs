//! Parses the body of an Open Inference `infer` request.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::super::oip_binary::{
    DATATYPE_PARAMETER, SIGNATURE_PARAMETER, binary_tensor, checked_shape, dtype_of, output_half,
};
use crate::forms::json::cursor::Cursor;
use crate::forms::json::tensors::small_float;
use crate::plan::{Data, DataType, Declined, Strings, Tensor};
use crate::tables::halves::Half;

pub(super) type Result<T> = std::result::Result<T, Declined>;

/// One input tensor of an Open Inference request.
pub struct Input<'a> {
    /// Name of the input tensor in the Open Inference request.
    pub name: Cow<'a, str>,
    /// Dtype, sizes and elements of the input tensor.
    pub tensor: Tensor<'a>,
}

/// One output that an Open Inference request names.
pub struct Output<'a> {
    /// Name of the output that the request asks for.
    pub name: Cow<'a, str>,
    /// The value of the output's parameter `binary_data`; None if the request does not set it.
    pub is_binary: Option<bool>,
}

/// A parsed request body.
#[derive(Default)]
pub struct Request<'a> {
    /// Id of the Open Inference request; None if the client sent none.
    pub id: Option<Cow<'a, str>>,
    /// Name of the signature that the Open Inference request asks for; empty if the client named none.
    pub signature: Cow<'a, str>,
    /// The request's `binary_data_output` parameter: whether outputs without `binary_data` are binary.
    pub is_binary: bool,
    /// The 16 bits to which outputs of FP32 are rounded; None if they are not.
    pub half: Option<Half>,
    /// The request's input tensors, in the order of the JSON text.
    pub inputs: SmallVec<[Input<'a>; 4]>,
    /// Outputs that the request names; an empty list means all outputs.
    pub outputs: SmallVec<[Output<'a>; 4]>,
}

impl<'a> Request<'a> {
    /// Parses a request: its JSON, and the data of binary tensors, which must use up `binary`. `has_header` says
    /// whether the request has the header Inference-Header-Content-Length.
    pub fn read(json: &'a [u8], mut binary: &'a [u8], has_header: bool) -> Result<Self> {
        let mut request = Request::default();
        let mut has_inputs = false;
        let mut cursor = Cursor::new(json)?;
        cursor.object(|cursor, key| {
            match key {
                "id" => request.id = cursor.optional(Cursor::string)?,
                "parameters" => parameters(cursor, |cursor, key| {
                    match key {
                        SIGNATURE_PARAMETER => request.signature = cursor.string()?,
                        DATATYPE_PARAMETER => request.half = output_half(&cursor.string()?)?,
                        "binary_data_output" => request.is_binary = cursor.boolean()?,
                        _ => cursor.skip_scalar()?,
                    }
                    Ok(())
                })?,
                "inputs" => {
                    has_inputs = true;
                    cursor.each(|cursor| {
                        request.inputs.push(input(cursor, &mut binary, has_header)?);
                        Ok(())
                    })?;
                }
                "outputs" => {
                    cursor.optional(|cursor| {
                        cursor.each(|cursor| {
                            request.outputs.push(output(cursor)?);
                            Ok(())
                        })
                    })?;
                }
                _ => cursor.skip_scalar()?,
            }
            Ok(())
        })?;
        cursor.end()?;
        if has_inputs && binary.is_empty() { Ok(request) } else { Err(Declined::Unusual) }
    }
}

/// Where the elements of a JSON request's input are: absent, parsed, or still in the text.
enum ElementSource<'a> {
    Absent,
    /// Elements that were parsed from JSON, and the number of these elements.
    Elements(Data<'a>, usize),
    /// Position of a JSON list that can not be parsed yet, because the input's datatype comes later in the text.
    Skipped(Cursor<'a>),
}

fn input<'a>(cursor: &mut Cursor<'a>, binary: &mut &'a [u8], has_header: bool) -> Result<Input<'a>> {
    let (mut name, mut dtype, mut dims, mut num_bytes) = (None, None, None, None);
    let mut source = ElementSource::Absent;
    cursor.object(|cursor, key| {
        match key {
            "name" => name = Some(cursor.string()?),
            "datatype" => dtype = Some(dtype_of(cursor.string()?.as_bytes()).ok_or(Declined::Unusual)?),
            "shape" => dims = Some(shape(cursor)?),
            "parameters" => parameters(cursor, |cursor, key| {
                match key {
                    "binary_data_size" => num_bytes = cursor.optional(size)?,
                    _ => cursor.skip_scalar()?,
                }
                Ok(())
            })?,
            "data" if cursor.accept_null()? => source = ElementSource::Absent,
            "data" => {
                source = if let Some(dtype) = dtype {
                    let (data, count) = elements(cursor, dtype, dims.as_ref())?;
                    ElementSource::Elements(data, count)
                } else {
                    let at = cursor.clone();
                    cursor.skip_list()?;
                    ElementSource::Skipped(at)
                }
            }
            _ => cursor.skip_scalar()?,
        }
        Ok(())
    })?;
    let (Some(name), Some(dtype), Some(dims)) = (name, dtype, dims) else {
        return Err(Declined::Unusual);
    };
    let (data, count) = match (source, num_bytes) {
        (ElementSource::Absent, Some(num_bytes)) if has_header => {
            let (data, rest) = binary.split_at_checked(num_bytes).ok_or(Declined::Unusual)?;
            *binary = rest;
            let tensor = binary_tensor(&name, dtype, &dims, data)?;
            return Ok(Input { name, tensor });
        }
        (ElementSource::Elements(data, count), None) => (data, count),
        (ElementSource::Skipped(mut at), None) => elements(&mut at, dtype, Some(&dims))?,
        _ => return Err(Declined::Unusual),
    };
    let (dims, size) = checked_shape(&name, &dims)?;
    if count != size {
        return Err(Declined::Unusual);
    }
    let tensor = Tensor { dtype, dims, data };
    Ok(Input { name, tensor })
}

fn output<'a>(cursor: &mut Cursor<'a>) -> Result<Output<'a>> {
    let (mut name, mut is_binary) = (None, None);
    cursor.object(|cursor, key| {
        match key {
            "name" => name = Some(cursor.string()?),
            "parameters" => parameters(cursor, |cursor, key| {
                match key {
                    "binary_data" => is_binary = Some(cursor.boolean()?),
                    _ => cursor.skip_scalar()?,
                }
                Ok(())
            })?,
            _ => cursor.skip_scalar()?,
        }
        Ok(())
    })?;
    let name = name.ok_or(Declined::Unusual)?;
    Ok(Output { name, is_binary })
}

/// Reads a JSON object of parameters, or null, and calls `each` for each parameter.
fn parameters<'a>(cursor: &mut Cursor<'a>, mut each: impl FnMut(&mut Cursor<'a>, &str) -> Result<()>) -> Result<()> {
    if cursor.accept_null()? {
        return Ok(());
    }
    cursor.object(|cursor, key| match key {
        "shared_memory_region" | "classification" => Err(Declined::Unusual),
        _ => each(cursor, key),
    })
}

fn shape(cursor: &mut Cursor<'_>) -> Result<SmallVec<[i64; 4]>> {
    let mut dims = SmallVec::new();
    cursor.each(|cursor| {
        dims.push(cursor.whole::<i64>()?);
        Ok(())
    })?;
    Ok(dims)
}

fn size(cursor: &mut Cursor<'_>) -> Result<usize> {
    cursor.whole::<i64>()?.try_into().map_err(|_| Declined::Unusual)
}

/// Reads a JSON list of elements, flat or nested in lists of equal lengths; returns the elements and their number.
fn elements<'a>(
    cursor: &mut Cursor<'a>,
    dtype: DataType,
    dims: Option<&SmallVec<[i64; 4]>>,
) -> Result<(Data<'a>, usize)> {
    // The shape may be wrong, so the size of the remaining text bounds the allocation: an element takes at least two
    // bytes.
    let max_elements = cursor.num_remaining() / 2 + 1;
    let capacity = dims.and_then(|dims| checked_shape("", dims).ok()).map_or(0, |(_, size)| size).min(max_elements);
    Ok(match dtype {
        DataType::Int64 => integers::<i64>(cursor, capacity)?,
        DataType::Int32 => integers::<i32>(cursor, capacity)?,
        DataType::Float32 => {
            let mut numbers = Vec::with_capacity(capacity);
            cursor.rectangular_list(|cursor| {
                // Each JSON number is rounded to float64 first and then to float32, as numpy converts a list of Python
                // floats.
                #[allow(clippy::cast_possible_truncation)]
                numbers.push(cursor.float()? as f32);
                Ok(())
            })?;
            let count = numbers.len();
            (Data::Floats(numbers), count)
        }
        DataType::String => {
            let mut parts = Vec::with_capacity(capacity);
            cursor.rectangular_list(|cursor| {
                parts.push(match cursor.string()? {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                });
                Ok(())
            })?;
            let count = parts.len();
            (Data::Strings(Strings { parts }), count)
        }
        DataType::Float64 => packed(cursor, capacity, |cursor| Ok(cursor.float()?.to_le_bytes()))?,
        DataType::Bool => packed(cursor, capacity, |cursor| Ok([u8::from(cursor.boolean()?)]))?,
        DataType::Uint8 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<u8>()?.to_le_bytes()))?,
        DataType::Uint16 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<u16>()?.to_le_bytes()))?,
        DataType::Uint32 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<u32>()?.to_le_bytes()))?,
        DataType::Uint64 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<u64>()?.to_le_bytes()))?,
        DataType::Int8 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<i8>()?.to_le_bytes()))?,
        DataType::Int16 => packed(cursor, capacity, |cursor| Ok(cursor.whole::<i16>()?.to_le_bytes()))?,
        DataType::Float16 | DataType::Bfloat16 => {
            packed(cursor, capacity, |cursor| Ok(small_float(dtype, cursor.float()?)))?
        }
        DataType::Complex64 | DataType::Complex128 => {
            return Err(Declined::Unusual);
        }
    })
}

fn integers<'a, N: TryFrom<i128> + Into<i64>>(cursor: &mut Cursor<'a>, capacity: usize) -> Result<(Data<'a>, usize)> {
    let mut numbers = Vec::with_capacity(capacity);
    cursor.rectangular_list(|cursor| {
        numbers.push(cursor.whole::<N>()?.into());
        Ok(())
    })?;
    let count = numbers.len();
    Ok((Data::Ints(numbers), count))
}

fn packed<'a, const N: usize>(
    cursor: &mut Cursor<'a>,
    capacity: usize,
    mut one: impl FnMut(&mut Cursor<'a>) -> Result<[u8; N]>,
) -> Result<(Data<'a>, usize)> {
    let mut bytes = Vec::with_capacity(capacity * N);
    cursor.rectangular_list(|cursor| {
        bytes.extend_from_slice(&one(cursor)?);
        Ok(())
    })?;
    let count = bytes.len() / N;
    Ok((Data::Bytes(bytes), count))
}
