//! Lets connections take turns in the order in which they became ready, however many of them are busy.
//!
//! Each thread of tokio's runtime has a queue of its own for 256 tasks. Further tasks go to a queue of all threads, from
//! which a thread seldom takes one. So without these turns, 256 busy connections keep all others waiting. With them, the
//! task of a connection that is ready waits in the queue of a semaphore, which is first in, first out, and the queues of
//! tokio stay short.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::ready;

use tokio::sync::{Notify, Semaphore};

/// With at most this many open connections, their tasks fit tokio's own queues, so they need no turns.
const UNCROWDED: usize = 200;
/// Number of connections of each thread that have their turn before other tasks run.
const TURNS_A_THREAD: usize = 8;

/// Number of tasks that a thread runs before it takes one from the queue of all threads: so few that the queue is short.
pub const GLOBAL_QUEUE_INTERVAL: u32 = 3;

/// The turns of all connections of the server.
pub struct Turns {
    free: Arc<Semaphore>,
    // Number of turns that have ended, whose places in the semaphore are not free yet.
    ended: AtomicUsize,
    has_ended: Notify,
}

impl Turns {
    /// Returns the turns of connections that `threads` threads serve.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Turns {
            free: Arc::new(Semaphore::new(TURNS_A_THREAD * threads.max(1))),
            ended: AtomicUsize::new(0),
            has_ended: Notify::new(),
        }
    }

    /// Runs the task of a connection; while `num_open` returns a large number, each poll of the task is one turn.
    pub async fn take<F: Future>(&self, num_open: impl Fn() -> usize, task: F) -> F::Output {
        let mut task = pin!(task);
        let mut next = None;
        poll_fn(|cx| {
            let _turn = if next.is_some() || num_open() > UNCROWDED {
                let turn = next.get_or_insert_with(|| Box::pin(Arc::clone(&self.free).acquire_owned()));
                let permit = ready!(turn.as_mut().poll(cx));
                next = None;
                permit.ok().map(|permit| {
                    permit.forget();
                    Turn(self)
                })
            } else {
                None
            };
            task.as_mut().poll(cx)
        })
        .await
    }

    /// Begins the next turns after others have ended, without end. A turn that ends does not begin the next one itself:
    /// the thread first looks for new bytes and runs the tasks that it finds ready, so that they come into the queue.
    pub async fn begin_next(&self) {
        loop {
            self.has_ended.notified().await;
            tokio::task::yield_now().await;
            self.free.add_permits(self.ended.swap(0, Relaxed));
        }
    }
}

/// One turn of a connection, which ends when this value is dropped.
struct Turn<'t>(&'t Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
        self.0.has_ended.notify_one();
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Poll;

    use super::*;

    /// Runs `count` tasks that are always ready on one thread; returns the largest number of turns of all tasks between
    /// two turns of one task.
    fn longest_wait(count: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
            .build()
            .unwrap();
        let (turns, total) = (Arc::new(Turns::new(1)), Arc::new(AtomicUsize::new(0)));
        let begun = Arc::clone(&turns);
        runtime.spawn(async move { begun.begin_next().await });
        let all_are_there = Arc::new(AtomicBool::new(false));
        let most = count * 20;
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let (turns, total) = (Arc::clone(&turns), Arc::clone(&total));
                let all_are_there = Arc::clone(&all_are_there);
                runtime.spawn(async move {
                    let (mut last, mut longest) = (0, 0);
                    let task = poll_fn(|cx| {
                        if all_are_there.load(Relaxed) {
                            let now = total.fetch_add(1, Relaxed);
                            longest = longest.max(now - last);
                            last = now;
                            if now >= most {
                                return Poll::Ready(());
                            }
                        }
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    });
                    turns.take(|| count, task).await;
                    longest
                })
            })
            .collect();
        all_are_there.store(true, Relaxed);
        tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).max().unwrap()
    }

    #[test]
    fn no_busy_connection_waits_for_more_than_twice_the_turns_of_all_others() {
        for count in [1_000, 10_000] {
            let longest = longest_wait(count);
            assert!(longest <= 2 * count, "of {count} connections one waits for {longest} turns");
        }
    }
}
