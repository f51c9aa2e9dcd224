//! Small tables with only the rows that one feature of a request reads.
//!
//! The kernels work on a small table as they do on the whole one, in the same order, so answers agree to the bit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::tables::norms::bound;
use crate::tables::table::{Ints, LookupError, OnBadId, OutputRows, Policy, Table};

/// A table, and the ids by which a feature of a request reads it.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) table: &'a Table,
    pub(super) ids: Ints<'a>,
    /// The policy for ids outside the table; its default row is also that of empty rows.
    pub(super) policy: Policy,
    /// Number of ids outside the whole table for which `ids` has another row, such as a default row.
    pub(super) num_read_instead: usize,
}

/// A table with copies of the distinct rows that one feature of a request reads.
pub(super) struct SmallTable {
    pub(super) table: Table,
    /// For each id of the request, its row in `table`; -1 for a dropped id, [`REFUSED`] for a refused one.
    pub(super) places: Vec<i64>,
    /// The row of `table` that is the feature's default row, if the feature reads it for empty rows; else 0.
    pub(super) default_place: usize,
    /// Number of ids outside the whole table for which the policy reads another row, such as a default row.
    pub(super) num_read_instead: usize,
}

/// The place of an id that the policy refuses: no table has so many rows.
const REFUSED: i64 = i64::MAX;

impl SmallTable {
    pub(super) fn reading(&self) -> Reading<'_> {
        Reading {
            table: &self.table,
            ids: Ints::of(&self.places),
            policy: Policy { on_bad_id: OnBadId::DropNegative, default_row: self.default_place },
            num_read_instead: self.num_read_instead,
        }
    }

    /// Copies the rows that a feature reads, as float32, and scales those down whose norm is larger than `max_norm`.
    ///
    /// # Errors
    /// Never: the rows are in the table.
    pub(super) fn of_float32(
        reading: Reading<'_>,
        max_norm: Option<f32>,
        has_default_row: bool,
    ) -> Result<Self, LookupError> {
        let Reading { table, ids, policy, num_read_instead } = reading;
        let default_row = has_default_row.then_some(policy.default_row);
        let distinct = Distinct::of(ids, policy, table.vocabulary_size, default_row);
        let (count, dim) = (distinct.rows.len(), table.embedding_dim);
        let mut numbers: Vec<f32> = Vec::with_capacity(count * dim);
        let to = &mut numbers.spare_capacity_mut()[..count * dim];
        // SAFETY: `bytes` is the memory of `to`: bytes need no alignment, and may be uninitialised as `to` may.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), size_of_val(to)) };
        let rows: Vec<i64> = distinct.rows.iter().map(|row| row.cast_signed()).collect();
        let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
        table.gather_float32(Ints::of(&rows), policy, OutputRows::new(bytes, 0, dim * 4, dim * 4, count))?;
        // SAFETY: gather_float32() has written `count` rows of `dim` numbers.
        unsafe { numbers.set_len(count * dim) };
        if let Some(max_norm) = max_norm {
            bound(&mut numbers, dim, max_norm);
        }
        let small = distinct.with_rows(Table::of_float32(count, dim, numbers));
        Ok(SmallTable { num_read_instead: small.num_read_instead + num_read_instead, ..small })
    }
}

/// The distinct rows that a feature reads, and for each id its place among these rows.
pub(super) struct Distinct {
    pub(super) rows: Vec<u64>,
    places: Vec<i64>,
    default_place: usize,
    num_read_instead: usize,
    /// Whether the policy refuses one of the ids.
    pub(super) has_refused: bool,
}

impl Distinct {
    /// Maps ids to distinct rows by a policy; `size` is V, the number of rows of the table. `default_row` is a row of
    /// the table that is read besides.
    pub(super) fn of(ids: Ints<'_>, policy: Policy, size: usize, default_row: Option<usize>) -> Self {
        let size = size as u64;
        let mut rows = Vec::new();
        let mut known: HashMap<u64, i64, quick_cache::DefaultHashBuilder> =
            HashMap::with_capacity_and_hasher(ids.len(), quick_cache::DefaultHashBuilder::default());
        let mut place_of = |row: u64| {
            let next = (rows.len() as u64).cast_signed();
            match known.entry(row) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    rows.push(row);
                    *place.insert(next)
                }
            }
        };
        let mut num_read_instead = 0;
        let mut has_refused = false;
        let places = ids.iter().map(|id| {
            if id.cast_unsigned() < size {
                return place_of(id.cast_unsigned());
            }
            match policy.replacement(id, size) {
                Ok(Some(row)) => {
                    num_read_instead += 1;
                    place_of(row.cast_unsigned())
                }
                Ok(None) => -1,
                Err(_) => {
                    has_refused = true;
                    REFUSED
                }
            }
        });
        let places = places.collect();
        let default_place = default_row.map_or(0, |row| usize::try_from(place_of(row as u64)).unwrap_or(0));
        Distinct { rows, places, default_place, num_read_instead, has_refused }
    }

    /// Returns the table of the distinct rows of a request; `table` has these rows, in the order of `self.rows`.
    pub(super) fn with_rows(self, table: Table) -> SmallTable {
        let Distinct { places, default_place, num_read_instead, .. } = self;
        SmallTable { table, places, default_place, num_read_instead }
    }
}
