//! Embedding tables in memory, and the options and arrays of lookups in them.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::memory::{Memory, Number, bytes_of};

/// A dtype in which a table can store its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE float32, four bytes a number.
    Float32,
    /// IEEE float16, two bytes a number.
    Float16,
    /// bfloat16, the upper half of a float32, two bytes a number.
    Bfloat16,
    /// Signed bytes; each row has a float32 scale, by which its numbers are multiplied.
    Int8,
    /// Two four-bit numbers in a byte, in two's complement, the even column in the low half; scaled as in `Int8`.
    Int4,
    /// IEEE float64, eight bytes a number. No kernel reads such rows; `Table::gather_stored` copies them, and
    /// `Table::gather_float32` converts them.
    Float64,
}

/// The rule for an id outside `[0, V)` in a lookup, where V is the table's number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadId {
    /// Stops the lookup.
    Error,
    /// Drops the id: a combiner leaves it out, a gather or a sequence writes zeros for it.
    Drop,
    /// Drops a negative id; an id of V or more stops the lookup.
    DropNegative,
    /// Reads the feature's default row in place of the id's row.
    DefaultRow,
    /// Reads row 0 in place of a negative id, and the last row, V - 1, in place of an id of V or more.
    Clamp,
    /// Reads row `V + id` for an id from -V to -1; any other id stops the lookup.
    Wrap,
}

/// The rule by which the vectors `v` of one row of ids, with weights `w`, become one vector.
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

/// The order in which the vectors of a row are added; the last bits of the sum depend on it. See
/// `LookupFeature.summation` in service/artifact/manifest.py.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summation {
    /// Adds the vectors one after the other, in the order of the ids.
    InOrder,
    /// Sums blocks of eight vectors, the first block of up to nine, then adds the sums of the blocks, as
    /// `tf.sparse.segment_sum` does.
    #[serde(rename = "blocks_of_8")]
    BlocksOf8,
    /// Keeps four sums, as `tf.math.segment_sum` does: adds the vector at position i to sum i % 4, then adds the four
    /// sums, then up to three left-over vectors one by one. Adds fewer than 16 vectors, and the columns after the last
    /// group of eight, in the order of the ids.
    FourLanes,
    /// Adds the vectors in the order of the ids, as `tf.math.segment_mean` does, and copies a single one.
    SegmentMean,
}

/// A number of `N` bytes.
pub trait LittleEndian<const N: usize>: Number {
    /// Reads the number's little-endian bytes.
    fn of_le(bytes: [u8; N]) -> Self;
}

impl LittleEndian<8> for i64 {
    #[inline(always)]
    fn of_le(bytes: [u8; 8]) -> Self {
        i64::from_le_bytes(bytes)
    }
}

impl LittleEndian<4> for f32 {
    #[inline(always)]
    fn of_le(bytes: [u8; 4]) -> Self {
        f32::from_le_bytes(bytes)
    }
}

/// Little-endian numbers, end to end, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a, T, const N: usize>(&'a [[u8; N]], PhantomData<T>);

/// Ids or row splits.
pub type Ints<'a> = Packed<'a, i64, 8>;
/// One weight for each id.
pub type Weights<'a> = Packed<'a, f32, 4>;

impl<'a, T: LittleEndian<N>, const N: usize> Packed<'a, T, N> {
    /// Wraps the little-endian bytes of numbers; an incomplete last number is ignored.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Packed(bytes.as_chunks().0, PhantomData)
    }

    /// Wraps a slice of numbers.
    #[must_use]
    pub fn of(numbers: &'a [T]) -> Self {
        Packed::new(bytes_of(numbers))
    }

    /// Returns how many numbers there are.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Says whether there are no numbers.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number at position `i`.
    ///
    /// # Panics
    /// There is no number `i`.
    #[must_use]
    #[inline(always)]
    pub fn get(self, i: usize) -> T {
        T::of_le(self.0[i])
    }

    /// Returns the numbers from position `start` up to `end`, which is excluded; copies nothing.
    #[must_use]
    pub fn slice(self, start: usize, end: usize) -> Self {
        Packed(&self.0[start..end], PhantomData)
    }

    /// Iterates over the numbers.
    pub fn iter(self) -> impl Iterator<Item = T> + 'a {
        self.0.iter().map(|bytes| T::of_le(*bytes))
    }

    /// Returns the little-endian bytes of the numbers.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }
}

