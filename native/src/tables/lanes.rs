//! Vectors of eight float32 numbers, with one implementation for each instruction set of processors.

use std::mem::MaybeUninit;

/// A vector of eight float32 numbers, which a processor with AVX2 reads, multiplies, adds or writes by one instruction.
///
/// All implementations give the same bits, but for [`Lanes::times_plus`]: every other operation rounds to float32, and
/// fuses no multiplication with an addition.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "one instruction reads the bytes where they lie")]
pub(super) trait Lanes: Copy {
    /// A proof that the processor has the instructions of the implementation: a vector is only made with one.
    type Processor: Copy;

    fn splat(has: Self::Processor, number: f32) -> Self;
    fn float32(has: Self::Processor, bytes: &[u8; 32]) -> Self;
    fn float16(has: Self::Processor, bytes: &[u8; 16]) -> Self;
    /// Reads eight bfloat16 numbers; each is the upper half of a float32.
    fn bfloat16(has: Self::Processor, bytes: &[u8; 16]) -> Self;
    fn int8(has: Self::Processor, bytes: &[u8; 8]) -> Self;
    /// Reads eight int4 numbers, two in each byte, the low half first.
    fn int4(has: Self::Processor, bytes: &[u8; 4]) -> Self;
    /// Writes the eight numbers as IEEE float16, rounded with ties to even. A NaN stays one, and becomes quiet.
    fn write_float16(self, to: &mut [MaybeUninit<u8>; 16]);
    /// Writes the eight numbers as bfloat16, rounded with ties to even. A NaN keeps only its sign, as in TensorFlow.
    fn write_bfloat16(self, to: &mut [MaybeUninit<u8>; 16]);
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Returns `self * other + sum` for each of the eight numbers; `Avx2` rounds each result once, `Plain` twice.
    fn times_plus(self, other: Self, sum: Self) -> Self;
    /// Returns a vector whose number `i` is the sum of the eight numbers of the vector `all[i]`.
    fn totals(all: [Self; LANES]) -> Self;
    fn numbers(self) -> [f32; LANES];
    fn write(self, to: &mut [MaybeUninit<u8>; 32]);
}

/// Number of float32 numbers in a [`Lanes`] value.
pub(super) const LANES: usize = 8;

/// A vector of eight numbers for any processor; the compiler can turn its loops into vector instructions (SSE2, NEON).
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn each(number: impl Fn(usize) -> f32) -> Self {
        Plain(std::array::from_fn(number))
    }
}

impl Lanes for Plain {
    type Processor = ();

    #[inline(always)]
    fn splat((): (), number: f32) -> Self {
        Plain([number; LANES])
    }

    #[inline(always)]
    fn float32((): (), bytes: &[u8; 32]) -> Self {
        let numbers = bytes.as_chunks::<4>().0;
        Self::each(|i| f32::from_le_bytes(numbers[i]))
    }

    #[inline(always)]
    fn float16((): (), bytes: &[u8; 16]) -> Self {
        let halves = bytes.as_chunks::<2>().0;
        Self::each(|i| widened(u16::from_le_bytes(halves[i])))
    }

    #[inline(always)]
    fn bfloat16((): (), bytes: &[u8; 16]) -> Self {
        let halves = bytes.as_chunks::<2>().0;
        Self::each(|i| upper_half(u16::from_le_bytes(halves[i])))
    }

    #[inline(always)]
    fn int8((): (), bytes: &[u8; 8]) -> Self {
        Self::each(|i| signed_byte(bytes[i]))
    }

    #[inline(always)]
    fn int4((): (), bytes: &[u8; 4]) -> Self {
        Self::each(|i| half_of_byte(bytes[i / 2], i))
    }

    #[inline(always)]
    fn write_float16(self, to: &mut [MaybeUninit<u8>; 16]) {
        for (to, number) in to.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *to = narrowed(number).to_le_bytes().map(MaybeUninit::new);
        }
    }

    #[inline(always)]
    fn write_bfloat16(self, to: &mut [MaybeUninit<u8>; 16]) {
        for (to, number) in to.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *to = bfloat16_bits(number).to_le_bytes().map(MaybeUninit::new);
        }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self::each(|i| self.0[i] + other.0[i])
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i])
    }

    #[inline(always)]
    fn times_plus(self, other: Self, sum: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i] + sum.0[i])
    }

    #[inline(always)]
    fn totals(all: [Self; LANES]) -> Self {
        // The additions are in the same order as in the AVX2 implementation, so that both give the same sum.
        Self::each(|i| {
            let x = all[i].0;
            ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))
        })
    }

    #[inline(always)]
    fn numbers(self) -> [f32; LANES] {
        self.0
    }

    #[inline(always)]
    fn write(self, to: &mut [MaybeUninit<u8>; 32]) {
        for (to, number) in to.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *to = number.to_le_bytes().map(MaybeUninit::new);
        }
    }
}

