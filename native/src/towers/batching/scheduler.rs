//! Runs waiting batches in threads of its own, from one batch queue after the other.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::counts::{Counts, Limits};
use super::parameters::Parameters;
use super::queue::{BatchQueue, Queued, Task};
use crate::plan::faults::{self, BoxedFault, Code};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// A request that a scheduler runs in batches.
pub trait BatchCall: Queued + Send + Sync + Sized + 'static {
    /// Says whether the request already has its answer, or nobody waits for an answer any more.
    fn is_over(&self) -> bool;

    /// Returns the time by which the request must begin to run; None if it may wait for ever.
    fn deadline(&self) -> Option<Instant>;

    /// Ends the request with a fault, if it has no answer yet.
    fn fail(&self, fault: BoxedFault);

    /// Ends the request without an answer, because the run of its batch panicked.
    fn lose(&self);

    /// Returns the number of rows of padding behind a batch of `rows` rows.
    fn padding(&self, rows: usize) -> usize;

    /// Runs a batch, and gives each task's request its outputs.
    fn run(tasks: &[Task<Self>]);
}

/// A scheduler of batches, which runs at most `num_threads` batches at a time. Concurrency: any thread.
///
/// Dropping the scheduler ends its threads after they have run all waiting batches.
pub struct Scheduler<C: BatchCall> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    state: Mutex<State<C>>,
    changed: Condvar,
    num_threads: usize,
    name: String,
}

struct State<C> {
    queues: HashMap<u64, BatchQueue<C>>,
    next_queue: u64,
    /// Numbers of the queues that are not empty, in the order in which the threads look for a ready batch.
    waiting: VecDeque<u64>,
    num_started: usize,
    num_idle: usize,
    /// The time at which a sleeping thread wakes up for a due batch; None if no thread sleeps with a time limit.
    watched: Option<Instant>,
    is_stopped: bool,
    counts: Counts,
}

impl<C> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: BatchCall> Scheduler<C> {
    /// Returns a scheduler without threads; it starts them when batches wait. `limits` are those of the histograms.
    pub fn new(num_threads: usize, name: &str, limits: Limits) -> Arc<Self> {
        let state = State {
            queues: HashMap::new(),
            next_queue: 0,
            waiting: VecDeque::new(),
            num_started: 0,
            num_idle: 0,
            watched: None,
            is_stopped: false,
            counts: Counts::new(limits),
        };
        let inner = Inner { state: Mutex::new(state), changed: Condvar::new(), num_threads, name: name.to_owned() };
        Arc::new(Scheduler { inner: Arc::new(inner) })
    }

    pub fn add_queue(&self, parameters: Arc<Parameters>) -> u64 {
        let mut state = self.inner.lock();
        let number = state.next_queue;
        state.next_queue += 1;
        state.queues.insert(number, BatchQueue::new(parameters));
        number
    }

    pub fn remove_queue(&self, number: u64) {
        let queue = self.inner.lock().queues.remove(&number);
        drop(queue);
    }

    /// Decides whether the batches of a queue run at once, full or not.
    pub fn set_closing(&self, number: u64, is_closing: bool) {
        let mut state = self.inner.lock();
        if let Some(queue) = state.queues.get_mut(&number) {
            queue.set_closing(is_closing);
            if is_closing && !queue.is_empty() {
                // Without a thread nobody waits in the queue: a request that got no thread was refused.
                let _ = wake_one(&self.inner, &mut state);
            }
        }
    }

    /// Queues a request; returns the number of its tasks. `now` is the time of the call.
    ///
    /// # Errors
    /// The request is larger than a batch, or too many batches wait, or the system gives no thread.
    pub fn push(&self, number: u64, call: &Arc<C>, now: Instant) -> Result<usize, BoxedFault> {
        let mut state = self.inner.lock();
        state.counts.arrived(call.rows());
        let pushed = state.push(number, call, now).and_then(|num_tasks| {
            self.wake(&mut state, number, now).inspect_err(|_| state.remove(number, call).map_or((), drop))?;
            Ok(num_tasks)
        });
        if let Err(fault) = &pushed {
            state.counts.rejected(fault.code);
        }
        pushed
    }

