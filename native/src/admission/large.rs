//! Runs large work, and work that waits for disks or other machines, on threads of its own, so that a small request
//! never waits for either.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::fair_queue::{Ask, FairQueue, Limits, Refusal, Run};
use crate::priority;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The value that is added to the nice value of threads for large work, so that the system prefers the threads that serve connections.
const NICENESS: i32 = 5;

/// A function that does one piece of large work and returns whether the work was done. Its argument is the time that
/// the work waited in the queue, or the reason why it must not run any more.
type Job = Box<dyn FnOnce(Result<Duration, Refusal>) -> bool + Send>;

struct State {
    queue: FairQueue<Job>,
    is_closed: bool,
}

struct Inner {
    state: Mutex<State>,
    has_job: Condvar,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool with a fixed number of threads, which run jobs from a fair queue of limited length.
pub struct Pool {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A job's place in the queue. Dropping the ticket removes the job from the queue if the job has not started.
pub struct Ticket {
    inner: Arc<Inner>,
    ask: Ask,
    id: u64,
}

impl Ticket {
    /// Removes the job from the queue if it has not started and more jobs wait than there are threads; returns true if
    /// it was removed.
    #[must_use]
    pub fn give_up(&self) -> bool {
        let mut state = self.inner.lock();
        let job = if state.queue.is_crowded() { state.queue.remove(&self.ask, self.id) } else { None };
        drop(state);
        job.is_some()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let job = self.inner.lock().queue.remove(&self.ask, self.id);
        // The job is dropped after the lock of the pool's queue is released, because dropping the job's data may take
        // long, or need that lock.
        drop(job);
    }
}

/// A job that is announced to the queue while its request is still being read. Dropping this value withdraws the job.
pub struct Announcement {
    inner: Arc<Inner>,
    ask: Ask,
    id: u64,
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.inner.lock().queue.withdraw(&self.ask, self.id);
    }
}

impl Pool {
    /// Starts as many threads as the queue has slots; `name` is the first word of their names.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: &str, limits: Limits) -> std::io::Result<Self> {
        let limits = Limits { slots: limits.slots.max(1), ..limits };
        let state = Mutex::new(State { queue: FairQueue::new(limits), is_closed: false });
        let inner = Arc::new(Inner { state, has_job: Condvar::new() });
        let pool = Pool { inner: Arc::clone(&inner), threads: Mutex::default() };
        for number in 0..limits.slots {
            let inner = Arc::clone(&inner);
            let thread = thread::Builder::new().name(format!("{name}-{number}")).spawn(move || work(&inner))?;
            pool.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(pool)
    }

    /// Queues a job in place of its announcement. A closed pool drops the job. A panic ends only this job.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(
        &self,
        ask: Ask,
        announcement: Option<Announcement>,
        job: impl FnOnce(Result<Duration, Refusal>) -> bool + Send + 'static,
    ) -> Result<Ticket, Refusal> {
        let mut state = self.inner.lock();
        // The announcement is withdrawn and the job is queued under one lock: otherwise another request could be
        // announced in between, and the queue would count one free place too many.
        if let Some(announcement) = &announcement {
            state.queue.withdraw(&announcement.ask, announcement.id);
        }
        let id = if state.is_closed { u64::MAX } else { state.queue.push(&ask, Instant::now(), Box::new(job))? };
        drop(state);
        // Dropping the announcement locks the queue, so the lock that `state` holds is released first: this thread
        // would else wait for itself.
        drop(announcement);
        self.inner.has_job.notify_one();
        Ok(Ticket { inner: Arc::clone(&self.inner), ask, id })
    }

    /// Announces a job before the server reads the job's request; see [`FairQueue::announce`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn announce(&self, ask: Ask) -> Result<Announcement, Refusal> {
        let id = self.inner.lock().queue.announce(&ask, Instant::now())?;
        Ok(Announcement { inner: Arc::clone(&self.inner), ask, id })
    }

    /// Returns the maximal time that a job may wait before the pool's queue refuses it, if other jobs wait behind.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.inner.lock().queue.patience()
    }

    /// Returns the number of jobs that wait for a thread of the pool.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.inner.lock().queue.num_waiting()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.is_closed = true;
        let dropped = state.queue.clear();
        drop(state);
        drop(dropped);
        self.inner.has_job.notify_all();
        let own = thread::current().id();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A thread can not join itself. If its job held the last reference to the pool, the thread ends after the
            // job.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

/// A pool whose threads start with its first job. If the system gives no thread, the next job tries again.
#[derive(Default)]
pub struct LazyPool {
    pool: OnceLock<Pool>,
    starting: Mutex<()>,
}

impl LazyPool {
    /// Returns the pool, which `start` starts if it has not been started.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn get_or_start(&self, start: impl FnOnce() -> std::io::Result<Pool>) -> std::io::Result<&Pool> {
        let _one_at_a_time = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.pool.get().is_none() {
            let _ = self.pool.set(start()?);
        }
        self.pool.get().ok_or_else(|| std::io::ErrorKind::WouldBlock.into())
    }

    /// Returns the pool if it has been started.
    #[must_use]
    pub fn get(&self) -> Option<&Pool> {
        self.pool.get()
    }
}

