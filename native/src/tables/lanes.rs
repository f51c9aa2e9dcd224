//! Vectors of eight float32 numbers, with one implementation for each instruction set of processors.

/// A vector of eight float32 numbers, which a processor with AVX2 reads, multiplies, adds or writes by one instruction.
///
/// All implementations give the same bits, but for [`Lanes::times_plus`]: every other operation rounds to float32, and
/// fuses no multiplication with an addition.
///
/// # Safety
/// The processor has the instructions of the implementation. At each address there are as many bytes as eight numbers
/// take, at any alignment.
pub(super) trait Lanes: Copy {
    /// Returns eight zeros.
    unsafe fn zero() -> Self;
    /// Returns a vector of eight numbers that are all `number`.
    unsafe fn splat(number: f32) -> Self;
    /// Reads eight float32 numbers from 32 bytes.
    unsafe fn float32(at: *const u8) -> Self;
    /// Reads eight IEEE float16 numbers from 16 bytes.
    unsafe fn float16(at: *const u8) -> Self;
    /// Reads eight bfloat16 numbers from 16 bytes; each is the upper half of a float32.
    unsafe fn bfloat16(at: *const u8) -> Self;
    /// Reads eight int8 numbers from eight bytes.
    unsafe fn int8(at: *const u8) -> Self;
    /// Reads eight int4 numbers from four bytes, two in each byte, the low half first.
    unsafe fn int4(at: *const u8) -> Self;
    /// Returns `self + other`.
    unsafe fn plus(self, other: Self) -> Self;
    /// Returns `self * other`.
    unsafe fn times(self, other: Self) -> Self;
    /// Returns `self * other + sum` for each of the eight numbers; `Avx2` rounds each result once, `Plain` twice.
    unsafe fn times_plus(self, other: Self, sum: Self) -> Self;
    /// Returns a vector whose number `i` is the sum of the eight numbers of the vector `all[i]`.
    unsafe fn totals(all: [Self; LANES]) -> Self;
    /// Writes 32 bytes.
    unsafe fn write(self, at: *mut u8);
}

/// Number of float32 numbers in a [`Lanes`] value.
pub(super) const LANES: usize = 8;

/// A vector of eight numbers for any processor; the compiler can turn its loops into vector instructions (SSE2, NEON).
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    unsafe fn read<const N: usize>(at: *const u8) -> [u8; N] {
        // SAFETY: the caller promises that the N bytes from address `at` on may be read; the read needs no alignment.
        unsafe { at.cast::<[u8; N]>().read_unaligned() }
    }

    #[inline(always)]
    fn each(number: impl Fn(usize) -> f32) -> Self {
        Plain(std::array::from_fn(number))
    }
}

