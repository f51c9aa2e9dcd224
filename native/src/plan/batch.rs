//! The state of a request that waits in a batch queue, from its validation to its answer.

use std::cell::Cell;
use std::fmt;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::declined::Declined;
use super::faults::BoxedFault;
use super::graph_output::GraphOutput;
use super::inputs::UnknownKeyCounts;
use super::notes::Notes;
use super::rows_read::RowsRead;

/// The outputs of a graph for a request, with what its client is told beside them; or the reason why the request has
/// none.
pub type GraphResult = Result<(Vec<GraphOutput>, Notes), Declined>;

/// A request's place in a batch queue. Dropping it removes the request from the queue.
pub trait BatchTicket: Send {
    /// Removes a request whose deadline has passed from the queue; returns the error for its client. None: a part of the
    /// request runs already, so its caller waits for the end of the run.
    fn give_up(&self) -> Option<BoxedFault>;
}

/// A request that waits in a batch queue. Dropping it removes the request from the queue.
pub struct QueuedRequest {
    /// Receives the outputs; it is closed if the run of the batch panicked.
    pub receiver: oneshot::Receiver<GraphResult>,
    pub ticket: Box<dyn BatchTicket>,
    /// Index of the signature, B, the number of rows of the request, and the numbers of its unknown keys.
    validated: (usize, usize, UnknownKeyCounts),
}

/// The places of one request in batch queues: one for each signature that it runs. A `MultiInference` may run several.
pub type Queue = SmallVec<[QueuedRequest; 1]>;

impl QueuedRequest {
    /// Returns a queued request whose outputs come by `receiver`.
    #[must_use]
    pub fn new(receiver: oneshot::Receiver<GraphResult>, ticket: Box<dyn BatchTicket>) -> Self {
        QueuedRequest { receiver, ticket, validated: Default::default() }
    }

    pub(super) fn with_validated(self, signature: usize, rows: usize, unknown_keys: UnknownKeyCounts) -> Self {
        QueuedRequest { validated: (signature, rows, unknown_keys), ..self }
    }

    /// Takes the validated request out of its queue, for [`BatchPlace::ran`].
    #[must_use]
    pub fn into_ran(self, outputs: Vec<GraphOutput>, notes: Notes) -> Ran {
        let (signature, rows, unknown_keys) = self.validated;
        Ran { signature, outputs, notes, rows, unknown_keys }
    }
}

/// A request that ran in a batch; its answer is not yet written.
pub struct Ran {
    signature: usize,
    pub(super) outputs: Vec<GraphOutput>,
    pub(super) notes: Notes,
    pub(super) rows: usize,
    pub(super) unknown_keys: UnknownKeyCounts,
}

impl Ran {
    /// Returns how many bytes the outputs have.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.outputs.iter().map(GraphOutput::num_bytes).sum()
    }
}

/// The place where one request meets its batch: the handler of a wire format (form) leaves a queued request here, and
/// finds the outputs here when the edge calls the form again.
#[derive(Default)]
pub struct BatchPlace {
    /// Whether the calling thread may run a graph that is not batched, or a request without rows.
    may_run: bool,
    queued: Cell<Queue>,
    /// The outputs of the request's signatures that ran.
    ran: Cell<SmallVec<[Ran; 1]>>,
    /// The rows of clusters that the requests of a batch have read before they joined it.
    rows: Cell<Option<RowsRead>>,
}

impl BatchPlace {
    /// Returns a place for a request that was not yet queued.
    #[must_use]
    pub fn new(may_run: bool) -> Self {
        BatchPlace { may_run, ..BatchPlace::default() }
    }

    /// Returns a place for a request that ran in a batch: the form only writes its answer.
    #[must_use]
    pub fn of_ran(ran: SmallVec<[Ran; 1]>) -> Self {
        BatchPlace { ran: Cell::new(ran), ..BatchPlace::default() }
    }

    /// Returns a place for a batch whose requests have read these rows of clusters.
    #[must_use]
    pub fn of_rows(rows: RowsRead) -> Self {
        BatchPlace { rows: Cell::new(Some(rows)), ..BatchPlace::default() }
    }

    /// Takes the queued request out of the place, after the form ended with [`Declined::Queued`].
    #[must_use]
    pub fn take_queued(&self) -> Queue {
        self.queued.take()
    }

    /// Says whether the request of this place has run in a batch.
    #[must_use]
    pub fn has_ran(&self) -> bool {
        let ran = self.ran.take();
        let has_ran = !ran.is_empty();
        self.ran.set(ran);
        has_ran
    }

    pub(super) fn take_rows(&self) -> Option<RowsRead> {
        self.rows.take()
    }

    pub(super) fn take_ran(&self, signature: usize) -> Option<Ran> {
        let mut all = self.ran.take();
        let ran = all.iter().position(|one| one.signature == signature).map(|at| all.swap_remove(at));
        self.ran.set(all);
        ran
    }

    pub(super) fn may_run(&self) -> bool {
        self.may_run
    }

    pub(super) fn leave(&self, queued: QueuedRequest) {
        let mut all = self.queued.take();
        all.push(queued);
        self.queued.set(all);
    }
}

impl fmt::Debug for BatchPlace {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "BatchPlace, may_run: {}", self.may_run)
    }
}

/// Compares by identity: each place belongs to one request.
impl PartialEq for BatchPlace {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for BatchPlace {}
