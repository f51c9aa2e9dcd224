//! Makes tensors of TensorFlow; an aligned block becomes a tensor without a copy.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::c_api::{Api, RawTensor, TString};

/// `TF_STRING`.
const STRING: u32 = 7;
/// Bytes to which a tensor's memory is aligned (`EIGEN_MAX_ALIGN_BYTES`). TensorFlow copies memory with less
/// alignment.
const ALIGNMENT: usize = 64;

/// Memory for one tensor, aligned as TensorFlow's kernels want it. Its bytes are not initialised.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a block owns plain bytes.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates `len` bytes.
    ///
    /// # Panics
    /// `len` is more than half of what an address can reach.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let layout = layout_of(len);
        if len == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(ALIGNMENT)).unwrap_or(NonNull::dangling());
            return Block { start, len };
        }
        // SAFETY: the size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Block { start, len }
    }

    /// Allocates a copy of these bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Block::joined(&[bytes])
    }

    /// Allocates a block and copies these parts into it, one after another.
    #[must_use]
    pub fn joined(parts: &[&[u8]]) -> Self {
        let block = Block::new(parts.iter().map(|part| part.len()).sum());
        let mut end = 0;
        for part in parts {
            // SAFETY: the block was allocated for the sum of the parts' lengths, and overlaps no part.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), block.start.as_ptr().add(end), part.len()) };
            end += part.len();
        }
        block
    }

    /// Returns the block's memory. Write all of the memory before you make the block a tensor.
    #[must_use]
    pub fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the block owns len bytes at start, and MaybeUninit asks nothing of their values.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        free(self.start.as_ptr(), self.len);
    }
}

fn layout_of(len: usize) -> Layout {
    Layout::from_size_align(len, ALIGNMENT).expect("a tensor is smaller than the address space")
}

fn free(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: Block::new allocated len bytes there with this layout, and their one owner is done with them.
        unsafe { dealloc(start, layout_of(len)) };
    }
}

unsafe extern "C" fn free_block(data: *mut c_void, len: usize, _: *mut c_void) {
    free(data.cast(), len);
}

unsafe extern "C" fn free_strings(data: *mut c_void, len: usize, api: *mut c_void) {
    // SAFETY: Tensor::of_strings passed the address of a 'static Api.
    let api = unsafe { &*api.cast::<Api>() };
    for number in 0..len / size_of::<TString>() {
        // SAFETY: Tensor::of_strings initialised every string of the block.
        unsafe { (api.string_dealloc)(data.cast::<TString>().add(number)) };
    }
    free(data.cast(), len);
}

/// One tensor. TensorFlow counts its readers, so it may outlive the run that made it. Concurrency: any thread.
pub struct Tensor {
    api: &'static Api,
    raw: NonNull<RawTensor>,
}

