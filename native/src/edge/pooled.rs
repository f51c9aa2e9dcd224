//! Runs a request that a thread of connections does not answer: on a pool, or in a batch of several requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::dispatch::Dispatch;
use super::events::Event;
use super::grpc_message::Status;
use super::shared::{Failed, Made, Outcome, Shared, Terms, no_upstream};
use crate::admission::fair_queue::{Ask, Refusal};
use crate::admission::large::{Announcement, Pool};
use crate::admission::limits::INLINE_BYTES;
use crate::forms::{Answered, Call};
use crate::plan::{BatchPlace, Declined, Effort, Queue, Ran, Routes, Waiting};

/// Number of threads for requests that wait for rows of Valkey or Redis clusters or of the disk. The threads start with
/// the first such request.
const WAITING_THREADS: usize = 64;
/// Time behind its deadline in which a request that runs may still say what it waited for: it knows its deadline, too.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The reason why a request did not run.
enum NotRun {
    /// The queue refused the request, or the request's deadline passed.
    Refused(Refusal),
    /// The client has left too many answers unread since the request was queued.
    Unread,
    /// The pool's threads could not be started.
    Closed,
}

/// A request that runs on a pool.
pub struct Pooled<'a, F> {
    pub shared: &'a Arc<Shared>,
    pub connection: &'a Arc<Connection>,
    pub terms: &'a Terms,
    pub ask: Ask,
    /// Runs the handler of the request's wire format.
    pub form: F,
}