    /// Removes a request's tasks from the batches that have not begun; returns how many it removed.
    pub fn remove(&self, number: u64, call: &Arc<C>) -> usize {
        self.inner.lock().remove(number, call).unwrap_or(0)
    }

    /// Counts a request whose deadline passed in the queue.
    pub fn count_late(&self) {
        self.inner.lock().counts.rejected(Code::DeadlineExceeded);
    }

    pub fn counts(&self) -> Counts {
        self.inner.lock().counts.clone()
    }

    /// Runs one ready batch in the calling thread; returns false if no batch is ready.
    #[cfg(all(test, not(feature = "model")))]
    pub fn run_ready(&self, now: Instant) -> bool {
        let mut dropped = Vec::new();
        let taken = self.inner.lock().take(now, &mut dropped);
        taken.map(|tasks| run(&tasks)).is_some()
    }

    /// Wakes a thread if the queue's batch is ready, or due before a sleeping thread wakes up.
    fn wake(&self, state: &mut State<C>, number: u64, now: Instant) -> Result<(), BoxedFault> {
        let Some(queue) = state.queues.get(&number) else { return Ok(()) };
        let is_watched = state.watched.is_some_and(|watched| queue.due().is_none_or(|due| watched <= due));
        if is_watched && !queue.is_ready(now) {
            return Ok(());
        }
        wake_one(&self.inner, state).map_err(|error| faults::no_batch_thread(&error.to_string()).for_later())
    }
}

