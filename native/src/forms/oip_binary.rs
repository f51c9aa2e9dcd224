//! Functions that the JSON and gRPC handlers of the Open Inference Protocol share: for datatypes, versions, and tensors
//! in binary form.
//!
//! Binary data is little-endian, in row-major order, without padding; an element of datatype BYTES is its length in
//! four bytes, then its bytes.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::built_size::check_num_strings;
use super::{Call, Version};
use crate::plan::{Data, DataType, Declined, Dims, Inputs, Servable, Signature, Strings, Tensor, Work};

/// Name of the signature that a request runs if the request names none and the model has no `serving_default`.
const FALLBACK_SIGNATURE: &str = "lookup";
/// Name of the Open Inference parameter with which a request chooses its signature; an answer has the parameter, too.
pub(super) const SIGNATURE_PARAMETER: &str = "signature_name";
/// Maximal number of dimensions of a tensor in an Open Inference request.
const MAX_RANK: usize = 64;
/// Size in bytes of the length that stands before each string (BYTES element) in binary tensor data.
const LENGTH_BYTES: usize = 4;

/// Parses the version in a request: digits are a version number, other text is a label, and an empty text is the latest
/// version.
///
/// # Errors
/// The digits exceed an int64.
pub fn version(text: &str) -> Result<Version<'_>, Declined> {
    if text.is_empty() {
        return Ok(Version::Latest);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Version::Label(text));
    }
    text.parse().map(Version::Number).map_err(|_| Declined::Unusual)
}

/// Returns the dtype for a datatype name of the Open Inference Protocol; None for an unknown name.
pub(super) fn dtype_of(datatype: &[u8]) -> Option<DataType> {
    Some(match datatype {
        b"BOOL" => DataType::Bool,
        b"UINT8" => DataType::Uint8,
        b"UINT16" => DataType::Uint16,
        b"UINT32" => DataType::Uint32,
        b"UINT64" => DataType::Uint64,
        b"INT8" => DataType::Int8,
        b"INT16" => DataType::Int16,
        b"INT32" => DataType::Int32,
        b"INT64" => DataType::Int64,
        b"FP16" => DataType::Float16,
        b"BF16" => DataType::Bfloat16,
        b"FP32" => DataType::Float32,
        b"FP64" => DataType::Float64,
        b"BYTES" => DataType::String,
        _ => return None,
    })
}

/// Returns the datatype name of the Open Inference Protocol for a dtype.
pub(super) fn datatype_of(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Bool => "BOOL",
        DataType::Uint8 => "UINT8",
        DataType::Uint16 => "UINT16",
        DataType::Uint32 => "UINT32",
        DataType::Uint64 => "UINT64",
        DataType::Int8 => "INT8",
        DataType::Int16 => "INT16",
        DataType::Int32 => "INT32",
        DataType::Int64 => "INT64",
        DataType::Float16 => "FP16",
        DataType::Bfloat16 => "BF16",
        DataType::Float32 => "FP32",
        DataType::Float64 => "FP64",
        DataType::String => "BYTES",
    }
}

/// Returns the number of elements of a tensor with these sizes; declines shapes that the reference server refuses.
pub(super) fn num_elements(dims: &[usize]) -> Result<usize, Declined> {
    if dims.len() > MAX_RANK {
        return Err(Declined::Unusual);
    }
    // numpy limits the product of the sizes that are not 0, even for an empty array, so this function does the same.
    let product = dims.iter().try_fold(1_usize, |product, &size| product.checked_mul(size.max(1)));
    match product {
        Some(product) if product <= isize::MAX as usize / 16 => Ok(if dims.contains(&0) { 0 } else { product }),
        _ => Err(Declined::Unusual),
    }
}