/// Uninitialised memory for one feature's vectors in an answer: `rows` pieces of `width` bytes. Piece r begins `r *
/// stride` bytes after the first, at any alignment.
pub struct OutputRows<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    stride: usize,
    width: usize,
    rows: usize,
}

impl<'a> OutputRows<'a> {
    /// Borrows `rows` pieces of `width` bytes from `memory`: the first piece begins at byte `skip`, each further piece
    /// `stride` bytes later.
    ///
    /// # Panics
    /// `memory` is too short for the rows.
    #[must_use]
    pub fn new(memory: &'a mut [MaybeUninit<u8>], skip: usize, stride: usize, width: usize, rows: usize) -> Self {
        assert!(width <= stride || rows <= 1);
        assert!(rows == 0 || skip + (rows - 1) * stride + width <= memory.len());
        let memory = if rows == 0 { &mut [] } else { &mut memory[skip..] };
        OutputRows { memory, stride, width, rows }
    }

    /// Returns the number of rows of the answer to which this memory belongs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of bytes of one row of the answer.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Borrows the memory of `rows` rows from row `first` on.
    ///
    /// # Panics
    /// There are fewer rows.
    #[must_use]
    pub fn part(&mut self, first: usize, rows: usize) -> OutputRows<'_> {
        assert!(first + rows <= self.rows);
        OutputRows::new(self.memory, first * self.stride, self.stride, self.width, rows)
    }

    /// Returns the memory of the answer's row `r`: `width` bytes.
    ///
    /// # Panics
    /// There is no row `r`.
    #[inline(always)]
    pub fn row(&mut self, r: usize) -> &mut [MaybeUninit<u8>] {
        assert!(r < self.rows);
        let start = r * self.stride;
        // SAFETY: new() has checked that all rows of the answer lie in the borrowed memory, so row `r` does.
        unsafe { self.memory.get_unchecked_mut(start..start + self.width) }
    }
}

/// Why a lookup stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The lookup's id at this position lies outside the table, and the policy refuses such ids.
    BadId(usize),
    /// The lookup's row of ids with this number has more than `max_ids` ids, and the feature does not truncate rows.
    TooMany(usize),
}

/// The result of a lookup: Ok has the number of ids that lie outside the table, Err the reason why the lookup stopped.
pub type LookupResult = Result<usize, LookupError>;

/// The policy of a lookup for an id outside the table.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The rule.
    pub on_bad_id: OnBadId,
    /// The row number, below V, that the policy [`OnBadId::DefaultRow`] reads.
    pub default_row: usize,
}

/// The error for an id outside the table that the policy refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl Policy {
    /// Returns the row to read in place of an id outside `[0, size)`; None if the id is dropped.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn replacement(self, id: i64, size: u64) -> Result<Option<i64>, Refused> {
        let row = match self.on_bad_id {
            OnBadId::Drop => return Ok(None),
            OnBadId::DropNegative if id < 0 => return Ok(None),
            OnBadId::DefaultRow => self.default_row as i64,
            OnBadId::Clamp if id < 0 => 0,
            OnBadId::Clamp => size as i64 - 1,
            // A negative id plus the vocabulary size can not overflow an int64.
            OnBadId::Wrap if id < 0 => id + size as i64,
            OnBadId::Error | OnBadId::DropNegative | OnBadId::Wrap => -1,
        };
        if (row as u64) < size { Ok(Some(row)) } else { Err(Refused) }
    }
}

