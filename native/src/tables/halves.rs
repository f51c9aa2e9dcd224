//! Rounds float32 numbers to 16 bits.

pub use super::lanes::bfloat16_bits;
use super::lanes::{LANES, Lanes};
use super::numbers::Stored;
use super::processor::{Kernel, Processor};
use super::table::{Dtype, LookupResult};

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

    /// Rounds little-endian float32 numbers to the nearest numbers of 16 bits, ties to even, and appends them to `to`.
    pub fn append(self, numbers: &[u8], to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + numbers.len() / 2, 0);
        self.round_on(Processor::best(), numbers, &mut to[start..]);
    }

    /// Rounds numbers as [`Half::append`] does; `processor` is [`Processor::Any`] or the result of [`Processor::best`].
    pub(super) fn round_on(self, processor: Processor, numbers: &[u8], to: &mut [u8]) {
        // The kernel reads no table, so the dtype of the table does not matter.
        let _ = processor.run(Dtype::Float32, Round { half: self, numbers, to });
    }
}

/// The arguments of [`Half::append`].
struct Round<'a> {
    half: Half,
    numbers: &'a [u8],
    to: &'a mut [u8],
}

impl Kernel for Round<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult {
        match self.half {
            Half::Float16 => round(self.numbers, self.to, |eight| L::float32(has, eight).to_float16()),
            Half::Bfloat16 => round(self.numbers, self.to, |eight| L::float32(has, eight).to_bfloat16()),
        }
        Ok(0)
    }
}

#[inline(always)]
fn round(numbers: &[u8], to: &mut [u8], eight: impl Fn(&[u8; 4 * LANES]) -> [u8; 2 * LANES]) {
    let (numbers, last) = numbers.as_chunks();
    let (to, last_to) = to.as_chunks_mut();
    for (to, numbers) in to.iter_mut().zip(numbers) {
        *to = eight(numbers);
    }
    let mut padded = [0; 4 * LANES];
    padded[..last.len()].copy_from_slice(last);
    last_to.copy_from_slice(&eight(&padded)[..last_to.len()]);
}
