//! Limits how many requests are forwarded to a control server at the same time. Further requests wait in a queue
//! here, or are refused if their wait would be too long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::fair_queue::{Ask, FairQueue, Limits, Refusal, Run};

/// Number of requests on the control lane that may run at the same time. Control requests are short; only a reload may
/// take long.
const CONTROL_SLOTS: usize = 16;

/// The kind of a forwarded request, which decides in which queue, if any, the request waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Searches for nearest rows, which have a queue of their own. Python runs as many of them as there are slots.
    Search,
    /// All other requests, such as those for status, metadata and metrics, which never wait for searches.
    Control,
    /// Long-lived streams, such as a health `Watch`, which wait for no slot.
    Stream,
}

/// The queues for forwarded requests of one wire, HTTP or gRPC: one for the lane `Search`, one for the lane `Control`.
pub struct Gates {
    search: Gate,
    control: Gate,
}

impl Gates {
    /// Returns empty queues. Both lanes have these `limits`, but the control lane has `CONTROL_SLOTS` slots.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Gates { search: Gate::new(limits), control: Gate::new(Limits { slots: CONTROL_SLOTS, ..limits }) }
    }

    /// Waits until the request has a slot; returns None at once for the lane `Stream`, which has no slots. Dropping the
    /// future removes the request from the queue; dropping the permit frees the slot.
    ///
    /// # Errors
    /// [`Refusal`]: the queue is full, or the request would wait or has waited too long.
    pub async fn enter(&self, lane: Lane, ask: Ask) -> Result<Option<Permit>, Refusal> {
        match lane {
            Lane::Search => self.search.enter(ask).await.map(Some),
            Lane::Control => self.control.enter(ask).await.map(Some),
            Lane::Stream => Ok(None),
        }
    }

    /// Returns how many requests wait to be forwarded, in the queues of both lanes together.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.search.0.lock().num_waiting() + self.control.0.lock().num_waiting()
    }
}

/// The slots for forwarded requests of one lane, and a fair queue of requests that wait for a slot.
struct Gate(Arc<Inner>);

struct Inner(Mutex<FairQueue<Waiter>>);

/// The channel on which a waiting request gets its slot, with the time that it waited or the reason why it must not
/// run.
type Waiter = oneshot::Sender<(Slot, Result<Duration, Refusal>)>;

impl Inner {
    fn lock(&self) -> MutexGuard<'_, FairQueue<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives each free slot of a lane to the next request that waits in the lane's queue.
    fn admit_waiting(self: &Arc<Self>) {
        loop {
            let Some(taken) = self.lock().take(Instant::now()) else {
                return;
            };
            let slot = Slot { gate: Arc::clone(self), run: Some(taken.run), since: None };
            // If the client of a waiting request has disconnected, this loop gives the slot to the next request.
            if let Err(unreceived) = taken.value.send((slot, taken.refusal.map_or(Ok(taken.waited), Err))) {
                unreceived.0.release_without_waking();
            }
        }
    }
}

/// A slot for a forwarded request; dropping the slot frees it, and wakes the next waiting request.
struct Slot {
    gate: Arc<Inner>,
    run: Option<Run>,
    since: Option<Instant>,
}

impl Slot {
    fn release_without_waking(mut self) {
        self.release();
    }

    fn release(&mut self) -> bool {
        let Some(run) = self.run.take() else { return false };
        self.gate.lock().done(run, self.since.map(|since| since.elapsed()));
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.release() {
            self.gate.admit_waiting();
        }
    }
}

/// The permit to forward one request. Dropping it gives the slot to the next waiting request.
pub struct Permit {
    _slot: Slot,
    /// Time for which the request waited in the queue before it got its slot.
    pub waited: Duration,
}

/// The entry of a waiting request in the queue for slots; dropping it removes the request from the queue.
struct QueuedRequest<'a> {
    gate: &'a Inner,
    ask: Ask,
    id: u64,
}

impl Drop for QueuedRequest<'_> {
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
        let started = Instant::now();
        let (sender, receiver) = oneshot::channel();
        let (id, patience) = {
            let mut queue = self.0.lock();
            (queue.push(&ask, started, sender)?, queue.patience())
        };
        let deadline = ask.deadline;
        let queued = QueuedRequest { gate: &self.0, ask, id };
        self.0.admit_waiting();
        let end = started + patience;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        // The wait for a slot has a timeout: while the control server hangs, no slot becomes free, and requests would
        // wait for ever.
        let outcome = tokio::time::timeout_at(end.into(), receiver).await;
        drop(queued);
        let Ok(Ok((mut slot, waited))) = outcome else {
            let is_late = deadline.is_some_and(|deadline| deadline <= end);
            return Err(if is_late { Refusal::Late } else { Refusal::Waited(started.elapsed()) });
        };
        let waited = waited?;
        slot.since = Some(Instant::now());
        Ok(Permit { _slot: slot, waited })
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gate(slots: usize, queued: usize, millis: u64) -> Arc<Gate> {
        Arc::new(Gate::new(Limits { slots, queued, wait: Duration::from_millis(millis) }))
    }

    fn ask(peer: &str) -> Ask {
        Ask::new("m", peer, 100, None)
    }

    #[tokio::test]
    async fn slots_go_to_waiting_requests_and_others_are_refused() {
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
    async fn cancelled_and_late_requests_leave_the_queue() {
        let gate = gate(1, 10, 5);
        let first = gate.enter(ask("a:1")).await.ok().unwrap();
        assert!(gate.enter(ask("a:1")).now_or_never().is_none(), "it waits, and its client leaves");
        assert_eq!(gate.0.lock().num_waiting(), 0);
        assert!(matches!(gate.enter(ask("a:1")).await.err(), Some(Refusal::Waited(_))));
        let by = Instant::now() + Duration::from_millis(2);
        assert_eq!(gate.enter(Ask { deadline: Some(by), ..ask("a:1") }).await.err(), Some(Refusal::Late));
        drop(first);
        assert!(gate.enter(ask("a:1")).await.is_ok());
    }
}
