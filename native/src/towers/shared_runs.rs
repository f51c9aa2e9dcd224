//! Batches requests that come during a run into the next run. No request waits for others to come.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Runs one batch of items at a time; further items queue for the next batch. Concurrency: any thread; callers block.
pub struct SharedRuns<T, R> {
    max_rows: usize,
    state: Mutex<State<T, R>>,
}

struct State<T, R> {
    is_running: bool,
    waiting: VecDeque<Waiting<T, R>>,
}

struct Waiting<T, R> {
    item: T,
    rows: usize,
    place: Arc<Place<T, R>>,
}

/// Where the caller of a waiting item receives its result, or its turn to run the next batch.
struct Place<T, R> {
    turn: Mutex<Turn<T, R>>,
    changed: Condvar,
}

enum Turn<T, R> {
    Waits,
    /// The caller runs its own item, together with waiting items that fit.
    Leads(T),
    /// The item's result; None: the caller that ran the batch failed.
    Done(Option<R>),
}

impl<T, R> SharedRuns<T, R> {
    /// Starts without items; `max_rows` is the most rows of one run.
    pub fn new(max_rows: usize) -> Self {
        SharedRuns { max_rows, state: Mutex::new(State { is_running: false, waiting: VecDeque::new() }) }
    }

    /// Runs an item, at once or as soon as the runs before have ended, and returns its result.
    ///
    /// `rows` is the number of rows of the item. `fits` says whether a waiting item may share the item's run. `run`
    /// returns one result for each item, in their order. None: `run` panicked in another thread, or returned too few
    /// results.
    pub fn run(
        &self,
        item: T,
        rows: usize,
        fits: impl Fn(&T, &T) -> bool,
        run: impl FnOnce(&[T]) -> Vec<R>,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let first = if state.is_running {
            let place = Arc::new(Place { turn: Mutex::new(Turn::Waits), changed: Condvar::new() });
            state.waiting.push_back(Waiting { item, rows, place: Arc::clone(&place) });
            drop(state);
            match place.turn() {
                Turn::Leads(item) => item,
                Turn::Done(result) => return result,
                Turn::Waits => return None,
            }
        } else {
            state.is_running = true;
            drop(state);
            item
        };
        let mut group = Group { runs: self, items: vec![first], places: Vec::new() };
        group.gather(rows, fits);
        let mut results = run(&group.items).into_iter();
        let own = results.next();
        for (place, result) in group.places.drain(..).zip(results) {
            place.tell(Turn::Done(Some(result)));
        }
        own
    }
}

impl<T, R> Place<T, R> {
    fn tell(&self, turn: Turn<T, R>) {
        *lock(&self.turn) = turn;
        self.changed.notify_one();
    }

    fn turn(&self) -> Turn<T, R> {
        let mut turn = lock(&self.turn);
        while matches!(*turn, Turn::Waits) {
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::replace(&mut *turn, Turn::Waits)
    }
}

/// The items of one run. Dropping it, also in a panic, lets the next run begin and leaves no caller waiting.
struct Group<'a, T, R> {
    runs: &'a SharedRuns<T, R>,
    items: Vec<T>,
    /// The places of all items but the first.
    places: Vec<Arc<Place<T, R>>>,
}

impl<T, R> Group<'_, T, R> {
    fn gather(&mut self, rows: usize, fits: impl Fn(&T, &T) -> bool) {
        let mut left = self.runs.max_rows.saturating_sub(rows);
        let mut state = lock(&self.runs.state);
        for waiting in std::mem::take(&mut state.waiting) {
            if waiting.rows <= left && fits(&self.items[0], &waiting.item) {
                left -= waiting.rows;
                self.items.push(waiting.item);
                self.places.push(waiting.place);
            } else {
                state.waiting.push_back(waiting);
            }
        }
    }
}

impl<T, R> Drop for Group<'_, T, R> {
    fn drop(&mut self) {
        for place in self.places.drain(..) {
            place.tell(Turn::Done(None));
        }
        let mut state = lock(&self.runs.state);
        match state.waiting.pop_front() {
            Some(next) => next.place.tell(Turn::Leads(next.item)),
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

    type Runs = SharedRuns<u32, u32>;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "it is called by reference")]
    fn same_parity(one: &u32, other: &u32) -> bool {
        one % 2 == other % 2
    }

    /// Starts a run with 1, queues the others behind it, and ends it by `first`; returns the later batches and results.
    fn beside_a_run(runs: &Runs, others: &[u32], first: impl FnOnce() + Send) -> (Vec<Vec<u32>>, Vec<Option<u32>>) {
        let groups = Mutex::new(Vec::new());
        let double = |items: &[u32]| {
            groups.lock().unwrap().push(items.to_vec());
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
                let _ = catch_unwind(AssertUnwindSafe(|| runs.run(1, 1, same_parity, run)));
            });
            has_started.recv().unwrap();
            let mut threads = Vec::new();
            for (number, &item) in others.iter().enumerate() {
                threads.push(scope.spawn(move || runs.run(item, 1, same_parity, double)));
                while lock(&runs.state).waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            end.send(()).unwrap();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (groups.into_inner().unwrap(), results)
    }

    #[test]
    fn items_that_come_during_a_run_share_the_next_ones() {
        let runs = Runs::new(3);
        let (groups, results) = beside_a_run(&runs, &[3, 4, 5, 6, 7, 9], || {});
        assert_eq!(groups, [vec![3, 5, 7], vec![4, 6], vec![9]]);
        assert_eq!(results, [Some(6), Some(8), Some(10), Some(12), Some(14), Some(18)]);
        assert!(!lock(&runs.state).is_running);
    }

    #[test]
    fn a_run_that_fails_leaves_nobody_waiting() {
        let runs = Runs::new(3);
        let (groups, results) = beside_a_run(&runs, &[3], || panic!("on purpose"));
        assert_eq!((groups, results), (vec![vec![3]], vec![Some(6)]));
        assert_eq!(runs.run(1, 1, same_parity, |_| Vec::new()), None);
        assert_eq!(runs.run(1, 9, same_parity, <[u32]>::to_vec), Some(1));
    }
}
