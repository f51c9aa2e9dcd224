//! How much work a thread may do for a request, and what the request waits for.

use std::sync::Arc;
use std::time::Instant;

use super::batch::BatchPlace;
use super::declined::Declined;
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
    /// As `Any`, and a predict whose graph is batched is left in the batch queue ([`Waiting::batch`]).
    Queue(&'a Waiting),
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
            Effort::Small | Effort::Any | Effort::Queue(_) => None,
        }
    }

    /// Returns what the request waits for; None if the thread must not wait.
    #[must_use]
    pub fn waiting(self) -> Option<&'a Waiting> {
        match self {
            Effort::Queue(waiting) | Effort::Wait(waiting) => Some(waiting),
            Effort::Small | Effort::Any => None,
        }
    }

    /// Says whether the thread may run a graph for a request that joins no batch.
    ///
    /// # Errors
    /// [`Declined::TooLarge`].
    pub fn check_alone(self) -> Result<(), Declined> {
        if self.batch().is_some_and(|place| !place.may_run()) { Err(Declined::TooLarge) } else { Ok(()) }
    }

    pub(super) fn batch(self) -> Option<&'a BatchPlace> {
        self.waiting()?.batch.as_ref()
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

/// Limits how long one request waits for rows of Valkey or Redis clusters, for its batch and for a permit to run its
/// graph.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The time by which the request must be answered; None if only the time limits of the Valkey or Redis clusters
    /// apply.
    pub deadline: Option<Instant>,
    /// The limit on graphs that the threads of the pool for waiting work run at the same time; None for no limit.
    pub graph_limit: Option<Arc<GraphLimit>>,
    /// The place where the request meets its batch; None: the request runs by itself.
    pub batch: Option<BatchPlace>,
}

impl Waiting {
    /// Returns the same limits for a run of a graph that joins no batch.
    #[must_use]
    pub fn alone(&self) -> Self {
        Waiting { deadline: self.deadline, graph_limit: self.graph_limit.clone(), batch: None }
    }
}
