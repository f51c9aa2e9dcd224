//! Bytes that stay at one address as long as anything refers to them: the rows of a table, the arrays of a vocabulary.

use std::mem::MaybeUninit;

use bytes::Bytes;

/// Read-only bytes with an owner that keeps them in memory; a clone refers to the same bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Memory(Bytes);

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Memory({} bytes)", self.0.len())
    }
}

impl Memory {
    /// Takes the bytes of an owner, which is dropped with the last clone.
    #[must_use]
    pub fn of(owner: impl AsRef<[u8]> + Send + 'static) -> Self {
        Memory(Bytes::from_owner(owner))
    }

    #[must_use]
    pub fn of_numbers<N: Number>(numbers: Vec<N>) -> Self {
        Memory::of(Numbers(numbers))
    }

    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first bytes; None if there are fewer.
    pub(super) fn first(&self, num_bytes: usize) -> Option<Self> {
        (num_bytes <= self.0.len()).then(|| Memory(self.0.slice(..num_bytes)))
    }

    /// Returns the numbers that the bytes are; None if they are not aligned, or end in a part of a number.
    #[must_use]
    #[inline]
    pub fn numbers<N: Number>(&self) -> Option<&[N]> {
        // SAFETY: a `Number` may have any bits.
        match unsafe { self.0.align_to() } {
            ([], numbers, []) => Some(numbers),
            _ => None,
        }
    }
}

/// A type of numbers without unused bits or bytes, all of whose bit patterns are numbers.
pub trait Number: Copy + Send + Sync + sealed::Sealed + 'static {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
}

impl<N: Copy + Send + Sync + sealed::Sealed + 'static> Number for N {}

struct Numbers<N>(Vec<N>);

impl<N: Number> AsRef<[u8]> for Numbers<N> {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

/// Writes bytes to memory of the same length.
///
/// # Panics
/// The lengths differ.
pub fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: the two have the same length and do not overlap, and a MaybeUninit<u8> has the layout of a u8.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), from.len()) };
}

pub(super) fn bytes_of<N: Number>(numbers: &[N]) -> &[u8] {
    // SAFETY: a `Number` has no byte that is not initialised, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
