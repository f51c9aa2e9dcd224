//! Threads for large work, so that a small request never waits for a large one.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What these threads leave to others: the threads that serve connections run first.
const NICENESS: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

struct Inner {
    queue: Mutex<Queue>,
    has_job: Condvar,
    limit: usize,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed number of threads and a bounded queue of jobs.
pub struct Pool {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The queue is full; so many jobs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(pub usize);

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(num_threads: usize, limit: usize) -> std::io::Result<Self> {
        let inner = Arc::new(Inner {
            queue: Mutex::default(),
            has_job: Condvar::new(),
            limit,
        });
        let pool = Pool {
            inner: Arc::clone(&inner),
            threads: Mutex::default(),
        };
        for number in 0..num_threads.max(1) {
            let inner = Arc::clone(&inner);
            let thread = std::thread::Builder::new()
                .name(format!("large-{number}"))
                .spawn(move || work(&inner))?;
            pool.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(pool)
    }

    /// Queues a job, which must not panic.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Full> {
        let mut queue = self.inner.lock();
        if queue.jobs.len() >= self.inner.limit || queue.is_closed {
            return Err(Full(queue.jobs.len()));
        }
        queue.jobs.push_back(Box::new(job));
        drop(queue);
        self.inner.has_job.notify_one();
        Ok(())
    }

    /// Jobs that wait.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.inner.lock().jobs.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = self.inner.lock();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(dropped);
        self.inner.has_job.notify_all();
        let own = std::thread::current().id();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The last owner may be a job: its thread ends by itself.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

fn work(inner: &Inner) {
    lower_priority();
    loop {
        let mut queue = inner.lock();
        let job = loop {
            if let Some(job) = queue.jobs.pop_front() {
                break job;
            }
            if queue.is_closed {
                return;
            }
            queue = inner.has_job.wait(queue).unwrap_or_else(PoisonError::into_inner);
        };
        drop(queue);
        job();
    }
}

#[cfg(target_os = "linux")]
fn lower_priority() {
    // Linux has a niceness for each thread; 0 is the calling one.
    // SAFETY: setpriority takes numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {
    let _ = NICENESS;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_run_in_order_and_beyond_the_limit_they_are_refused() {
        let pool = Pool::start(1, 2).unwrap();
        let (started, has_started) = channel();
        let (release, released) = channel::<()>();
        let (done, results) = channel();
        pool.submit(move || {
            started.send(()).unwrap();
            released.recv().unwrap();
        })
        .unwrap();
        has_started.recv().unwrap();
        for number in 0..2 {
            let done = done.clone();
            pool.submit(move || done.send(number).unwrap()).unwrap();
        }
        assert_eq!(pool.submit(|| ()), Err(Full(2)));
        release.send(()).unwrap();
        assert_eq!((results.recv().unwrap(), results.recv().unwrap()), (0, 1));
    }

    #[test]
    fn what_waits_is_dropped_with_the_pool() {
        let pool = Pool::start(1, 10).unwrap();
        let (release, released) = channel::<()>();
        pool.submit(move || {
            let _ = released.recv();
        })
        .unwrap();
        let (sender, receiver) = channel::<()>();
        pool.submit(move || drop(sender)).unwrap();
        drop(release);
        drop(pool);
        assert!(receiver.recv().is_err());
    }
}