/// Parses an Open Inference tensor from its binary data.
pub(super) fn binary_tensor(dtype: DataType, dims: Dims, data: &[u8]) -> Result<Tensor<'_>, Declined> {
    let count = num_elements(&dims)?;
    let data = if dtype == DataType::String {
        Data::Strings(split_strings(data, count)?)
    } else if count.checked_mul(dtype.size()) != Some(data.len()) {
        return Err(Declined::Unusual);
    } else if dtype == DataType::Bool {
        booleans(data)
    } else {
        Data::Raw(data)
    };
    Ok(Tensor { dtype, dims, data })
}

/// Returns the data of a boolean tensor with 1 in place of every nonzero byte, because in a request any nonzero byte
/// means true.
pub(super) fn booleans(data: &[u8]) -> Data<'_> {
    if data.iter().all(|&byte| byte <= 1) {
        Data::Raw(data)
    } else {
        Data::Bytes(data.iter().map(|&byte| u8::from(byte != 0)).collect())
    }
}

fn split_strings(mut data: &[u8], count: usize) -> Result<Strings<'_>, Declined> {
    // This check limits the memory allocated below to a multiple of the received bytes, because each string takes at
    // least four bytes.
    if count > data.len() / LENGTH_BYTES {
        return Err(Declined::Unusual);
    }
    check_num_strings(count)?;
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, rest) = data.split_first_chunk::<LENGTH_BYTES>().ok_or(Declined::Unusual)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Declined::Unusual)?;
        let (element, rest) = rest.split_at_checked(length).ok_or(Declined::Unusual)?;
        parts.push(Cow::Borrowed(element));
        data = rest;
    }
    if data.is_empty() { Ok(Strings { parts }) } else { Err(Declined::Unusual) }
}

/// Returns the servable of the model version that a request names, and the index of the signature.
pub(super) fn find<'a>(
    call: &Call<'a>,
    model: &str,
    version: Version<'_>,
    signature: &str,
) -> Result<(&'a Arc<Servable>, usize), Declined> {
    let servable = call.find(model, version)?;
    let signature = servable.signature(signature, FALLBACK_SIGNATURE);
    Ok((servable, signature.ok_or(Declined::NotNative)?))
}

/// Returns the tensors of a request in the order of the signature's inputs, None for an input that is not sent;
/// declines unknown and repeated names.
pub(super) fn inputs_by_index<'a>(
    signature: &Signature,
    named: impl Iterator<Item = (impl AsRef<str>, Tensor<'a>)>,
) -> Result<Inputs<'a>, Declined> {
    let mut inputs: Inputs<'a> = signature.inputs.iter().map(|_| None).collect();
    for (name, tensor) in named {
        let slot = &mut inputs[signature.input(name.as_ref().as_bytes()).ok_or(Declined::Unfit)?];
        if slot.replace(tensor).is_some() {
            return Err(Declined::Unusual);
        }
    }
    Ok(inputs)
}

/// Returns the indexes of the outputs that a request names; declines unknown and repeated names.
pub(super) fn output_indexes(
    signature: &Signature,
    names: impl Iterator<Item = impl AsRef<str>>,
) -> Result<SmallVec<[usize; 8]>, Declined> {
    let mut indexes = SmallVec::new();
    for name in names {
        let index = signature.output(name.as_ref().as_bytes()).ok_or(Declined::Unfit)?;
        if indexes.contains(&index) {
            return Err(Declined::Unfit);
        }
        indexes.push(index);
    }
    Ok(indexes)
}

/// Returns the size in bytes of an output's binary data in an Open Inference answer.
pub(super) fn binary_size(work: &Work<'_, '_>, index: usize) -> usize {
    let shape = &work.outputs()[index];
    if shape.dtype == DataType::String {
        let strings = work.strings(index).iter();
        strings.map(|element| LENGTH_BYTES + element.len()).sum()
    } else {
        shape.num_bytes()
    }
}

