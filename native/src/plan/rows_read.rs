//! The rows of Valkey or Redis clusters that a request's features have read.

use std::ops::Range;

use super::notes::Instead;
use super::small_table::{Distinct, SmallTable};
use crate::tables::memory::Memory;
use crate::tables::table::Table;

/// The distinct rows that one feature of a request reads from a Valkey or Redis cluster.
pub(super) struct RemoteRows {
    pub(super) small: SmallTable,
    /// Counts of the distinct rows that could not be read: of those that the row cache replaced, and of those that a
    /// default row replaced.
    pub(super) num_stale: usize,
    pub(super) num_default: usize,
    /// The memory of the small table, for the batch that the request joins.
    rows: Memory,
    scales: Memory,
}

/// The rows that a request's features read from Valkey or Redis clusters before the request joins a batch; or those of
/// a batch.
#[derive(Default)]
pub struct RowsRead {
    /// For each feature of the signature, its rows; empty if no feature has its table in a cluster.
    pub(super) rows: Vec<Option<RemoteRows>>,
    /// The tables whose rows could not all be read.
    pub instead: Vec<Instead>,
}

impl RowsRead {
    /// Joins the rows of several requests. Each part has, for each feature, the range of the request's ids that are in
    /// the batch.
    #[must_use]
    pub fn join(parts: &[(&RowsRead, Vec<Range<usize>>)]) -> Self {
        let num_features = parts.first().map_or(0, |(first, _)| first.rows.len());
        let of_feature = |feature: usize| {
            let pieces =
                parts.iter().filter_map(|(read, ranges)| Some((read.rows[feature].as_ref()?, &ranges[feature])));
            RemoteRows::join(pieces)
        };
        RowsRead { rows: (0..num_features).map(of_feature).collect(), instead: Vec::new() }
    }
}

impl RemoteRows {
    /// Joins the rows of one feature of several requests, each with the range of its ids that are in the batch.
    fn join<'a>(pieces: impl Iterator<Item = (&'a RemoteRows, &'a Range<usize>)>) -> Option<Self> {
        let (mut first, mut count, mut num_read_instead) = (None, 0, 0);
        let (mut rows, mut scales, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (piece, range) in pieces {
            let begin = i64::try_from(count).unwrap_or(i64::MAX);
            let moved = |&place: &i64| if place < 0 { -1 } else { begin.saturating_add(place) };
            places.extend(piece.small.places[range.clone()].iter().map(moved));
            rows.extend_from_slice(piece.rows.as_bytes());
            scales.extend_from_slice(piece.scales.as_bytes());
            count += piece.small.table.vocabulary_size;
            num_read_instead += piece.small.num_read_instead;
            first.get_or_insert(&piece.small);
        }
        // All pieces have the same default row, so that of the first is as good as any.
        let SmallTable { table, default_place, .. } = first?;
        let (rows, scales) = (Memory::of(rows), Memory::of(scales));
        let table = small_table(table, &rows, &scales, count);
        let small = SmallTable { table, places, default_place: *default_place, num_read_instead };
        Some(RemoteRows { small, num_stale: 0, num_default: 0, rows, scales })
    }

    /// Returns the `count` rows of `distinct`, with their scales, of the dtype and dimension of `table`.
    ///
    /// # Panics
    /// The memory has fewer rows or scales.
    pub(super) fn new(table: &Table, rows: Memory, scales: Memory, distinct: Distinct, count: usize) -> Self {
        let small = small_table(table, &rows, &scales, count);
        RemoteRows { small: distinct.with_rows(small), num_stale: 0, num_default: 0, rows, scales }
    }
}

fn small_table(like: &Table, rows: &Memory, scales: &Memory, count: usize) -> Table {
    Table::new(like.dtype, count, like.embedding_dim, rows, scales)
        .expect("Servable::compile has compared the size of rows in the cluster with the table's")
}
