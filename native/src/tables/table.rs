//! Embedding tables in memory, and lookups in them.

use std::marker::PhantomData;

use super::combine::Combine;
use super::gather::Gather;
use super::processor::{Kernel, Processor};
use super::rows::Place;
use super::sequence::Sequence;

/// The dtype of a table's stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Four bytes for each number.
    Float32,
    /// IEEE half precision.
    Float16,
    /// The upper half of a float32.
    Bfloat16,
    /// Signed bytes; the float32 scale of a row multiplies its numbers.
    Int8,
    /// Two numbers in each byte, the even column in the low half, in two's complement; scaled as in `Int8`.
    Int4,
    /// Eight bytes for each number; no kernel reads this dtype.
    Float64,
}

/// The policy for an id outside `[0, V)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadId {
    /// Stops the lookup.
    Error,
    /// Ignores the id; a gather or a sequence has zeros in the id's place.
    Drop,
    /// Drops an id below 0; any other stops the lookup.
    DropNegative,
    /// Reads the default row.
    DefaultRow,
    /// Reads the row nearest to the id.
    Clamp,
    /// Counts an id from -V to -1 from the table's end; any other id stops the lookup.
    Wrap,
}

/// The way to combine the vectors of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combiner {
    /// `sum(w v)`
    Sum,
    /// `sum(w v) / sum(w)`
    Mean,
    /// `sum(w v) / sqrt(sum(w^2))`
    Sqrtn,
}

/// The order of additions; the last bits of a sum depend on it. See `LookupFeature.summation` in
/// service/artifact/manifest.py.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summation {
    /// One vector after the other.
    InOrder,
    /// Adds blocks of eight vectors, as `tf.sparse.segment_sum` does.
    BlocksOf8,
    /// Adds four partial sums, as `tf.math.segment_sum` does.
    FourLanes,
}

/// Little-endian int64 numbers, end to end, at any alignment: ids or row splits.
#[derive(Clone, Copy, Debug)]
pub struct Ints<'a>(&'a [u8]);

impl<'a> Ints<'a> {
    /// Takes little-endian bytes, and ignores an incomplete last number.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Ints(&bytes[..bytes.len() / 8 * 8])
    }

    /// Takes a slice of int64.
    #[must_use]
    pub fn of(numbers: &'a [i64]) -> Self {
        // SAFETY: eight bytes of an i64 are eight initialised u8, which need no alignment.
        Ints(unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len() * 8) })
    }

    /// Returns the number of integers.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / 8
    }

    /// Says whether there are no integers.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns number `i`.
    ///
    /// # Panics
    /// There is no number `i`.
    #[must_use]
    #[inline(always)]
    pub fn get(self, i: usize) -> i64 {
        i64::from_le_bytes(self.0[i * 8..i * 8 + 8].try_into().expect("eight bytes"))
    }

    /// Returns the numbers from `begin` to `end`.
    #[must_use]
    pub fn slice(self, begin: usize, end: usize) -> Ints<'a> {
        Ints(&self.0[begin * 8..end * 8])
    }

    /// Iterates over the numbers.
    pub fn iter(self) -> impl Iterator<Item = i64> + 'a {
        self.0.chunks_exact(8).map(|bytes| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            i64::from_le_bytes(number)
        })
    }

    /// Returns the bytes of the numbers.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Little-endian float32 numbers, end to end, at any alignment: one weight for each id.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a>(&'a [u8]);