/// Converts a float16 to float32. A signalling NaN becomes quiet, as in the processors' conversion instructions.
///
/// The function has no branches, so that the compiler can turn a loop over it into vector instructions. Source:
/// `fp16_ieee_to_fp32_value` of github.com/Maratyszcza/FP16, `include/fp16/fp16.h`.
#[inline(always)]
pub(super) fn widened(half: u16) -> f32 {
    let word = u32::from(half) << 16;
    let sign = word & 0x8000_0000;
    let magnitude = word << 1;
    let normal = f32::from_bits((magnitude >> 4) + (0xE0 << 23)) * f32::from_bits(0x0780_0000);
    let subnormal = f32::from_bits((magnitude >> 17) | (126 << 23)) - 0.5;
    let number = if magnitude < 1 << 27 { subnormal } else { normal };
    f32::from_bits(sign | number.to_bits())
}

/// Rounds a float32 to float16, as [`Lanes::write_float16`] does.
///
/// The function has no branches, so that the compiler can turn a loop over it into vector instructions. Source:
/// `fp16_ieee_from_fp32_value` of github.com/Maratyszcza/FP16, `include/fp16/fp16.h`; that function gives all NaNs the
/// same bits.
#[inline(always)]
pub(super) fn narrowed(number: f32) -> u16 {
    let bits = number.to_bits();
    let magnitude = bits << 1;
    // A number that is too large for float16 becomes infinite. Adding a power of two rounds the number to the bits that
    // float16 has for its exponent.
    let base = number.abs() * f32::from_bits((127 + 112) << 23) * f32::from_bits((127 - 110) << 23);
    let exponent = (magnitude & 0xFF00_0000).max(0x7100_0000);
    let rounded = (f32::from_bits((exponent >> 1) + 0x0780_0000) + base).to_bits();
    let finite = ((rounded >> 13) & 0x7C00) + (rounded & 0x0FFF);
    let nan = 0x7E00 | ((bits >> 13) & 0x03FF);
    let size = if magnitude > 0xFF00_0000 { nan } else { finite };
    ((bits >> 16) & 0x8000 | size) as u16
}

/// Rounds a float32 to bfloat16, as [`Lanes::write_bfloat16`] does.
#[must_use]
#[inline(always)]
pub fn bfloat16_bits(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    let nan = (bits & 0x8000_0000) | 0x7FC0_0000;
    (if bits << 1 > 0xFF00_0000 { nan } else { rounded } >> 16) as u16
}

/// Returns an int4 number as float32: the low half of the byte for an even column, the high half for an odd column.
#[inline(always)]
pub(super) fn half_of_byte(byte: u8, column: usize) -> f32 {
    let low_half_up = if column.is_multiple_of(2) { byte << 4 } else { byte };
    f32::from(i8::from_ne_bytes([low_half_up]) >> 4)
}

