//! Functions that the JSON and gRPC handlers of the Open Inference Protocol share: for datatypes, versions, and tensors
//! in binary form.
//!
//! Binary data is little-endian, in row-major order, without padding; an element of datatype BYTES is its length in
//! four bytes, then its bytes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::built_size::check_num_strings;
use super::{Call, MAX_RANK, Version};
use crate::plan::faults::{self, Asked, BoxedFault};
use crate::plan::{
    Data, DataType, Declined, Dims, Inputs, OutputShape, Servable, Signature, Strings, Tensor, Work, check_names,
    set_no_rows,
};
use crate::tables::halves::Half;

/// Name of the signature that a request runs if the request names none and the model has no `serving_default`.
const FALLBACK_SIGNATURE: &str = "lookup";
/// Name of the Open Inference parameter with which a request chooses its signature; an answer has the parameter, too.
pub(super) const SIGNATURE_PARAMETER: &str = "signature_name";
/// Name of the parameter with which a request chooses the datatype of outputs that are FP32.
pub(super) const DATATYPE_PARAMETER: &str = "output_datatype";
/// Parameters of Triton's extensions that the server refuses: they change a tensor's meaning, so that ignoring them would
/// give wrong answers.
pub(super) const REFUSED_PARAMETERS: [&str; 2] = ["shared_memory_region", "classification"];
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
    text.parse().map(Version::Number).map_err(|_| faults::long_version(&text[..text.len().min(32)]).into())
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
        // No answer has these: see check_datatypes().
        DataType::Complex64 | DataType::Complex128 => dtype.name(),
    }
}

/// Returns the 16 bits to which outputs of FP32 are rounded by the value of the parameter `output_datatype`; None if they
/// are not.
pub(super) fn output_half(datatype: &str) -> Result<Option<Half>, BoxedFault> {
    match dtype_of(datatype.as_bytes()) {
        Some(DataType::Float32) => Ok(None),
        Some(DataType::Float16) => Ok(Some(Half::Float16)),
        Some(DataType::Bfloat16) => Ok(Some(Half::Bfloat16)),
        _ => Err(faults::output_datatype()),
    }
}

/// Checks that the protocol has a datatype for each output of an answer.
pub(super) fn check_datatypes(signature: &Signature, outputs: &[OutputShape]) -> Result<(), BoxedFault> {
    match outputs.iter().find(|shape| shape.dtype.is_complex()) {
        Some(shape) => Err(faults::output_without_datatype(&signature.outputs[shape.output].name, shape.dtype.name())),
        None => Ok(()),
    }
}

/// Checks the shape of an input; returns its sizes and its number of elements.
pub(super) fn checked_shape(input: &str, sizes: &[i64]) -> Result<(Dims, usize), BoxedFault> {
    if sizes.len() > MAX_RANK {
        return Err(faults::too_many_dimensions(input, sizes.len(), MAX_RANK));
    }
    if sizes.iter().any(|size| *size < 0) {
        return Err(faults::negative_size(input, &format!("{sizes:?}")));
    }
    let dims: Dims = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect();
    // numpy limits the product of the sizes that are not 0, even for an empty array, so this function does the same.
    let product = dims.iter().try_fold(1_usize, |product, &size| product.checked_mul(size.max(1)));
    match product {
        Some(product) if product <= isize::MAX as usize / 16 => {
            let count = if dims.contains(&0) { 0 } else { product };
            Ok((dims, count))
        }
        _ => Err(faults::shape_too_large(input, &format!("{sizes:?}"))),
    }
}

/// Parses the tensor of an input from its binary data.
pub(super) fn binary_tensor<'a>(
    input: &str,
    dtype: DataType,
    sizes: &[i64],
    data: &'a [u8],
) -> Result<Tensor<'a>, Declined> {
    let (dims, count) = checked_shape(input, sizes)?;
    let data = if dtype == DataType::String {
        Data::Strings(split_strings(input, data, count)?)
    } else if count.checked_mul(dtype.size()) != Some(data.len()) {
        let (datatype, wanted) = (datatype_of(dtype), count.saturating_mul(dtype.size()));
        return Err(faults::number_of_bytes(input, data.len(), datatype, &format!("{dims:?}"), wanted).into());
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

fn split_strings<'a>(input: &str, data: &'a [u8], count: usize) -> Result<Strings<'a>, Declined> {
    // This check limits the memory allocated below to a multiple of the received bytes, because each string takes at
    // least four bytes.
    if count > data.len() / LENGTH_BYTES {
        return Err(faults::too_few_bytes(input, data.len(), count).into());
    }
    check_num_strings(count)?;
    let mut parts = Vec::with_capacity(count);
    let mut rest = data;
    for i in 0..count {
        let element = rest
            .split_first_chunk::<LENGTH_BYTES>()
            .and_then(|(length, after)| after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?));
        let Some((element, after)) = element else {
            return Err(faults::element_too_long(input, i, data.len()).into());
        };
        parts.push(Cow::Borrowed(element));
        rest = after;
    }
    if rest.is_empty() { Ok(Strings { parts }) } else { Err(faults::bytes_left(input, rest.len()).into()) }
}