/// Wakes a sleeping thread, or starts one if none sleeps and fewer than the maximal number run.
///
/// # Errors
/// The system gives no thread, and the scheduler has none.
fn wake_one<C: BatchCall>(inner: &Arc<Inner<C>>, state: &mut State<C>) -> std::io::Result<()> {
    if state.num_idle > 0 {
        inner.changed.notify_one();
        return Ok(());
    }
    if state.num_started >= inner.num_threads {
        return Ok(());
    }
    let (own, name) = (Arc::clone(inner), format!("{}_{}", inner.name, state.num_started + 1));
    match thread::Builder::new().name(name).spawn(move || work(&own)) {
        Ok(_) => state.num_started += 1,
        // The system gives no further thread, but those that the scheduler has will run the batch.
        Err(_) if state.num_started > 0 => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

impl<C: BatchCall> Drop for Scheduler<C> {
    fn drop(&mut self) {
        self.inner.lock().is_stopped = true;
        self.inner.changed.notify_all();
    }
}

impl<C: BatchCall> State<C> {
    fn push(&mut self, number: u64, call: &Arc<C>, now: Instant) -> Result<usize, BoxedFault> {
        let Some(queue) = self.queues.get_mut(&number) else { return Ok(0) };
        let was_empty = queue.is_empty();
        let num_tasks = queue.push(call, now)?;
        if was_empty {
            self.waiting.push_back(number);
        }
        Ok(num_tasks)
    }

    fn remove(&mut self, number: u64, call: &Arc<C>) -> Option<usize> {
        let queue = self.queues.get_mut(&number)?;
        let num_removed = queue.remove(call);
        if num_removed > 0 && queue.is_empty() {
            self.waiting.retain(|waiting| *waiting != number);
        }
        Some(num_removed)
    }

    /// Removes the next ready batch from its queue; None if no batch is ready. Requests that are late or over go to
    /// `dropped`: they may hold the last references to a servable, so the caller drops them without the lock.
    fn take(&mut self, now: Instant, dropped: &mut Vec<Task<C>>) -> Option<Vec<Task<C>>> {
        for _ in 0..self.waiting.len() {
            let number = self.waiting.pop_front()?;
            let Some(queue) = self.queues.get_mut(&number) else { continue };
            let mut found = Vec::new();
            while found.is_empty()
                && let Some(tasks) = queue.pop(now)
            {
                for task in tasks {
                    if is_in_time(&task, now, &mut self.counts) { found.push(task) } else { dropped.push(task) }
                }
            }
            if !queue.is_empty() {
                self.waiting.push_back(number);
            }
            if let Some(first) = found.first() {
                let rows = found.iter().map(Task::rows).sum();
                let waits = found.iter().map(|task| now.saturating_duration_since(task.since));
                self.counts.processed(rows, first.call.padding(rows), waits);
                return Some(found);
            }
        }
        None
    }

    fn is_ready(&self, now: Instant) -> bool {
        self.waiting.iter().any(|number| self.queues.get(number).is_some_and(|queue| queue.is_ready(now)))
    }

    fn due(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|number| self.queues.get(number)?.due()).min()
    }
}

fn is_in_time<C: BatchCall>(task: &Task<C>, now: Instant, counts: &mut Counts) -> bool {
    if task.call.is_over() {
        return false;
    }
    let is_late = task.call.deadline().is_some_and(|deadline| now >= deadline);
    if is_late {
        counts.rejected(Code::DeadlineExceeded);
        task.call.fail(faults::late_for_batch());
    }
    !is_late
}

fn run<C: BatchCall>(tasks: &[Task<C>]) {
    // A panic ends only the requests of this batch: a run changes nothing that later runs read.
    if catch_unwind(AssertUnwindSafe(|| C::run(tasks))).is_err() {
        for task in tasks {
            task.call.lose();
        }
    }
}

fn work<C: BatchCall>(inner: &Arc<Inner<C>>) {
    let mut state = inner.lock();
    loop {
        let (now, mut dropped) = (Instant::now(), Vec::new());
        let taken = state.take(now, &mut dropped);
        if taken.is_some() || !dropped.is_empty() {
            // While this thread runs its batch, another one runs, or waits for, the next.
            if state.is_ready(now) || (state.watched.is_none() && state.due().is_some()) {
                let _ = wake_one(inner, &mut state);
            }
            drop(state);
            if let Some(tasks) = taken {
                run(&tasks);
            }
            drop(dropped);
            state = inner.lock();
            continue;
        }
        if state.is_stopped && state.waiting.is_empty() {
            return;
        }
        let due = state.due().filter(|due| state.watched.is_none_or(|watched| *due < watched));
        state.num_idle += 1;
        state = if let Some(due) = due {
            state.watched = Some(due);
            let time = due.saturating_duration_since(now).max(Duration::from_micros(1));
            let (mut state, _) = inner.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner);
            state.watched = None;
            state
        } else {
            inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
        };
        state.num_idle -= 1;
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use super::*;
    use crate::sync::check;

    /// A request that counts its runs.
    struct Counted(Arc<(Mutex<usize>, Condvar)>);

    impl Queued for Counted {
        type Group = ();

        fn rows(&self) -> usize {
            1
        }

        fn group(&self) -> &() {
            &()
        }
    }

    impl BatchCall for Counted {
        fn is_over(&self) -> bool {
            false
        }

        fn deadline(&self) -> Option<Instant> {
            None
        }

        fn fail(&self, _: BoxedFault) {}

        fn lose(&self) {}

        fn padding(&self, _: usize) -> usize {
            0
        }

        fn run(tasks: &[Task<Self>]) {
            for task in tasks {
                *task.call.0.0.lock().unwrap() += 1;
                task.call.0.1.notify_one();
            }
        }
    }

    #[test]
    fn each_request_runs_once_and_all_threads_end() {
        check(|| {
            let scheduler = Scheduler::new(2, "batches", Limits::default());
            let parameters = Parameters {
                max_batch_size: 1,
                batch_timeout_micros: 0,
                max_enqueued_batches: 9,
                allowed_batch_sizes: Vec::new(),
                pad_variable_length_inputs: false,
                enable_large_batch_splitting: false,
                max_execution_batch_size: 1,
            };
            let queue = scheduler.add_queue(Arc::new(parameters));
            let done = Arc::new((Mutex::new(0), Condvar::new()));
            for _ in 0..2 {
                scheduler.push(queue, &Arc::new(Counted(Arc::clone(&done))), Instant::now()).unwrap();
            }
            let mut ended = done.0.lock().unwrap();
            while *ended < 2 {
                ended = done.1.wait(ended).unwrap();
            }
            assert_eq!(*ended, 2);
            drop(ended);
            drop(scheduler);
        });
    }
}