impl Lanes for Plain {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Plain([0.0; LANES])
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        Plain([number; LANES])
    }

    #[inline(always)]
    unsafe fn float32(at: *const u8) -> Self {
        // SAFETY: the caller passes the address of 32 bytes that may be accessed.
        Plain(unsafe { at.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn float16(at: *const u8) -> Self {
        // SAFETY: the caller promises that 16 bytes from address `at` on, eight 16-bit numbers, may be read.
        let halves = unsafe { at.cast::<[u16; LANES]>().read_unaligned() };
        Self::each(|i| widened(halves[i]))
    }

    #[inline(always)]
    unsafe fn bfloat16(at: *const u8) -> Self {
        // SAFETY: the caller promises that 16 bytes from address `at` on, eight 16-bit numbers, may be read.
        let halves = unsafe { at.cast::<[u16; LANES]>().read_unaligned() };
        Self::each(|i| f32::from_bits(u32::from(halves[i]) << 16))
    }

    #[inline(always)]
    unsafe fn int8(at: *const u8) -> Self {
        // SAFETY: the caller promises that 8 bytes from address `at` on, eight int8 numbers, may be read.
        let bytes: [u8; LANES] = unsafe { Self::read(at) };
        Self::each(|i| signed_byte(bytes[i]))
    }

    #[inline(always)]
    unsafe fn int4(at: *const u8) -> Self {
        // SAFETY: the caller promises that 4 bytes from address `at` on, eight int4 numbers, may be read.
        let bytes: [u8; LANES / 2] = unsafe { Self::read(at) };
        Self::each(|i| half_of_byte(bytes[i / 2], i))
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self::each(|i| self.0[i] + other.0[i])
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i])
    }

    #[inline(always)]
    unsafe fn times_plus(self, other: Self, sum: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i] + sum.0[i])
    }

    #[inline(always)]
    unsafe fn totals(all: [Self; LANES]) -> Self {
        // The additions are in the same order as in the AVX2 implementation, so that both give the same sum.
        Self::each(|i| {
            let x = all[i].0;
            ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))
        })
    }

    #[inline(always)]
    unsafe fn write(self, at: *mut u8) {
        // SAFETY: the caller passes the address of 32 bytes that may be accessed.
        unsafe { at.cast::<[f32; LANES]>().write_unaligned(self.0) }
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

/// Returns an int4 number as float32: the low half of the byte for an even column, the high half for an odd column.
#[inline(always)]
pub(super) fn half_of_byte(byte: u8, column: usize) -> f32 {
    let low_half_up = if column.is_multiple_of(2) { byte << 4 } else { byte };
    f32::from(i8::from_ne_bytes([low_half_up]) >> 4)
}

/// Converts an int8, which is given as a byte, to float32.
#[inline(always)]
pub(super) fn signed_byte(byte: u8) -> f32 {
    f32::from(i8::from_ne_bytes([byte]))
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_ps, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
        _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_hadd_ps, _mm256_loadu_ps,
        _mm256_mul_ps, _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps,
        _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_storeu_ps,
    };

    use super::{LANES, Lanes};

    /// A vector of eight numbers for an x86-64 processor with AVX2, F16C and FMA.
    #[derive(Clone, Copy)]
    pub(in crate::tables) struct Avx2(__m256);

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller promises that the processor has the instruction sets AVX2 and F16C.
            Avx2(unsafe { _mm256_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            // SAFETY: the caller promises that the processor has the instruction sets AVX2 and F16C.
            Avx2(unsafe { _mm256_set1_ps(number) })
        }

        #[inline(always)]
        unsafe fn float32(at: *const u8) -> Self {
            // SAFETY: the caller promises that the processor has AVX2 and F16C, and that 32 bytes at the address `at`
            // may be read.
            Avx2(unsafe { _mm256_loadu_ps(at.cast()) })
        }

        #[inline(always)]
        unsafe fn float16(at: *const u8) -> Self {
            // SAFETY: the caller promises that the processor has AVX2 and F16C, and that 16 bytes at the address `at`
            // may be read.
            Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) })
        }

        #[inline(always)]
        unsafe fn bfloat16(at: *const u8) -> Self {
            // SAFETY: the caller promises that the processor has AVX2 and F16C, and that 16 bytes at the address `at`
            // may be read.
            let words = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())) };
            // SAFETY: the caller promises that the processor has the instruction sets AVX2 and F16C.
            Avx2(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)) })
        }

        #[inline(always)]
        unsafe fn int8(at: *const u8) -> Self {
            // SAFETY: the caller promises that the processor has AVX2 and F16C, and that 8 bytes at the address `at`
            // may be read.
            Avx2(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) })
        }

        #[inline(always)]
        unsafe fn int4(at: *const u8) -> Self {
            // SAFETY: the caller promises that four bytes from address `at` on, eight int4 numbers, may be read.
            let word = unsafe { at.cast::<i32>().read_unaligned() };
            // Each of the eight 32-bit lanes gets the whole word, shifts one of the word's eight int4 numbers to its top
            // bits, and then back with its sign. SAFETY: the caller promises that the processor has the instruction set
            // AVX2.
            Avx2(unsafe {
                let lefts = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
                let tops = _mm256_sllv_epi32(_mm256_set1_epi32(word), lefts);
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(tops))
            })
        }

        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller promises that the processor has the instruction sets AVX2 and F16C.
            Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn times(self, other: Self) -> Self {
            // SAFETY: the caller promises that the processor has the instruction sets AVX2 and F16C.
            Avx2(unsafe { _mm256_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn times_plus(self, other: Self, sum: Self) -> Self {
            // SAFETY: the caller promises that the processor has the instruction set FMA.
            Avx2(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn totals(all: [Self; LANES]) -> Self {
            // SAFETY: the caller promises that the processor has the instruction set AVX2.
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
        unsafe fn write(self, at: *mut u8) {
            // SAFETY: the caller promises that the processor has AVX2, and that 32 bytes at the address `at` may be
            // written.
            unsafe { _mm256_storeu_ps(at.cast(), self.0) }
        }
    }
}
