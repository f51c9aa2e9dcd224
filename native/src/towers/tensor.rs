//! TensorFlow tensors: a tensor of numbers takes over an aligned buffer without a copy; a tensor of strings copies
//! them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::c_api::{Api, RawTensor, TString};
use crate::plan::has_room;

/// `TF_STRING`.
const STRING: u32 = 7;
/// Alignment of a tensor's memory in bytes (`EIGEN_MAX_ALIGN_BYTES`). TensorFlow copies memory that is aligned less.
const ALIGNMENT: usize = 64;

/// Uninitialised memory for one tensor, with the alignment that TensorFlow's kernels need.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an aligned buffer may move to another thread, because it owns plain bytes.
unsafe impl Send for AlignedBuffer {}
// SAFETY: threads may share the buffer or tensor, because no code writes to its bytes while several threads share it.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates `len` bytes, aligned to `ALIGNMENT`.
    ///
    /// # Panics
    /// `len` is more than half of the address space.
    #[must_use]
    pub fn new(len: usize) -> Self {
        AlignedBuffer::allocate(len).unwrap_or_else(|| handle_alloc_error(layout_of(len)))
    }

    /// As `new`; None if there is no room for the buffer.
    ///
    /// # Panics
    /// As `new`.
    #[must_use]
    pub fn try_new(len: usize) -> Option<Self> {
        if has_room(len) { AlignedBuffer::allocate(len) } else { None }
    }

    fn allocate(len: usize) -> Option<Self> {
        if len == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(ALIGNMENT)).unwrap_or(NonNull::dangling());
            return Some(AlignedBuffer { start, len });
        }
        // SAFETY: `alloc` forbids a layout of size 0, and `len` is not 0 here.
        Some(AlignedBuffer { start: NonNull::new(unsafe { alloc(layout_of(len)) })?, len })
    }

    /// Allocates an aligned buffer with a copy of these bytes; None if [`AlignedBuffer::try_new`] gets no memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let buffer = AlignedBuffer::try_new(bytes.len())?;
        // SAFETY: the new buffer has as many bytes, and does not overlap them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start.as_ptr(), bytes.len()) };
        Some(buffer)
    }

    /// Returns the buffer's memory, all of which must be written before the buffer becomes a tensor.
    #[must_use]
    pub fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the buffer owns the `len` bytes of the returned slice, and its type MaybeUninit<u8> allows any
        // content.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        free(self.start.as_ptr(), self.len);
    }
}

fn layout_of(len: usize) -> Layout {
    Layout::from_size_align(len, ALIGNMENT).expect("a tensor is smaller than the address space")
}

fn free(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: AlignedBuffer::new allocated the `len` bytes at `start` with this layout. They are freed once: when the
        // buffer is dropped, or by the TensorFlow tensor that took over the buffer.
        unsafe { dealloc(start, layout_of(len)) };
    }
}

unsafe extern "C" fn free_buffer(data: *mut c_void, len: usize, _: *mut c_void) {
    free(data.cast(), len);
}

unsafe extern "C" fn free_strings(data: *mut c_void, len: usize, api: *mut c_void) {
    // SAFETY: `api` is the address of a 'static Api, which Tensor::of_strings passed to TensorFlow as the deallocator's
    // argument.
    let api = unsafe { &*api.cast::<Api>() };
    for index in 0..len / size_of::<TString>() {
        // SAFETY: Tensor::of_strings has initialised every TString of the buffer, and each is freed once here.
        unsafe { (api.string_dealloc)(data.cast::<TString>().add(index)) };
    }
    free(data.cast(), len);
}

/// A TensorFlow tensor. It may outlive the run that fetched it, because TensorFlow counts references. Concurrency: any
/// thread.
pub struct Tensor {
    api: &'static Api,
    raw: NonNull<RawTensor>,
}

