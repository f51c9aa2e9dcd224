//! The Python module `service._native.tables`: reads and searches of tables, key indexes and the guard of mapped files.
//!
//! service/tables/table.py, service/tables/vocabulary.py, service/tables/guarded_files.py and service/artifact/hashes.py
//! call its functions. Arrays are C-contiguous, at any alignment.
#![allow(
    clippy::too_many_arguments,
    clippy::needless_pass_by_value,
    reason = "a table is handed over as five arguments"
)]
#![allow(clippy::doc_markdown, reason = "sources are named by the paths of their files")]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "numpy's numbers are int64; words have 64 bits, as `tables` checks"
)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::tables::key_index::{self, IndexError, Integers, Lines, RowMapping, UnknownKeys, find};
use crate::tables::map;
use crate::tables::memory::Memory;
use crate::tables::neighbors::{Metric, Search};
use crate::tables::table::{Dtype, Ints, OnBadId, OutputRows, Policy, Table};

// Numbers that the functions of key indexes take and return; they equal those of service/tables/vocabulary.py.
const OK: i64 = -1;
const UNKNOWN_KEY: i64 = 1 << 32;
const NO_EMPTY_KEY: i64 = -1;

/// Adds the module `tables` to the native module.
///
/// # Errors
/// Python is out of memory.
pub fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "tables")?;
    module.add_function(wrap_pyfunction!(gather, &module)?)?;
    module.add_function(wrap_pyfunction!(neighbors, &module)?)?;
    module.add_function(wrap_pyfunction!(count_lines, &module)?)?;
    module.add_function(wrap_pyfunction!(find_lines, &module)?)?;
    module.add_function(wrap_pyfunction!(line_length, &module)?)?;
    module.add_function(wrap_pyfunction!(parse_integers, &module)?)?;
    module.add_function(wrap_pyfunction!(index_strings, &module)?)?;
    module.add_function(wrap_pyfunction!(index_integers, &module)?)?;
    module.add_function(wrap_pyfunction!(find_strings, &module)?)?;
    module.add_function(wrap_pyfunction!(find_integers, &module)?)?;
    module.add_function(wrap_pyfunction!(checksum, &module)?)?;
    module.add_class::<Mark>()?;
    module.add_class::<Map>()?;
    parent.add_submodule(&module)
}

/// The buffer of a numpy array whose elements take `SIZE` bytes each.
struct Array<const SIZE: usize>(PyUntypedBuffer);

impl<const SIZE: usize> FromPyObject<'_, '_> for Array<SIZE> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if buffer.item_size() == SIZE && buffer.is_c_contiguous() {
            Ok(Array(buffer))
        } else {
            Err(PyValueError::new_err(format!("expected a C-contiguous array of {SIZE} bytes a number")))
        }
    }
}

impl<const SIZE: usize> Array<SIZE> {
    fn bytes(&self) -> &[u8] {
        bytes_of(&self.0)
    }

    fn bytes_to_write(&mut self) -> PyResult<&mut [MaybeUninit<u8>]> {
        if self.0.readonly() {
            return Err(PyValueError::new_err("expected an array that can be written to"));
        }
        match self.0.len_bytes() {
            0 => Ok(&mut []),
            // SAFETY: `self.0` keeps the numpy array's contiguous buffer alive, and the caller in Python neither reads
            // nor writes the buffer until its call of the native function returns.
            length => Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), length) }),
        }
    }

    /// Returns the elements of the numpy array as a slice; an error if the array is not aligned for `T`.
    fn numbers<T: Copy>(&self) -> PyResult<&[T]> {
        // SAFETY: T is i64, i32 or f32, so any bytes that `align_to` reinterprets are valid numbers.
        match unsafe { self.bytes().align_to() } {
            ([], numbers, []) => Ok(numbers),
            _ => Err(PyValueError::new_err("expected an aligned array")),
        }
    }

    fn numbers_to_write<T: Copy>(&mut self) -> PyResult<&mut [T]> {
        // SAFETY: to Rust, memory that numpy allocated counts as initialised; T is i64, i32 or f32, so any bytes that
        // `align_to_mut` reinterprets are valid numbers.
        match unsafe { self.bytes_to_write()?.align_to_mut() } {
            ([], numbers, []) => Ok(numbers),
            _ => Err(PyValueError::new_err("expected an aligned array")),
        }
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }
}

fn nth<T: Copy>(all: &[T], number: usize, what: &str) -> PyResult<T> {
    let known = all.get(number).copied();
    known.ok_or_else(|| PyValueError::new_err(format!("there is no {what} {number}")))
}

