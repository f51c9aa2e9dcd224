//! Writes the table rows of the first L ids of each row of ids, one after the other.

use super::combine::split;
use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{AHEAD, Place};
use super::table::{Ints, Looked, Out};

/// Arguments of [`super::table::Table::sequence`].
pub(super) struct Sequence<'a> {
    pub(super) place: Place,
    pub(super) ids: Ints<'a>,
    pub(super) splits: Ints<'a>,
    pub(super) length: usize,
    pub(super) out: Out<'a>,
}

impl Kernel for Sequence<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, S: Stored>(self) -> Looked {
        let Sequence { place, ids, splits, length, mut out } = self;
        let row_bytes = place.dim * 4;
        let fits = length.checked_mul(row_bytes).is_some_and(|all| all <= out.width());
        assert!(out.rows() == 0 || (fits && splits.len() == out.rows() + 1));
        let mut missing = 0;
        for r in 0..out.rows() {
            let (begin, end) = (split(splits, r, ids), split(splits, r + 1, ids));
            assert!(begin <= end);
            let count = length.min(end - begin);
            let to = out.row(r);
            for k in 0..count {
                place.ask_for_nth::<S>(ids, begin + k + AHEAD);
                let mut id = ids.get(begin + k);
                // SAFETY: k is below the length, and a row of `out` takes `length` rows of the table, as was checked
                // above.
                let to = unsafe { to.add(k * row_bytes) };
                if !place.has(id) {
                    missing += 1;
                    if let Some(row) = place.instead(id, begin + k)? {
                        id = row;
                    } else {
                        // SAFETY: as above, `to` takes one row of the table.
                        unsafe { to.write_bytes(0, row_bytes) };
                        continue;
                    }
                }
                // SAFETY: the id has a row now; `to` takes one row of the table, as above.
                unsafe { place.copy::<L, S>(id, to) };
            }
            // SAFETY: the rest of the row lies in `out`, as was checked above.
            unsafe { to.add(count * row_bytes).write_bytes(0, (length - count) * row_bytes) };
        }
        Ok(missing)
    }
}
