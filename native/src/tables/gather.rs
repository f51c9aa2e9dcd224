//! Copies one row of a table, as float32, for each id of a request.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{PREFETCH_DISTANCE, TableView, ZERO};
use super::table::{Ints, LookupResult, OutputRows};

/// The arguments of a lookup that copies rows, [`super::table::Table::gather`].
pub(super) struct Gather<'a> {
    pub(super) table: TableView<'a>,
    pub(super) ids: Ints<'a>,
    pub(super) out: OutputRows<'a>,
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult {
        let Gather { table, ids, mut out } = self;
        let table = table.of::<S>();
        assert!(out.rows() <= ids.len() && (out.rows() == 0 || table.dim * 4 <= out.width()));
        for i in 0..PREFETCH_DISTANCE {
            table.prefetch_nth_row(ids, i);
        }
        let mut missing = 0;
        for i in 0..out.rows() {
            table.prefetch_nth_row(ids, i + PREFETCH_DISTANCE);
            let mut id = ids.get(i);
            let to = out.row(i);
            if !table.has_row(id) {
                missing += 1;
                if let Some(row) = table.replacement(id, i)? {
                    id = row;
                } else {
                    to[..table.dim * 4].fill(ZERO);
                    continue;
                }
            }
            table.copy::<L>(has, id, to);
        }
        Ok(missing)
    }
}