/// The buffers of Python objects that a [`Memory`] owns. Dropping a reference to this object needs no interpreter lock,
/// which the thread of a request must not wait for; Python releases the buffers later.
#[pyclass(frozen, module = "service._native")]
struct Buffers(Vec<PyUntypedBuffer>);

struct Held {
    index: usize,
    buffers: Arc<Py<Buffers>>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.buffers.get().0[self.index])
    }
}

/// Takes the buffers of Python objects, such as numpy arrays.
///
/// # Errors
/// An object has no contiguous buffer.
pub fn memories(py: Python<'_>, objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Memory>> {
    let buffers = objects.iter().map(|object| contiguous(object)).collect::<PyResult<Vec<_>>>()?;
    let count = buffers.len();
    let buffers = Arc::new(Py::new(py, Buffers(buffers))?);
    Ok((0..count).map(|index| Memory::of(Held { index, buffers: Arc::clone(&buffers) })).collect())
}

fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.is_c_contiguous() { Ok(buffer) } else { Err(PyValueError::new_err("expected contiguous buffers")) }
}

fn bytes_of(buffer: &PyUntypedBuffer) -> &[u8] {
    match buffer.len_bytes() {
        0 => &[],
        // SAFETY: `buffer` keeps the object's contiguous buffer at its address, and the caller in Python does not write
        // to the buffer while this slice is used.
        length => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), length) },
    }
}

impl<const SIZE: usize> AsRef<[u8]> for Array<SIZE> {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

fn table(dtype: usize, rows: Array<1>, scales: Array<1>, size: usize, dim: usize) -> PyResult<Table> {
    let dtypes = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int8, Dtype::Int4];
    let dtype = nth(&dtypes, dtype, "dtype")?;
    let table = Table::new(dtype, size, dim, &Memory::of(rows), &Memory::of(scales));
    table.map_err(|_| PyValueError::new_err("the arrays do not hold the rows of the table, or their scales"))
}

fn check_splits(splits: Ints<'_>, rows: usize, length: usize) -> PyResult<()> {
    let mut before = 0;
    let never_decrease = splits.iter().all(|split| split >= std::mem::replace(&mut before, split));
    if splits.len() == rows + 1 && never_decrease && before <= length as i64 {
        Ok(())
    } else {
        Err(PyValueError::new_err("row splits do not fit the rows, or what they split"))
    }
}

/// Returns the size of an array's first axis, and the product of the sizes of its other axes.
fn rows_and_columns(shape: &[usize]) -> (usize, usize) {
    (shape.first().copied().unwrap_or(0), shape.iter().skip(1).product())
}

/// Writes the table's row of each id to a row of `out`, as float32.
#[pyfunction]
fn gather(
    py: Python<'_>,
    dtype: usize,
    rows: Array<1>,
    scales: Array<1>,
    vocabulary_size: usize,
    dim: usize,
    ids: Array<8>,
    mut out: Array<4>,
) -> PyResult<()> {
    let table = table(dtype, rows, scales, vocabulary_size, dim)?;
    let (rows, columns) = rows_and_columns(out.shape());
    let ids = Ints::new(ids.bytes());
    if ids.len() < rows || columns < dim {
        return Err(PyValueError::new_err("there are fewer ids than rows, or fewer columns than numbers in a row"));
    }
    let out = OutputRows::new(out.bytes_to_write()?, 0, columns * 4, dim * 4, rows);
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    let found = py.detach(|| table.gather(ids, policy, out));
    found.map(drop).map_err(|_| PyValueError::new_err("an id is not in the table"))
}

