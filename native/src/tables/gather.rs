//! Gathers one row of a table for each id.

use super::lanes::Lanes;
use super::numbers::Stored;
use super::processor::Kernel;
use super::rows::{AHEAD, Place};
use super::table::{Ints, Looked, Out};

/// Arguments of [`super::table::Table::gather`].
pub(super) struct Gather<'a> {
    pub(super) place: Place,
    pub(super) ids: Ints<'a>,
    pub(super) out: Out<'a>,
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, S: Stored>(self) -> Looked {
        let Gather { place, ids, mut out } = self;
        assert!(out.rows() <= ids.len() && (out.rows() == 0 || place.dim * 4 <= out.width()));
        for i in 0..AHEAD {
            place.ask_for_nth::<S>(ids, i);
        }
        let mut missing = 0;
        for i in 0..out.rows() {
            place.ask_for_nth::<S>(ids, i + AHEAD);
            let mut id = ids.get(i);
            let to = out.row(i);
            if !place.has(id) {
                missing += 1;
                if let Some(row) = place.instead(id, i)? {
                    id = row;
                } else {
                    // SAFETY: a row of `out` takes D float32, as was checked above.
                    unsafe { to.write_bytes(0, place.dim * 4) };
                    continue;
                }
            }
            // SAFETY: the id has a row now, and a row of `out` takes D float32.
            unsafe { place.copy::<L, S>(id, to) };
        }
        Ok(missing)
    }
}
