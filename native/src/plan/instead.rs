//! The counts of rows that replace others in an answer.

/// The counts of cached rows and of default rows that an answer has in place of one table's rows that could not be
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instead {
    /// The table's name.
    pub table: String,
    /// Number of distinct rows of the answer that are from the row cache, and may be older than the rows in the
    /// cluster.
    pub stale_rows: usize,
    /// Number of distinct rows that could not be read and that the answer replaces by the feature's default row.
    pub default_rows: usize,
}
