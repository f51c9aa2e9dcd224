//! Adds table rows in the same order as TensorFlow's ops, so that the sums equal TensorFlow's to the last bit.
//!
//! Source: `SparseSegmentReductionOpBase::Reduce` of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and
//! the packets of `InnerMostDimPreserver` in Eigen's TensorReduction.h, as `SegmentSum` uses it (lanes); TensorFlow
//! 2.21.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::rows::{SumTarget, TableView, Terms};
use super::table::Summation;

/// Writes the weighted sum of the rows of `terms` to `to`, added in one of three orders; zeros if there are no terms.
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
    let writes = SumTarget { at: to, adds: false };
    let adds = SumTarget { at: to, adds: true };
    let (count, dim) = (terms.count, table.dim);
    // SAFETY: each call sums a part of the terms over columns below D; the caller promises the conditions on ids, dtype
    // and memory.
    unsafe {
        match order {
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
            Summation::InOrder | Summation::FourLanes => table.sum::<L, S>(terms, 0..dim, writes),
        }
    }
}
