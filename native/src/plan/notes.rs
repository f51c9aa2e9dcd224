//! The notes that an answer has in its headers: rows that replace others, and keys that vocabularies lack.

use super::inputs::UnknownKeyCounts;

/// The counts of cached rows and of default rows that an answer has in place of one table's rows that could not be
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instead {
    pub table: String,
    /// Number of distinct rows of the answer that are from the row cache, and may be older than the rows in the
    /// cluster.
    pub stale_rows: usize,
    /// Number of distinct rows that could not be read and that the answer replaces by the feature's default row.
    pub default_rows: usize,
}

/// The notes that a client gets beside an answer.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// The tables for which the answer has cached or default rows, because some of their rows could not be read.
    pub instead: Vec<Instead>,
    pub(super) unknown_keys: UnknownKeyCounts,
}

impl Notes {
    /// Returns the notes for an answer; nearly always none, and then without memory.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        let has_any = !self.instead.is_empty() || self.has_unknown_keys();
        has_any.then(|| Box::new(self))
    }

    /// Returns the notes of an answer without unknown keys.
    #[must_use]
    pub fn of_instead(instead: Vec<Instead>) -> Self {
        Notes { instead, ..Notes::default() }
    }

    /// Says whether a vocabulary lacks a key of the request.
    #[must_use]
    pub fn has_unknown_keys(&self) -> bool {
        !self.unknown_keys.is_empty()
    }

    /// Returns the indexes of the inputs whose keys a vocabulary lacks, with the number of these keys.
    pub fn unknown_keys(&self) -> impl Iterator<Item = (usize, usize)> {
        self.unknown_keys.iter().map(|one| (one.input, one.count))
    }
}
