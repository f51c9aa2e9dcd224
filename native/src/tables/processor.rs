//! Compiles each kernel once for each instruction set and dtype, and calls the fastest one that the processor can run.

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, HasAvx2};
use super::lanes::{Lanes, Plain};
use super::numbers::{Bfloat16, Float16, Float32, Int4, Int8, Stored};
use super::table::{Dtype, LookupResult};
use crate::denormals::FlushDenormals;

/// A kernel with its arguments: gather, combine, sequence, or a search for neighbours.
pub(super) trait Kernel {
    /// Runs the kernel with the instruction set `L`, on a table whose rows are stored as `S`.
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult;
}

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    /// The instruction set for which the whole crate is compiled.
    Any,
    /// AVX2, F16C and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(HasAvx2),
}

impl Processor {
    /// Returns the best instruction set that this processor has.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(has) = HasAvx2::detect() {
            return Processor::Avx2(has);
        }
        Processor::Any
    }

    /// Runs `kernel` with the instruction set `self`, on a table whose rows are stored as `dtype`.
    pub(super) fn run(self, dtype: Dtype, kernel: impl Kernel) -> LookupResult {
        // The sums are those of TensorFlow's kernels, which run on threads that flush.
        let _flushes = FlushDenormals::new();
        match self {
            Processor::Any => by_dtype::<Plain>((), dtype, kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `HasAvx2` proves that the processor has AVX2, F16C and FMA.
            Processor::Avx2(has) => unsafe { with_avx2(has, dtype, kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
fn with_avx2(has: HasAvx2, dtype: Dtype, kernel: impl Kernel) -> LookupResult {
    by_dtype::<Avx2>(has, dtype, kernel)
}

#[inline(always)]
fn by_dtype<L: Lanes>(has: L::Processor, dtype: Dtype, kernel: impl Kernel) -> LookupResult {
    match dtype {
        // For a float64 table, `TableView::new` gives a view of 0 rows, so no kernel reads its numbers.
        Dtype::Float32 | Dtype::Float64 => kernel.run::<L, Float32>(has),
        Dtype::Float16 => kernel.run::<L, Float16>(has),
        Dtype::Bfloat16 => kernel.run::<L, Bfloat16>(has),
        Dtype::Int8 => kernel.run::<L, Int8>(has),
        Dtype::Int4 => kernel.run::<L, Int4>(has),
    }
}
