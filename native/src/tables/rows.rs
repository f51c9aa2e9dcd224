//! Copies rows of one table, or adds them up, as float32, with vector instructions, for every dtype.
//!
//! A loop over the ids sums 64 columns in registers, then the next 64; the columns left over go 32, then 8, then one at
//! a time. Each column is summed in the order of the ids, so the sum does not depend on how columns are grouped.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};

use super::lanes::{LANES, Lanes};
use super::numbers::Stored;
use super::table::{Dtype, Ints, LookupError, OnBadId, Policy, Table, Weights};

/// The distance, in ids, between the id whose row a kernel prefetches and the id whose row it reads. Measured on
/// gathers of 4096 rows of 256 bytes from a table of 256 MB: 219 us without prefetches, 156 us at distance 8, 160 us at
/// 16, 170 us at 32.
pub(super) const PREFETCH_DISTANCE: usize = 16;

/// A byte of zeros in an answer.
pub(super) const ZERO: MaybeUninit<u8> = MaybeUninit::new(0);

/// The memory and sizes of one table, and the policy for ids outside it, as kernels use them.
#[derive(Clone, Copy)]
pub(super) struct TableView<'t> {
    dtype: Dtype,
    rows: &'t [u8],
    scales: &'t [u8],
    /// V, the number of rows of the table; 0 for a dtype that no kernel reads.
    size: u64,
    /// D, the number of columns of the table.
    pub(super) dim: usize,
    policy: Policy,
}

/// The view of a table whose rows are stored as `S`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'t, S> {
    view: TableView<'t>,
    dtype: PhantomData<S>,
}

impl<'t, S> Deref for Rows<'t, S> {
    type Target = TableView<'t>;

    #[inline(always)]
    fn deref(&self) -> &TableView<'t> {
        &self.view
    }
}

impl<'t> TableView<'t> {
    /// Returns the view of a table that kernels use.
    ///
    /// # Panics
    /// The policy's default row is not in the table.
    pub(super) fn new(table: &'t Table, policy: Policy) -> Self {
        let is_read = table.dtype != Dtype::Float64;
        let size = if is_read { table.vocabulary_size as u64 } else { 0 };
        assert!(policy.on_bad_id != OnBadId::DefaultRow || (policy.default_row as u64) < size || !is_read);
        TableView {
            dtype: table.dtype,
            rows: table.rows.as_bytes(),
            scales: table.scales.as_bytes(),
            size,
            dim: table.embedding_dim,
            policy,
        }
    }

    /// Returns the view of a table whose rows are stored as `S`.
    ///
    /// # Panics
    /// They are not.
    #[inline(always)]
    pub(super) fn of<S: Stored>(self) -> Rows<'t, S> {
        assert!(self.dtype == S::DTYPE || self.size == 0);
        Rows { view: self, dtype: PhantomData }
    }

    /// Returns the number of rows that kernels may read: V, or 0 for a dtype that no kernel reads.
    pub(super) fn num_rows(&self) -> usize {
        self.size as usize
    }

    /// Says whether an id is the number of a row that kernels may read; never, for a dtype that no kernel reads.
    #[inline(always)]
    pub(super) fn has_row(&self, id: i64) -> bool {
        (id as u64) < self.size
    }

    /// Says whether all of `ids` are numbers of rows that kernels may read.
    #[inline(always)]
    pub(super) fn have_rows(&self, ids: Ints<'_>) -> bool {
        // The loop does not stop at the first bad id: without that branch the compiler can turn the loop into vector
        // instructions.
        ids.iter().fold(true, |all, id| all & self.has_row(id))
    }

    /// Applies the policy to an id outside the table: returns the row to read in its place, None to drop the id, or an
    /// error with `at`, the id's position.
    #[cold]
    pub(super) fn replacement(&self, id: i64, at: usize) -> Result<Option<i64>, LookupError> {
        self.policy.replacement(id, self.size).map_err(|_| LookupError::BadId(at))
    }
}

