//! Writes, for each row of a request, the table rows of its first L ids, one after the other.

use super::combine::split;
use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{PREFETCH_DISTANCE, TableView};
use super::table::{Ints, LookupResult, OutputRows};

/// The arguments of a lookup of sequences, [`super::table::Table::sequence`].
pub(super) struct Sequence<'a> {
    pub(super) table: TableView,
    pub(super) ids: Ints<'a>,
    pub(super) splits: Ints<'a>,
    pub(super) length: usize,
    pub(super) out: OutputRows<'a>,
}

impl Kernel for Sequence<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, S: Stored>(self) -> LookupResult {
        let Sequence { table, ids, splits, length, mut out } = self;
        let row_bytes = table.dim * 4;
        let fits = length.checked_mul(row_bytes).is_some_and(|all| all <= out.width());
        assert!(out.rows() == 0 || (fits && splits.len() == out.rows() + 1));
        let mut missing = 0;
        for r in 0..out.rows() {
            let (start, end) = (split(splits, r, ids), split(splits, r + 1, ids));
            assert!(start <= end);
            let count = length.min(end - start);
            let to = out.row(r);
            for k in 0..count {
                table.prefetch_nth_row::<S>(ids, start + k + PREFETCH_DISTANCE);
                let mut id = ids.get(start + k);
                // SAFETY: `k` is below `length`, and the assertion above checks that a row of `out` has space for
                // `length` rows of the table.
                let to = unsafe { to.add(k * row_bytes) };
                if !table.has_row(id) {
                    missing += 1;
                    if let Some(row) = table.replacement(id, start + k)? {
                        id = row;
                    } else {
                        // SAFETY: the assertion above checks that `out` has space at `to` for one row of the table,
                        // which is set to zeros here.
                        unsafe { to.write_bytes(0, row_bytes) };
                        continue;
                    }
                }
                // SAFETY: `id` is now the number of a row of the table, and `out` has space at `to` for the copy of
                // that row.
                unsafe { table.copy::<L, S>(id, to) };
            }
            // SAFETY: the assertion above checks that a whole row of the answer lies in `out`; the part after the last
            // id is set to zeros here.
            unsafe { to.add(count * row_bytes).write_bytes(0, (length - count) * row_bytes) };
        }
        Ok(missing)
    }
}