// SAFETY: a tensor may move to another thread, because TensorFlow counts its references atomically, and nothing writes
// to its memory.
unsafe impl Send for Tensor {}
// SAFETY: threads may share the buffer or tensor, because no code writes to its bytes while several threads share it.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Makes a tensor of a buffer whose bytes are all written; None if its length does not fit dtype and shape, or the
    /// dtype has no fixed size.
    ///
    /// `dtype` is a number of `types.proto`.
    #[must_use]
    pub fn new(api: &'static Api, dtype: u32, dims: &[i64], buffer: AlignedBuffer) -> Option<Self> {
        if num_elements(dims)?.checked_mul(number_size(dtype)?)? != buffer.len {
            return None;
        }
        let buffer = std::mem::ManuallyDrop::new(buffer);
        let (start, len) = (buffer.start.as_ptr(), buffer.len);
        from_memory(api, dtype, dims, start, len, free_buffer)
    }

    /// Makes a string tensor with copies of `strings`; None if the shape does not have as many elements.
    #[must_use]
    pub fn of_strings<'a>(
        api: &'static Api,
        dims: &[i64],
        strings: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Option<Self> {
        let count = num_elements(dims)?;
        if strings.len() != count {
            return None;
        }
        let buffer = std::mem::ManuallyDrop::new(AlignedBuffer::new(count.checked_mul(size_of::<TString>())?));
        let (start, len) = (buffer.start.as_ptr(), buffer.len);
        #[allow(clippy::cast_ptr_alignment, reason = "a block is aligned to 64 bytes")]
        let first = start.cast::<TString>();
        let mut written = 0;
        for string in strings.take(count) {
            // SAFETY: the buffer is aligned for TString and has space for `count` of them, and no more are written.
            unsafe {
                let place = first.add(written);
                (api.string_init)(place);
                (api.string_copy)(place, string.as_ptr().cast(), string.len());
            }
            written += 1;
        }
        for index in written..count {
            // SAFETY: the index is below `count`, so the TString that is initialised lies in the buffer. Strings that
            // the iterator does not give stay empty.
            unsafe { (api.string_init)(first.add(index)) };
        }
        from_memory(api, STRING, dims, start, len, free_strings)
    }

    /// Takes ownership of a tensor that TensorFlow returned; None for a null pointer.
    ///
    /// # Safety
    /// No other code deletes the tensor.
    pub(super) unsafe fn from_raw(api: &'static Api, raw: *mut RawTensor) -> Option<Self> {
        Some(Tensor { api, raw: NonNull::new(raw)? })
    }

    pub(super) fn raw(&self) -> *mut RawTensor {
        self.raw.as_ptr()
    }

    /// Returns the dtype as a number of `types.proto`.
    #[must_use]
    pub fn dtype(&self) -> u32 {
        // SAFETY: only drop() deletes the `TF_Tensor`, so the tensor still exists here.
        unsafe { (self.api.tensor_type)(self.raw()) }.unsigned_abs()
    }

    /// Returns the shape of the tensor: the size of each dimension.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        // SAFETY: only drop() deletes the `TF_Tensor`, and each index is below the tensor's number of dimensions.
        let sizes = unsafe { (0..(self.api.num_dims)(self.raw())).map(|i| (self.api.dim)(self.raw(), i)) };
        sizes.map(|size| usize::try_from(size).unwrap_or(0)).collect()
    }

    /// Returns the numbers of the tensor, little-endian and end to end; none if it has strings.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.dtype() == STRING {
            return &[];
        }
        // SAFETY: TensorFlow keeps `len` bytes at the address `start` until the tensor is deleted, and no code writes
        // to them.
        unsafe {
            let start = (self.api.tensor_data)(self.raw()).cast::<u8>();
            let len = (self.api.tensor_byte_size)(self.raw());
            if start.is_null() || len == 0 { &[] } else { std::slice::from_raw_parts(start, len) }
        }
    }

    /// Returns the strings of the tensor, in row-major order; none if it has numbers.
    #[must_use]
    pub fn strings(&self) -> Vec<&[u8]> {
        if self.dtype() != STRING {
            return Vec::new();
        }
        let count: usize = self.dims().iter().product();
        // SAFETY: the data of a string tensor is an array with one TString for each element, and their bytes live as
        // long as the tensor.
        unsafe {
            let first = (self.api.tensor_data)(self.raw()).cast::<TString>();
            (0..count)
                .map(|index| {
                    let string = first.add(index);
                    let (start, len) = ((self.api.string_data)(string), (self.api.string_size)(string));
                    if len == 0 { &[] } else { std::slice::from_raw_parts(start.cast::<u8>(), len) }
                })
                .collect()
        }
    }
}

/// Returns the number of elements of a shape; None if TensorFlow would abort the process for the shape.
///
/// Source: `tensorflow/core/framework/tensor_shape.cc`, `MaxDimensions` and the checks in `AddDim` (2.21).
pub(super) fn num_elements(dims: &[i64]) -> Option<usize> {
    let mut bound: i64 = 1;
    for &size in dims {
        // For the check of overflow, a size of 0 counts as 1, so that the limit does not depend on the order of the
        // sizes.
        bound = bound.checked_mul(size.max(1)).filter(|_| size >= 0)?;
    }
    (dims.len() <= 254).then(|| dims.iter().product::<i64>().unsigned_abs()).and_then(|n| usize::try_from(n).ok())
}

/// Returns the size of a number of this dtype in bytes; None if the dtype is no plain number.
///
/// Source: `tensorflow/core/framework/{types.proto,types.cc}` (2.21).
fn number_size(dtype: u32) -> Option<usize> {
    Some(match dtype {
        4 | 6 | 10 | 11 | 12 | 24 | 25 => 1,
        5 | 14..=17 | 19 => 2,
        1 | 3 | 13 | 22 => 4,
        2 | 8 | 9 | 23 => 8,
        18 => 16,
        _ => return None,
    })
}

fn from_memory(
    api: &'static Api,
    dtype: u32,
    dims: &[i64],
    start: *mut u8,
    len: usize,
    deallocator: unsafe extern "C" fn(*mut c_void, usize, *mut c_void),
) -> Option<Tensor> {
    let argument = std::ptr::from_ref(api).cast_mut().cast();
    let made = match (c_int::try_from(dtype), c_int::try_from(dims.len())) {
        // SAFETY: TF_NewTensor takes over the `len` bytes at `start`, and calls the deallocator once to free them.
        (Ok(dtype), Ok(rank)) => unsafe {
            (api.new_tensor)(dtype, dims.as_ptr(), rank, start.cast(), len, deallocator, argument)
        },
        _ => std::ptr::null_mut(),
    };
    // SAFETY: TensorFlow has just created the `TF_Tensor`, so no other code owns or deletes it.
    unsafe { Tensor::from_raw(api, made) }
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: only this drop() deletes the `TF_Tensor`, and it runs once.
        unsafe { (self.api.delete_tensor)(self.raw()) };
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Tensor of dtype {} and shape {:?}", self.dtype(), self.dims())
    }
}
