//! The rows of Valkey or Redis clusters that a request's features have read.

use std::ops::Range;

use super::declined::Declined;
use super::faults;
use super::instead::Instead;
use crate::tables::memory::Memory;
use crate::tables::table::{Ints, OnBadId, Policy, Table};

/// The distinct rows that one feature of a request reads from a Valkey or Redis cluster.
pub(super) struct RemoteRows {
    /// A small table with only the rows that the feature reads.
    pub(super) table: Table,
    /// Number of ids outside the remote table for which the policy reads another row, such as a default row.
    pub(super) num_read_instead: usize,
    /// Counts of the distinct rows that could not be read: of those that the row cache replaced, and of those that a
    /// default row replaced.
    pub(super) num_stale: usize,
    pub(super) num_default: usize,
    /// For each id of the request, its row in the small table `table`; -1 for a dropped id.
    pub(super) places: Vec<i64>,
    /// The memory of the small table, for the batch that the request joins.
    pub(super) rows: Memory,
    pub(super) scales: Memory,
}

impl RemoteRows {
    /// The policy of a lookup in the small table `table`: the lookup drops the id -1.
    pub(super) const POLICY: Policy = Policy { on_bad_id: OnBadId::DropNegative, default_row: 0 };

    /// Returns, for each id of the request, the row of the small table `table` that holds its vector; -1 for a dropped
    /// id.
    pub(super) fn ids(&self) -> Ints<'_> {
        Ints::of(&self.places)
    }
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
    ///
    /// # Errors
    /// [`Declined::NotNative`]: as in `RemoteRows::new`.
    pub fn join(parts: &[(&RowsRead, Vec<Range<usize>>)]) -> Result<Self, Declined> {
        let num_features = parts.first().map_or(0, |(first, _)| first.rows.len());
        let of_feature = |feature: usize| {
            let pieces =
                parts.iter().filter_map(|(read, ranges)| Some((read.rows[feature].as_ref()?, &ranges[feature])));
            RemoteRows::join(pieces)
        };
        Ok(RowsRead { rows: (0..num_features).map(of_feature).collect::<Result<_, _>>()?, instead: Vec::new() })
    }
}

impl RemoteRows {
    /// Joins the rows of one feature of several requests, each with the range of its ids that are in the batch.
    fn join<'a>(pieces: impl Iterator<Item = (&'a RemoteRows, &'a Range<usize>)>) -> Result<Option<Self>, Declined> {
        let (mut like, mut count, mut num_read_instead) = (None, 0, 0);
        let (mut rows, mut scales, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (piece, range) in pieces {
            let begin = i64::try_from(count).unwrap_or(i64::MAX);
            let moved = |&place: &i64| if place < 0 { -1 } else { begin + place };
            places.extend(piece.places[range.clone()].iter().map(moved));
            rows.extend_from_slice(piece.rows.as_bytes());
            scales.extend_from_slice(piece.scales.as_bytes());
            count += piece.table.vocabulary_size;
            num_read_instead += piece.num_read_instead;
            like = Some(&piece.table);
        }
        let Some(like) = like else { return Ok(None) };
        RemoteRows::new(like, Memory::of(rows), Memory::of(scales), count, places, num_read_instead).map(Some)
    }

    /// Returns the small table of `count` rows and their scales, of the dtype and dimension of `table`.
    ///
    /// # Errors
    /// [`Declined::Fault`]: the memory has fewer rows or scales.
    pub(super) fn new(
        table: &Table,
        rows: Memory,
        scales: Memory,
        count: usize,
        places: Vec<i64>,
        num_read_instead: usize,
    ) -> Result<Self, Declined> {
        let small = Table::new(table.dtype, count, table.embedding_dim, &rows, &scales);
        let table = small.map_err(|_| faults::internal("rows of a cluster are shorter than their table's"))?;
        Ok(RemoteRows { table, num_read_instead, num_stale: 0, num_default: 0, places, rows, scales })
    }
}
