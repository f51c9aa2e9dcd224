//! The dtypes of tables that kernels read: how their numbers become float32, one or eight at a time.

use super::lanes::{Lanes, half_of_byte, signed_byte, upper_half, widened};
use super::table::Dtype;

/// A dtype of a table's stored numbers, with functions that read these numbers as float32.
pub(super) trait Stored {
    /// The dtype.
    const DTYPE: Dtype;
    /// Whether each row has a float32 scale, by which its numbers are multiplied.
    const IS_SCALED: bool = false;
    /// The bytes with the number of one column; two columns of int4 share one.
    type One: Octets;
    /// The bytes with the numbers of eight columns.
    type Eight: Octets;

    /// Returns how many bytes a stored row of `dim` numbers takes, without its scale.
    fn row_bytes(dim: usize) -> usize;

    /// Returns the place in a row at which the bytes of a column begin.
    #[inline(always)]
    fn offset(column: usize) -> usize {
        Self::row_bytes(column)
    }

    /// Returns the number of a column.
    fn one(bytes: Self::One, column: usize) -> f32;
    /// Returns the numbers of eight columns, the first of which is a multiple of eight.
    fn eight<L: Lanes>(has: L::Processor, bytes: &Self::Eight) -> L;
}

/// An array of bytes, which may have any bits and lie at any address.
pub(super) trait Octets: Copy {}

impl<const N: usize> Octets for [u8; N] {}

pub(super) struct Float32;
pub(super) struct Float16;
pub(super) struct Bfloat16;
pub(super) struct Int8;
pub(super) struct Int4;

impl Stored for Float32 {
    const DTYPE: Dtype = Dtype::Float32;
    type One = [u8; 4];
    type Eight = [u8; 32];

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 4
    }

    #[inline(always)]
    fn one(bytes: [u8; 4], _: usize) -> f32 {
        f32::from_le_bytes(bytes)
    }

    #[inline(always)]
    fn eight<L: Lanes>(has: L::Processor, bytes: &[u8; 32]) -> L {
        L::float32(has, bytes)
    }
}

impl Stored for Float16 {
    const DTYPE: Dtype = Dtype::Float16;
    type One = [u8; 2];
    type Eight = [u8; 16];

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 2
    }

    #[inline(always)]
    fn one(bytes: [u8; 2], _: usize) -> f32 {
        widened(u16::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn eight<L: Lanes>(has: L::Processor, bytes: &[u8; 16]) -> L {
        L::float16(has, bytes)
    }
}

impl Stored for Bfloat16 {
    const DTYPE: Dtype = Dtype::Bfloat16;
    type One = [u8; 2];
    type Eight = [u8; 16];

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 2
    }

    #[inline(always)]
    fn one(bytes: [u8; 2], _: usize) -> f32 {
        upper_half(u16::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn eight<L: Lanes>(has: L::Processor, bytes: &[u8; 16]) -> L {
        L::bfloat16(has, bytes)
    }
}

impl Stored for Int8 {
    const DTYPE: Dtype = Dtype::Int8;
    const IS_SCALED: bool = true;
    type One = [u8; 1];
    type Eight = [u8; 8];

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim
    }

    #[inline(always)]
    fn one(bytes: [u8; 1], _: usize) -> f32 {
        signed_byte(bytes[0])
    }

    #[inline(always)]
    fn eight<L: Lanes>(has: L::Processor, bytes: &[u8; 8]) -> L {
        L::int8(has, bytes)
    }
}

impl Stored for Int4 {
    const DTYPE: Dtype = Dtype::Int4;
    const IS_SCALED: bool = true;
    type One = [u8; 1];
    type Eight = [u8; 4];

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim.div_ceil(2)
    }

    #[inline(always)]
    fn offset(column: usize) -> usize {
        column / 2
    }

    #[inline(always)]
    fn one(bytes: [u8; 1], column: usize) -> f32 {
        half_of_byte(bytes[0], column)
    }

    #[inline(always)]
    fn eight<L: Lanes>(has: L::Processor, bytes: &[u8; 4]) -> L {
        L::int4(has, bytes)
    }
}
