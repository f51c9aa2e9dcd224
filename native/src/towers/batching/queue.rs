//! The rules by which the requests of one signature wait for their batches. They know no thread and no clock.
//!
//! Source of the limits: `tensorflow/core/kernels/batching_util/shared_batch_scheduler.h` (TensorFlow 2.21),
//! `Queue`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::parameters::Parameters;
use crate::plan::faults::{self, BoxedFault};

/// The longest time that a batch can wait: longer times overflow the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The part of a request that runs in one batch: its rows from `begin` to `end`.
#[derive(Debug)]
pub struct Task<C> {
    pub call: Arc<C>,
    /// First row of the request in this batch.
    pub begin: usize,
    /// End of the rows of the request in this batch, exclusive.
    pub end: usize,
    /// The time at which the request joined the queue.
    pub since: Instant,
}

impl<C> Task<C> {
    /// Returns the number of rows of this part of a request.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.end - self.begin
    }
}

pub trait Queued {
    /// The type of a request's group: requests of equal groups may share a batch.
    type Group: PartialEq;

    fn rows(&self) -> usize;

    fn group(&self) -> &Self::Group;
}

/// A waiting batch. Requests join it while it is open: until the next batch of its group begins.
struct Batch<C> {
    due: Instant,
    tasks: Vec<Task<C>>,
    rows: usize,
    is_open: bool,
}

/// The queue of one signature's waiting batches, the oldest first. Concurrency: one caller at a time.
///
/// Each group of requests has an open batch of its own, but all groups share one limit on waiting batches: clients
/// decide by their inputs how many groups there are.
pub struct BatchQueue<C> {
    parameters: Arc<Parameters>,
    batches: VecDeque<Batch<C>>,
    /// Whether batches run at once, full or not, because the server ends or no longer routes requests to the version.
    is_closing: bool,
}

impl<C: Queued> BatchQueue<C> {
    pub fn new(parameters: Arc<Parameters>) -> Self {
        BatchQueue { parameters, batches: VecDeque::new(), is_closing: false }
    }

    /// Decides whether batches run at once, full or not.
    pub fn set_closing(&mut self, is_closing: bool) {
        self.is_closing = is_closing;
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Adds a request to the open batch of its group; a request that is split becomes tasks of several batches. Returns
    /// the number of tasks.
    ///
    /// # Errors
    /// The request has more rows than `max_batch_size`, or too many batches wait.
    pub fn push(&mut self, call: &Arc<C>, now: Instant) -> Result<usize, BoxedFault> {
        let rows = call.rows();
        if rows > self.parameters.max_batch_size {
            return Err(faults::task_too_large(rows, self.parameters.max_batch_size));
        }
        let full = self.parameters.max_execution_batch_size;
        let open = self.batches.iter().position(|batch| batch.is_open && batch.tasks[0].call.group() == call.group());
        self.check_room(rows, open.map(|place| self.batches[place].rows))?;
        let mut place = open;
        let (mut begin, mut num_tasks) = (0, 0);
        while begin < rows {
            let free = place.map_or(0, |place| full.saturating_sub(self.batches[place].rows));
            let mut more = rows - begin;
            if self.parameters.enable_large_batch_splitting {
                more = more.min(if free > 0 { free } else { full });
            }
            if place.is_none() || more > free {
                if let Some(before) = place {
                    self.batches[before].is_open = false;
                }
                let due = now + self.parameters.timeout().min(LONGEST_WAIT);
                self.batches.push_back(Batch { due, tasks: Vec::new(), rows: 0, is_open: true });
                place = Some(self.batches.len() - 1);
            }
            let Some(batch) = place.and_then(|place| self.batches.get_mut(place)) else { break };
            batch.tasks.push(Task { call: Arc::clone(call), begin, end: begin + more, since: now });
            batch.rows += more;
            begin += more;
            num_tasks += 1;
        }
        Ok(num_tasks)
    }

    /// Removes and returns the tasks of the first batch that is full, due, or closed by the next batch of its group;
    /// None if no batch is ready.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<Task<C>>> {
        let place = self.batches.iter().position(|batch| self.is_batch_ready(batch, now))?;
        self.batches.remove(place).map(|batch| batch.tasks)
    }

    /// Says whether a batch is ready to run.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.batches.iter().any(|batch| self.is_batch_ready(batch, now))
    }

    /// Returns the time at which the next waiting batch must run, full or not; None if no batch waits.
    pub fn due(&self) -> Option<Instant> {
        self.batches.iter().map(|batch| batch.due).min()
    }

    /// Removes the tasks of a request from the waiting batches; returns how many it removed.
    pub fn remove(&mut self, call: &Arc<C>) -> usize {
        let mut num_removed = 0;
        for batch in &mut self.batches {
            let before = batch.tasks.len();
            batch.tasks.retain(|task| !Arc::ptr_eq(&task.call, call));
            num_removed += before - batch.tasks.len();
            batch.rows = batch.tasks.iter().map(Task::rows).sum();
        }
        self.batches.retain(|batch| !batch.tasks.is_empty());
        num_removed
    }

    fn is_batch_ready(&self, batch: &Batch<C>, now: Instant) -> bool {
        self.is_closing || !batch.is_open || batch.rows >= self.parameters.max_execution_batch_size || now >= batch.due
    }

    /// Checks that a request of `rows` rows may wait; `open_rows` is the number of rows in its group's open batch.
    fn check_room(&self, rows: usize, open_rows: Option<usize>) -> Result<(), BoxedFault> {
        let (most, full) = (self.parameters.max_enqueued_batches.max(1), self.parameters.max_execution_batch_size);
        let waiting = self.batches.len();
        if !self.parameters.enable_large_batch_splitting {
            if waiting < most || open_rows.is_some_and(|open| open + rows <= full) {
                return Ok(());
            }
            return Err(faults::batch_queue_full(waiting, most).for_later());
        }
        // A request whose group has no open batch opens one, so the check counts that batch as waiting.
        let (waiting, begun) = open_rows.map_or((waiting + 1, 0), |open| (waiting, open));
        let capacity = if waiting > most { 0 } else { (most - waiting) * full + full - begun };
        if rows <= capacity {
            return Ok(());
        }
        Err(faults::batch_queue_too_full(rows, capacity, waiting, most, begun, full).for_later())
    }
}
