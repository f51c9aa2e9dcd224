//! Opens a graph at the first request for it.

use std::fmt;
use std::sync::{OnceLock, PoisonError};
use std::time::Instant;

use crate::plan::faults::{self, BoxedFault};
use crate::plan::{Effort, Graph, GraphRequest, GraphResult, QueuedRequest, RowsRead};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// A function that opens a graph; its error is one sentence of text.
type Open = dyn Fn() -> Result<Box<dyn Graph>, String> + Send + Sync;

/// A graph that the first request opens. Requests that come meanwhile wait for the opening, and fail with it; the next
/// request tries again. Concurrency: any thread.
pub struct LazyGraph {
    open: Box<Open>,
    graph: OnceLock<Box<dyn Graph>>,
    opening: Mutex<Opening>,
    has_ended: Condvar,
}

#[derive(Default)]
struct Opening {
    /// Whether the version was unpublished last; an open graph is told under the lock, so that it is told each change.
    is_unpublished: bool,
    is_running: bool,
    /// Number of openings that have failed.
    num_failed: u64,
    /// Why the last one failed.
    cause: String,
}

impl LazyGraph {
    /// Returns a graph that `open` opens.
    #[must_use]
    pub fn new(open: Box<Open>) -> Self {
        LazyGraph { open, graph: OnceLock::new(), opening: Mutex::default(), has_ended: Condvar::new() }
    }