/// How a feature combines the vectors of a row of ids; fields as in `LookupFeature` of service/artifact/manifest.py.
#[derive(Clone, Copy, Debug)]
pub struct CombineOptions {
    /// The combiner, which decides by which number the sum of the vectors is divided.
    pub combiner: Combiner,
    /// The order in which the vectors of a row of ids are added.
    pub summation: Summation,
    /// Whether the combiner mean divides by `max(sum(w), 1)`, where w are the weights of a row.
    pub at_least_one: bool,
    /// Whether the lookup leaves out ids whose weight is not above 0.
    pub positive_only: bool,
    /// K, the maximal number of ids in a row; 0 for no limit.
    pub max_ids: usize,
    /// Whether the lookup leaves out the ids of a row after the first K; if not, a longer row stops the lookup.
    pub truncates: bool,
}

/// One `[V, D]` table in memory.
#[derive(Clone, Debug)]
pub struct Table {
    /// The dtype in which the table stores its numbers.
    pub dtype: Dtype,
    /// V, the table's number of rows.
    pub vocabulary_size: usize,
    /// D, the table's number of columns.
    pub embedding_dim: usize,
    pub(super) rows: Memory,
    pub(super) scales: Memory,
}

/// The error that the memory of a table does not hold its rows, or their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl Table {
    /// Returns a table of V rows of D numbers, and of V float32 scales if the dtype is scaled. Both may have any
    /// alignment, and more bytes than are needed.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(
        dtype: Dtype,
        vocabulary_size: usize,
        embedding_dim: usize,
        rows: &Memory,
        scales: &Memory,
    ) -> Result<Self, TooSmall> {
        let row_bytes = match dtype {
            Dtype::Float32 => embedding_dim.checked_mul(4),
            Dtype::Float16 | Dtype::Bfloat16 => embedding_dim.checked_mul(2),
            Dtype::Int8 => Some(embedding_dim),
            Dtype::Int4 => Some(embedding_dim.div_ceil(2)),
            Dtype::Float64 => embedding_dim.checked_mul(8),
        };
        let scale_bytes = if matches!(dtype, Dtype::Int8 | Dtype::Int4) { 4 } else { 0 };
        let part = |memory: &Memory, bytes: usize| memory.first(bytes.checked_mul(vocabulary_size)?);
        // An output has four bytes for each column, whatever the dtype.
        let is_narrow = embedding_dim <= isize::MAX as usize / 4;
        let rows = row_bytes.filter(|_| is_narrow).and_then(|bytes| part(rows, bytes)).ok_or(TooSmall)?;
        let scales = part(scales, scale_bytes).ok_or(TooSmall)?;
        Ok(Table { dtype, vocabulary_size, embedding_dim, rows, scales })
    }

    /// Returns a table of V rows of D float32 numbers.
    ///
    /// # Panics
    /// There are more or fewer numbers.
    #[must_use]
    pub fn of_float32(vocabulary_size: usize, embedding_dim: usize, numbers: Vec<f32>) -> Self {
        assert_eq!(Some(numbers.len()), vocabulary_size.checked_mul(embedding_dim));
        let (rows, scales) = (Memory::of_numbers(numbers), Memory::default());
        Table { dtype: Dtype::Float32, vocabulary_size, embedding_dim, rows, scales }
    }

    /// Returns how many bytes of the table a lookup reads for one id, with the row's scale.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let scale_bytes = if matches!(self.dtype, Dtype::Int8 | Dtype::Int4) { 4 } else { 0 };
        self.stored_bytes() + scale_bytes
    }

    /// Returns how many bytes the numbers of a stored row take, without the row's scale.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        let d = self.embedding_dim;
        match self.dtype {
            Dtype::Float32 => d * 4,
            Dtype::Float16 | Dtype::Bfloat16 => d * 2,
            Dtype::Int8 => d,
            Dtype::Int4 => d.div_ceil(2),
            Dtype::Float64 => d * 8,
        }
    }
}
