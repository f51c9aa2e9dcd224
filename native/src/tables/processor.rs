//! Compiles each kernel once for each instruction set and dtype, and calls the fastest one that the processor can run.

use super::lanes::{Lanes, Plain};
use super::numbers::{Bfloat16, Float16, Float32, Int4, Int8, Stored};
use super::table::{Dtype, LookupResult};
use crate::denormals::FlushDenormals;

/// A kernel with its arguments: gather, combine, sequence, or a search for neighbours.
pub(super) trait Kernel {
    /// Runs the kernel with the instruction set `L`, on a table whose rows are stored as `S`.
    ///
    /// # Safety
    /// The processor has the instructions of `L`, and the table stores `S`.
    unsafe fn run<L: Lanes, S: Stored>(self) -> LookupResult;
}

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    /// The instruction set for which the whole crate is compiled.
    Any,
    /// AVX2, F16C and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Processor {
    /// Returns the best instruction set that this processor has.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("f16c")
            && std::arch::is_x86_feature_detected!("fma")
        {
            return Processor::Avx2;
        }
        Processor::Any
    }

    /// Runs `kernel` with the instruction set `self`, on a table whose rows are stored as `dtype`.
    ///
    /// # Safety
    /// `self` is the result of `best`, or `Any`.
    pub(super) unsafe fn run(self, dtype: Dtype, kernel: impl Kernel) -> LookupResult {
        // The sums are those of TensorFlow's kernels, which run on threads that flush.
        let _flushes = FlushDenormals::new();
        match self {
            // SAFETY: every processor that can run the crate has the instructions of `Plain`.
            Processor::Any => unsafe { by_dtype::<Plain>(dtype, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that `Processor::best` returned Avx2, so the processor has AVX2, F16C and
            // FMA.
            Processor::Avx2 => unsafe { with_avx2(dtype, kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
unsafe fn with_avx2(dtype: Dtype, kernel: impl Kernel) -> LookupResult {
    // SAFETY: the caller checked that the processor has AVX2, F16C and FMA.
    unsafe { by_dtype::<super::lanes::Avx2>(dtype, kernel) }
}

#[inline(always)]
unsafe fn by_dtype<L: Lanes>(dtype: Dtype, kernel: impl Kernel) -> LookupResult {
    // SAFETY: the caller promises that the processor has the instructions of `L`, and each arm of the match calls the
    // kernel for the table's dtype. For a float64 table, `TableView::new` gives a view of 0 rows, so no kernel reads
    // its numbers.
    unsafe {
        match dtype {
            Dtype::Float32 | Dtype::Float64 => kernel.run::<L, Float32>(),
            Dtype::Float16 => kernel.run::<L, Float16>(),
            Dtype::Bfloat16 => kernel.run::<L, Bfloat16>(),
            Dtype::Int8 => kernel.run::<L, Int8>(),
            Dtype::Int4 => kernel.run::<L, Int4>(),
        }
    }
}
