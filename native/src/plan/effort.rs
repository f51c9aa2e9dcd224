//! How much work a thread may do for a request, and the rows that an answer has in place of others.

use std::sync::Arc;
use std::time::Instant;

use super::faults::{self, BoxedFault};
use super::graph_limit::{GraphLimit, GraphPermit};

/// The amount of work that the calling thread may do for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort<'a> {
    /// The thread may work for some tens of microseconds, because it also serves connections; larger requests end with
    /// [`super::Declined::TooLarge`].
    Small,
    /// The thread may do any amount of work, but must not wait for disks or other machines: it belongs to the pool for
    /// large work.
    Any,
    /// The thread may do any amount of work, and may wait for disks and other machines.
    Wait(&'a Waiting),
}

impl<'a> Effort<'a> {
    /// Blocks until the thread may run a graph; returns the permit, which the caller keeps until the graph has run.
    /// None: the thread needs no permit.
    #[must_use]
    pub fn graph_permit(self) -> Option<GraphPermit<'a>> {
        match self {
            Effort::Wait(waiting) => waiting.graph_limit.as_deref().map(GraphLimit::permit),
            Effort::Small | Effort::Any => None,
        }
    }

    /// Checks that a request which has waited can still be answered in time.
    ///
    /// # Errors
    /// The request's deadline has passed.
    pub fn check_deadline(self) -> Result<(), BoxedFault> {
        let Effort::Wait(waiting) = self else { return Ok(()) };
        if waiting.deadline.is_none_or(|deadline| Instant::now() < deadline) {
            return Ok(());
        }
        Err(faults::late_for_run())
    }
}

/// Limits how long one request waits for rows of Valkey or Redis clusters and for a permit to run its graph.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The time by which the request must be answered; None if only the time limits of the Valkey or Redis clusters
    /// apply.
    pub deadline: Option<Instant>,
    /// The limit on graphs that the threads of the pool for waiting work run at the same time; None for no limit.
    pub graph_limit: Option<Arc<GraphLimit>>,
}

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
