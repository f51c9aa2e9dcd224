//! Runs requests for one graph in batches, by TensorFlow Serving's batching parameters.
//!
//! Requests share a batch if they are for one signature of one servable, want the same outputs, and send the same
//! inputs with equal dtypes and inner shapes. They wait in a queue without a thread of their own; threads of the
//! scheduler run the batches.

mod counts;
mod joining;
mod parameters;
mod queue;
mod scheduler;
#[cfg(all(test, not(feature = "model")))]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::joining::{InputKind, OwnedInputs, Shapes, input_kinds, join, join_outputs, split};
use self::parameters::Parameters;
use self::queue::{Queued, Task};
use self::scheduler::{BatchCall, Scheduler};
use crate::plan::faults::{self, BoxedFault, Code};
use crate::plan::{
    BatchPlace, BatchTicket, Declined, Effort, Graph, GraphOutput, GraphRequest, GraphResult, Notes, QueuedRequest,
    RowsRead, Servable, Signature, Waiting, unknown_keys_of,
};

pub use self::counts::{Counts, Histogram, Limits};

/// The batcher of one server: the threads that run the batches of all its models. Concurrency: any thread.
#[derive(Clone)]
pub struct Batcher {
    scheduler: Arc<Scheduler<Call>>,
}

impl Batcher {
    /// Returns a batcher that runs at most `num_threads` batches at a time, in threads whose names begin with `name`;
    /// `limits` are those of its histograms.
    #[must_use]
    pub fn new(num_threads: usize, name: &str, limits: Limits) -> Self {
        Batcher { scheduler: Scheduler::new(num_threads, name, limits) }
    }

    /// Returns the counts of batches since the batcher was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.scheduler.counts()
    }

    /// Wraps a graph, so that requests wait in a queue for a shared run. `parameters` are [`Parameters`] as JSON.
    ///
    /// # Errors
    /// A sentence: the parameters are not valid.
    pub fn wrap(&self, graph: Box<dyn Graph>, parameters: &serde_json::Value) -> Result<Box<dyn Graph>, String> {
        let parameters: Parameters = serde::Deserialize::deserialize(parameters).map_err(|error| error.to_string())?;
        if parameters.max_execution_batch_size == 0 {
            return Err("a batch has no rows".to_owned());
        }
        let parameters = Arc::new(parameters);
        let queue = self.scheduler.add_queue(Arc::clone(&parameters));
        let scheduler = Arc::clone(&self.scheduler);
        Ok(Box::new(BatchedGraph { graph, parameters, kinds: OnceLock::new(), scheduler, queue }))
    }
}

/// A graph whose requests wait for shared runs. [`Graph::run`] runs a request alone.
struct BatchedGraph {
    graph: Box<dyn Graph>,
    parameters: Arc<Parameters>,
    kinds: OnceLock<Arc<[InputKind]>>,
    scheduler: Arc<Scheduler<Call>>,
    queue: u64,
}

impl fmt::Debug for BatchedGraph {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Batched {:?}", self.graph)
    }
}

impl Drop for BatchedGraph {
    fn drop(&mut self) {
        self.scheduler.remove_queue(self.queue);
    }
}

impl Graph for BatchedGraph {
    fn run(&self, request: GraphRequest<'_, '_>, effort: Effort<'_>) -> GraphResult {
        self.graph.run(request, effort)
    }

    fn is_batched(&self) -> bool {
        true
    }

    fn set_published(&self, is_published: bool) {
        self.scheduler.set_closing(self.queue, !is_published);
    }

    fn queue(
        &self,
        request: GraphRequest<'_, '_>,
        read: RowsRead,
        deadline: Option<Instant>,
    ) -> Result<Option<QueuedRequest>, BoxedFault> {
        let GraphRequest { servable, signature, inputs, wanted } = request;
        let kinds = self.kinds.get_or_init(|| input_kinds(request.plan()).into());
        let inputs = OwnedInputs::copy_of(kinds, inputs);
        let rows = inputs.num_rows(kinds)?;
        if rows == 0 {
            // A request without rows would not fill a batch, and has no row to repeat as padding.
            return Ok(None);
        }
        let mut sorted: Wanted = wanted.into();
        sorted.sort_unstable();
        let shapes = inputs.shapes(kinds, self.parameters.pad_variable_length_inputs);
        let group = Group { servable: Arc::as_ptr(servable).addr(), wanted: sorted, shapes };
        let (sender, receiver) = oneshot::channel();
        let answer = Answer { sender: Some(sender), parts: Vec::new(), has_unknown_keys: false };
        let call = Arc::new(Call {
            servable: Arc::clone(servable),
            signature,
            parameters: Arc::clone(&self.parameters),
            kinds: Arc::clone(kinds),
            inputs,
            read,
            rows,
            wanted: wanted.into(),
            group,
            deadline,
            answer: Mutex::new(answer),
        });
        let scheduler = Arc::clone(&self.scheduler);
        let num_tasks = scheduler.push(self.queue, &call, Instant::now())?;
        let ticket = Ticket { scheduler, queue: self.queue, call, num_tasks };
        Ok(Some(QueuedRequest::new(receiver, Box::new(ticket))))
    }
}

