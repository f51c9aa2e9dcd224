//! Batches requests: of the requests that arrive during a run of the graph, as many as fit together share the next run.
//! A run never waits for later requests.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A queue that runs one batch of items at a time, while further items wait. Concurrency: any thread; callers block.
pub struct BatchQueue<T, R> {
    max_rows: usize,
    state: Mutex<State<T, R>>,
}

struct State<T, R> {
    is_running: bool,
    waiting: VecDeque<QueuedItem<T, R>>,
}

struct QueuedItem<T, R> {
    item: T,
    rows: usize,
    waiter: Arc<Waiter<T, R>>,
}

/// A place where the thread of a queued item waits until the item has a result, or the thread must run the next batch.
struct Waiter<T, R> {
    state: Mutex<WaiterState<T, R>>,
    changed: Condvar,
}

enum WaiterState<T, R> {
    Waiting,
    /// The waiting thread must run the next batch, which starts with the thread's own item.
    RunsBatch(T),
    /// The result of the waiting thread's item; None if the run of the batch panicked, or returned too few results.
    Done(Option<R>),
}

impl<T, R> BatchQueue<T, R> {
    /// Returns an empty queue; `max_rows` is the maximal number of rows in a batch of several items.
    pub fn new(max_rows: usize) -> Self {
        BatchQueue { max_rows, state: Mutex::new(State { is_running: false, waiting: VecDeque::new() }) }
    }

    /// Runs an item, alone or in a batch, and returns its result. Blocks while earlier batches run.
    ///
    /// `rows` is the item's number of rows. `can_join` says whether a queued item can be in one batch with the first
    /// item. `run` runs a batch and returns one result for each item, in their order. Returns None if `run` panicked in
    /// another thread, or returned too few results.
    pub fn run(
        &self,
        item: T,
        rows: usize,
        can_join: impl Fn(&T, &T) -> bool,
        run: impl FnOnce(&[T]) -> Vec<R>,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let first = if state.is_running {
            let waiter = Arc::new(Waiter { state: Mutex::new(WaiterState::Waiting), changed: Condvar::new() });
            state.waiting.push_back(QueuedItem { item, rows, waiter: Arc::clone(&waiter) });
            drop(state);
            match waiter.wait() {
                WaiterState::RunsBatch(item) => item,
                WaiterState::Done(result) => return result,
                WaiterState::Waiting => return None,
            }
        } else {
            state.is_running = true;
            drop(state);
            item
        };
        let mut batch = Batch { queue: self, items: vec![first], waiters: Vec::new() };
        batch.add_queued_items(rows, can_join);
        let mut results = run(&batch.items).into_iter();
        let own = results.next();
        for waiter in batch.waiters.drain(..) {
            waiter.set(WaiterState::Done(results.next()));
        }
        own
    }
}

impl<T, R> Waiter<T, R> {
    fn set(&self, state: WaiterState<T, R>) {
        *lock(&self.state) = state;
        self.changed.notify_one();
    }

    fn wait(&self) -> WaiterState<T, R> {
        let mut state = lock(&self.state);
        while matches!(*state, WaiterState::Waiting) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::replace(&mut *state, WaiterState::Waiting)
    }
}

/// The items of one batch of requests, while the batch runs. Dropping the batch, also by a panic, wakes the threads of
/// items that have no result, and the thread that must run the next batch.
struct Batch<'a, T, R> {
    queue: &'a BatchQueue<T, R>,
    items: Vec<T>,
    /// The waiting threads of all items except the first, whose thread runs the batch.
    waiters: Vec<Arc<Waiter<T, R>>>,
}

impl<T, R> Batch<'_, T, R> {
    fn add_queued_items(&mut self, rows: usize, can_join: impl Fn(&T, &T) -> bool) {
        let mut remaining_rows = self.queue.max_rows.saturating_sub(rows);
        let mut state = lock(&self.queue.state);
        for waiting in std::mem::take(&mut state.waiting) {
            if waiting.rows <= remaining_rows && can_join(&self.items[0], &waiting.item) {
                remaining_rows -= waiting.rows;
                self.items.push(waiting.item);
                self.waiters.push(waiting.waiter);
            } else {
                state.waiting.push_back(waiting);
            }
        }
    }
}

impl<T, R> Drop for Batch<'_, T, R> {
    fn drop(&mut self) {
        for waiter in self.waiters.drain(..) {
            waiter.set(WaiterState::Done(None));
        }
        let mut state = lock(&self.queue.state);
        match state.waiting.pop_front() {
            Some(next) => next.waiter.set(WaiterState::RunsBatch(next.item)),
            None => state.is_running = false,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;

    use super::*;

    type Queue = BatchQueue<u32, u32>;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "it is called by reference")]
    fn same_parity(one: &u32, other: &u32) -> bool {
        one % 2 == other % 2
    }

    /// Runs a batch of the single item 1, and queues the items `others` while it runs; then the run calls `first`,
    /// which may panic, and ends. Returns the batches that ran afterwards, and the results of `others`.
    fn beside_a_run(queue: &Queue, others: &[u32], first: impl FnOnce() + Send) -> (Vec<Vec<u32>>, Vec<Option<u32>>) {
        let batches = Mutex::new(Vec::new());
        let double = |items: &[u32]| {
            batches.lock().unwrap().push(items.to_vec());
            items.iter().map(|item| item * 2).collect()
        };
        let (started, has_started) = channel();
        let (end, ended) = channel::<()>();
        let results = std::thread::scope(|scope| {
            scope.spawn(move || {
                let run = |items: &[u32]| {
                    started.send(()).unwrap();
                    ended.recv().unwrap();
                    first();
                    items.iter().map(|item| item * 2).collect()
                };
                let _ = catch_unwind(AssertUnwindSafe(|| queue.run(1, 1, same_parity, run)));
            });
            has_started.recv().unwrap();
            let mut threads = Vec::new();
            for (number, &item) in others.iter().enumerate() {
                threads.push(scope.spawn(move || queue.run(item, 1, same_parity, double)));
                while lock(&queue.state).waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            end.send(()).unwrap();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (batches.into_inner().unwrap(), results)
    }

    #[test]
    fn items_that_come_during_a_run_share_the_next_batch() {
        let queue = Queue::new(3);
        let (batches, results) = beside_a_run(&queue, &[3, 4, 5, 6, 7, 9], || {});
        assert_eq!(batches, [vec![3, 5, 7], vec![4, 6], vec![9]]);
        assert_eq!(results, [Some(6), Some(8), Some(10), Some(12), Some(14), Some(18)]);
        assert!(!lock(&queue.state).is_running);
    }

    #[test]
    fn a_failed_run_wakes_all_waiters() {
        let queue = Queue::new(3);
        let (batches, results) = beside_a_run(&queue, &[3], || panic!("on purpose"));
        assert_eq!((batches, results), (vec![vec![3]], vec![Some(6)]));
        assert_eq!(queue.run(1, 1, same_parity, |_| Vec::new()), None);
        assert_eq!(queue.run(1, 9, same_parity, <[u32]>::to_vec), Some(1));
    }
}
