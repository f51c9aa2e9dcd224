//! Writes, for each row of a request, the table rows of its first L ids, one after the other.

use super::combine::split;
use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{PREFETCH_DISTANCE, TableView, ZERO};
use super::table::{Ints, LookupResult, OutputRows};

/// The arguments of a lookup of sequences, [`super::table::Table::sequence`].
pub(super) struct Sequence<'a> {
    pub(super) table: TableView<'a>,
    pub(super) ids: Ints<'a>,
    pub(super) splits: Ints<'a>,
    pub(super) length: usize,
    pub(super) out: OutputRows<'a>,
}

impl Kernel for Sequence<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult {
        let Sequence { table, ids, splits, length, mut out } = self;
        let table = table.of::<S>();
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
                table.prefetch_nth_row(ids, start + k + PREFETCH_DISTANCE);
                let mut id = ids.get(start + k);
                let to = &mut to[k * row_bytes..][..row_bytes];
                if !table.has_row(id) {
                    missing += 1;
                    if let Some(row) = table.replacement(id, start + k)? {
                        id = row;
                    } else {
                        to.fill(ZERO);
                        continue;
                    }
                }
                table.copy::<L>(has, id, to);
            }
            to[count * row_bytes..length * row_bytes].fill(ZERO);
        }
        Ok(missing)
    }
}
