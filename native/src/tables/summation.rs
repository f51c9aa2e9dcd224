//! Adds table rows in the same order as TensorFlow's ops, so that the sums equal TensorFlow's to the last bit.
//!
//! Source: `SparseSegmentReductionOpBase::Reduce` of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and
//! the packets of `InnerMostDimPreserver` in Eigen's TensorReduction.h, as `SegmentSum` uses it (lanes); TensorFlow
//! 2.21.

use std::mem::MaybeUninit;

use super::lanes::Lanes;
use super::numbers::Stored;
use super::rows::{PREFETCH_DISTANCE, Rows, SumTarget, Terms};
use super::table::Summation;

/// Says whether the sum of `terms` is a copy of one row, as TensorFlow's ops make it from a single term, but for
/// `InOrder`: a mean does not divide it, and its denormal numbers are kept.
#[inline(always)]
pub(super) fn is_copied(terms: &Terms<'_>, order: Summation) -> bool {
    order != Summation::InOrder && terms.count == 1 && terms.weights.is_none()
}

/// Writes the weighted sum of the rows of `terms` to `to`, added in one of four orders; zeros if there are no terms.
/// Returns the D float32 of the sum.
///
/// `BlocksOf8` sums each block first and then the blocks. All blocks but the first have 8 rows; the first has the
/// remainder, or 8 or 9 rows if the remainder is 0 or 1. `FourLanes`, from 16 rows on, keeps four sums for each group
/// of eight columns: rows 0, 4, 8, ... go into the first, rows 1, 5, 9, ... into the second; up to three last rows are
/// added one by one. Columns after the last group are added in order.
///
/// # Safety
/// All ids of `terms` lie in the table.
///
/// # Panics
/// `to` is shorter than D float32, or `terms` have a stride.
#[inline(always)]
pub(super) unsafe fn sum<'o, L: Lanes, S: Stored>(
    table: &Rows<'_, S>,
    has: L::Processor,
    terms: &Terms<'_>,
    order: Summation,
    to: &'o mut [MaybeUninit<u8>],
) -> &'o mut [u8] {
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
    let to = &mut to[..dim * 4];
    let at = to.as_mut_ptr().cast();
    let writes = SumTarget { at, adds: false, start };
    let adds = SumTarget { at, adds: true, start };
    // SAFETY: each call sums a part of the terms over columns below D; those that add come after one that writes. The
    // caller promises that the ids lie in the table. At the end, all columns are written.
    unsafe {
        match order {
            _ if is_copied(terms, order) => table.copy::<L>(has, terms.id(0), to),
            Summation::BlocksOf8 => {
                let rest = count % 8;
                let mut start = count.min(if rest < 2 { rest + 8 } else { rest });
                table.sum::<L>(has, &terms.part(0, 1, start), 0..dim, writes);
                while start < count {
                    table.sum::<L>(has, &terms.part(start, 1, 8), 0..dim, adds);
                    start += 8;
                }
            }
            Summation::FourLanes if count >= 16 && dim >= 8 => {
                let (packed, length) = (dim / 8 * 8, count / 4);
                for i in PREFETCH_DISTANCE..count + PREFETCH_DISTANCE {
                    table.prefetch_nth_row(terms.ahead, i);
                }
                let terms = terms.prefetched();
                if packed < dim {
                    table.sum::<L>(has, &terms, packed..dim, writes);
                }
                for lane in 0..4 {
                    let to = if lane == 0 { writes } else { adds };
                    table.sum::<L>(has, &terms.part(lane, 4, length), 0..packed, to);
                }
                // A row is added as it is: from zero, its -0.0 would be 0.0.
                let adds = SumTarget { start: -0.0, ..adds };
                for left_over in 4 * length..count {
                    table.sum::<L>(has, &terms.part(left_over, 1, 1), 0..packed, adds);
                }
            }
            Summation::InOrder | Summation::FourLanes | Summation::SegmentMean => {
                table.sum::<L>(has, terms, 0..dim, writes);
            }
        }
        std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), dim * 4)
    }
}
