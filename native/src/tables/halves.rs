//! Rounds float32 numbers to 16 bits.

use std::mem::MaybeUninit;

pub use super::lanes::bfloat16_bits;
use super::lanes::{LANES, Lanes};
use super::numbers::Stored;
use super::processor::{Kernel, Processor};
use super::rows::ZERO;
use super::table::{Dtype, LookupResult, OutputRows};

/// Number of bytes of float32 numbers that are computed before they are rounded: half of a small first cache.
const BLOCK_BYTES: usize = 16 << 10;

/// A dtype of 16 bits to which float32 numbers are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE float16: numbers of 65520 and more become infinite.
    Float16,
    /// bfloat16, the upper half of a float32.
    Bfloat16,
}

impl Half {
    /// Returns the dtype of tables whose rows are stored in these 16 bits.
    #[must_use]
    pub fn of_tables(self) -> Dtype {
        match self {
            Half::Float16 => Dtype::Float16,
            Half::Bfloat16 => Dtype::Bfloat16,
        }
    }

    /// Rounds little-endian float32 numbers to the nearest numbers of 16 bits, ties to even, and writes them to `out`, which
    /// has the same rows.
    ///
    /// # Panics
    /// There are fewer or more numbers than `out` has places.
    pub fn round(self, numbers: &[u8], out: OutputRows<'_>) {
        self.round_on(Processor::best(), numbers, out);
    }

    /// Returns rounded numbers, for tests.
    #[cfg(all(test, not(feature = "model")))]
    #[must_use]
    pub fn rounded(self, numbers: &[u8]) -> Vec<u8> {
        let size = numbers.len() / 2;
        let mut halves = Vec::with_capacity(size);
        self.round(numbers, OutputRows::new(&mut halves.spare_capacity_mut()[..size], 0, size, size, 1));
        // SAFETY: round() has written `size` bytes.
        unsafe { halves.set_len(size) };
        halves
    }

    /// Rounds numbers as [`Half::round`] does; `processor` is [`Processor::Any`] or the result of [`Processor::best`].
    pub(super) fn round_on(self, processor: Processor, numbers: &[u8], out: OutputRows<'_>) {
        // The kernel reads no table, so the dtype of the table does not matter.
        let _ = processor.run(Dtype::Float32, Round { half: self, numbers, out });
    }

    /// Writes vectors of `dim` numbers to `out`, one to each row, that `compute` computes as float32: those of the rows
    /// that its argument has, from the row with this number on.
    ///
    /// The float32 numbers of few rows are in memory at a time, so they stay in the processor's cache.
    ///
    /// # Errors
    /// That of `compute`, whose numbers of ids outside the table are added up.
    pub fn round_computed(
        self,
        dim: usize,
        mut out: OutputRows<'_>,
        mut compute: impl FnMut(usize, OutputRows<'_>) -> LookupResult,
    ) -> LookupResult {
        let row_bytes = dim * 4;
        let most = (BLOCK_BYTES / row_bytes.max(1)).clamp(1, out.rows().max(1));
        let mut numbers = Vec::with_capacity(most * row_bytes);
        let mut missing = 0;
        for first in (0..out.rows()).step_by(most) {
            let rows = most.min(out.rows() - first);
            numbers.clear();
            missing += compute(first, OutputRows::new(numbers.spare_capacity_mut(), 0, row_bytes, row_bytes, rows))?;
            // SAFETY: compute() has written all rows.
            unsafe { numbers.set_len(rows * row_bytes) };
            self.round(&numbers, out.part(first, rows));
        }
        Ok(missing)
    }
}

/// The arguments of [`Half::round`].
struct Round<'a> {
    half: Half,
    numbers: &'a [u8],
    out: OutputRows<'a>,
}

impl Kernel for Round<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult {
        match self.half {
            Half::Float16 => self.rows::<L, true>(has),
            Half::Bfloat16 => self.rows::<L, false>(has),
        }
        Ok(0)
    }
}

impl Round<'_> {
    #[inline(always)]
    fn rows<L: Lanes, const IS_FLOAT16: bool>(mut self, has: L::Processor) {
        let width = self.out.width();
        assert_eq!(self.numbers.len(), 2 * width * self.out.rows());
        for r in 0..self.out.rows() {
            let (numbers, last) = self.numbers[2 * width * r..][..2 * width].as_chunks();
            let (to, last_to) = self.out.row(r).as_chunks_mut();
            for (to, numbers) in to.iter_mut().zip(numbers) {
                eight::<L, IS_FLOAT16>(has, numbers, to);
            }
            if !last.is_empty() {
                let (mut padded, mut halves) = ([0; 4 * LANES], [ZERO; 2 * LANES]);
                padded[..last.len()].copy_from_slice(last);
                eight::<L, IS_FLOAT16>(has, &padded, &mut halves);
                last_to.copy_from_slice(&halves[..last_to.len()]);
            }
        }
    }
}

#[inline(always)]
fn eight<L: Lanes, const IS_FLOAT16: bool>(
    has: L::Processor,
    numbers: &[u8; 4 * LANES],
    to: &mut [MaybeUninit<u8>; 2 * LANES],
) {
    let numbers = L::float32(has, numbers);
    if IS_FLOAT16 { numbers.write_float16(to) } else { numbers.write_bfloat16(to) }
}