impl<'a> Weights<'a> {
    /// Takes little-endian bytes, and ignores an incomplete last number.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Weights(&bytes[..bytes.len() / 4 * 4])
    }

    /// Returns weight `i`.
    ///
    /// # Panics
    /// There is no weight `i`.
    #[must_use]
    #[inline(always)]
    pub fn get(self, i: usize) -> f32 {
        f32::from_le_bytes(self.0[i * 4..i * 4 + 4].try_into().expect("four bytes"))
    }

    /// Returns the weights from `begin` to `end`.
    #[must_use]
    pub fn slice(self, begin: usize, end: usize) -> Weights<'a> {
        Weights(&self.0[begin * 4..end * 4])
    }

    /// Iterates over the weights.
    pub fn iter(self) -> impl Iterator<Item = f32> + 'a {
        self.0.chunks_exact(4).map(|bytes| {
            let mut number = [0; 4];
            number.copy_from_slice(bytes);
            f32::from_le_bytes(number)
        })
    }

    /// Returns the number of weights.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / 4
    }

    /// Says whether there are no weights.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of the weights.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Memory for the rows of one feature in an answer: `rows` times `width` bytes, `stride` bytes from one row to the
/// next, at any alignment, not initialised.
pub struct Out<'a> {
    start: *mut u8,
    stride: usize,
    width: usize,
    rows: usize,
    lives: PhantomData<&'a mut [u8]>,
}

// SAFETY: `Out` is a mutable borrow of plain bytes.
unsafe impl Send for Out<'_> {}

impl<'a> Out<'a> {
    /// Takes `rows` rows of `width` bytes each, beginning `skip` bytes into the memory and `stride` bytes apart.
    ///
    /// # Panics
    /// The memory is too short for the rows.
    #[must_use]
    pub fn new(
        memory: &'a mut [std::mem::MaybeUninit<u8>],
        skip: usize,
        stride: usize,
        width: usize,
        rows: usize,
    ) -> Self {
        assert!(width <= stride || rows <= 1);
        assert!(rows == 0 || skip + (rows - 1) * stride + width <= memory.len());
        // SAFETY: skip lies inside the memory, as the assertion says, or rows is 0 and the pointer is never used.
        let start = unsafe { memory.as_mut_ptr().cast::<u8>().add(if rows == 0 { 0 } else { skip }) };
        Out { start, stride, width, rows, lives: PhantomData }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns where row `r` begins; `width` bytes may be written there.
    ///
    /// # Panics
    /// There is no row `r`.
    #[inline(always)]
    pub fn row(&mut self, r: usize) -> *mut u8 {
        assert!(r < self.rows);
        // SAFETY: new() has checked that the memory holds all rows.
        unsafe { self.start.add(r * self.stride) }
    }
}

/// The reason why a kernel stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The id at this position has no row, and the policy refuses it.
    BadId(usize),
    /// This row holds more ids than the signature takes.
    TooMany(usize),
}

/// The number of ids without a row in a complete lookup, or the reason why the lookup stopped.
pub type Looked = Result<usize, Stopped>;

/// The policy for an id that has no row.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The rule for such an id.
    pub on_bad_id: OnBadId,
    /// The row that `OnBadId::DefaultRow` reads; inside the table.
    pub default_row: usize,
}

/// Settings for combining the vectors of a feature; fields as in `LookupFeature` of service/artifact/manifest.py.
#[derive(Clone, Copy, Debug)]
pub struct Combining {
    /// The combiner.
    pub combiner: Combiner,
    /// The order of additions.
    pub summation: Summation,
    /// Whether a mean divides by `max(sum(w), 1)`.
    pub at_least_one: bool,
    /// Whether an id counts only where its weight is above 0.
    pub positive_only: bool,
    /// K, the most ids of a row; 0 for no limit.
    pub max_ids: usize,
    /// Whether a longer row is cut at K; else a longer row stops the lookup.
    pub truncates: bool,
}

/// One `[V, D]` table. The publisher keeps its memory mapped for as long as the table lives.
#[derive(Clone, Debug)]
pub struct Table {
    /// The dtype of the stored numbers.
    pub dtype: Dtype,
    /// V, the number of rows.
    pub vocabulary_size: usize,
    /// D, the numbers of a row.
    pub embedding_dim: usize,
    pub(super) rows: *const u8,
    pub(super) scales: *const f32,
}