/// Writes the ids and scores of the rows nearest to query `q` to row `q` of `ids` and `scores`; fills the rest of the
/// row with -1 and NaN. Returns false if the search took longer than `seconds`.
#[pyfunction]
fn neighbors(
    py: Python<'_>,
    dtype: usize,
    rows: Array<1>,
    scales: Array<1>,
    vocabulary_size: usize,
    dim: usize,
    queries: Array<4>,
    own: Array<8>,
    metric: usize,
    listed: Option<Array<8>>,
    denied: Array<8>,
    threads: usize,
    seconds: f64,
    mut ids: Array<8>,
    mut scores: Array<4>,
) -> PyResult<bool> {
    let table = table(dtype, rows, scales, vocabulary_size, dim)?;
    let (num_queries, k) = rows_and_columns(ids.shape());
    let listed = listed.as_ref().map(Array::numbers::<i64>).transpose()?;
    let search = Search {
        queries: queries.numbers()?,
        own: own.numbers()?,
        k,
        metric: nth(&[Metric::Dot, Metric::Cosine, Metric::L2], metric, "metric")?,
        listed,
        denied: denied.numbers()?,
        until: Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time)),
    };
    let shapes_fit = rows_and_columns(scores.shape()) == (num_queries, k)
        && search.own.len() == num_queries
        && search.queries.len() == num_queries * dim;
    let has_row = |&id: &i64| (id as u64) < vocabulary_size as u64;
    if !shapes_fit || !listed.is_none_or(|ids| ids.iter().all(has_row)) {
        return Err(PyValueError::new_err("the arrays' shapes do not fit, or a listed id is not in the table"));
    }
    let (ids, scores) = (ids.numbers_to_write::<i64>()?, scores.numbers_to_write::<f32>()?);
    let Some(found) = py.detach(|| table.neighbors(&search, threads)) else {
        return Ok(false);
    };
    ids.fill(-1);
    scores.fill(f32::NAN);
    for (query, nearest) in found.into_iter().enumerate() {
        for (place, neighbor) in (query * k..).zip(nearest) {
            (ids[place], scores[place]) = (neighbor.id, neighbor.score);
        }
    }
    Ok(true)
}

#[pyfunction]
fn count_lines(py: Python<'_>, data: Array<1>) -> usize {
    let data = data.bytes();
    py.detach(|| key_index::count_lines(data))
}

#[pyfunction]
fn find_lines(py: Python<'_>, data: Array<1>, mut starts: Array<8>) -> PyResult<()> {
    let (data, starts) = (data.bytes(), starts.numbers_to_write()?);
    if py.detach(|| key_index::find_lines(data, starts)) {
        Ok(())
    } else {
        Err(PyValueError::new_err("expected one start more than there are lines"))
    }
}

#[pyfunction]
fn line_length(data: Array<1>, starts: Array<8>, line: usize) -> PyResult<usize> {
    let lines = lines(&data, &starts)?;
    if line < lines.len() { Ok(lines.get(line).len()) } else { Err(PyValueError::new_err("there is no such line")) }
}

#[pyfunction]
fn parse_integers(py: Python<'_>, data: Array<1>, starts: Array<8>, mut keys: Array<8>) -> PyResult<i64> {
    let (lines, keys) = (lines(&data, &starts)?, keys.numbers_to_write()?);
    if lines.len() < keys.len() {
        return Err(PyValueError::new_err("there are fewer lines than keys"));
    }
    let parsed = py.detach(|| key_index::parse_integers(lines, keys));
    Ok(parsed.map_or_else(|line| line as i64, |()| OK))
}

#[pyfunction]
fn index_strings(py: Python<'_>, data: Array<1>, starts: Array<8>, mut slots: Array<4>) -> PyResult<i64> {
    let (lines, slots) = (lines(&data, &starts)?, slots.numbers_to_write()?);
    indexed(py.detach(|| key_index::index_strings(lines, slots)))
}

#[pyfunction]
fn index_integers(py: Python<'_>, keys: Array<8>, mut slots: Array<4>) -> PyResult<i64> {
    let (keys, slots) = (keys.numbers()?, slots.numbers_to_write()?);
    indexed(py.detach(|| key_index::index_integers(keys, slots)))
}

fn lines<'a>(data: &'a Array<1>, starts: &'a Array<8>) -> PyResult<Lines<'a>> {
    Ok(Lines { data: data.bytes(), starts: starts.numbers()? })
}

fn indexed(result: Result<(), IndexError>) -> PyResult<i64> {
    match result {
        Ok(()) => Ok(OK),
        Err(IndexError::Twice(number)) => Ok(number as i64),
        Err(IndexError::Slots) => Err(PyValueError::new_err("expected a power of two of slots, more than keys")),
        Err(IndexError::Starts) => Err(PyValueError::new_err("a line does not lie within the file")),
    }
}