fn work(inner: &Inner) {
    priority::lower(NICENESS);
    let mut ended: Option<(Run, Option<Duration>)> = None;
    loop {
        let mut state = inner.lock();
        if let Some((run, took)) = ended.take() {
            state.queue.done(run, took);
        }
        let taken = loop {
            if let Some(taken) = state.queue.take(Instant::now()) {
                break taken;
            }
            if state.is_closed {
                return;
            }
            state = inner.has_job.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let begun = Instant::now();
        let told = taken.refusal.map_or(Ok(taken.waited), Err);
        // A panic must neither end the thread nor keep the job's slot: the pool would get smaller with each one. The
        // job shares nothing with the pool, and the server's own state is changed by its counters only.
        let is_run = catch_unwind(AssertUnwindSafe(|| (taken.value)(told))).unwrap_or(false);
        ended = Some((taken.run, is_run.then(|| begun.elapsed())));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn pool(queued: usize) -> Pool {
        Pool::start("large", Limits { slots: 1, queued, wait: Duration::from_secs(60) }).unwrap()
    }

    fn ask(peer: &str) -> Ask {
        Ask::new("m", peer, 100, None)
    }

    #[test]
    fn jobs_run_in_turns_and_beyond_the_limit_they_are_refused() {
        let pool = pool(3);
        let (started, has_started) = channel();
        let (release, released) = channel::<()>();
        let (done, results) = channel();
        let _first = pool
            .submit(ask("a:1"), None, move |_| {
                started.send(()).unwrap();
                released.recv().is_ok()
            })
            .unwrap();
        has_started.recv().unwrap();
        let queued: Vec<_> = ["a:1", "a:1", "b:1"]
            .iter()
            .enumerate()
            .map(|(number, peer)| {
                let done = done.clone();
                pool.submit(ask(peer), None, move |_| done.send(number).is_ok()).unwrap()
            })
            .collect();
        assert_eq!(pool.submit(ask("c:1"), None, |_| true).err(), Some(Refusal::Queue(3)));
        release.send(()).unwrap();
        assert_eq!([0; 3].map(|_| results.recv().unwrap()), [0, 2, 1]);
        drop(queued);
    }

    #[test]
    fn a_job_that_panics_keeps_neither_its_thread_nor_its_slot() {
        let pool = pool(3);
        let (sender, receiver) = channel::<()>();
        let jobs: Vec<_> = (0..2)
            .map(|_| {
                let sender = sender.clone();
                pool.submit(ask("a:1"), None, move |_| {
                    let _sender = sender;
                    panic!("a fault of the test");
                })
                .unwrap()
            })
            .collect();
        let next = pool.submit(ask("b:1"), None, move |_| sender.send(()).is_ok()).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(()));
        drop((jobs, next));
    }

    #[test]
    fn a_pool_that_got_no_thread_is_started_by_the_next_job() {
        let lazy = LazyPool::default();
        assert!(lazy.get_or_start(|| Err(std::io::Error::from_raw_os_error(libc::EAGAIN))).is_err());
        assert!(lazy.get().is_none());
        assert!(lazy.get_or_start(|| Ok(pool(1))).is_ok());
        assert!(lazy.get_or_start(|| panic!("it has been started")).is_ok());
    }

    #[test]
    fn what_waits_is_dropped_with_its_ticket_and_with_the_pool() {
        let pool = pool(10);
        let (release, released) = channel::<()>();
        let _first = pool.submit(ask("a:1"), None, move |_| released.recv().is_ok()).unwrap();
        let (sender, receiver) = channel::<()>();
        drop(pool.submit(ask("a:1"), None, move |_| sender.send(()).is_ok()).unwrap());
        assert!(receiver.recv().is_err());
        let (sender, receiver) = channel::<()>();
        let _kept = pool.submit(ask("a:1"), None, move |_| sender.send(()).is_ok()).unwrap();
        drop(release);
        drop(pool);
        assert!(receiver.recv().is_err());
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use crate::sync::check;

    /// Runs jobs on a pool, and waits until they have ended.
    fn run(slots: usize, num_jobs: usize) {
        check(move || {
            let pool = Pool::start("large", Limits { slots, queued: 3, wait: Duration::MAX }).unwrap();
            let done = Arc::new((AtomicUsize::new(0), Mutex::new(0), Condvar::new()));
            let submit = |_| {
                let done = Arc::clone(&done);
                let job = move |_: Result<Duration, Refusal>| {
                    done.0.fetch_add(1, SeqCst);
                    *done.1.lock().unwrap() += 1;
                    done.2.notify_one();
                    true
                };
                pool.submit(Ask::new("m", "a:1", 100, None), None, job).unwrap()
            };
            let tickets: Vec<_> = (0..num_jobs).map(submit).collect();
            let mut ended = done.1.lock().unwrap();
            while *ended < num_jobs {
                ended = done.2.wait(ended).unwrap();
            }
            drop(ended);
            drop(pool);
            drop(tickets);
            assert_eq!((done.0.load(SeqCst), Arc::strong_count(&done)), (num_jobs, 1));
        });
    }

    // Two threads and one job: either thread may be told of a job that the other takes, and both end at the drop. One
    // thread and two jobs: the thread frees its slot, and misses no job that comes while it works.
    #[test]
    fn each_job_runs_or_is_dropped_and_all_threads_end() {
        run(2, 1);
        run(1, 2);
    }
}