// SAFETY: the memory is only read, and its publisher keeps it mapped.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Takes a table that lies in memory.
    ///
    /// # Safety
    /// `rows` points to V rows of D numbers, `scales` to V float32 where the dtype is scaled; both stay readable as
    /// long as any copy of the table lives. Neither address needs to be aligned.
    #[must_use]
    pub unsafe fn new(
        dtype: Dtype,
        vocabulary_size: usize,
        embedding_dim: usize,
        rows: *const u8,
        scales: *const f32,
    ) -> Self {
        Table { dtype, vocabulary_size, embedding_dim, rows, scales }
    }

    /// Returns the number of file bytes that one id reads, with its scale.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let d = self.embedding_dim;
        match self.dtype {
            Dtype::Float32 => d * 4,
            Dtype::Float16 | Dtype::Bfloat16 => d * 2,
            Dtype::Int8 => d + 4,
            Dtype::Int4 => d.div_ceil(2) + 4,
            Dtype::Float64 => d * 8,
        }
    }

    /// Returns a view of the table whose gathers and sequences copy rows as they are stored, bit for bit; its rows have
    /// as many float32 as a stored row has words. None where rows have scales or are no whole words.
    #[must_use]
    pub fn as_stored(&self) -> Option<Table> {
        let row_bytes = match self.dtype {
            Dtype::Int8 | Dtype::Int4 => return None,
            _ => self.row_bytes(),
        };
        (row_bytes % 4 == 0).then(|| Table { dtype: Dtype::Float32, embedding_dim: row_bytes / 4, ..self.clone() })
    }

    /// Writes row `ids[i]` as float32 to row `i` of `out`, for each row of `out`; a dropped id gives zeros.
    ///
    /// `ids` may be longer than `out`; the ids behind are only prefetched.
    ///
    /// # Errors
    /// [`Stopped::BadId`].
    ///
    /// # Panics
    /// There are fewer ids than rows, a row of `out` is too short, or the default row is not in the table.
    pub fn gather(&self, ids: Ints<'_>, policy: Policy, out: Out<'_>) -> Looked {
        let place = Place::new(self, policy);
        self.run(Gather { place, ids, out })
    }

    /// Writes for each row of ids one combined float32 vector to `out`; an empty row gives zeros.
    ///
    /// `splits` has one more number than `out` has rows; it never decreases and lies within `ids`, as the caller has
    /// checked. `weights` is as long as `ids`.
    ///
    /// # Errors
    /// [`Stopped`].
    ///
    /// # Panics
    /// As `gather`, or the row splits or weights are not as above.
    pub fn combine(
        &self,
        ids: Ints<'_>,
        splits: Ints<'_>,
        weights: Option<Weights<'_>>,
        how: &Combining,
        policy: Policy,
        out: Out<'_>,
    ) -> Looked {
        let place = Place::new(self, policy);
        self.run(Combine { place, ids, splits, weights, how, out })
    }

    /// Writes for each row of ids its first `length` rows of the table as float32, one behind the other, to one row of
    /// `out`; a shorter row ends in zeros, a dropped id leaves zeros.
    ///
    /// # Errors
    /// [`Stopped::BadId`].
    ///
    /// # Panics
    /// As `combine`.
    pub fn sequence(&self, ids: Ints<'_>, splits: Ints<'_>, length: usize, policy: Policy, out: Out<'_>) -> Looked {
        let place = Place::new(self, policy);
        self.run(Sequence { place, ids, splits, length, out })
    }

    fn run(&self, kernel: impl Kernel) -> Looked {
        self.run_on(Processor::best(), kernel)
    }

    /// Runs a kernel compiled for `Any` processor, or for one that `Processor::best` returned.
    pub(super) fn run_on(&self, processor: Processor, kernel: impl Kernel) -> Looked {
        // SAFETY: the processor has the instructions, and the caller of `new` gave rows of this dtype.
        unsafe { processor.run(self.dtype, kernel) }
    }
}