/// Appends the binary data of an output to an Open Inference answer.
pub(super) fn append_binary(work: &mut Work<'_, '_>, index: usize, body: &mut Vec<u8>) -> Result<(), Declined> {
    if work.outputs()[index].dtype == DataType::String {
        for element in work.strings(index) {
            let length = u32::try_from(element.len()).map_err(|_| Declined::OverLimit)?;
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(element);
        }
        return Ok(());
    }
    append_numbers(work, index, body)
}

/// Appends the little-endian numbers of an output that has no strings.
pub(super) fn append_numbers(work: &mut Work<'_, '_>, index: usize, body: &mut Vec<u8>) -> Result<(), Declined> {
    let size = work.outputs()[index].num_bytes();
    body.reserve(size);
    work.fill(index, &mut body.spare_capacity_mut()[..size])?;
    // SAFETY: reserve() allocated `size` more bytes, and fill() has written them, so the vector may grow by this
    // length.
    unsafe { body.set_len(body.len() + size) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(dims: &[usize]) -> Dims {
        dims.iter().copied().collect()
    }

    fn strings(data: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
        let tensor = binary_tensor(DataType::String, sizes(&[count]), data).ok()?;
        let Data::Strings(strings) = tensor.data else { panic!("no strings") };
        Some(strings.parts.into_iter().map(Cow::into_owned).collect())
    }

    #[test]
    fn versions() {
        assert_eq!(version(""), Ok(Version::Latest));
        assert_eq!(version("007"), Ok(Version::Number(7)));
        assert_eq!(version("stable"), Ok(Version::Label("stable")));
        assert_eq!(version("-1"), Ok(Version::Label("-1")));
        assert_eq!(version("+1"), Ok(Version::Label("+1")));
        assert_eq!(version("9223372036854775807"), Ok(Version::Number(i64::MAX)));
        assert_eq!(version("9223372036854775808"), Err(Declined::Unusual));
        assert_eq!(version("00000000000000000000000000001"), Ok(Version::Number(1)));
    }

    #[test]
    fn datatypes_are_a_bijection() {
        for number in 0..64 {
            if let Some(dtype) = DataType::of_number(number) {
                assert_eq!(dtype_of(datatype_of(dtype).as_bytes()), Some(dtype));
            }
        }
        assert_eq!(dtype_of(b"FP8"), None);
    }

    #[test]
    fn shapes() {
        assert_eq!(num_elements(&[]), Ok(1));
        assert_eq!(num_elements(&[3, 0, 1 << 40]), Ok(0));
        assert_eq!(num_elements(&[1 << 40, 0, 1 << 40]), Err(Declined::Unusual));
        assert_eq!(num_elements(&[usize::MAX, 2]), Err(Declined::Unusual));
        assert_eq!(num_elements(&[1; 64]), Ok(1));
        assert_eq!(num_elements(&[1; 65]), Err(Declined::Unusual));
    }

    #[test]
    fn booleans_become_0_and_1() {
        let Ok(tensor) = binary_tensor(DataType::Bool, sizes(&[3]), &[0, 7, 1]) else { panic!("refused") };
        assert!(matches!(tensor.data, Data::Bytes(bytes) if bytes == [0, 1, 1]));
    }

    proptest! {
        #[test]
        fn strings_come_back(elements: Vec<Vec<u8>>) {
            let mut data = vec![];
            for element in &elements {
                data.extend_from_slice(&u32::try_from(element.len()).unwrap().to_le_bytes());
                data.extend_from_slice(element);
            }
            prop_assert_eq!(strings(&data, elements.len()), Some(elements.clone()));
            prop_assert_eq!(strings(&data, elements.len() + 1), None);
            data.push(0);
            prop_assert_eq!(strings(&data, elements.len()), None);
        }

        #[test]
        fn any_bytes_are_strings_or_refused(data: Vec<u8>, count in 0_usize..9) {
            if let Some(parts) = strings(&data, count) {
                prop_assert_eq!(parts.iter().map(|part| part.len() + 4).sum::<usize>(), data.len());
            }
        }
    }
}
