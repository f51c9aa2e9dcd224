//! Adds table rows in the same order as TensorFlow's ops, so that the sums equal TensorFlow's to the last bit.
//!
//! Source: `SparseSegmentReductionOpBase::Reduce` of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and
//! the packets of `InnerMostDimPreserver` in Eigen's TensorReduction.h, as `SegmentSum` uses it (lanes); TensorFlow
//! 2.21.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::rows::{SumTarget, TableView, Terms};
use super::table::Summation;

/// Says whether the sum of `terms` is a copy of one row, as TensorFlow's ops make it from a single term, but for
/// `InOrder`: a mean does not divide it, and its denormal numbers are kept.
#[inline(always)]
pub(super) fn is_copied(terms: &Terms, order: Summation) -> bool {
    order != Summation::InOrder && terms.count == 1 && terms.weights.is_null()
}

/// Writes the weighted sum of the rows of `terms` to `to`, added in one of four orders; zeros if there are no terms.
///
/// `BlocksOf8` sums each block first and then the blocks. All blocks but the first have 8 rows; the first has the
/// remainder, or 8 or 9 rows if the remainder is 0 or 1. `FourLanes`, from 16 rows on, keeps four sums for each group
/// of eight columns: rows 0, 4, 8, ... go into the first, rows 1, 5, 9, ... into the second; up to three last rows are
/// added one by one. Columns after the last group are added in order.
///
/// # Safety
/// As [`TableView::sum`], for all D columns; `terms` has a stride of 1.
#[inline(always)]
pub(super) unsafe fn sum<L: Lanes, S: Stored>(table: &TableView, terms: &Terms, order: Summation, to: *mut u8) {
    let (count, dim) = (terms.count, table.dim);
    // TensorFlow's ops for `BlocksOf8` begin a sum with its first term, as those for
    // `FourLanes` and `SegmentMean` do with their only one;
    // all others begin with zero. So a sum of numbers -0.0 has another sign, and without terms it is 0.0.
    let is_from_zero = match order {
        Summation::InOrder => true,
        Summation::BlocksOf8 => count == 0,
        Summation::FourLanes | Summation::SegmentMean => count != 1,
    };
    let start = if is_from_zero { 0.0 } else { -0.0 };
    let writes = SumTarget { at: to, adds: false, start };
    let adds = SumTarget { at: to, adds: true, start };
    // SAFETY: each call sums a part of the terms over columns below D; the caller promises the conditions on ids, dtype
    // and memory.
    unsafe {
        match order {
            _ if is_copied(terms, order) => table.copy::<L, S>(terms.id(0), to),
            Summation::BlocksOf8 => {
                let rest = count % 8;
                let mut start = count.min(if rest < 2 { rest + 8 } else { rest });
                table.sum::<L, S>(&terms.part(0, 1, start), 0..dim, writes);
                while start < count {
                    table.sum::<L, S>(&terms.part(start, 1, 8), 0..dim, adds);
                    start += 8;
                }
            }
            Summation::FourLanes if count >= 16 && dim >= 8 => {
                let (packed, length) = (dim / 8 * 8, count / 4);
                if !terms.ids_end.is_null() {
                    for i in 0..count {
                        table.prefetch_term::<S>(terms, i);
                    }
                }
                let terms = Terms { ids_end: std::ptr::null(), ..*terms };
                if packed < dim {
                    table.sum::<L, S>(&terms, packed..dim, writes);
                }
                for lane in 0..4 {
                    let to = if lane == 0 { writes } else { adds };
                    table.sum::<L, S>(&terms.part(lane, 4, length), 0..packed, to);
                }
                for left_over in 4 * length..count {
                    table.sum::<L, S>(&terms.part(left_over, 1, 1), 0..packed, adds);
                }
            }
            Summation::InOrder | Summation::FourLanes | Summation::SegmentMean => {
                table.sum::<L, S>(terms, 0..dim, writes);
            }
        }
    }
}