#[inline(always)]
pub(super) fn upper_half(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

#[inline(always)]
pub(super) fn signed_byte(byte: u8) -> f32 {
    f32::from(i8::from_ne_bytes([byte]))
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, HasAvx2};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadl_epi64, _mm_loadu_si128, _mm_packus_epi32,
        _mm_storeu_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castps_si256,
        _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
        _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extracti128_si256, _mm256_fmadd_ps,
        _mm256_hadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_permute2f128_ps, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_setr_epi32, _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_srli_epi32,
        _mm256_storeu_ps,
    };
    use std::mem::MaybeUninit;

    use super::{LANES, Lanes};

    /// A proof that the processor has AVX2, F16C and FMA.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::tables) struct HasAvx2(());

    impl HasAvx2 {
        /// Returns the proof; None if the processor lacks one of the instruction sets.
        pub(in crate::tables) fn detect() -> Option<Self> {
            let has_all = std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("f16c")
                && std::arch::is_x86_feature_detected!("fma");
            has_all.then_some(HasAvx2(()))
        }
    }

    /// A vector of eight numbers for an x86-64 processor with AVX2, F16C and FMA.
    #[derive(Clone, Copy)]
    pub(in crate::tables) struct Avx2(__m256);

    impl Lanes for Avx2 {
        type Processor = HasAvx2;

        #[inline(always)]
        fn splat(_: HasAvx2, number: f32) -> Self {
            // SAFETY: `HasAvx2` proves that the processor has the instructions.
            Avx2(unsafe { _mm256_set1_ps(number) })
        }

        #[inline(always)]
        fn float32(_: HasAvx2, bytes: &[u8; 32]) -> Self {
            // SAFETY: `HasAvx2` proves that the processor has the instructions; they read the 32 bytes.
            Avx2(unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) })
        }

        #[inline(always)]
        fn float16(_: HasAvx2, bytes: &[u8; 16]) -> Self {
            // SAFETY: `HasAvx2` proves that the processor has the instructions; they read the 16 bytes.
            Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())) })
        }

        #[inline(always)]
        fn bfloat16(_: HasAvx2, bytes: &[u8; 16]) -> Self {
            // SAFETY: `HasAvx2` proves that the processor has the instructions; they read the 16 bytes.
            Avx2(unsafe {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
            })
        }

        #[inline(always)]
        fn int8(_: HasAvx2, bytes: &[u8; 8]) -> Self {
            // SAFETY: `HasAvx2` proves that the processor has the instructions; they read the eight bytes.
            Avx2(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()))) })
        }

        #[inline(always)]
        fn int4(_: HasAvx2, bytes: &[u8; 4]) -> Self {
            let word = i32::from_le_bytes(*bytes);
            // Each of the eight 32-bit lanes gets the whole word, shifts one of the word's eight int4 numbers to its top
            // bits, and then back with its sign. SAFETY: `HasAvx2` proves that the processor has the instructions.
            Avx2(unsafe {
                let lefts = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
                let tops = _mm256_sllv_epi32(_mm256_set1_epi32(word), lefts);
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(tops))
            })
        }

        #[inline(always)]
        fn write_float16(self, to: &mut [MaybeUninit<u8>; 16]) {
            // SAFETY: only a processor with the instructions has a vector; they write the 16 bytes.
            unsafe {
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
                _mm_storeu_si128(to.as_mut_ptr().cast(), rounded);
            }
        }

        #[inline(always)]
        fn write_bfloat16(self, to: &mut [MaybeUninit<u8>; 16]) {
            // As bfloat16_bits(). SAFETY: only a processor with the instructions has a vector; they write the 16 bytes.
            unsafe {
                let bits = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
                let sign = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MIN));
                let nan = _mm256_or_si256(sign, _mm256_set1_epi32(0x7FC0_0000));
                let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
                let words = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, nan, is_nan));
                let high = _mm256_extracti128_si256::<1>(words);
                let packed = _mm_packus_epi32(_mm256_castsi256_si128(words), high);
                _mm_storeu_si128(to.as_mut_ptr().cast(), packed);
            }
        }

        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            // SAFETY: only a processor with the instructions has a vector.
            Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn times(self, other: Self) -> Self {
            // SAFETY: only a processor with the instructions has a vector.
            Avx2(unsafe { _mm256_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn times_plus(self, other: Self, sum: Self) -> Self {
            // SAFETY: only a processor with the instructions has a vector.
            Avx2(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        fn totals(all: [Self; LANES]) -> Self {
            // SAFETY: only a processor with the instructions has a vector.
            Avx2(unsafe {
                let first = _mm256_hadd_ps(_mm256_hadd_ps(all[0].0, all[1].0), _mm256_hadd_ps(all[2].0, all[3].0));
                let last = _mm256_hadd_ps(_mm256_hadd_ps(all[4].0, all[5].0), _mm256_hadd_ps(all[6].0, all[7].0));
                // The low half of `first` has the sums of the low four numbers of `all[0]` to `all[3]`, the high half
                // those of the high four; `last` has those of `all[4]` to `all[7]`. Low and high sums are added.
                let low = _mm256_permute2f128_ps::<0x20>(first, last);
                _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(first, last))
            })
        }

        #[inline(always)]
        fn numbers(self) -> [f32; LANES] {
            let mut numbers = [0.0; LANES];
            // SAFETY: only a processor with the instructions has a vector; they write the eight numbers.
            unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), self.0) };
            numbers
        }

        #[inline(always)]
        fn write(self, to: &mut [MaybeUninit<u8>; 32]) {
            // SAFETY: only a processor with the instructions has a vector; they write the 32 bytes.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().cast(), self.0) }
        }
    }
}
