//! Flushes denormal numbers to zero, as TensorFlow does on its threads.
//!
//! Source: `ScopedFlushDenormal` of tsl/platform/denormal.cc; TensorFlow's thread pools run under it, so the kernels of
//! a graph take denormal numbers for zeros and write zeros in their place. A graph that runs on a thread of this
//! program would answer other numbers without it.

use std::marker::PhantomData;

/// The bits of the processor's control register that turn denormal operands and denormal results of float32 and
/// float64 arithmetic into zeros of the same sign; moves and copies keep all bits.
#[cfg(target_arch = "x86_64")]
const FLUSHING: u64 = 1 << 15 | 1 << 6;
#[cfg(target_arch = "aarch64")]
const FLUSHING: u64 = 1 << 24;

/// While it lives, arithmetic of this thread flushes denormal numbers to zero; dropping it restores the thread's state.
///
/// It stays on its thread, because the state is a register of the thread's processor.
#[derive(Debug)]
pub struct FlushDenormals {
    before: u64,
    on_this_thread: PhantomData<*const ()>,
}

impl FlushDenormals {
    /// Turns flushing on for this thread.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        let before = control();
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        set_control(before | FLUSHING);
        FlushDenormals { before, on_this_thread: PhantomData }
    }
}

impl Default for FlushDenormals {
    fn default() -> Self {
        FlushDenormals::new()
    }
}

impl Drop for FlushDenormals {
    #[inline]
    fn drop(&mut self) {
        set_control(self.before);
    }
}

/// Returns the control register of float arithmetic: MXCSR, or FPCR; 0 on other processors, which never flush here.
#[inline]
fn control() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut found = 0_u32;
        // SAFETY: the instruction writes the four bytes of `found`.
        unsafe {
            std::arch::asm!("stmxcsr [{to}]", to = in(reg) &raw mut found, options(nostack, preserves_flags));
        }
        u64::from(found)
    }
    #[cfg(target_arch = "aarch64")]
    {
        let found: u64;
        // SAFETY: the instruction only reads a register that every program may read.
        unsafe {
            std::arch::asm!("mrs {to}, fpcr", to = out(reg) found, options(nostack, preserves_flags));
        }
        found
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    0
}

/// Sets the control register to a value that [`control`] returned, with or without the bits of [`FLUSHING`].
#[inline]
fn set_control(value: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        #[allow(clippy::cast_possible_truncation, reason = "MXCSR has 32 bits")]
        let value = value as u32;
        // SAFETY: the instruction reads the four bytes of `value`, which sets no bit that the processor reserves: all
        // come from MXCSR itself, or flush denormals, which every x86-64 processor with SSE2 can. The compiler may
        // assume that float arithmetic rounds as IEEE 754 says; where this guard lives, only code runs whose operands
        // come from memory, which no compiler computes ahead of this block (it may write memory).
        unsafe {
            std::arch::asm!("ldmxcsr [{from}]", from = in(reg) &raw const value, options(nostack, preserves_flags));
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the value is the register's own, with or without the bit FZ; for the compiler, see above.
    unsafe {
        std::arch::asm!("msr fpcr, {from}", from = in(reg) value, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = value;
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::hint::black_box;

    use super::{FLUSHING, FlushDenormals, control};

    fn doubled(number: f32) -> f32 {
        black_box(number) * black_box(2.0)
    }

    #[test]
    fn denormal_numbers_are_zeros_while_the_guard_lives_and_only_then() {
        // The register also notes which exceptions happened.
        let state = || control() & FLUSHING;
        let before = state();
        let (denormal, sum) = (f32::from_bits(1 << 20), f32::from_bits(1 << 21));
        assert_eq!(doubled(denormal).to_bits(), sum.to_bits());
        {
            let _flushes = FlushDenormals::new();
            {
                let _nested = FlushDenormals::new();
                assert_eq!(doubled(denormal).to_bits(), 0);
            }
            // The inner guard restores the state in which it began, not the usual one.
            assert_eq!(doubled(-denormal).to_bits(), (-0.0_f32).to_bits());
            let copied = *black_box(&denormal);
            assert_eq!(copied.to_bits(), 1 << 20);
        }
        assert_eq!(doubled(denormal).to_bits(), sum.to_bits());
        assert_eq!(state(), before);
    }

    #[test]
    fn a_panic_restores_the_state() {
        let caught = std::panic::catch_unwind(|| {
            let _flushes = FlushDenormals::new();
            panic!("a run fails");
        });
        assert!(caught.is_err());
        assert_ne!(doubled(f32::from_bits(1 << 20)).to_bits(), 0);
    }
}
