//! Converts values of a JSON body to inputs of a signature, with strict rules for dtypes.

use smallvec::smallvec;

use super::nested::{Leaves, Nested};
use crate::plan::{Data, DataType, Declined, Dims, InputPlan, Inputs, Signature, Strings, Tensor};
use crate::tables::halves::bfloat16_bits;

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
    if inputs.insert(index, tensor).is_some() { Err(Declined::Unusual) } else { Ok(()) }
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
        (DataType::Float16 | DataType::Bfloat16, leaves) => {
            Data::Bytes(floats(leaves)?.into_iter().flat_map(|number| small_float(dtype, number)).collect())
        }
        (DataType::String, _) => return Err(Declined::Unusual),
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

/// Rounds a number to float16, or to bfloat16; returns the little-endian bytes.
#[must_use]
pub fn small_float(dtype: DataType, number: f64) -> [u8; 2] {
    // numpy rounds to float32 first, and then to the dtype of the package `ml_dtypes`.
    #[allow(clippy::cast_possible_truncation, reason = "the number is rounded to float32")]
    let bits = if dtype == DataType::Bfloat16 { bfloat16_bits(number as f32) } else { float16_bits(number) };
    bits.to_le_bytes()
}

/// Rounds a number to the nearest float16, to an even one if two are as near, as numpy does.
fn float16_bits(number: f64) -> u16 {
    let bits = number.to_bits();
    let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
    if number.is_nan() {
        return sign | 0x7E00;
    }
    // The largest float16 is 65504, and 65520 lies in the middle between it and the next power of two.
    if number.abs() >= 65520.0 {
        return sign | 0x7C00;
    }
    // The exponent of the float16, as its field has it, but for the hidden bit, which `steps` has; numbers below 2^-14
    // are subnormal.
    let exponent = ((bits >> 52 & 0x7FF) as u16).saturating_sub(1023 - 14);
    let steps = number.abs() * f64::from_bits(u64::from(1023 + 24 - exponent) << 52);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "there are 0 to 2048 steps")]
    let steps = steps.round_ties_even() as u16;
    sign | (exponent * 1024 + steps)
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

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::small_float;
    use crate::plan::DataType::{Bfloat16, Float16};

    #[test]
    fn numbers_are_rounded_as_numpy_rounds_them() {
        // The bits are those of `numpy.float64(number).astype(numpy.float16)` and `.astype(ml_dtypes.bfloat16)`.
        let power = |exponent: i32| 2.0_f64.powi(exponent);
        for (number, half, brain) in [
            (1.0, 0x3C00, 0x3F80),
            (-1.5, 0xBE00, 0xBFC0),
            (0.0, 0, 0),
            (-0.0, 0x8000, 0x8000),
            (1.0 + power(-11), 0x3C00, 0x3F80),
            (1.0 + power(-11) + power(-40), 0x3C01, 0x3F80),
            (1.0 + power(-8) + power(-40), 0x3C04, 0x3F80),
            (1.0 + power(-8) + power(-20), 0x3C04, 0x3F81),
            (65519.99, 0x7BFF, 0x4780),
            (65520.0, 0x7C00, 0x4780),
            (power(-14), 0x0400, 0x3880),
            (power(-14) - power(-26), 0x0400, 0x3880),
            (power(-25), 0, 0x3300),
            (power(-25) + power(-60), 1, 0x3300),
            (3.0 * power(-25), 2, 0x33C0),
            (6e-8, 1, 0x3381),
            (-1e39, 0xFC00, 0xFF80),
            (3.39e38, 0x7C00, 0x7F7F),
            (1e-40, 0, 1),
            (f64::INFINITY, 0x7C00, 0x7F80),
            (f64::NAN, 0x7E00, 0x7FC0),
        ] {
            let bits = |dtype| u16::from_le_bytes(small_float(dtype, number));
            assert_eq!((bits(Float16), bits(Bfloat16)), (half, brain), "{number}");
        }
    }
}
