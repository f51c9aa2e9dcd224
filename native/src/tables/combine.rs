//! Combines the table rows of the ids in each row of a request to one vector: their sum, mean or sqrtn.
//!
//! The kernel cuts each row of ids at `max_ids`; it never checks the ids beyond the cut. Then it compares each id with
//! the table's size, and the id's weight with 0.
//!
//! Source: the arithmetic is TensorFlow 2.21's, `_ragged_embedding_lookup_with_reduce` of
//! python/tpu/tpu_embedding_for_serving.py (device cpu) and `sparse_embedding_aggregate_slice` of
//! python/tpu/feature_column_v2.py (device `tpu_tensor_core`); the rule that drops ids for their weights is
//! `safe_embedding_lookup_sparse` of `python/ops/embedding_ops.py`.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{PREFETCH_DISTANCE, Rows, TableView, Terms};
use super::summation;
use super::table::{CombineOptions, Combiner, Ints, LookupError, LookupResult, OutputRows, Summation, Weights};

/// The arguments of a lookup that combines rows, [`super::table::Table::combine`].
pub(super) struct Combine<'a> {
    pub(super) table: TableView<'a>,
    pub(super) ids: Ints<'a>,
    pub(super) splits: Ints<'a>,
    pub(super) weights: Option<Weights<'a>>,
    pub(super) options: &'a CombineOptions,
    pub(super) out: OutputRows<'a>,
}

/// Returns row split `r`: the position of row `r`'s first id.
///
/// # Panics
/// Row split `r` is negative or larger than the number of ids.
#[inline(always)]
pub(super) fn split(splits: Ints<'_>, r: usize, ids: Ints<'_>) -> usize {
    let at = splits.get(r);
    assert!((at as u64) <= ids.len() as u64, "a row split outside the ids");
    at as usize
}

/// The sum of a row's weights, and the sum of their squares. A mean divides by the first, sqrtn by the root of the
/// second.
#[derive(Clone, Copy, Default)]
struct WeightSums {
    weights: f32,
    squares: f32,
}

impl WeightSums {
    #[inline(always)]
    fn add(&mut self, weight: f32) {
        self.weights += weight;
        self.squares += weight * weight;
    }
}

/// The table rows that one row of ids adds to the sum, and their weights; dropped ids are left out, and bad ids may be
/// replaced.
#[derive(Default)]
struct KeptIds {
    rows: Vec<i64>,
    weights: Vec<f32>,
}

impl Combine<'_> {
    /// Sums the weights of ids `start` to `end`, which all lie in the table; None if `positive_only` drops one of them.
    #[inline(always)]
    fn sums_of_all(&self, start: usize, end: usize) -> Option<WeightSums> {
        let mut sums = WeightSums::default();
        if let Some(weights) = self.weights {
            let weights = weights.slice(start, end);
            for weight in weights.iter() {
                sums.add(weight);
            }
            if self.options.positive_only && !weights.iter().all(is_above_0) {
                return None;
            }
        } else {
            let count = end - start;
            // Without weights, TensorFlow's ops for `BlocksOf8` and `FourLanes` add the float32 1.0 for each id; this
            // sum stops at 2^24, because 2^24 + 1 is no float32. For `InOrder` the total is the count of ids, without
            // this limit.
            let most = if self.options.summation == Summation::InOrder { count } else { 1 << 24 };
            #[allow(clippy::cast_precision_loss, reason = "the division is one of float32")]
            let total = count.min(most) as f32;
            (sums.weights, sums.squares) = (total, total);
        }
        Some(sums)
    }

    /// Collects into `kept` the rows that ids `start` to `end` add to the sum, and their weights; returns the sums of
    /// these weights. Adds the number of ids outside the table to `missing`.
    #[inline(always)]
    fn keep_ids<S: Stored>(
        &self,
        table: &Rows<'_, S>,
        start: usize,
        end: usize,
        kept: &mut KeptIds,
        missing: &mut usize,
    ) -> Result<WeightSums, LookupError> {
        kept.rows.clear();
        kept.weights.clear();
        let mut sums = WeightSums::default();
        for i in start..end {
            table.prefetch_nth_row(self.ids, i + PREFETCH_DISTANCE);
            let mut id = self.ids.get(i);
            let has_row = table.has_row(id);
            *missing += usize::from(!has_row);
            let weight = self.weights.map_or(1.0, |weights| weights.get(i));
            // Before the policy: as in TensorFlow's safe lookup, an id that its weight drops is not checked.
            if self.options.positive_only && !is_above_0(weight) {
                continue;
            }
            if !has_row {
                match table.replacement(id, i)? {
                    Some(row) => id = row,
                    None => continue,
                }
            }
            sums.add(weight);
            kept.rows.push(id);
            kept.weights.push(weight);
        }
        Ok(sums)
    }
}

