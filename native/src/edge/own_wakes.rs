//! Keeps a connection's task from waking itself.
//!
//! hyper wakes the task that polls it when a part of a request's body is taken, so that it reads the next one. Here the
//! same task takes the parts. So the wake after the last part would only run the task once more, and wake another thread
//! that looks for work.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Awake) };
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Wakes are delivered.
    Awake,
    /// This thread runs [`without`].
    Held,
    /// [`without`] has held a wake back.
    Woken,
}

/// Runs `act`. Meanwhile, wakes by this thread through [`OwnWaker`]s are held back; returns whether there was one. `act`
/// does not call this function.
pub fn without<T>(act: impl FnOnce() -> T) -> (T, bool) {
    /// Ends the state also if `act` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            STATE.set(State::Awake);
        }
    }
    STATE.set(State::Held);
    let _end = End;
    (act(), STATE.get() == State::Woken)
}

/// The waker that a connection's task gives to hyper. Wakes within [`without`] are held back.
#[derive(Default)]
pub struct OwnWaker(Option<(Waker, Waker)>);

impl OwnWaker {
    /// Returns the waker through which the library wakes the task of this context.
    pub fn of(&mut self, cx: &Context<'_>) -> &Waker {
        let own = self.0.take_if(|(task, _)| task.will_wake(cx.waker()));
        let new = || (cx.waker().clone(), Arc::new(Held(cx.waker().clone())).into());
        &self.0.insert(own.unwrap_or_else(new)).1
    }
}

struct Held(Waker);

impl Wake for Held {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if STATE.get() == State::Awake {
            self.0.wake_by_ref();
        } else {
            STATE.set(State::Woken);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn only_wakes_by_this_thread_are_held_back() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let (mut own, cx) = (OwnWaker::default(), Context::from_waker(&task));
        let waker = own.of(&cx).clone();
        assert!(own.of(&cx).will_wake(&waker));
        waker.wake_by_ref();
        assert_eq!(count.0.load(Relaxed), 1);
        assert_eq!(without(|| waker.wake_by_ref()), ((), true));
        assert_eq!(without(|| 7), (7, false));
        assert_eq!(count.0.load(Relaxed), 1);
        without(|| std::thread::scope(|scope| scope.spawn(|| waker.wake_by_ref()).join().unwrap()));
        assert_eq!(count.0.load(Relaxed), 2);
        let panicked = std::panic::catch_unwind(|| without(|| panic!("a fault of the test")));
        waker.wake_by_ref();
        assert!(panicked.is_err() && count.0.load(Relaxed) == 3);
    }
}