#[pyfunction]
fn find_strings(
    py: Python<'_>,
    data: Array<1>,
    starts: Array<8>,
    slots: Array<4>,
    keys: Array<1>,
    splits: Array<8>,
    empty_id: i64,
    first_id: i64,
    first_bucket: i64,
    oov_id: i64,
    num_oov_buckets: u64,
    mut ids: Array<8>,
) -> PyResult<i64> {
    let (lines, slots, ids) = (lines(&data, &starts)?, slots.numbers()?, ids.numbers_to_write()?);
    let (keys, splits) = (keys.bytes(), Ints::new(splits.bytes()));
    check_splits(splits, ids.len(), keys.len())?;
    let rows = RowMapping {
        empty_id: (empty_id != NO_EMPTY_KEY).then_some(empty_id),
        ..rows_of(first_id, first_bucket, oov_id, num_oov_buckets)
    };
    Ok(py.detach(|| {
        let ends = (0..ids.len()).map(|i| &keys[splits.get(i) as usize..splits.get(i + 1) as usize]);
        written(find(&lines, slots, &rows, ends), ids)
    }))
}

#[pyfunction]
fn find_integers(
    py: Python<'_>,
    keys: Array<8>,
    slots: Array<4>,
    sent: Array<8>,
    first_id: i64,
    first_bucket: i64,
    oov_id: i64,
    num_oov_buckets: u64,
    mut ids: Array<8>,
) -> PyResult<i64> {
    let (keys, slots, ids) = (keys.numbers()?, slots.numbers()?, ids.numbers_to_write()?);
    let sent = Ints::new(sent.bytes());
    if sent.len() != ids.len() {
        return Err(PyValueError::new_err("expected one id for each key"));
    }
    let rows = rows_of(first_id, first_bucket, oov_id, num_oov_buckets);
    Ok(py.detach(|| {
        let each = (0..ids.len()).map(|i| sent.get(i));
        written(find(&Integers(keys), slots, &rows, each), ids)
    }))
}

fn rows_of(first_id: i64, first_bucket: i64, oov_id: i64, num_oov_buckets: u64) -> RowMapping {
    RowMapping {
        first_id,
        first_bucket,
        num_oov_buckets,
        oov_id,
        refuses_unknown_keys: false,
        empty_id: None,
        is_hashed: false,
    }
}

fn written((rows, unknown): (Vec<i64>, UnknownKeys), ids: &mut [i64]) -> i64 {
    ids.copy_from_slice(&rows);
    match unknown.count {
        0 => OK,
        count => count as i64 * UNKNOWN_KEY + unknown.first as i64,
    }
}

/// Returns the CRC-32C of earlier bytes followed by `data`; `before` is the CRC-32C of the earlier bytes, 0 if there are
/// none.
#[pyfunction]
#[pyo3(name = "crc32c")]
fn checksum(py: Python<'_>, data: Array<1>, before: u32) -> u32 {
    let data = data.bytes();
    py.detach(|| crc32c::crc32c_append(before, data))
}

/// The mark of a version's files: set once the bytes of a map may differ from those of the opened file.
#[pyclass(frozen, module = "service._native")]
pub struct Mark(pub Arc<map::Mark>);

#[pymethods]
impl Mark {
    #[new]
    fn new() -> Self {
        Mark(Arc::default())
    }

    /// Sets the mark, for good.
    fn set(&self) {
        self.0.set();
    }

    #[getter]
    fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

/// A map of a whole file, which is a buffer: if the file is cut short, reads give zeros, and the mark is set. The file is
/// unmapped with the last array on its bytes.
#[pyclass(frozen, module = "service._native")]
pub struct Map(pub Arc<map::Map>);

#[pymethods]
impl Map {
    /// Maps the file of a descriptor, which the caller may close then; a private map may be written to, without a change
    /// of the file.
    #[new]
    #[pyo3(signature = (descriptor, mark, is_private = false))]
    fn new(descriptor: i32, mark: &Bound<'_, Mark>, is_private: bool) -> PyResult<Self> {
        // SAFETY: the descriptor is only copied; of one that is not open, the system makes no copy.
        let copied = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if copied < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: `fcntl` has just created this file descriptor, so no other code owns it.
        let file = unsafe { File::from_raw_fd(copied) };
        Ok(Map(Arc::new(map::Map::open(file, is_private, Arc::clone(&mark.get().0))?)))
    }

    /// Says whether the map is guarded; if not, because too many other maps are, a read of a file that was cut short ends
    /// the process.
    #[getter]
    fn is_guarded(&self) -> bool {
        self.0.is_guarded()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let map = &slf.get().0;
        let length = ffi::Py_ssize_t::try_from(map.len())?;
        let is_readonly = i32::from(!map.is_private());
        // SAFETY: Python passes a valid `Py_buffer` view; the filled view keeps a reference to this object, so the map
        // stays.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), map.as_ptr().cast(), length, is_readonly, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