/// Returns the servable of the model version that a request names, and the index of the signature.
pub(super) fn find<'a>(
    call: &Call<'a>,
    model: &str,
    version: Version<'_>,
    signature: &str,
) -> Result<(&'a Arc<Servable>, usize), Declined> {
    let servable = call.find(model, version)?;
    let signature =
        servable.find_signature(signature, FALLBACK_SIGNATURE, Asked::Predict, version == Version::Latest)?;
    Ok((servable, signature))
}

/// Returns the tensors of a request by the indexes of the signature's inputs, and the indexes of the outputs that the
/// request names.
///
/// # Errors
/// The names of inputs or outputs do not fit the signature, or an input is sent twice.
pub(super) fn inputs_and_outputs<'a>(
    signature: &Signature,
    named: impl Iterator<Item = (Cow<'a, str>, Tensor<'a>)>,
    outputs: &[&str],
) -> Result<(Inputs<'a>, SmallVec<[usize; 8]>), Declined> {
    let mut inputs = Inputs::new(signature.inputs.len());
    // The names that the signature lacks: a request may have very many.
    let mut extra: HashSet<Cow<'a, str>> = HashSet::new();
    for (name, tensor) in named {
        let Some(index) = signature.input(name.as_bytes()) else {
            if set_no_rows(signature, &name, &tensor, &mut inputs) {
                continue;
            }
            if let Some(name) = extra.replace(name) {
                return Err(faults::input_twice(&name).into());
            }
            continue;
        };
        if inputs.insert(index, tensor).is_some() {
            return Err(faults::input_twice(&name).into());
        }
    }
    if !extra.is_empty() || !outputs.is_empty() {
        let extra: Vec<&str> = extra.iter().map(AsRef::as_ref).collect();
        check_names(signature, &inputs, &extra)?;
    }
    let indexes = signature.output_indexes(&outputs.iter().copied())?;
    Ok((inputs, indexes))
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
            let length = u32::try_from(element.len()).map_err(|_| faults::internal("a string of 4 GiB or more"))?;
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(element);
        }
        return Ok(());
    }
    work.append(index, body)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::tests::is_fault;

    fn strings(data: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
        let tensor = binary_tensor("x", DataType::String, &[i64::try_from(count).ok()?], data).ok()?;
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
        assert!(is_fault(version("9223372036854775808")));
        assert_eq!(version("00000000000000000000000000001"), Ok(Version::Number(1)));
    }

    #[test]
    fn datatypes_are_a_bijection() {
        for number in 0..64 {
            if let Some(dtype) = DataType::of_number(number) {
                assert_eq!(dtype_of(datatype_of(dtype).as_bytes()), Some(dtype).filter(|dtype| !dtype.is_complex()));
            }
        }
        assert_eq!(dtype_of(b"FP8"), None);
    }

    #[test]
    fn shapes() {
        let count = |sizes: &[i64]| checked_shape("x", sizes).map(|(_, count)| count).map_err(|fault| fault.text);
        assert_eq!(count(&[]), Ok(1));
        assert_eq!(count(&[3, 0, 1 << 40]), Ok(0));
        let too_large = "input \"x\": its shape [1099511627776, 0, 1099511627776] is too large.";
        assert_eq!(count(&[1 << 40, 0, 1 << 40]), Err(too_large.to_owned()));
        assert!(count(&[i64::MAX, 2]).is_err() && count(&[-1]).is_err());
        assert_eq!(count(&[1; 64]), Ok(1));
        assert!(count(&[1; 65]).is_err());
    }

    #[test]
    fn booleans_become_0_and_1() {
        let Ok(tensor) = binary_tensor("x", DataType::Bool, &[3], &[0, 7, 1]) else { panic!("refused") };
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
