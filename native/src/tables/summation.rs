//! Adds rows in the same order as TensorFlow's ops, so that sums agree in the last bits.
//!
//! Source: `SparseSegmentReductionOpBase::Reduce` of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and
//! the packets of `InnerMostDimPreserver` in Eigen's TensorReduction.h, as `SegmentSum` uses it (lanes); TensorFlow 2.21.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::rows::{Place, Terms, To};
use super::table::Summation;

/// Writes the weighted sum of rows in one of three orders; zeros for no row.
///
/// `BlocksOf8`: the first block has the rows that eights leave over (8 or 9 where 0 or 1 is left), each other block
/// eight. `FourLanes`: from 16 rows on, four sums for each packet of eight columns, and other columns in order.
///
/// # Safety
/// As [`Place::sum`], for all D columns; the terms have a stride of 1.
#[inline(always)]
pub(super) unsafe fn sum<L: Lanes, S: Stored>(place: &Place, terms: &Terms, order: Summation, to: *mut u8) {
    let writes = To { at: to, adds: false };
    let adds = To { at: to, adds: true };
    let (count, dim) = (terms.count, place.dim);
    // SAFETY: parts of the terms, and columns up to D; the caller promises the rest.
    unsafe {
        match order {
            Summation::BlocksOf8 => {
                let rest = count % 8;
                let mut begin = count.min(if rest < 2 { rest + 8 } else { rest });
                place.sum::<L, S>(&terms.part(0, 1, begin), 0..dim, writes);
                while begin < count {
                    place.sum::<L, S>(&terms.part(begin, 1, 8), 0..dim, adds);
                    begin += 8;
                }
            }
            Summation::FourLanes if count >= 16 && dim >= 8 => {
                let (packed, length) = (dim / 8 * 8, count / 4);
                if !terms.ids_end.is_null() {
                    for i in 0..count {
                        place.ask_ahead::<S>(terms, i);
                    }
                }
                let terms = Terms { ids_end: std::ptr::null(), ..*terms };
                if packed < dim {
                    place.sum::<L, S>(&terms, packed..dim, writes);
                }
                for lane in 0..4 {
                    let to = if lane == 0 { writes } else { adds };
                    place.sum::<L, S>(&terms.part(lane, 4, length), 0..packed, to);
                }
                for left_over in 4 * length..count {
                    place.sum::<L, S>(&terms.part(left_over, 1, 1), 0..packed, adds);
                }
            }
            Summation::InOrder | Summation::FourLanes => place.sum::<L, S>(terms, 0..dim, writes),
        }
    }
}
