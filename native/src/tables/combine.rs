//! Adds up the table rows of each row of ids into one vector.
//!
//! A row of ids is cut first, and ids beyond the cut are never judged. Then each id is compared with the table's size,
//! and its weight with 0.
//!
//! Source: the arithmetic is TensorFlow 2.21's, `_ragged_embedding_lookup_with_reduce` of
//! python/tpu/tpu_embedding_for_serving.py (device cpu) and `sparse_embedding_aggregate_slice` of
//! python/tpu/feature_column_v2.py (device `tpu_tensor_core`); pruning is `safe_embedding_lookup_sparse` of
//! `python/ops/embedding_ops.py`.

use std::ptr::null;

use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{AHEAD, Place, Terms};
use super::summation;
use super::table::{Combiner, Combining, Ints, Looked, Out, Stopped, Summation, Weights};

/// Arguments of [`super::table::Table::combine`].
pub(super) struct Combine<'a> {
    pub(super) place: Place,
    pub(super) ids: Ints<'a>,
    pub(super) splits: Ints<'a>,
    pub(super) weights: Option<Weights<'a>>,
    pub(super) how: &'a Combining,
    pub(super) out: Out<'a>,
}

/// Returns row split `r`.
///
/// # Panics
/// Row split `r` does not lie within the ids.
#[inline(always)]
pub(super) fn split(splits: Ints<'_>, r: usize, ids: Ints<'_>) -> usize {
    let at = splits.get(r);
    assert!((at as u64) <= ids.len() as u64, "a row split outside the ids");
    at as usize
}

/// Sums of a row's weights and of their squares; a combiner makes its divisor of these sums.
#[derive(Clone, Copy, Default)]
struct Totals {
    weights: f32,
    squares: f32,
}

impl Totals {
    #[inline(always)]
    fn add(&mut self, weight: f32) {
        self.weights += weight;
        self.squares += weight * weight;
    }
}

/// The ids of one row that count, where some ids of the row are dropped or replaced.
#[derive(Default)]
struct Judged {
    rows: Vec<i64>,
    weights: Vec<f32>,
}

impl Combine<'_> {
    /// Sums the weights of a row whose ids all have rows; None if `positive_only` drops an id for its weight.
    #[inline(always)]
    fn totals_of_all(&self, begin: usize, end: usize) -> Option<Totals> {
        let mut totals = Totals::default();
        if let Some(weights) = self.weights {
            let weights = weights.slice(begin, end);
            for weight in weights.iter() {
                totals.add(weight);
            }
            if self.how.positive_only && !weights.iter().all(is_above_0) {
                return None;
            }
        } else {
            let count = end - begin;
            // In the other orders the sum grows by 1.0 for each id and stops at 2^24, where a float32 has no bit for
            // one more.
            let most = if self.how.summation == Summation::InOrder { count } else { 1 << 24 };
            #[allow(clippy::cast_precision_loss, reason = "the division is one of float32")]
            let total = count.min(most) as f32;
            (totals.weights, totals.squares) = (total, total);
        }
        Some(totals)
    }

    /// Judges each id of a row, then its weight; counts the ids that have no row.
    #[inline(always)]
    fn judge<S: Stored>(
        &self,
        begin: usize,
        end: usize,
        judged: &mut Judged,
        missing: &mut usize,
    ) -> Result<Totals, Stopped> {
        judged.rows.clear();
        judged.weights.clear();
        let mut totals = Totals::default();
        for i in begin..end {
            self.place.ask_for_nth::<S>(self.ids, i + AHEAD);
            let mut id = self.ids.get(i);
            if !self.place.has(id) {
                *missing += 1;
                match self.place.instead(id, i)? {
                    Some(row) => id = row,
                    None => continue,
                }
            }
            let weight = self.weights.map_or(1.0, |weights| weights.get(i));
            if self.how.positive_only && !is_above_0(weight) {
                continue;
            }
            totals.add(weight);
            judged.rows.push(id);
            judged.weights.push(weight);
        }
        Ok(totals)
    }
}

