//! Limits how many requests the reference works on at the same time; further requests wait here, or are refused early.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::edge::fair_queue::{Ask, FairQueue, Limits, Refusal, Run};

/// Slots of the control lane. Its requests are short; only a reload may hold a slot for long.
const CONTROL_SLOTS: usize = 16;

/// The queue in which a forwarded request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Predicts and lookups.
    Work,
    /// Status, metadata, metrics, administration: they never wait for predicts and lookups.
    Control,
    /// Long-lived streams, such as a health `Watch`: they need no slot.
    Stream,
}

/// The gates of one wire.
pub struct Gates {
    work: Gate,
    control: Gate,
}

impl Gates {
    /// Opens both gates. `limits` are those of the work lane.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Gates { work: Gate::new(limits), control: Gate::new(Limits { slots: CONTROL_SLOTS, ..limits }) }
    }

    /// Waits for a slot. Dropping the future removes the request from the queue; dropping the permit frees the slot.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn enter(&self, lane: Lane, ask: Ask) -> Result<Option<Permit>, Refusal> {
        match lane {
            Lane::Work => self.work.enter(ask).await.map(Some),
            Lane::Control => self.control.enter(ask).await.map(Some),
            Lane::Stream => Ok(None),
        }
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.work.0.lock().num_waiting() + self.control.0.lock().num_waiting()
    }
}

/// Slots of the reference, and a fair queue for them.
struct Gate(Arc<Inner>);

struct Inner(Mutex<FairQueue<Waiter>>);

/// Receives the slot when the request's turn has come, with the time that it waited or why it must not run.
type Waiter = oneshot::Sender<(Turn, Result<Duration, Refusal>)>;

impl Inner {
    fn lock(&self) -> MutexGuard<'_, FairQueue<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free slots to the next waiting requests.
    fn pass(self: &Arc<Self>) {
        loop {
            let Some(taken) = self.lock().take(Instant::now()) else {
                return;
            };
            let turn = Turn { gate: Arc::clone(self), run: Some(taken.run), since: None };
            // If the receiver is gone, the slot is freed and this loop gives it to the next request.
            if let Err(unheard) = taken.value.send((turn, taken.refusal.map_or(Ok(taken.waited), Err))) {
                unheard.0.free();
            }
        }
    }
}

/// A slot that is held.
struct Turn {
    gate: Arc<Inner>,
    run: Option<Run>,
    since: Option<Instant>,
}

impl Turn {
    fn free(mut self) {
        self.give_back();
    }

    fn give_back(&mut self) -> bool {
        let Some(run) = self.run.take() else { return false };
        self.gate.lock().done(run, self.since.map(|since| since.elapsed()));
        true
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.give_back() {
            self.gate.pass();
        }
    }
}

/// A slot of the reference. Dropping it lets the next request in.
pub struct Permit {
    _turn: Turn,
    /// How long the request waited for it.
    pub waited: Duration,
}

/// A place in the queue.
struct Place<'a> {
    gate: &'a Inner,
    ask: Ask,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waiter = self.gate.lock().remove(&self.ask, self.id);
        drop(waiter);
    }
}

impl Gate {
    fn new(limits: Limits) -> Self {
        Gate(Arc::new(Inner(Mutex::new(FairQueue::new(limits)))))
    }

    async fn enter(&self, ask: Ask) -> Result<Permit, Refusal> {
        let begun = Instant::now();
        let (sender, receiver) = oneshot::channel();
        let (id, patience) = {
            let mut queue = self.0.lock();
            (queue.push(&ask, begun, sender)?, queue.patience())
        };
        let deadline = ask.deadline;
        let place = Place { gate: &self.0, ask, id };
        self.0.pass();
        let end = begun + patience;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        // The wait has its own end: if the reference hangs no slot becomes free, and nothing else ends the wait.
        let told = tokio::time::timeout_at(end.into(), receiver).await;
        drop(place);
        let Ok(Ok((mut turn, waited))) = told else {
            let is_late = deadline.is_some_and(|deadline| deadline <= end);
            return Err(if is_late { Refusal::Late } else { Refusal::Waited(begun.elapsed()) });
        };
        let waited = waited?;
        turn.since = Some(Instant::now());
        Ok(Permit { _turn: turn, waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(slots: usize, queued: usize, millis: u64) -> Arc<Gate> {
        Arc::new(Gate::new(Limits { slots, queued, wait: Duration::from_millis(millis) }))
    }

    fn ask(peer: &str) -> Ask {
        Ask::new("m", peer, 100, None)
    }

    #[tokio::test]
    async fn a_slot_goes_to_the_next_and_more_are_refused() {
        let gate = gate(1, 2, 60_000);
        let first = gate.enter(ask("a:1")).await.ok().unwrap();
        let waiter = |peer: &'static str| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.enter(ask(peer)).await.map(|permit| permit.waited).ok() })
        };
        let (second, third) = (waiter("a:1"), waiter("b:1"));
        while gate.0.lock().num_waiting() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.enter(ask("c:1")).await.err(), Some(Refusal::Queue(2)));
        drop(first);
        assert!(second.await.unwrap().is_some() && third.await.unwrap().is_some());
        assert_eq!(gate.0.lock().num_waiting(), 0);
        assert!(gate.enter(ask("a:1")).await.is_ok());
    }

    #[tokio::test]
    async fn a_client_that_left_and_one_that_waited_too_long_give_their_places_up() {
        let gate = gate(1, 10, 5);
        let first = gate.enter(ask("a:1")).await.ok().unwrap();
        let left = tokio::time::timeout(Duration::from_millis(5), gate.enter(ask("a:1"))).await;
        assert!(left.is_err());
        assert_eq!(gate.0.lock().num_waiting(), 0);
        assert!(matches!(gate.enter(ask("a:1")).await.err(), Some(Refusal::Waited(_))));
        let by = Instant::now() + Duration::from_millis(2);
        assert_eq!(gate.enter(Ask { deadline: Some(by), ..ask("a:1") }).await.err(), Some(Refusal::Late));
        drop(first);
        assert!(gate.enter(ask("a:1")).await.is_ok());
    }
}