type Wanted = SmallVec<[usize; 8]>;

/// The group of a request: requests of equal groups may share a batch.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    /// Address of the servable: a version whose rows were changed is another servable with other tables.
    servable: usize,
    /// Indexes of the wanted outputs, sorted.
    wanted: Wanted,
    shapes: Shapes,
}

/// A request that waits for its batch, or runs in it.
struct Call {
    servable: Arc<Servable>,
    signature: usize,
    parameters: Arc<Parameters>,
    kinds: Arc<[InputKind]>,
    inputs: OwnedInputs,
    /// The rows of clusters that the request read before it joined the queue.
    read: RowsRead,
    rows: usize,
    /// Indexes of the wanted outputs, in the order of the answer.
    wanted: Wanted,
    group: Group,
    deadline: Option<Instant>,
    answer: Mutex<Answer>,
}

struct Answer {
    /// None once the request has its answer.
    sender: Option<oneshot::Sender<GraphResult>>,
    /// The outputs of the request's ended tasks, each with the row at which the task begins.
    parts: Vec<(usize, Vec<GraphOutput>)>,
    /// Whether a vocabulary lacks a key of a batch in which a task of the request ran.
    has_unknown_keys: bool,
}

impl Queued for Call {
    type Group = Group;

    fn rows(&self) -> usize {
        self.rows
    }

    fn group(&self) -> &Group {
        &self.group
    }
}

impl BatchCall for Call {
    fn is_over(&self) -> bool {
        self.lock().sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn fail(&self, fault: BoxedFault) {
        self.end(Err(fault.into()));
    }

    fn lose(&self) {
        self.lock().sender = None;
    }

    fn padding(&self, rows: usize) -> usize {
        self.parameters.padded_rows(rows) - rows
    }

    fn run(tasks: &[Task<Self>]) {
        let mut ran = run_joined(tasks, true);
        if let ([task], Err(declined)) = (tasks, &ran)
            && task.call.padding(task.rows()) > 0
            && may_be_of_one(declined)
        {
            // The fault may tell of the padding, which the client did not send: without it the request is refused as one
            // that is not batched.
            ran = run_joined(tasks, false);
        }
        match ran {
            Ok(all) => {
                let (all, has_unknown_keys) = all;
                for (task, outputs) in tasks.iter().zip(all) {
                    task.call.add_part(task, outputs, has_unknown_keys);
                }
            }
            // If the graph or a table refuses the batch, each half runs by itself, and so on, until only the requests
            // that are wrong fail, each in the words for its own inputs.
            Err(declined) if tasks.len() > 1 && may_be_of_one(&declined) => {
                let (one, other) = tasks.split_at(tasks.len() / 2);
                Self::run(one);
                Self::run(other);
            }
            Err(declined) => {
                for task in tasks {
                    task.call.end(Err(declined.clone()));
                }
            }
        }
    }
}

/// Says whether a batch may have been declined because of one of its requests.
fn may_be_of_one(declined: &Declined) -> bool {
    // With the other codes, all requests of the batch are late, or its outputs have not its rows.
    let is_of_all = |code| matches!(code, Code::DeadlineExceeded | Code::FailedPrecondition);
    matches!(declined, Declined::Fault(fault) if !is_of_all(fault.code))
}

/// Runs the graph on the rows of several requests; returns the outputs of each, and whether a vocabulary lacks a key of
/// one. `pads`: whether the batch gets its padding.
fn run_joined(tasks: &[Task<Call>], pads: bool) -> Result<(Vec<Vec<GraphOutput>>, bool), Declined> {
    let first = &tasks[0].call;
    let plan = &first.servable.signatures()[first.signature];
    let graph = plan.graph.as_ref().ok_or_else(|| faults::internal("a batch of a signature without a graph"))?;
    let rows: SmallVec<[usize; 16]> = tasks.iter().map(Task::rows).collect();
    let num_rows: usize = rows.iter().sum();
    let padding = if pads { first.padding(num_rows) } else { 0 };
    let parts = Parts::new(tasks, padding);
    let is_whole = tasks.len() == 1 && padding == 0 && first.rows == num_rows;
    let joined = (!is_whole).then(|| join(&first.kinds, &parts.inputs())).transpose()?;
    let inputs = joined.as_ref().unwrap_or(&first.inputs).borrowed();
    let read = plan.is_remote.then(|| RowsRead::join(&parts.rows_read(plan)));
    let batch = read.map(BatchPlace::of_rows);
    // A request whose deadline passes during the run gets its answer late; the other requests of its batch do not fail.
    let deadline = tasks.iter().map(|task| task.call.deadline).reduce(|one, other| Some(one?.max(other?)));
    let waiting = Waiting { deadline: deadline.flatten(), batch, ..Waiting::default() };
    let Call { servable, signature, group, .. } = &**first;
    let request = GraphRequest { servable, signature: *signature, inputs: &inputs, wanted: &group.wanted };
    let (outputs, notes) = graph.run(request, Effort::Wait(&waiting))?;
    Ok((split(outputs, &rows, num_rows + padding)?, notes.has_unknown_keys()))
}

/// The rows of a batch: each request, and the range of its rows. Padding is copies of the first of the last request's
/// rows, because the graph accepts a row that a client sent.
struct Parts<'a>(SmallVec<[(&'a Call, Range<usize>); 16]>);