impl Kernel for Combine<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(mut self, has: L::Processor) -> LookupResult {
        let table = self.table.of::<S>();
        let (rows, dim) = (self.out.rows(), self.table.dim);
        if rows == 0 {
            return Ok(0);
        }
        assert!(dim * 4 <= self.out.width() && self.splits.len() == rows + 1);
        assert!(self.weights.is_none_or(|weights| weights.len() >= self.ids.len()));
        let (first, last) = (split(self.splits, 0, self.ids), split(self.splits, rows, self.ids));
        assert!(first <= last);
        // Fast path: if all ids lie in the table, which is nearly always so, the kernel does not check them one by one.
        let have_rows = table.have_rows(self.ids.slice(first, last));
        for i in 0..PREFETCH_DISTANCE {
            table.prefetch_nth_row(self.ids, first + i);
        }
        let mut kept = KeptIds::default();
        let mut missing = 0;
        let mut start = first;
        for r in 0..rows {
            let next = split(self.splits, r + 1, self.ids);
            assert!(start <= next && next <= last);
            let mut end = next;
            if self.options.max_ids > 0 && end - start > self.options.max_ids {
                if !self.options.truncates {
                    return Err(LookupError::TooMany(r));
                }
                end = start + self.options.max_ids;
            }
            let is_plain = have_rows || table.have_rows(self.ids.slice(start, end));
            let of_all = if is_plain { self.sums_of_all(start, end) } else { None };
            let (sums, terms) = if let Some(sums) = of_all {
                let weights = self.weights.map(|weights| weights.slice(start, weights.len()));
                (sums, Terms::new(self.ids.slice(start, self.ids.len()), weights, end - start, true))
            } else {
                let sums = self.keep_ids::<S>(&table, start, end, &mut kept, &mut missing)?;
                let weights = self.weights.map(|_| Weights::of(&kept.weights));
                (sums, Terms::new(Ints::of(&kept.rows), weights, kept.rows.len(), false))
            };
            // SAFETY: the code above has checked that each id of `terms` is a row of the table.
            let sum = unsafe { summation::sum::<L, S>(&table, has, &terms, self.options.summation, self.out.row(r)) };
            if !summation::is_copied(&terms, self.options.summation) {
                divide(sum, sums, self.options);
            }
            start = next;
        }
        Ok(missing)
    }
}

#[inline(always)]
fn is_above_0(weight: f32) -> bool {
    // False for NaN.
    weight > 0.0
}

/// Divides the D float32 of the sum by the combiner's divisor; a divisor of 0 gives zeros.
#[inline(always)]
fn divide(sum: &mut [u8], sums: WeightSums, options: &CombineOptions) {
    let total = sums.weights;
    let divisor = match options.combiner {
        Combiner::Sum => return,
        Combiner::Sqrtn => sums.squares.sqrt(),
        // A mean with `at_least_one` does not call f32::max, which would turn a NaN sum of weights into 1.0.
        Combiner::Mean if options.at_least_one && total < 1.0 => 1.0,
        Combiner::Mean => total,
    };
    if divisor == 0.0 {
        sum.fill(0);
    } else if options.summation == Summation::BlocksOf8 && total < 10.0 {
        let factor = 1.0 / divisor;
        each(sum, |number| number * factor);
    } else {
        each(sum, |number| number / divisor);
    }
}

/// Applies `change` to each float32.
#[inline(always)]
fn each(numbers: &mut [u8], change: impl Fn(f32) -> f32) {
    for number in numbers.as_chunks_mut::<4>().0 {
        *number = change(f32::from_le_bytes(*number)).to_le_bytes();
    }
}
