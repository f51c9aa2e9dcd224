//! Reads the numbers of input tensors, without a copy if possible.

use std::borrow::Cow;

use super::inputs::{Data, DataType, Tensor};
use crate::tables::table::Ints;

/// The little-endian bytes of int64 or float32 numbers, borrowed from the request's bytes or owned.
pub(super) enum NumberBytes<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    Ints(Vec<i64>),
}

impl std::ops::Deref for NumberBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            NumberBytes::Borrowed(bytes) => bytes,
            NumberBytes::Owned(bytes) => bytes,
            NumberBytes::Ints(numbers) => Ints::of(numbers).as_bytes(),
        }
    }
}

/// Returns the numbers of an int64 or int32 tensor as int64.
#[must_use]
pub fn integers<'t>(tensor: &'t Tensor<'_>) -> Cow<'t, [i64]> {
    match &tensor.data {
        Data::Ints(numbers) => Cow::Borrowed(numbers),
        Data::Raw(bytes) => Cow::Owned(widened(bytes, tensor.dtype)),
        Data::Bytes(bytes) => Cow::Owned(widened(bytes, tensor.dtype)),
        Data::Floats(_) | Data::Strings(_) => Cow::Borrowed(&[]),
    }
}

fn widened(bytes: &[u8], dtype: DataType) -> Vec<i64> {
    if dtype == DataType::Int32 {
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|number| i64::from(i32::from_le_bytes(*number))).collect()
    } else {
        bytes.as_chunks::<8>().0.iter().map(|number| i64::from_le_bytes(*number)).collect()
    }
}

/// Returns the numbers of an int64 or int32 tensor as little-endian int64, without a copy if possible.
#[must_use]
pub fn int64_bytes<'t>(tensor: &'t Tensor<'_>) -> Cow<'t, [u8]> {
    match (&tensor.data, tensor.dtype) {
        (Data::Raw(bytes), DataType::Int64) => Cow::Borrowed(bytes),
        (Data::Ints(numbers), _) => Cow::Borrowed(Ints::of(numbers).as_bytes()),
        _ => Cow::Owned(Ints::of(&integers(tensor)).as_bytes().to_vec()),
    }
}

/// Returns the numbers of an integer tensor as little-endian int64, those of any other tensor in its own dtype; without
/// a copy if possible.
pub(super) fn number_bytes(tensor: Tensor<'_>) -> NumberBytes<'_> {
    match (tensor.data, tensor.dtype) {
        (Data::Raw(bytes), DataType::Int32) => NumberBytes::Ints(widened(bytes, DataType::Int32)),
        (Data::Bytes(bytes), DataType::Int32) => NumberBytes::Ints(widened(&bytes, DataType::Int32)),
        (Data::Raw(bytes), _) => NumberBytes::Borrowed(bytes),
        (Data::Bytes(bytes), _) => NumberBytes::Owned(bytes),
        (Data::Ints(numbers), _) => NumberBytes::Ints(numbers),
        (Data::Floats(numbers), _) => {
            NumberBytes::Owned(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
        }
        (Data::Strings(_), _) => NumberBytes::Borrowed(&[]),
    }
}