impl<F> Pooled<'_, F>
where
    F: Fn(&dyn Dispatch, &Call<'_>) -> Result<Answered, Declined> + Clone + Send + 'static,
{
    /// Runs the request: on a thread for large work, or on a thread that may wait for disks and other machines; or leaves
    /// it in a batch queue, and writes the answer when its batch has run. Dropping the future removes the request from the
    /// queues of the pool and of the batch.
    ///
    /// `why`: the reason why a thread of connections does not run the form. `announcement`: the place that the request
    /// already has in the queue for large work. `late`: the error text if the request's deadline passes.
    ///
    /// # Errors
    /// A queue refuses the request, or its deadline passes.
    pub async fn run(
        &self,
        why: &Declined,
        mut announcement: Option<Announcement>,
        late: impl FnOnce() -> String,
    ) -> Result<Outcome, Status> {
        // While the client leaves too many answers unread, only one of the connection's requests runs at a time; otherwise
        // all would add answers at once.
        let mut turn = None;
        let ran = loop {
            let attempt = self.attempt(why.clone(), announcement.take());
            match self.in_time(LAST_WORDS, attempt).await.and_then(|attempt| attempt) {
                Err(NotRun::Unread) => {}
                ran => break ran,
            }
            let next = async {
                if turn.is_none() {
                    turn = Some(self.connection.turn.lock().await);
                }
                self.connection.room().await;
            };
            if let Err(late) = self.in_time(Duration::ZERO, next).await {
                break Err(late);
            }
        };
        ran.map_err(|not_run| match not_run {
            NotRun::Refused(refusal) => self.shared.refuse(&self.ask.path[0], refusal, late),
            NotRun::Unread | NotRun::Closed => no_upstream(),
        })
    }

    /// Waits until the request's deadline, and for `more` time.
    async fn in_time<T>(&self, more: Duration, done: impl Future<Output = T>) -> Result<T, NotRun> {
        match self.ask.deadline.and_then(|deadline| deadline.checked_add(more)) {
            None => Ok(done.await),
            Some(end) => tokio::time::timeout_at(end.into(), done).await.map_err(|_| NotRun::Refused(Refusal::Late)),
        }
    }

    async fn attempt(&self, mut why: Declined, announcement: Option<Announcement>) -> Result<Outcome, NotRun> {
        let (shared, begun) = (self.shared, Instant::now());
        // A batched request finds its servable twice: the second time, it must be the one that ran its batch.
        let routes = shared.routes.load_full();
        if why == Declined::Batches && self.ask.bytes <= INLINE_BYTES {
            if self.connection.is_full() {
                return Err(NotRun::Unread);
            }
            let (outcome, queued) = self.batched(&routes, self.ask.deadline, BatchPlace::new(false));
            if !queued.is_empty() {
                return self.after_batch(queued, begun, true, &routes).await;
            }
            match outcome {
                Err(Failed::Declined(declined)) if declined.is_for_a_pool() => why = declined,
                outcome => return Ok(outcome),
            }
        }
        let mut pool = &shared.large;
        if why != Declined::Waits {
            let (outcome, queued) = self.on(pool, &routes, BatchPlace::new(true), announcement).await?;
            if !queued.is_empty() {
                return self.after_batch(queued, begun, false, &routes).await;
            }
            if !matches!(outcome, Err(Failed::Declined(Declined::Waits))) {
                return Ok(outcome);
            }
        }
        let start = || Pool::start("waiting", shared.limits.queue(WAITING_THREADS));
        pool = shared.waiting.get_or_start(start).map_err(|_| NotRun::Closed)?;
        let (outcome, queued) = self.on(pool, &routes, BatchPlace::new(true), None).await?;
        if queued.is_empty() { Ok(outcome) } else { self.after_batch(queued, begun, false, &routes).await }
    }

    /// Runs the form on this thread, which leaves the request in a batch queue, or writes the answer to one that ran.
    /// Returns the request that waits in a batch queue now.
    fn batched(&self, routes: &Routes, deadline: Option<Instant>, place: BatchPlace) -> (Outcome, Queue) {
        let waiting = Waiting { deadline, batch: Some(place), ..Waiting::default() };
        let (effort, form) = (Effort::Queue(&waiting), self.form.clone());
        let outcome = self.shared.call_on(routes, effort, false, self.connection, self.terms, form);
        (outcome, waiting.batch.map(|place| place.take_queued()).unwrap_or_default())
    }

    /// Waits until the batch of a request has run, and writes the answer: on this thread if `is_inline` and the answer is
    /// small, else on the pool for large work. `begun`: the time at which the request's first call of its form began.
    async fn after_batch(
        &self,
        queued: Queue,
        begun: Instant,
        is_inline: bool,
        routes: &Arc<Routes>,
    ) -> Result<Outcome, NotRun> {
        let since = Instant::now();
        let ran = match self.ran(queued).await {
            Ok(ran) => ran,
            Err(failed) => return Ok(Err(failed)),
        };
        let waited = since.elapsed();
        let outcome = if is_inline && ran.iter().map(Ran::num_bytes).sum::<usize>() <= INLINE_BYTES {
            self.batched(routes, None, BatchPlace::of_ran(ran)).0
        } else {
            self.on(&self.shared.large, routes, BatchPlace::of_ran(ran), None).await?.0
        };
        Ok(outcome.map(|made| {
            let answered = Answered {
                ran: made.answered.ran + waited,
                began: made.answered.began.checked_sub(waited).unwrap_or(begun),
                ..made.answered
            };
            Made { answered, took: begun.elapsed(), ..made }
        }))
    }

    /// Waits until the batches of a request have run.
    async fn ran(&self, queue: Queue) -> Result<SmallVec<[Ran; 1]>, Failed> {
        let mut all = SmallVec::new();
        for mut queued in queue {
            let received = match self.in_time(Duration::ZERO, &mut queued.receiver).await {
                Ok(received) => received,
                Err(_) => match queued.ticket.give_up() {
                    Some(fault) => return Err(Failed::Refused(fault)),
                    None => (&mut queued.receiver).await,
                },
            };
            match received {
                Ok(Ok((outputs, notes))) => all.push(queued.into_ran(outputs, notes)),
                Ok(Err(declined)) => return Err(self.shared.failed(declined)),
                Err(_) => {
                    self.shared.statistics.count(Event::Panicked);
                    return Err(Failed::Panicked);
                }
            }
        }
        Ok(all)
    }

    /// Runs the form on a thread of the given pool. Returns the request if it waits in a batch queue now.
    async fn on(
        &self,
        pool: &Pool,
        routes: &Arc<Routes>,
        place: BatchPlace,
        announcement: Option<Announcement>,
    ) -> Result<(Outcome, Queue), NotRun> {
        let has_run = place.has_ran();
        let may_wait = !std::ptr::eq(pool, &raw const self.shared.large);
        let (deadline, model) = (self.ask.deadline, Arc::clone(&self.ask.path[0]));
        let (sender, mut receiver) = oneshot::channel();
        let (shared, connection, routes) = (Arc::clone(self.shared), Arc::clone(self.connection), Arc::clone(routes));
        let (terms, form) = (self.terms.clone(), self.form.clone());
        let job = move |told: Result<Duration, Refusal>| {
            let not_run = match told {
                // The task that waits for the job's result has ended, because the client disconnected or the deadline
                // passed, so the request does not run.
                _ if sender.is_closed() => return false,
                Err(refusal) => NotRun::Refused(refusal),
                Ok(_) if !has_run && connection.is_full() => NotRun::Unread,
                Ok(waited) => {
                    shared.statistics.waited(&model, waited);
                    let graph_limit = Some(Arc::clone(&shared.graph_limit));
                    let waiting = Waiting { deadline, graph_limit, batch: Some(place) };
                    let effort = if may_wait { Effort::Wait(&waiting) } else { Effort::Queue(&waiting) };
                    let outcome = shared.call_on(&routes, effort, true, &connection, &terms, form);
                    let queued = waiting.batch.map(|place| place.take_queued()).unwrap_or_default();
                    // The thread drops its references to the server before it sends the answer, so that it neither
                    // keeps the async runtime alive nor is the last to drop the runtime.
                    drop((shared, connection, routes));
                    let _ = sender.send(Ok((outcome, queued)));
                    return true;
                }
            };
            drop(shared);
            let _ = sender.send(Err(not_run));
            false
        };
        let begun = Instant::now();
        let ticket = pool.submit(self.ask.clone(), announcement, job).map_err(NotRun::Refused)?;
        // While all threads of the pool are busy, no thread checks how long jobs have waited, so this async task
        // withdraws its job after the longest allowed wait, if more jobs wait than the pool has threads.
        let told = match tokio::time::timeout(pool.patience(), &mut receiver).await {
            Err(_) if ticket.give_up() => return Err(NotRun::Refused(Refusal::Waited(begun.elapsed()))),
            Err(_) => receiver.await,
            Ok(told) => told,
        };
        told.unwrap_or_else(|_| {
            // The job has ended without an outcome: it panicked outside of Shared::call.
            self.shared.statistics.count(Event::Panicked);
            Ok((Err(Failed::Panicked), Queue::new()))
        })
    }
}