impl<'a> Parts<'a> {
    fn new(tasks: &'a [Task<Call>], padding: usize) -> Self {
        let mut all: SmallVec<_> = tasks.iter().map(|task| (&*task.call, task.begin..task.end)).collect();
        if let Some(last) = tasks.last() {
            all.extend(std::iter::repeat_n((&*last.call, last.begin..last.begin + 1), padding));
        }
        Parts(all)
    }

    fn inputs(&self) -> Vec<(&'a OwnedInputs, Range<usize>)> {
        self.0.iter().map(|(call, rows)| (&call.inputs, rows.clone())).collect()
    }

    /// Returns the rows that each request read from clusters, and for each feature the range of its ids in the batch.
    fn rows_read(&self, plan: &Signature) -> Vec<(&'a RowsRead, Vec<Range<usize>>)> {
        let ranges = |call: &Call, rows: &Range<usize>| {
            plan.features.iter().map(|feature| call.inputs.elements(&call.kinds, feature.ids, rows)).collect()
        };
        self.0.iter().map(|(call, rows)| (&call.read, ranges(call, rows))).collect()
    }
}

impl Call {
    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: GraphResult) {
        let sender = self.lock().sender.take();
        if let Some(sender) = sender {
            let _ = sender.send(result.map_err(|declined| declined.at(|| self.subject())));
        }
    }

    fn subject(&self) -> faults::Subject {
        self.servable.subject(self.signature)
    }

    /// Adds the outputs of a task; the request ends with its last task.
    fn add_part(&self, task: &Task<Call>, outputs: Vec<GraphOutput>, has_unknown_keys: bool) {
        let mut answer = self.lock();
        answer.has_unknown_keys |= has_unknown_keys;
        answer.parts.push((task.begin, outputs));
        let rows_of = |outputs: &Vec<GraphOutput>| outputs.first().and_then(|one| one.dims.first()).copied();
        let done: usize = answer.parts.iter().filter_map(|(_, outputs)| rows_of(outputs)).sum();
        if done < self.rows {
            return;
        }
        let mut parts = std::mem::take(&mut answer.parts);
        let has_unknown_keys = answer.has_unknown_keys;
        drop(answer);
        parts.sort_by_key(|(begin, _)| *begin);
        let joined = join_outputs(parts.into_iter().map(|(_, outputs)| outputs).collect());
        let outputs = joined.and_then(|outputs| self.in_order(outputs));
        let unequal = || faults::batch_outputs_differ().into();
        let instead = self.read.instead.clone();
        let notes = if has_unknown_keys {
            let plan = &self.servable.signatures()[self.signature];
            unknown_keys_of(&self.servable, plan, &self.inputs.borrowed(), instead)
        } else {
            Notes::of_instead(instead)
        };
        self.end(outputs.map(|outputs| (outputs, notes)).ok_or_else(unequal));
    }

    /// Brings outputs, which are in the order of their sorted indexes, into the order of the answer.
    fn in_order(&self, outputs: Vec<GraphOutput>) -> Option<Vec<GraphOutput>> {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        let place = |index: &usize| self.group.wanted.binary_search(index).ok();
        self.wanted.iter().map(|index| outputs.get_mut(place(index)?)?.take()).collect()
    }
}

/// A request's place in its batch queue; dropping the ticket removes the request from the queue.
struct Ticket {
    scheduler: Arc<Scheduler<Call>>,
    queue: u64,
    call: Arc<Call>,
    num_tasks: usize,
}

impl BatchTicket for Ticket {
    fn give_up(&self) -> Option<BoxedFault> {
        if self.scheduler.remove(self.queue, &self.call) < self.num_tasks {
            return None;
        }
        self.scheduler.count_late();
        Some(faults::late_for_batch().at(self.call.subject()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.call.lock().sender.is_some() {
            self.scheduler.remove(self.queue, &self.call);
        }
    }
}
