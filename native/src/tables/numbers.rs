//! The dtypes of tables that kernels read: how their numbers become float32, one or eight at a time.

use super::lanes::{Lanes, half_of_byte, signed_byte, upper_half, widened};
use super::table::Dtype;

/// A dtype of a table's stored numbers, with functions that read these numbers as float32.
pub(super) trait Stored {
    const DTYPE: Dtype;
    /// Whether each row has a float32 scale, by which its numbers are multiplied.
    const IS_SCALED: bool;
    /// The bytes with the number of one column; two columns of int4 share one.
    type One: Octets;
    /// The bytes with the numbers of eight columns.
    type Eight: Octets;

    /// Returns how many bytes a stored row of `dim` numbers takes, without its scale.
    fn row_bytes(dim: usize) -> usize;

    /// Returns the place in a row at which the bytes of a column begin.
    fn offset(column: usize) -> usize;

    fn one(bytes: Self::One, column: usize) -> f32;
    /// Returns the numbers of eight columns, the first of which is a multiple of eight.
    fn eight<L: Lanes>(has: L::Processor, bytes: &Self::Eight) -> L;
}

/// An array of bytes, which may have any bits and lie at any address.
pub(super) trait Octets: Copy {}

impl<const N: usize> Octets for [u8; N] {}

/// Defines a dtype: `$one` makes the number of a column of the bytes `$bytes`, and the function `$eight` of [`Lanes`]
/// those of eight columns. A byte holds as many columns as `$per_byte` says, 1 unless given.
macro_rules! stored {
    ($name:ident, $one_bytes:literal, $eight_bytes:literal, $eight:ident, |$bytes:ident, $column:ident| $one:expr) => {
        stored!($name, $one_bytes, $eight_bytes, $eight, |$bytes, $column| $one, false, 1);
    };
    (
        $name:ident, $one_bytes:literal, $eight_bytes:literal, $eight:ident,
        |$bytes:ident, $column:ident| $one:expr, $is_scaled:literal, $per_byte:literal
    ) => {
        pub(super) struct $name;

        impl Stored for $name {
            const DTYPE: Dtype = Dtype::$name;
            const IS_SCALED: bool = $is_scaled;
            type One = [u8; $one_bytes];
            type Eight = [u8; $eight_bytes];

            #[inline(always)]
            fn row_bytes(dim: usize) -> usize {
                (dim * $one_bytes).div_ceil($per_byte)
            }

            #[inline(always)]
            fn offset(column: usize) -> usize {
                column * $one_bytes / $per_byte
            }

            #[inline(always)]
            fn one($bytes: Self::One, $column: usize) -> f32 {
                $one
            }

            #[inline(always)]
            fn eight<L: Lanes>(has: L::Processor, bytes: &Self::Eight) -> L {
                L::$eight(has, bytes)
            }
        }
    };
}

stored!(Float32, 4, 32, float32, |bytes, _column| f32::from_le_bytes(bytes));
stored!(Float16, 2, 16, float16, |bytes, _column| widened(u16::from_le_bytes(bytes)));
stored!(Bfloat16, 2, 16, bfloat16, |bytes, _column| upper_half(u16::from_le_bytes(bytes)));
stored!(Int8, 1, 8, int8, |bytes, _column| signed_byte(bytes[0]), true, 1);
stored!(Int4, 1, 4, int4, |bytes, column| half_of_byte(bytes[0], column), true, 2);