    /// Returns the open graph; opens it, or waits until another thread has done so.
    ///
    /// # Errors
    /// The graph can not be opened, or the deadline passed before it was open.
    fn opened(&self, deadline: Option<Instant>) -> Result<&dyn Graph, BoxedFault> {
        if let Some(graph) = self.graph.get() {
            return Ok(&**graph);
        }
        let mut opening = self.lock();
        if !opening.is_running && self.graph.get().is_none() {
            opening.is_running = true;
            drop(opening);
            return self.open_now();
        }
        let before = opening.num_failed;
        while opening.is_running && opening.num_failed == before {
            let Some(deadline) = deadline else {
                opening = self.has_ended.wait(opening).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(faults::late_for_run());
            }
            opening = self.has_ended.wait_timeout(opening, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match self.graph.get() {
            Some(graph) => Ok(&**graph),
            None => Err(faults::graph_not_loaded(&opening.cause)),
        }
    }

    fn open_now(&self) -> Result<&dyn Graph, BoxedFault> {
        // If the function panics, those who wait get an error too.
        let mut ending = Ending { graph: self, cause: "the opening panicked".to_owned() };
        match (self.open)() {
            Ok(graph) => {
                ending.cause.clear();
                let opening = self.lock();
                graph.set_published(!opening.is_unpublished);
                Ok(&**self.graph.get_or_init(|| graph))
            }
            Err(cause) => {
                ending.cause.clone_from(&cause);
                Err(faults::graph_not_loaded(&cause))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Opening> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends an opening when it is dropped. cause: why the opening failed; "" if it did not.
struct Ending<'a> {
    graph: &'a LazyGraph,
    cause: String,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut opening = self.graph.lock();
        opening.is_running = false;
        if !self.cause.is_empty() {
            opening.num_failed += 1;
            opening.cause = std::mem::take(&mut self.cause);
        }
        self.graph.has_ended.notify_all();
    }
}

impl fmt::Debug for LazyGraph {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Lazy {:?}", self.graph.get())
    }
}

impl Graph for LazyGraph {
    fn run(&self, request: GraphRequest<'_, '_>, effort: Effort<'_>) -> GraphResult {
        let graph = self.opened(effort.waiting().and_then(|waiting| waiting.deadline))?;
        graph.run(request, effort)
    }

    fn is_open(&self) -> bool {
        self.graph.get().is_some()
    }

    fn is_batched(&self) -> bool {
        self.graph.get().is_some_and(|graph| graph.is_batched())
    }

    fn queue(
        &self,
        request: GraphRequest<'_, '_>,
        rows: RowsRead,
        deadline: Option<Instant>,
    ) -> Result<Option<QueuedRequest>, BoxedFault> {
        self.opened(deadline)?.queue(request, rows, deadline)
    }

    fn set_published(&self, is_published: bool) {
        let mut opening = self.lock();
        opening.is_unpublished = !is_published;
        if let Some(graph) = self.graph.get() {
            graph.set_published(is_published);
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::plan::Notes;
    use crate::plan::faults::Code;

    #[derive(Debug)]
    struct Empty;

    impl Graph for Empty {
        fn run(&self, _: GraphRequest<'_, '_>, _: Effort<'_>) -> GraphResult {
            Ok((vec![], Notes::default()))
        }
    }

    /// Returns a graph whose first `num_failures` openings fail, once `go` is set; counts them in `tries`.
    fn lazy(num_failures: usize, go: &Arc<AtomicBool>, tries: &Arc<AtomicUsize>) -> LazyGraph {
        let (go, tries) = (Arc::clone(go), Arc::clone(tries));
        LazyGraph::new(Box::new(move || {
            while !go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let number = tries.fetch_add(1, Ordering::SeqCst);
            if number < num_failures { Err("no such file".to_owned()) } else { Ok(Box::new(Empty)) }
        }))
    }

    #[test]
    fn one_thread_opens_the_graph_and_the_others_get_its_result() {
        let (go, tries) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let graph = lazy(1, &go, &tries);
        let results = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| graph.opened(None).map(drop))).collect();
            // A request that comes too late for its deadline does not wait for the opening.
            while !graph.lock().is_running {
                std::thread::yield_now();
            }
            let late = graph.opened(Some(Instant::now() + Duration::from_millis(1))).map(drop).unwrap_err();
            assert_eq!(late.code, Code::DeadlineExceeded);
            go.store(true, Ordering::SeqCst);
            asking.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        // The first opening failed; a thread that came after its end opened the graph again.
        let failed: Vec<_> = results.iter().filter_map(|one| one.as_ref().err()).collect();
        assert!(!failed.is_empty() && failed.iter().all(|fault| fault.cause == "no such file"));
        assert!(tries.load(Ordering::SeqCst) <= 2);
        assert!(graph.opened(None).is_ok() && graph.is_open());
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_panic_while_opening_ends_one_request() {
        let is_first = AtomicBool::new(true);
        let graph = LazyGraph::new(Box::new(move || {
            assert!(!is_first.swap(false, Ordering::SeqCst), "on purpose");
            Ok(Box::new(Empty))
        }));
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| graph.opened(None).map(drop)));
        assert!(opened.is_err() && !graph.is_open());
        assert!(graph.opened(None).is_ok());
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::sync::Arc;

    use super::*;
    use crate::plan::Notes;
    use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use crate::sync::{check, thread};

    /// A graph that notes whether it is published.
    #[derive(Debug)]
    struct Told(Arc<AtomicBool>);

    impl Graph for Told {
        fn run(&self, _: GraphRequest<'_, '_>, _: Effort<'_>) -> GraphResult {
            Ok((vec![], Notes::default()))
        }

        fn set_published(&self, is_published: bool) {
            self.0.store(is_published, SeqCst);
        }
    }

    #[test]
    fn a_graph_is_opened_once_and_told_when_its_version_goes() {
        check(|| {
            let (tries, is_published) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
            let (counted, told) = (Arc::clone(&tries), Arc::clone(&is_published));
            let graph = Arc::new(LazyGraph::new(Box::new(move || {
                counted.fetch_add(1, SeqCst);
                Ok(Box::new(Told(Arc::clone(&told))))
            })));
            let threads = [(); 2].map(|()| {
                let graph = Arc::clone(&graph);
                thread::spawn(move || assert!(graph.opened(None).is_ok()))
            });
            graph.set_published(false);
            let _ = threads.map(|one| one.join().unwrap());
            assert_eq!((tries.load(SeqCst), is_published.load(SeqCst)), (1, false));
        });
    }
}