// SAFETY: TensorFlow's buffers are counted atomically, and nobody writes them once they are in a tensor.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Makes a tensor of a block that was written whole; None where its length does not fit dtype and shape, or the dtype
    /// has no fixed size.
    ///
    /// dtype: a number of `types.proto`.
    #[must_use]
    pub fn new(api: &'static Api, dtype: u32, dims: &[i64], block: Block) -> Option<Self> {
        if num_elements(dims)?.checked_mul(number_size(dtype)?)? != block.len {
            return None;
        }
        let block = std::mem::ManuallyDrop::new(block);
        let (start, len) = (block.start.as_ptr(), block.len);
        make(api, dtype, dims, start, len, free_block)
    }

    /// Makes a tensor of copies of strings; None where there are not as many as the shape says.
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
        let block = std::mem::ManuallyDrop::new(Block::new(count.checked_mul(size_of::<TString>())?));
        let (start, len) = (block.start.as_ptr(), block.len);
        #[allow(clippy::cast_ptr_alignment, reason = "a block is aligned to 64 bytes")]
        let first = start.cast::<TString>();
        let mut written = 0;
        for string in strings.take(count) {
            // SAFETY: the block has room for count strings and is aligned for them.
            unsafe {
                let place = first.add(written);
                (api.string_init)(place);
                (api.string_copy)(place, string.as_ptr().cast(), string.len());
            }
            written += 1;
        }
        for number in written..count {
            // SAFETY: as above; an iterator that ends early leaves empty strings.
            unsafe { (api.string_init)(first.add(number)) };
        }
        make(api, STRING, dims, start, len, free_strings)
    }

    /// Takes a tensor that a run made.
    ///
    /// # Safety
    /// Nobody else deletes it.
    pub(super) unsafe fn own(api: &'static Api, raw: *mut RawTensor) -> Option<Self> {
        Some(Tensor { api, raw: NonNull::new(raw)? })
    }

    pub(super) fn raw(&self) -> *mut RawTensor {
        self.raw.as_ptr()
    }

    /// Its dtype, a number of `types.proto`.
    #[must_use]
    pub fn dtype(&self) -> u32 {
        // SAFETY: the tensor lives.
        unsafe { (self.api.tensor_type)(self.raw()) }.unsigned_abs()
    }

    /// Its sizes.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        // SAFETY: the tensor lives, and the dimensions asked for are those that it has.
        let sizes = unsafe { (0..(self.api.num_dims)(self.raw())).map(|i| (self.api.dim)(self.raw(), i)) };
        sizes.map(|size| usize::try_from(size).unwrap_or(0)).collect()
    }

    /// Its numbers, little-endian and end to end; empty of strings.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.dtype() == STRING {
            return &[];
        }
        // SAFETY: TensorFlow keeps so many bytes there while the tensor lives, and nobody writes them.
        unsafe {
            let start = (self.api.tensor_data)(self.raw()).cast::<u8>();
            let len = (self.api.tensor_byte_size)(self.raw());
            if start.is_null() || len == 0 { &[] } else { std::slice::from_raw_parts(start, len) }
        }
    }

    /// Its strings, in row-major order; none of a tensor of numbers.
    #[must_use]
    pub fn strings(&self) -> Vec<&[u8]> {
        if self.dtype() != STRING {
            return Vec::new();
        }
        let count: usize = self.dims().iter().product();
        // SAFETY: the data of a string tensor is one TString for each element; their bytes live as long as the tensor.
        unsafe {
            let first = (self.api.tensor_data)(self.raw()).cast::<TString>();
            (0..count)
                .map(|number| {
                    let string = first.add(number);
                    let (start, len) = ((self.api.string_data)(string), (self.api.string_size)(string));
                    if len == 0 { &[] } else { std::slice::from_raw_parts(start.cast::<u8>(), len) }
                })
                .collect()
        }
    }
}

/// Returns how many elements a shape has; None where TensorFlow would abort the process over it.
///
/// Source: `tensorflow/core/framework/tensor_shape.cc`, `MaxDimensions` and the checks in `AddDim` (2.21).
pub(super) fn num_elements(dims: &[i64]) -> Option<usize> {
    let mut bound: i64 = 1;
    for &size in dims {
        // As if no size was 0, so that the order of the sizes does not matter.
        bound = bound.checked_mul(size.max(1)).filter(|_| size >= 0)?;
    }
    (dims.len() <= 254).then(|| dims.iter().product::<i64>().unsigned_abs()).and_then(|n| usize::try_from(n).ok())
}

/// Returns the bytes of a number of this dtype; None of a dtype that is no plain number.
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

fn make(
    api: &'static Api,
    dtype: u32,
    dims: &[i64],
    start: *mut u8,
    len: usize,
    deallocator: unsafe extern "C" fn(*mut c_void, usize, *mut c_void),
) -> Option<Tensor> {
    let argument = std::ptr::from_ref(api).cast_mut().cast();
    let made = match (c_int::try_from(dtype), c_int::try_from(dims.len())) {
        // SAFETY: start has len bytes, which the deallocator frees once.
        (Ok(dtype), Ok(rank)) => unsafe {
            (api.new_tensor)(dtype, dims.as_ptr(), rank, start.cast(), len, deallocator, argument)
        },
        _ => std::ptr::null_mut(),
    };
    // SAFETY: the tensor is new.
    unsafe { Tensor::own(api, made) }
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: only this drop deletes the tensor, and it runs once.
        unsafe { (self.api.delete_tensor)(self.raw()) };
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Tensor of dtype {} and shape {:?}", self.dtype(), self.dims())
    }
}
