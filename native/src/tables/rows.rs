//! Copies rows of one table, or adds them up, as float32, with vector instructions, for every dtype.
//!
//! A loop over the ids sums 64 columns in registers, then the next 64; the columns left over go 32, then 8, then one at
//! a time. Each column is summed in the order of the ids, so the sum does not depend on how columns are grouped.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::numbers::Stored;
use super::table::{Dtype, Ints, LookupError, OnBadId, Policy, Table};

/// The distance, in ids, between the id whose row a kernel prefetches and the id whose row it reads. Measured on
/// gathers of 4096 rows of 256 bytes from a table of 256 MB: 219 us without prefetches, 156 us at distance 8, 160 us at
/// 16, 170 us at 32.
pub(super) const PREFETCH_DISTANCE: usize = 16;

/// The addresses and sizes of one table, and the policy for ids outside it, as kernels use them.
#[derive(Clone, Copy)]
pub(super) struct TableView {
    rows: *const u8,
    scales: *const u8,
    /// V, the number of rows of the table; 0 for a dtype that no kernel reads.
    size: u64,
    /// D, the number of columns of the table.
    pub(super) dim: usize,
    policy: Policy,
}

impl TableView {
    /// Returns the view of a table that kernels use.
    ///
    /// # Panics
    /// The policy's default row is not in the table.
    pub(super) fn new(table: &Table, policy: Policy) -> Self {
        let is_read = table.dtype != Dtype::Float64;
        let size = if is_read { table.vocabulary_size as u64 } else { 0 };
        assert!(policy.on_bad_id != OnBadId::DefaultRow || (policy.default_row as u64) < size || !is_read);
        TableView {
            rows: table.rows.as_bytes().as_ptr(),
            scales: table.scales.as_bytes().as_ptr(),
            size,
            dim: table.embedding_dim,
            policy,
        }
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

    /// Prefetches the row of an id, with its scale, into the processor's cache, if the id lies in the table.
    #[inline(always)]
    pub(super) fn prefetch_row<S: Stored>(&self, id: i64) {
        if self.has_row(id) {
            let num_bytes = S::row_bytes(self.dim);
            prefetch(self.row::<S>(id), num_bytes);
            if S::IS_SCALED {
                prefetch(self.scale_at(id), 4);
            }
        }
    }

    /// Prefetches the row of the id at position `i` of `ids` into the processor's cache, if there is such an id and it
    /// lies in the table.
    #[inline(always)]
    pub(super) fn prefetch_nth_row<S: Stored>(&self, ids: Ints<'_>, i: usize) {
        if i < ids.len() {
            self.prefetch_row::<S>(ids.get(i));
        }
    }

    /// Returns the address of the row with the number `id`, which must be in the table.
    #[inline(always)]
    pub(super) fn row<S: Stored>(&self, id: i64) -> *const u8 {
        // For a row of the table, the product of id and row size can not overflow, because the table lies in memory.
        self.rows.wrapping_add((id as usize).wrapping_mul(S::row_bytes(self.dim)))
    }

    #[inline(always)]
    fn scale_at(&self, id: i64) -> *const u8 {
        self.scales.wrapping_add((id as usize).wrapping_mul(4))
    }

    /// Reads the float32 scale of a row; returns 1 if the dtype has no scales.
    #[inline(always)]
    unsafe fn scale<S: Stored>(&self, id: i64) -> f32 {
        if S::IS_SCALED {
            // SAFETY: the caller promises that the id is the number of a row of the table, so the array of scales has
            // an element for it.
            unsafe { self.scale_at(id).cast::<f32>().read_unaligned() }
        } else {
            1.0
        }
    }

    /// Writes one row of the table to `to` as float32, multiplied by the row's scale if the dtype has scales.
    ///
    /// # Safety
    /// The id lies in the table, the table stores `S`, and `to` has space for D float32.
    #[inline(always)]
    pub(super) unsafe fn copy<L: Lanes, S: Stored>(&self, id: i64, to: *mut u8) {
        let (row, dim) = (self.row::<S>(id), self.dim);
        let mut column = 0;
        // SAFETY: the caller promises that the id is the number of a row of the table and `to` has space for D float32;
        // the loops end at column D.
        unsafe {
            let scale = self.scale::<S>(id);
            while column + 8 * LANES <= dim {
                copy_lanes::<L, S, 8>(row, scale, column, to);
                column += 8 * LANES;
            }
            if column + 4 * LANES <= dim {
                copy_lanes::<L, S, 4>(row, scale, column, to);
                column += 4 * LANES;
            }
            while column + LANES <= dim {
                copy_lanes::<L, S, 1>(row, scale, column, to);
                column += LANES;
            }
            while column < dim {
                let number = S::one(row, column);
                let number = if S::IS_SCALED { number * scale } else { number };
                to.add(column * 4).cast::<f32>().write_unaligned(number);
                column += 1;
            }
        }
    }

    /// Sums the rows of `terms`, each times its weight, and writes the sum to `to` or adds it to the numbers there.
    ///
    /// # Safety
    /// All ids of `terms` lie in the table, the table stores `S`, `columns` starts at a multiple of eight and ends at D
    /// or before, and `to` has space for D float32, which are initialised if `to.adds`.
    #[inline(always)]
    pub(super) unsafe fn sum<L: Lanes, S: Stored>(&self, terms: &Terms, columns: Range<usize>, to: SumTarget) {
        // SAFETY: `sum_columns` has the same conditions as this function, and the caller promises these.
        unsafe {
            if terms.weights.is_null() {
                self.sum_columns::<L, S, false>(terms, columns, to);
            } else {
                self.sum_columns::<L, S, true>(terms, columns, to);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_columns<L: Lanes, S: Stored, const WEIGHTED: bool>(
        &self,
        terms: &Terms,
        columns: Range<usize>,
        to: SumTarget,
    ) {
        let (mut column, end) = (columns.start, columns.end);
        let mut prefetches = !terms.ids_end.is_null();
        // SAFETY: the loops end at column `end`, which is at most D; the caller promises the conditions on ids, dtype
        // and memory.
        unsafe {
            while column + 8 * LANES <= end {
                self.sum_lanes::<L, S, 8, WEIGHTED>(terms, column, to, prefetches);
                (column, prefetches) = (column + 8 * LANES, false);
            }
            if column + 4 * LANES <= end {
                self.sum_lanes::<L, S, 4, WEIGHTED>(terms, column, to, prefetches);
                (column, prefetches) = (column + 4 * LANES, false);
            }
            while column + LANES <= end {
                self.sum_lanes::<L, S, 1, WEIGHTED>(terms, column, to, prefetches);
                (column, prefetches) = (column + LANES, false);
            }
            while column < end {
                self.sum_one::<S, WEIGHTED>(terms, column, to, prefetches);
                (column, prefetches) = (column + 1, false);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes<L: Lanes, S: Stored, const N: usize, const WEIGHTED: bool>(
        &self,
        terms: &Terms,
        column: usize,
        to: SumTarget,
        prefetches: bool,
    ) {
        // SAFETY: the caller promises that the ids are rows of the table, and that the columns and the memory at `to`
        // are as `sum` requires.
        unsafe {
            let mut sums = [L::splat(to.start); N];
            for i in 0..terms.count {
                let id = terms.id(i);
                if prefetches {
                    self.prefetch_term::<S>(terms, i);
                }
                let row = self.row::<S>(id);
                let scale = L::splat(self.scale::<S>(id));
                let weight = L::splat(if WEIGHTED { terms.weight(i) } else { 1.0 });
                for (n, sum) in sums.iter_mut().enumerate() {
                    let mut numbers = S::eight::<L>(row, column + n * LANES);
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
                let sum = if to.adds { L::float32(at).plus(sum) } else { sum };
                sum.write(at);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_one<S: Stored, const WEIGHTED: bool>(
        &self,
        terms: &Terms,
        column: usize,
        to: SumTarget,
        prefetches: bool,
    ) {
        // SAFETY: the caller promises that the ids are rows of the table, and that the columns and the memory at `to`
        // are as `sum` requires.
        unsafe {
            let mut sum = to.start;
            for i in 0..terms.count {
                let id = terms.id(i);
                if prefetches {
                    self.prefetch_term::<S>(terms, i);
                }
                let mut number = S::one(self.row::<S>(id), column);
                if S::IS_SCALED {
                    number *= self.scale::<S>(id);
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

    /// Prefetches the row of the id that comes [`PREFETCH_DISTANCE`] ids after term `i`, if this id lies before
    /// `ids_end`.
    #[inline(always)]
    pub(super) unsafe fn prefetch_term<S: Stored>(&self, terms: &Terms, i: usize) {
        let at = terms.ids.wrapping_add((i + PREFETCH_DISTANCE) * 8);
        if at < terms.ids_end {
            // SAFETY: the id that is read lies in the array of ids, because its address lies before `ids_end`.
            self.prefetch_row::<S>(unsafe { at.cast::<i64>().read_unaligned() });
        }
    }
}

/// Writes `N` groups of eight columns of a row, from `column` on, as float32; multiplies them by the row's scale if the
/// dtype has scales.
#[inline(always)]
unsafe fn copy_lanes<L: Lanes, S: Stored, const N: usize>(row: *const u8, scale: f32, column: usize, to: *mut u8) {
    // SAFETY: the caller promises that `row` and the memory at `to` have all columns that are copied.
    unsafe {
        let scales = L::splat(scale);
        for column in (0..N).map(|n| column + n * LANES) {
            let numbers = S::eight::<L>(row, column);
            let numbers = if S::IS_SCALED { numbers.times(scales) } else { numbers };
            numbers.write(to.add(column * 4));
        }
    }
}

/// The terms of a weighted sum of rows: addresses of ids, all in the table, and of their weights, at any alignment.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// The first id.
    pub(super) ids: *const u8,
    /// Address of the first id's weight; null if all weights are 1.
    pub(super) weights: *const u8,
    /// Number of ids.
    pub(super) count: usize,
    /// Distance from one id to the next, and from one weight to the next, in elements.
    pub(super) stride: usize,
    /// Address of the end of the ids whose rows the sum prefetches; null if it prefetches none. Prefetches need a
    /// stride of 1.
    pub(super) ids_end: *const u8,
}

impl Terms {
    /// Returns `count` terms of the weighted sum: the term at position `start`, and every `stride`-th term after it.
    ///
    /// # Safety
    /// These terms have a stride of 1 and hold all of the returned terms.
    #[inline(always)]
    pub(super) unsafe fn part(&self, start: usize, stride: usize, count: usize) -> Terms {
        let is_weighted = !self.weights.is_null();
        // SAFETY: the caller promises that `start` is at most the number of terms, so the computed addresses stay
        // within the arrays of ids and weights.
        unsafe {
            Terms {
                ids: self.ids.add(start * 8),
                weights: if is_weighted { self.weights.add(start * 4) } else { self.weights },
                count,
                stride,
                ids_end: if stride == 1 { self.ids_end } else { std::ptr::null() },
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn id(&self, i: usize) -> i64 {
        // SAFETY: the caller promises that `i` is below the number of terms, so the id that is read lies in the array
        // of ids.
        unsafe { self.ids.add(i * self.stride * 8).cast::<i64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn weight(&self, i: usize) -> f32 {
        // SAFETY: the caller promises that the terms have weights and `i` is below their number, so the weight that is
        // read lies in the array.
        unsafe { self.weights.add(i * self.stride * 4).cast::<f32>().read_unaligned() }
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