impl Kernel for Combine<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, S: Stored>(mut self) -> Looked {
        let (rows, dim) = (self.out.rows(), self.place.dim);
        if rows == 0 {
            return Ok(0);
        }
        assert!(dim * 4 <= self.out.width() && self.splits.len() == rows + 1);
        assert!(self.weights.is_none_or(|weights| weights.len() >= self.ids.len()));
        let (first, last) = (split(self.splits, 0, self.ids), split(self.splits, rows, self.ids));
        assert!(first <= last);
        // Where all ids have rows, which is nearly always so, the kernel judges no single id.
        let have_rows = self.place.has_all(self.ids.slice(first, last));
        for i in 0..AHEAD {
            self.place.ask_for_nth::<S>(self.ids, first + i);
        }
        let mut judged = Judged::default();
        let mut missing = 0;
        let mut begin = first;
        for r in 0..rows {
            let next = split(self.splits, r + 1, self.ids);
            assert!(begin <= next && next <= last);
            let mut end = next;
            if self.how.max_ids > 0 && end - begin > self.how.max_ids {
                if !self.how.truncates {
                    return Err(Stopped::TooMany(r));
                }
                end = begin + self.how.max_ids;
            }
            let is_plain = have_rows || self.place.has_all(self.ids.slice(begin, end));
            let of_all = if is_plain { self.totals_of_all(begin, end) } else { None };
            let (totals, terms) = if let Some(totals) = of_all {
                let weights = self.weights.map_or(null(), |weights| weights.as_bytes()[begin * 4..].as_ptr());
                let ids = self.ids.as_bytes();
                let terms = Terms {
                    ids: ids[begin * 8..].as_ptr(),
                    weights,
                    count: end - begin,
                    stride: 1,
                    ids_end: ids.as_ptr_range().end,
                };
                (totals, terms)
            } else {
                let totals = self.judge::<S>(begin, end, &mut judged, &mut missing)?;
                let terms = Terms {
                    ids: judged.rows.as_ptr().cast(),
                    weights: judged.weights.as_ptr().cast(),
                    count: judged.rows.len(),
                    stride: 1,
                    ids_end: null(),
                };
                (totals, terms)
            };
            let to = self.out.row(r);
            // SAFETY: each id of the terms was judged to have a row, and a row of `out` takes D float32.
            unsafe {
                summation::sum::<L, S>(&self.place, &terms, self.how.summation, to);
                divide(to, dim, totals, self.how);
            }
            begin = next;
        }
        Ok(missing)
    }
}

#[inline(always)]
fn is_above_0(weight: f32) -> bool {
    // A NaN weight gives false.
    weight > 0.0
}

/// Divides the D float32 of the sum by the combiner's divisor; a divisor of 0 gives zeros.
///
/// # Safety
/// `to` is the address of `dim` float32 that may be read and written, at any alignment.
#[inline(always)]
unsafe fn divide(to: *mut u8, dim: usize, totals: Totals, how: &Combining) {
    let total = totals.weights;
    let divisor = match how.combiner {
        Combiner::Sum => return,
        Combiner::Sqrtn => totals.squares.sqrt(),
        // NaN stays, which f32::max would replace.
        Combiner::Mean if how.at_least_one && total < 1.0 => 1.0,
        Combiner::Mean => total,
    };
    // SAFETY: the caller promises that `to` is the address of D float32.
    unsafe {
        if divisor == 0.0 {
            to.write_bytes(0, dim * 4);
        } else if how.summation == Summation::BlocksOf8 && total < 10.0 {
            let factor = 1.0 / divisor;
            each(to, dim, |number| number * factor);
        } else {
            each(to, dim, |number| number / divisor);
        }
    }
}

/// Applies `change` to each of D float32.
///
/// # Safety
/// `to` is the address of D float32, as [`divide`] says.
#[inline(always)]
unsafe fn each(to: *mut u8, dim: usize, change: impl Fn(f32) -> f32) {
    for d in 0..dim {
        // SAFETY: the caller promises that `to` is the address of D float32.
        unsafe {
            let at = to.add(d * 4).cast::<f32>();
            at.write_unaligned(change(at.read_unaligned()));
        }
    }
}