impl<S: Stored> Rows<'_, S> {
    /// Prefetches the row of an id, with its scale, into the processor's cache, if the id lies in the table.
    #[inline(always)]
    pub(super) fn prefetch_row(&self, id: i64) {
        if self.has_row(id) {
            let num_bytes = S::row_bytes(self.dim);
            prefetch(self.row(id), num_bytes);
            if S::IS_SCALED {
                prefetch(self.scale_at(id), 4);
            }
        }
    }

    /// Prefetches the row of the id at position `i` of `ids` into the processor's cache, if there is such an id and it
    /// lies in the table.
    #[inline(always)]
    pub(super) fn prefetch_nth_row(&self, ids: Ints<'_>, i: usize) {
        if i < ids.len() {
            self.prefetch_row(ids.get(i));
        }
    }

    /// Returns the address of the row with the number `id`, which must be in the table.
    #[inline(always)]
    pub(super) fn row(&self, id: i64) -> *const u8 {
        // For a row of the table, the product of id and row size can not overflow, because the table lies in memory.
        self.rows.as_ptr().wrapping_add((id as usize).wrapping_mul(S::row_bytes(self.dim)))
    }

    #[inline(always)]
    fn scale_at(&self, id: i64) -> *const u8 {
        self.scales.as_ptr().wrapping_add((id as usize).wrapping_mul(4))
    }

    /// Returns the bytes of rows that follow each other.
    ///
    /// # Panics
    /// The rows do not lie in the table.
    pub(super) fn stored(&self, rows: Range<usize>) -> &[u8] {
        &self.rows[S::row_bytes(self.dim) * rows.start..S::row_bytes(self.dim) * rows.end]
    }

    /// Reads the float32 scale of a row; returns 1 if the dtype has no scales.
    #[inline(always)]
    fn scale(&self, id: i64) -> f32 {
        if S::IS_SCALED { f32::from_le_bytes(self.scales.as_chunks::<4>().0[id as usize]) } else { 1.0 }
    }

    /// Writes one row of the table to `to` as float32, multiplied by the row's scale if the dtype has scales.
    ///
    /// # Panics
    /// The id does not lie in the table, or `to` is shorter than D float32.
    #[inline(always)]
    pub(super) fn copy<L: Lanes>(&self, has: L::Processor, id: i64, to: &mut [MaybeUninit<u8>]) {
        let (row, dim) = (self.row(id), self.dim);
        assert!(self.has_row(id) && dim * 4 <= to.len());
        let (to, scale) = (to.as_mut_ptr(), self.scale(id));
        let mut column = 0;
        // SAFETY: the assertion checks that the id is the number of a row of the table and `to` has space for D float32;
        // the loops end at column D.
        unsafe {
            while column + 8 * LANES <= dim {
                copy_lanes::<L, S, 8>(has, row, scale, column, to);
                column += 8 * LANES;
            }
            if column + 4 * LANES <= dim {
                copy_lanes::<L, S, 4>(has, row, scale, column, to);
                column += 4 * LANES;
            }
            while column + LANES <= dim {
                copy_lanes::<L, S, 1>(has, row, scale, column, to);
                column += LANES;
            }
            while column < dim {
                let number = one::<S>(row, column);
                let number = if S::IS_SCALED { number * scale } else { number };
                to.add(column * 4).cast::<f32>().write_unaligned(number);
                column += 1;
            }
        }
    }

    /// Sums the rows of `terms`, each times its weight, and writes the sum to `to` or adds it to the numbers there.
    ///
    /// # Safety
    /// All ids of `terms` lie in the table, `columns` starts at a multiple of eight and ends at D or before, and `to` has
    /// space for D float32, which are initialised if `to.adds`.
    #[inline(always)]
    pub(super) unsafe fn sum<L: Lanes>(
        &self,
        has: L::Processor,
        terms: &Terms<'_>,
        columns: Range<usize>,
        to: SumTarget,
    ) {
        // SAFETY: `sum_columns` has the same conditions as this function, and the caller promises these.
        unsafe {
            if terms.weights.is_none() {
                self.sum_columns::<L, false>(has, terms, columns, to);
            } else {
                self.sum_columns::<L, true>(has, terms, columns, to);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_columns<L: Lanes, const WEIGHTED: bool>(
        &self,
        has: L::Processor,
        terms: &Terms<'_>,
        columns: Range<usize>,
        to: SumTarget,
    ) {
        let (mut column, end) = (columns.start, columns.end);
        let mut prefetches = !terms.ahead.is_empty();
        // SAFETY: the loops end at column `end`, which is at most D; the caller promises the conditions on ids, dtype
        // and memory.
        unsafe {
            while column + 8 * LANES <= end {
                self.sum_lanes::<L, 8, WEIGHTED>(has, terms, column, to, prefetches);
                (column, prefetches) = (column + 8 * LANES, false);
            }
            if column + 4 * LANES <= end {
                self.sum_lanes::<L, 4, WEIGHTED>(has, terms, column, to, prefetches);
                (column, prefetches) = (column + 4 * LANES, false);
            }
            while column + LANES <= end {
                self.sum_lanes::<L, 1, WEIGHTED>(has, terms, column, to, prefetches);
                (column, prefetches) = (column + LANES, false);
            }
            while column < end {
                self.sum_one::<WEIGHTED>(terms, column, to, prefetches);
                (column, prefetches) = (column + 1, false);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes<L: Lanes, const N: usize, const WEIGHTED: bool>(
        &self,
        has: L::Processor,
        terms: &Terms<'_>,
        column: usize,
        to: SumTarget,
        prefetches: bool,
    ) {
        // SAFETY: the caller promises that the ids are rows of the table, and that the columns and the memory at `to`
        // are as `sum` requires.
        unsafe {
            let mut sums = [L::splat(has, to.start); N];
            for i in 0..terms.count {
                let id = terms.id(i);
                if prefetches {
                    self.prefetch_nth_row(terms.ahead, i + PREFETCH_DISTANCE);
                }
                let row = self.row(id);
                let scale = L::splat(has, self.scale(id));
                let weight = L::splat(has, if WEIGHTED { terms.weight(i) } else { 1.0 });
                for (n, sum) in sums.iter_mut().enumerate() {
                    let mut numbers = eight::<L, S>(has, row, column + n * LANES);
                    if S::IS_SCALED {
                        numbers = numbers.times(scale);
                    }
                    if WEIGHTED {
                        numbers = numbers.times(weight);
                    }
                    *sum = sum.plus(numbers);
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                let at = to.at.add((column + n * LANES) * 4);
                let sum = if to.adds { L::float32(has, &*at.cast()).plus(sum) } else { sum };
                sum.write(&mut *at.cast());
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_one<const WEIGHTED: bool>(&self, terms: &Terms<'_>, column: usize, to: SumTarget, prefetches: bool) {
        // SAFETY: the caller promises that the ids are rows of the table, and that the columns and the memory at `to`
        // are as `sum` requires.
        unsafe {
            let mut sum = to.start;
            for i in 0..terms.count {
                let id = terms.id(i);
                if prefetches {
                    self.prefetch_nth_row(terms.ahead, i + PREFETCH_DISTANCE);
                }
                let mut number = one::<S>(self.row(id), column);
                if S::IS_SCALED {
                    number *= self.scale(id);
                }
                if WEIGHTED {
                    number *= terms.weight(i);
                }
                sum += number;
            }
            let at = to.at.add(column * 4).cast::<f32>();
            let sum = if to.adds { at.read_unaligned() + sum } else { sum };
            at.write_unaligned(sum);
        }
    }
}

/// Reads the number in one column of a row.
///
/// # Safety
/// `row` is the address of a row that is stored as `S`, and has the column.
#[inline(always)]
unsafe fn one<S: Stored>(row: *const u8, column: usize) -> f32 {
    // SAFETY: the caller promises that the bytes of the column may be read; bytes need no alignment.
    S::one(unsafe { row.add(S::offset(column)).cast::<S::One>().read() }, column)
}

/// Reads the numbers in eight columns of a row, from `column` on, which is a multiple of eight.
///
/// # Safety
/// As [`one`], for all eight columns.
#[inline(always)]
unsafe fn eight<L: Lanes, S: Stored>(has: L::Processor, row: *const u8, column: usize) -> L {
    // SAFETY: the caller promises that the bytes of the columns may be read; bytes need no alignment.
    S::eight(has, unsafe { &*row.add(S::offset(column)).cast::<S::Eight>() })
}

/// Writes `N` groups of eight columns of a row, from `column` on, as float32; multiplies them by the row's scale if the
/// dtype has scales.
///
/// # Safety
/// `row` is the address of a row that is stored as `S`; it and the memory at `to` have all columns that are copied.
#[inline(always)]
unsafe fn copy_lanes<L: Lanes, S: Stored, const N: usize>(
    has: L::Processor,
    row: *const u8,
    scale: f32,
    column: usize,
    to: *mut MaybeUninit<u8>,
) {
    let scales = L::splat(has, scale);
    for column in (0..N).map(|n| column + n * LANES) {
        // SAFETY: the caller promises that the row and the memory have these columns.
        unsafe {
            let numbers = eight::<L, S>(has, row, column);
            let numbers = if S::IS_SCALED { numbers.times(scales) } else { numbers };
            numbers.write(&mut *to.add(column * 4).cast());
        }
    }
}

/// The terms of a weighted sum of rows: ids and their weights.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Number of ids.
    pub(super) count: usize,
    ids: Ints<'a>,
    /// None if all weights are 1.
    pub(super) weights: Option<Weights<'a>>,
    /// Distance from one id to the next, and from one weight to the next, in elements.
    stride: usize,
    /// The ids from the first term on, with those that other sums add afterwards, if their rows are prefetched.
    pub(super) ahead: Ints<'a>,
}

impl<'a> Terms<'a> {
    /// Returns the terms of the first `count` of `ids`, each with its weight; the rows of the other ids are prefetched if
    /// `prefetches`.
    ///
    /// # Panics
    /// There are fewer ids or weights.
    #[inline(always)]
    pub(super) fn new(ids: Ints<'a>, weights: Option<Weights<'a>>, count: usize, prefetches: bool) -> Self {
        assert!(count <= ids.len() && weights.is_none_or(|weights| count <= weights.len()));
        Terms { count, ids, weights, stride: 1, ahead: if prefetches { ids } else { Ints::of(&[]) } }
    }

    /// Returns `count` of these terms, which have a stride of 1: that at position `start`, and every `stride`-th after it.
    ///
    /// # Panics
    /// There are fewer terms.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, stride: usize, count: usize) -> Self {
        assert!(self.stride == 1 && start <= self.count && count * stride < self.count - start + stride);
        Terms {
            count,
            ids: self.ids.slice(start, self.ids.len()),
            weights: self.weights.map(|weights| weights.slice(start, weights.len())),
            stride,
            ahead: if stride == 1 && !self.ahead.is_empty() {
                self.ahead.slice(start, self.ahead.len())
            } else {
                Ints::of(&[])
            },
        }
    }

    /// Returns the same terms, whose rows are not prefetched any more.
    pub(super) fn prefetched(self) -> Self {
        Terms { ahead: Ints::of(&[]), ..self }
    }

    #[inline(always)]
    pub(super) fn id(&self, i: usize) -> i64 {
        assert!(i < self.count);
        // SAFETY: `new` and `part` have checked that the array has an id for each term.
        unsafe { self.ids.as_bytes().as_ptr().add(i * self.stride * 8).cast::<i64>().read_unaligned() }
    }

    #[inline(always)]
    fn weight(&self, i: usize) -> f32 {
        assert!(i < self.count);
        let Some(weights) = self.weights else { return 1.0 };
        // SAFETY: `new` and `part` have checked that the array has a weight for each term.
        unsafe { weights.as_bytes().as_ptr().add(i * self.stride * 4).cast::<f32>().read_unaligned() }
    }
}

/// Memory for D float32 numbers, to which a sum of rows is written or added.
#[derive(Clone, Copy)]
pub(super) struct SumTarget {
    /// Address of column 0.
    pub(super) at: *mut u8,
    /// Whether the sum is added to the float32 numbers at `at`; if not, it replaces these numbers.
    pub(super) adds: bool,
    /// The number to which the first term is added: 0.0, or -0.0, to which a sum of terms is added without a change.
    pub(super) start: f32,
}

/// Prefetches the `num_bytes` bytes from the address `at` on into the processor's cache.
#[inline(always)]
fn prefetch(at: *const u8, num_bytes: usize) {
    // The first and the last cache line are prefetched before the loop, which prefetches the lines between them. Most
    // rows take two or three lines, so this is twice as fast as one loop over all lines.
    let last = at.wrapping_add(num_bytes).wrapping_sub(1);
    prefetch_line(at);
    prefetch_line(last);
    let end = last.addr() & !63;
    let mut line = (at.addr() & !63) + 64;
    while line < end {
        prefetch_line(at.with_addr(line));
        line += 64;
    }
}

#[inline(always)]
pub(super) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch instruction accepts any address, and every x86-64 processor has the instruction set SSE.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch instruction accepts any address, even one that is not mapped.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
