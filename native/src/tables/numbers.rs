//! Reads the numbers of tables of five dtypes as float32, one number or eight at a time.

use super::lanes::{LANES, Lanes, half_of_byte, signed_byte, widened};

/// A dtype of a table's stored numbers, with functions that read these numbers as float32.
///
/// # Safety
/// `row` is the address of a table row, at any alignment, and the columns exist in the row.
pub(super) trait Stored {
    /// Whether each row has a float32 scale, by which its numbers are multiplied.
    const IS_SCALED: bool = false;
    /// Whether the stored numbers are float32, so that a kernel can read a row where it lies.
    const IS_FLOAT32: bool = false;
    /// Returns how many bytes a stored row of `dim` numbers takes, without its scale.
    fn row_bytes(dim: usize) -> usize;
    /// Reads the number in one column of a stored row as float32.
    unsafe fn one(row: *const u8, column: usize) -> f32;
    /// Reads the numbers in eight columns of a stored row as float32, from `column` on, which is a multiple of eight.
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L;
}

pub(super) struct Float32;
pub(super) struct Float16;
pub(super) struct Bfloat16;
pub(super) struct Int8;
pub(super) struct Int4;

impl Stored for Float32 {
    const IS_FLOAT32: bool = true;

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 4
    }

    #[inline(always)]
    unsafe fn one(row: *const u8, column: usize) -> f32 {
        // SAFETY: the caller promises that `row` is the address of a row of the table and `column` is one of its
        // columns.
        unsafe { row.add(column * 4).cast::<f32>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L {
        // SAFETY: the caller promises that `row` is the address of a row of the table which has eight columns from
        // `column` on.
        unsafe { L::float32(row.add(column * 4)) }
    }
}

impl Stored for Float16 {
    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 2
    }

    #[inline(always)]
    unsafe fn one(row: *const u8, column: usize) -> f32 {
        // SAFETY: the caller promises that `row` is the address of a row of the table and `column` is one of its
        // columns.
        widened(unsafe { row.add(column * 2).cast::<u16>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L {
        // SAFETY: the caller promises that `row` is the address of a row of the table which has eight columns from
        // `column` on.
        unsafe { L::float16(row.add(column * 2)) }
    }
}

impl Stored for Bfloat16 {
    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim * 2
    }

    #[inline(always)]
    unsafe fn one(row: *const u8, column: usize) -> f32 {
        // SAFETY: the caller promises that `row` is the address of a row of the table and `column` is one of its
        // columns.
        let upper = unsafe { row.add(column * 2).cast::<u16>().read_unaligned() };
        f32::from_bits(u32::from(upper) << 16)
    }

    #[inline(always)]
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L {
        // SAFETY: the caller promises that `row` is the address of a row of the table which has eight columns from
        // `column` on.
        unsafe { L::bfloat16(row.add(column * 2)) }
    }
}

impl Stored for Int8 {
    const IS_SCALED: bool = true;

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim
    }

    #[inline(always)]
    unsafe fn one(row: *const u8, column: usize) -> f32 {
        // SAFETY: the caller promises that `row` is the address of a row of the table and `column` is one of its
        // columns.
        signed_byte(unsafe { row.add(column).read() })
    }

    #[inline(always)]
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L {
        // SAFETY: the caller promises that `row` is the address of a row of the table which has eight columns from
        // `column` on.
        unsafe { L::int8(row.add(column)) }
    }
}

impl Stored for Int4 {
    const IS_SCALED: bool = true;

    #[inline(always)]
    fn row_bytes(dim: usize) -> usize {
        dim.div_ceil(2)
    }

    #[inline(always)]
    unsafe fn one(row: *const u8, column: usize) -> f32 {
        // SAFETY: the caller promises that `row` is the address of a row of the table and `column` is one of its
        // columns.
        half_of_byte(unsafe { row.add(column / 2).read() }, column)
    }

    #[inline(always)]
    unsafe fn eight<L: Lanes>(row: *const u8, column: usize) -> L {
        debug_assert_eq!(column % LANES, 0);
        // SAFETY: the caller promises that `row` is the address of a row of the table which has eight columns from
        // `column` on.
        unsafe { L::int4(row.add(column / 2)) }
    }
}
