//! Converts values of a JSON body to inputs of a signature, with the same strict rules for dtypes as
//! `service/wire/json_arrays.py`.

use smallvec::smallvec;

use super::nested::{Leaves, Nested};
use crate::plan::{Data, DataType, Declined, Dims, InputPlan, Inputs, Signature, Strings, Tensor};

/// Returns a list of inputs without values: one None for each input of the signature.
#[must_use]
pub fn no_inputs<'a>(signature: &Signature) -> Inputs<'a> {
    let mut inputs = Inputs::new();
    inputs.resize_with(signature.inputs.len(), || None);
    inputs
}

/// Converts a parsed JSON value to the tensor of one input of the signature, and adds the tensor to `inputs`.
///
/// # Errors
/// Lists of one depth differ in length, an element has another dtype than the input, or `inputs` has the input already.
pub fn add_dense<'a>(
    inputs: &mut Inputs<'a>,
    signature: &Signature,
    index: usize,
    value: Nested<'a>,
) -> Result<(), Declined> {
    let (leaves, dims) = value.into_dense().ok_or(Declined::Unusual)?;
    add(inputs, index, tensor(&signature.inputs[index], leaves, dims)?)
}

/// Converts lists of values, one list for each row, to the values and row splits of a ragged tensor, and adds both to
/// `inputs`. `ragged` is the tensor's index, `weights` are lists of the same lengths.
///
/// # Errors
/// As [`add_dense`]; or the tensor takes no weights, or the lists of weights have other lengths.
pub fn add_ragged<'a>(
    inputs: &mut Inputs<'a>,
    signature: &Signature,
    ragged: usize,
    ids: Nested<'a>,
    weights: Option<Nested<'a>>,
) -> Result<(), Declined> {
    let ragged = &signature.ragged[ragged];
    let (ids, splits) = ids.into_rows().ok_or(Declined::Unusual)?;
    if let Some(weights) = weights {
        let index = ragged.weights.ok_or(Declined::Unusual)?;
        let (weights, other_splits) = weights.into_rows().ok_or(Declined::Unusual)?;
        if splits != other_splits {
            return Err(Declined::Unusual);
        }
        let dims = smallvec![weights.len()];
        add(inputs, index, tensor(&signature.inputs[index], weights, dims)?)?;
    }
    let dims = smallvec![ids.len()];
    add(inputs, ragged.values, tensor(&signature.inputs[ragged.values], ids, dims)?)?;
    let dims = smallvec![splits.len()];
    let leaves = Leaves::Ints(splits);
    add(inputs, ragged.row_splits, tensor(&signature.inputs[ragged.row_splits], leaves, dims)?)
}

fn add<'a>(inputs: &mut Inputs<'a>, index: usize, tensor: Tensor<'a>) -> Result<(), Declined> {
    let slot = inputs.get_mut(index).ok_or(Declined::Unusual)?;
    if slot.is_some() {
        return Err(Declined::Unusual);
    }
    *slot = Some(tensor);
    Ok(())
}

/// Returns a tensor of the input's dtype, or of dtype string if the leaves are strings and the input takes them.
fn tensor<'a>(input: &InputPlan, leaves: Leaves<'a>, dims: Dims) -> Result<Tensor<'a>, Declined> {
    let (dtype, data) = match leaves {
        Leaves::Strings(parts) if input.takes_strings => (DataType::String, Data::Strings(Strings { parts })),
        leaves => (input.dtype, numbers(input.dtype, leaves)?),
    };
    Ok(Tensor { dtype, dims, data })
}

fn numbers(dtype: DataType, leaves: Leaves<'_>) -> Result<Data<'_>, Declined> {
    Ok(match (dtype, leaves) {
        (DataType::Int64, Leaves::Ints(numbers)) => Data::Ints(numbers),
        (DataType::Int32, Leaves::Ints(numbers)) => {
            if numbers.iter().any(|&number| i32::try_from(number).is_err()) {
                return Err(Declined::Unusual);
            }
            Data::Ints(numbers)
        }
        (DataType::Int64 | DataType::Int32, Leaves::None) => Data::Ints(Vec::new()),
        (DataType::Int16, Leaves::Ints(numbers)) => bytes(&numbers, i16::to_le_bytes)?,
        (DataType::Int8, Leaves::Ints(numbers)) => bytes(&numbers, i8::to_le_bytes)?,
        (DataType::Uint64, Leaves::Ints(numbers)) => bytes(&numbers, u64::to_le_bytes)?,
        (DataType::Uint32, Leaves::Ints(numbers)) => bytes(&numbers, u32::to_le_bytes)?,
        (DataType::Uint16, Leaves::Ints(numbers)) => bytes(&numbers, u16::to_le_bytes)?,
        (DataType::Uint8, Leaves::Ints(numbers)) => bytes(&numbers, u8::to_le_bytes)?,
        (DataType::Bool, Leaves::Bools(bools)) => Data::Bytes(bools),
        (DataType::Float32, leaves) => {
            // Each JSON number is rounded to float64 first and then to float32, as numpy does.
            #[allow(clippy::cast_possible_truncation)]
            let floats = floats(leaves)?.into_iter().map(|number| number as f32);
            Data::Floats(floats.collect())
        }
        (DataType::Float64, leaves) => Data::Bytes(floats(leaves)?.into_iter().flat_map(f64::to_le_bytes).collect()),
        (DataType::String, Leaves::None) => Data::Strings(Strings::default()),
        // 16-bit floats go to the reference server, where numpy rounds the request's JSON numbers.
        (DataType::Float16 | DataType::Bfloat16 | DataType::String, _) => return Err(Declined::Unusual),
        (_, Leaves::None) => Data::Bytes(Vec::new()),
        _ => return Err(Declined::Unusual),
    })
}

fn floats(leaves: Leaves<'_>) -> Result<Vec<f64>, Declined> {
    match leaves {
        Leaves::None => Ok(Vec::new()),
        #[allow(clippy::cast_precision_loss)]
        Leaves::Ints(numbers) => Ok(numbers.into_iter().map(|number| number as f64).collect()),
        Leaves::Floats(numbers) => Ok(numbers),
        Leaves::Bools(_) | Leaves::Strings(_) => Err(Declined::Unusual),
    }
}

fn bytes<'a, N: TryFrom<i64>, const SIZE: usize>(
    numbers: &[i64],
    to_bytes: impl Fn(N) -> [u8; SIZE],
) -> Result<Data<'a>, Declined> {
    let mut bytes = Vec::with_capacity(numbers.len() * SIZE);
    for &number in numbers {
        let number = N::try_from(number).map_err(|_| Declined::Unusual)?;
        bytes.extend_from_slice(&to_bytes(number));
    }
    Ok(Data::Bytes(bytes))
}
