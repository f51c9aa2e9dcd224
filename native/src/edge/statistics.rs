//! Counts requests, connections and other events. Each thread has its own counters of answered requests, so that
//! counting an answer needs no lock.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dispatch::Method;
use super::events::{Event, NUM_EVENTS};
use super::snapshot::{
    FailedRequest, FailureCount, RetiredSnapshot, SlowRequest, Snapshot, SubjectSnapshot, WaitSnapshot,
};
use crate::forms::Answered;
use crate::plan::SignatureKind;
use crate::plan::faults::{self, Code};

/// Number of slow requests whose records are kept.
const KEPT_SLOW: usize = 50;
/// Number of refused requests that are kept, of those that the server caused and of those that clients caused; and the
/// number of characters of their texts.
const KEPT_FAILURES: usize = 50;
const MAX_KEPT_TEXT: usize = 1000;
/// Number of sets of event counters. Threads share a set only if there are more threads than sets.
const SHARDS: usize = 64;

// A set of event counters is aligned to two cache lines, because processors load cache lines in pairs.
#[repr(align(128))]
struct Shard([AtomicU64; NUM_EVENTS]);

/// The labels under which the metrics count an answered request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    method: Method,
    version: i64,
    signature: usize,
    model: String,
}

/// The counters of one thread for the requests with one method, model, version and signature. Only that thread writes
/// them.
struct Cell {
    signature_name: String,
    kind: &'static str,
    nanos: AtomicU64,
    run_nanos: AtomicU64,
    rows: AtomicU64,
    // Number of requests in each bucket of two histograms: of the durations of whole requests, and of the run times of
    // their lookups or graphs.
    counts: Vec<AtomicU64>,
    run_counts: Vec<AtomicU64>,
    // Number of requests in each bucket of a histogram of their tf.Examples; empty for a method without Examples.
    example_counts: Vec<AtomicU64>,
}

impl Cell {
    fn merge(&self, other: &Cell) {
        let pairs = [(&self.nanos, &other.nanos), (&self.run_nanos, &other.run_nanos), (&self.rows, &other.rows)];
        let counts = self.counts.iter().zip(&other.counts);
        let run_counts = self.run_counts.iter().zip(&other.run_counts);
        let example_counts = self.example_counts.iter().zip(&other.example_counts);
        for (sum, more) in pairs.into_iter().chain(counts).chain(run_counts).chain(example_counts) {
            add(sum, more.load(Relaxed));
        }
    }
}

struct Own {
    // The number of the `Statistics` object to which the thread's counters belong, because tests have several such
    // objects.
    of: usize,
    generation: u64,
    // The counters by model: a search among those of a thousand models would take longer than a lookup.
    cells: HashMap<String, Vec<(Subject, Arc<Cell>)>>,
    last: Option<(Subject, Arc<Cell>)>,
}

thread_local! {
    static SHARD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARDS
    };
    static OWN: RefCell<Own> =
        RefCell::new(Own { of: 0, generation: 0, cells: HashMap::new(), last: None });
}

struct Waits {
    seconds: f64,
    counts: Vec<u64>,
}

/// The counters of one network server: of requests, waits, connections and events.
pub struct Statistics {
    number: usize,
    limits_s: Vec<f64>,
    slow_from: Duration,
    shards: Vec<Shard>,
    generation: AtomicU64,
    cells: Mutex<Vec<(Subject, Arc<Cell>)>>,
    slow: Mutex<VecDeque<SlowRequest>>,
    wait_limits_s: Vec<f64>,
    example_limits: Vec<usize>,
    // Counts by model. Requests to models that are not configured are counted under the name "", so the maps stay
    // small. Only requests that are refused, fail, or run on a thread pool lock these maps.
    refused: Mutex<HashMap<(String, &'static str), u64>>,
    // Number of requests that were refused for a fault, by method, subject and code.
    failed: Mutex<HashMap<(Method, faults::Subject, Code), u64>>,
    // The last refusals that the server's state or load caused, and the last ones that clients caused.
    failures: Mutex<[VecDeque<FailedRequest>; 2]>,
    waited: Mutex<HashMap<Arc<str>, Waits>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panics while it holds a lock of `Statistics` leaves valid counts, so the lock may be used again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Only one thread writes the counter `cell`, so a separate load and store are enough.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Statistics {
    /// Creates the counters of requests, connections and events, all 0.
    ///
    /// `limits_s`: ascending upper limits of the buckets for durations, inclusive. `wait_limits_s`: the same for waits
    /// for a thread. `example_limits`: ascending upper limits, exclusive, of the numbers of tf.Examples in a request. `slow_from`: time from which on a request is slow.
    #[must_use]
    pub fn new(limits_s: Vec<f64>, wait_limits_s: Vec<f64>, example_limits: Vec<usize>, slow_from: Duration) -> Self {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        Statistics {
            number: NUMBERS.fetch_add(1, Relaxed),
            limits_s,
            slow_from,
            shards: (0..SHARDS).map(|_| Shard([const { AtomicU64::new(0) }; NUM_EVENTS])).collect(),
            generation: AtomicU64::new(0),
            cells: Mutex::default(),
            slow: Mutex::default(),
            wait_limits_s,
            example_limits,
            refused: Mutex::default(),
            failed: Mutex::default(),
            failures: Mutex::default(),
            waited: Mutex::default(),
        }
    }

    /// Counts the refusal of a request. `model` is a configured model, or "".
    pub fn refused(&self, model: &str, reason: &'static str) {
        *lock(&self.refused).entry((model.to_owned(), reason)).or_default() += 1;
    }

    /// Counts a request that is refused for a fault, and keeps it for the status page.
    pub fn failed(
        &self,
        method: Method,
        subject: faults::Subject,
        code: Code,
        text: &str,
        request_id: &str,
        client: String,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let one = FailedRequest {
            at_s: now.as_secs_f64(),
            request_id: request_id.to_owned(),
            client,
            api: method.api(),
            method: method.name(),
            model: subject.model.clone(),
            version: subject.version,
            signature: subject.signature.clone(),
            code: code.name(),
            message: text.chars().take(MAX_KEPT_TEXT).collect(),
        };
        let is_ours = matches!(
            code,
            Code::Internal | Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::DataLoss
        );
        let kept = &mut lock(&self.failures)[usize::from(!is_ours)];
        if kept.len() == KEPT_FAILURES {
            kept.pop_front();
        }
        kept.push_back(one);
        *lock(&self.failed).entry((method, subject, code)).or_default() += 1;
    }

    fn failures(&self) -> Vec<FailureCount> {
        lock(&self.failed).iter().map(failure_count).collect()
    }

    pub fn waited(&self, model: &Arc<str>, wait: Duration) {
        let seconds = wait.as_secs_f64();
        let place = self.wait_limits_s.partition_point(|limit| *limit < seconds);
        let mut all = lock(&self.waited);
        let zeros = || Waits { seconds: 0.0, counts: vec![0; self.wait_limits_s.len() + 1] };
        let waits = all.entry(Arc::clone(model)).or_insert_with(zeros);
        waits.seconds += seconds;
        waits.counts[place] += 1;
    }

    fn refusals(&self) -> Vec<(String, &'static str, u64)> {
        let counts = lock(&self.refused);
        let mut all: Vec<_> = counts.iter().map(|((model, reason), count)| (model.clone(), *reason, *count)).collect();
        all.push((String::new(), "connections", self.total(Event::RefusedConnections)));
        all.push((String::new(), "idle", self.total(Event::ClosedIdle)));
        all.sort();
        all
    }

    fn waits(&self) -> Vec<WaitSnapshot> {
        let snapshot = |(model, waits): (&Arc<str>, &Waits)| WaitSnapshot {
            model: model.as_ref().to_owned(),
            seconds: waits.seconds,
            counts: waits.counts.clone(),
        };
        lock(&self.waited).iter().map(snapshot).collect()
    }

    #[inline]
    pub fn count(&self, event: Event) {
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        self.shards[shard].0[event as usize].fetch_add(1, Relaxed);
    }

    /// Counts an answered request. `asked` returns its request id and its client; it is called only for a slow request.
    #[inline]
    pub fn succeeded(
        &self,
        method: Method,
        answered: &Answered,
        took: Duration,
        asked: impl FnOnce() -> (String, String),
    ) {
        let (model, version) = (answered.servable.model(), answered.servable.version());
        let known = OWN.try_with(|own| {
            let own = &mut *own.borrow_mut();
            let cell = self.cell(own, method, answered, model, version);
            add(&cell.nanos, nanos(took));
            add(&cell.run_nanos, nanos(answered.ran));
            add(&cell.rows, answered.rows as u64);
            add(&cell.counts[self.bucket(took)], 1);
            add(&cell.run_counts[self.bucket(answered.ran)], 1);
            // A number of Examples that equals a limit is in the bucket above it, as in TensorFlow.
            let bucket = self.example_limits.partition_point(|limit| *limit <= answered.rows);
            if let Some(count) = cell.example_counts.get(bucket) {
                add(count, 1);
            }
        });
        debug_assert!(known.is_ok());
        if took >= self.slow_from {
            self.note_slow(method, answered, took, asked());
        }
    }

    fn bucket(&self, time: Duration) -> usize {
        let seconds = time.as_secs_f64();
        self.limits_s.partition_point(|limit| *limit < seconds)
    }

    fn cell<'o>(&self, own: &'o mut Own, method: Method, answered: &Answered, model: &str, version: i64) -> &'o Cell {
        let generation = self.generation.load(Relaxed);
        if own.of != self.number || own.generation != generation {
            *own = Own { of: self.number, generation, cells: HashMap::new(), last: None };
        }
        let signature = answered.signature;
        let is_it = |(subject, _): &&(Subject, Arc<Cell>)| {
            subject.method == method
                && subject.signature == signature
                && subject.version == version
                && subject.model == model
        };
        if !own.last.as_ref().is_some_and(|last| is_it(&last)) {
            let known = own.cells.get(model).and_then(|cells| cells.iter().find(is_it)).cloned();
            own.last = Some(known.unwrap_or_else(|| {
                let subject = Subject { method, version, signature, model: model.to_owned() };
                let new = (subject, Arc::new(self.new_cell(method, answered)));
                lock(&self.cells).push(new.clone());
                own.cells.entry(model.to_owned()).or_default().push(new.clone());
                new
            }));
        }
        &own.last.as_ref().expect("it was set above").1
    }

    fn new_cell(&self, method: Method, answered: &Answered) -> Cell {
        let zeros = || (0..=self.limits_s.len()).map(|_| AtomicU64::new(0)).collect();
        let example_buckets = if method.has_examples() { self.example_limits.len() + 1 } else { 0 };
        let signature = answered.servable.signatures().get(answered.signature);
        Cell {
            signature_name: signature_name(method, answered),
            kind: match signature.map(|s| s.kind) {
                Some(SignatureKind::Predict) => "predict",
                _ => "lookup",
            },
            nanos: AtomicU64::new(0),
            run_nanos: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            counts: zeros(),
            run_counts: zeros(),
            example_counts: (0..example_buckets).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn note_slow(&self, method: Method, answered: &Answered, took: Duration, asked: (String, String)) {
        let (request_id, client) = asked;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let one = SlowRequest {
            at_s: now.as_secs_f64(),
            request_id,
            client,
            api: method.api(),
            method: method.name(),
            model: answered.servable.model().to_owned(),
            version: answered.servable.version(),
            signature: signature_name(method, answered),
            seconds: took.as_secs_f64(),
            run_seconds: answered.ran.as_secs_f64(),
            rows: answered.rows,
        };
        let mut slow = lock(&self.slow);
        if slow.len() == KEPT_SLOW {
            slow.pop_front();
        }
        slow.push_back(one);
    }

    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        self.shards.iter().map(|shard| shard.0[event as usize].load(Relaxed)).sum()
    }

    /// Returns the current values of all counters of this object; the caller fills in the gauges of bytes and queues,
    /// which are 0 here. A request that ends during this call may be missing in some counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        use Event as E;
        let by = |pairs: &[(&'static str, Event)]| -> Vec<(&'static str, u64)> {
            pairs.iter().map(|(name, event)| (*name, self.total(*event))).collect()
        };
        let connected = by(&[("grpc", E::ConnectedGrpc), ("http", E::ConnectedHttp)]);
        let gone = by(&[("grpc", E::DisconnectedGrpc), ("http", E::DisconnectedHttp)]);
        let connections = connected.iter().zip(&gone).map(|(a, b)| (a.0, a.1.saturating_sub(b.1))).collect();
        Snapshot {
            subjects: subjects(&lock(&self.cells)),
            declined: by(&[
                ("too_large", E::DeclinedTooLarge),
                ("waits", E::DeclinedWaits),
                ("batches", E::DeclinedBatches),
                ("queued", E::DeclinedQueued),
                ("search", E::DeclinedSearch),
            ]),
            forwarded: by(&[("grpc", E::ForwardedGrpc), ("http", E::ForwardedHttp)]),
            upstream_failed: by(&[("grpc", E::UpstreamFailedGrpc), ("http", E::UpstreamFailedHttp)]),
            refused: self.refusals(),
            failed: self.failures(),
            waited: self.waits(),
            flooded: by(&[
                ("data", E::FloodData),
                ("reset", E::FloodReset),
                ("settings", E::FloodSettings),
                ("ping", E::FloodPing),
                ("window", E::FloodWindow),
                ("headers", E::FloodHeaders),
                ("frames", E::FloodOther),
                ("http2", E::FloodHttp2),
                ("parts", E::FloodParts),
                ("tls", E::FloodTls),
                ("unfinished", E::FloodUnfinished),
                ("malformed", E::MalformedHttp),
            ]),
            cut: by(&[("grpc", E::CutGrpc), ("http", E::CutHttp)]),
            handshakes_failed: by(&[("grpc", E::HandshakeFailedGrpc), ("http", E::HandshakeFailedHttp)]),
            connected,
            panicked: self.total(E::Panicked),
            connections,
            bytes_in_flight: 0,
            bytes_held_total: 0,
            held: Vec::new(),
            queued: 0,
            queued_to_forward: Vec::new(),
            slow: lock(&self.slow).iter().cloned().collect(),
            failures: lock(&self.failures).iter().flatten().cloned().collect(),
        }
    }

    /// Removes the counts of a model version and returns their sums. A request for the version that ends later may not
    /// be counted.
    #[must_use]
    pub fn retire(&self, model: &str, version: i64) -> RetiredSnapshot {
        let mut failed = Vec::new();
        lock(&self.failed).retain(|key, count| {
            let is_gone = key.1.version == Some(version) && key.1.model == model;
            if is_gone {
                failed.push(failure_count((key, count)));
            }
            !is_gone
        });
        let gone = self.take(|subject| subject.model == model && subject.version == version);
        RetiredSnapshot { subjects: subjects(&gone), failed }
    }

    /// Removes all counts of a model that is not configured any more. A request that ends later may be counted anew.
    pub fn forget(&self, model: &str) {
        drop(self.take(|subject| subject.model == model));
        lock(&self.refused).retain(|(name, _), _| name != model);
        lock(&self.failed).retain(|(_, subject, _), _| subject.model != model);
        lock(&self.waited).retain(|name, _| **name != *model);
    }

    fn take(&self, is_gone: impl Fn(&Subject) -> bool) -> Vec<(Subject, Arc<Cell>)> {
        let mut cells = lock(&self.cells);
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *cells).into_iter().partition(|(subject, _)| is_gone(subject));
        *cells = joined(kept);
        // The new generation number makes every thread leave its old counters (cells) and create new ones at its next
        // request.
        self.generation.fetch_add(1, Relaxed);
        gone
    }
}

/// Returns the signature under which an answered request is counted. A `:rows` request runs none, and is counted under its
/// method's name, as a search for nearest rows is.
fn signature_name(method: Method, answered: &Answered) -> String {
    let signature = answered.servable.signatures().get(answered.signature);
    signature.map_or(method.name(), |signature| &signature.name).to_owned()
}

fn failure_count(((method, subject, code), count): (&(Method, faults::Subject, Code), &u64)) -> FailureCount {
    FailureCount {
        api: method.api(),
        method: method.name(),
        model: subject.model.clone(),
        version: subject.version,
        signature: subject.signature.clone(),
        code: code.name(),
        count: *count,
    }
}

/// Adds up the counters (cells) of threads that have ended, one sum for each subject. A cell belongs to such a thread
/// if only this list still refers to the cell.
fn joined(cells: Vec<(Subject, Arc<Cell>)>) -> Vec<(Subject, Arc<Cell>)> {
    let (left, mut kept): (Vec<_>, Vec<_>) = cells.into_iter().partition(|(_, cell)| Arc::strong_count(cell) == 1);
    let mut sums: HashMap<Subject, Arc<Cell>> = HashMap::new();
    for (subject, cell) in left {
        match sums.entry(subject) {
            Entry::Vacant(place) => drop(place.insert(cell)),
            Entry::Occupied(place) => place.get().merge(&cell),
        }
    }
    kept.extend(sums);
    kept
}

fn subjects(cells: &[(Subject, Arc<Cell>)]) -> Vec<SubjectSnapshot> {
    let mut sums: Vec<SubjectSnapshot> = Vec::new();
    let mut places: HashMap<&Subject, usize> = HashMap::new();
    for (subject, cell) in cells {
        let place = *places.entry(subject).or_insert_with(|| {
            sums.push(SubjectSnapshot {
                api: subject.method.api(),
                method: subject.method.name(),
                model: subject.model.clone(),
                version: subject.version,
                signature: cell.signature_name.clone(),
                kind: cell.kind,
                rows: 0,
                seconds: 0.0,
                counts: vec![0; cell.counts.len()],
                run_seconds: 0.0,
                run_counts: vec![0; cell.run_counts.len()],
                example_counts: vec![0; cell.example_counts.len()],
            });
            sums.len() - 1
        });
        let sum = &mut sums[place];
        sum.rows += cell.rows.load(Relaxed);
        sum.seconds += Duration::from_nanos(cell.nanos.load(Relaxed)).as_secs_f64();
        sum.run_seconds += Duration::from_nanos(cell.run_nanos.load(Relaxed)).as_secs_f64();
        for (all, one) in sum.counts.iter_mut().zip(&cell.counts) {
            *all += one.load(Relaxed);
        }
        for (all, one) in sum.run_counts.iter_mut().zip(&cell.run_counts) {
            *all += one.load(Relaxed);
        }
        for (all, one) in sum.example_counts.iter_mut().zip(&cell.example_counts) {
            *all += one.load(Relaxed);
        }
    }
    sums
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use std::time::Instant;

    use crate::forms::NO_SIGNATURE;
    use crate::plan::{Servable, VersionMemory};

    fn answered(version: i64) -> Answered {
        let description = serde_json::json!({
            "model": "m", "version": version, "tables": [], "vocabularies": [],
            "signatures": [{
                "name": "lookup", "kind": "lookup", "inputs": [], "features": [], "outputs": [],
                "max_rows": null, "graph": null
            }]
        });
        let description = serde_json::from_value(description).unwrap();
        let no_graph = |_: &serde_json::Value| Err(String::new());
        let servable = Servable::compile(description, VersionMemory::default(), &no_graph);
        Answered {
            body: bytes::Bytes::new(),
            rows: 2,
            servable: Arc::new(servable.unwrap()),
            signature: 0,
            ran: Duration::from_millis(1),
            json_length: None,
            notes: None,
            began: Instant::now(),
            record: None,
        }
    }

    fn count(statistics: &Statistics, answered: &Answered, took: Duration) {
        statistics.succeeded(Method::Lookup, answered, took, || ("id".into(), "ranker".into()));
    }

    #[test]
    fn refusals_and_waits_are_counted_by_model() {
        let statistics = Statistics::new(Vec::new(), vec![0.1, 1.0], Vec::new(), Duration::MAX);
        for model in ["m", "m", ""] {
            statistics.refused(model, "queue");
        }
        statistics.waited(&"m".into(), Duration::from_millis(500));
        let found = statistics.snapshot();
        let counted = |model: &str, reason, count| (model.to_owned(), reason, count);
        let dropped = [counted("", "connections", 0), counted("", "idle", 0)];
        assert_eq!(found.refused, [&dropped[..], &[counted("", "queue", 1), counted("m", "queue", 2)]].concat());
        assert_eq!(found.waited, [WaitSnapshot { model: "m".into(), seconds: 0.5, counts: vec![0, 1, 0] }]);
    }

    #[test]
    fn threads_and_versions_are_summed_and_a_limit_belongs_below_itself() {
        let statistics = Statistics::new(vec![0.001, 0.01], vec![0.1], Vec::new(), Duration::from_millis(10));
        let (one, two) = (answered(1), answered(2));
        let ask = || {
            count(&statistics, &one, Duration::from_millis(1));
            count(&statistics, &two, Duration::from_millis(20));
            count(&statistics, &one, Duration::from_millis(10));
        };
        std::thread::scope(|scope| {
            // The test joins the threads itself, because a scope may end before its threads have dropped their
            // thread-local cells.
            for thread in [(); 3].map(|()| scope.spawn(ask)) {
                thread.join().unwrap();
            }
        });
        let check = |one: &SubjectSnapshot| {
            assert_eq!((&*one.model, one.version, &*one.signature, one.rows), ("m", 1, "lookup", 12));
            assert_eq!((&one.counts, &one.run_counts), (&vec![3, 3, 0], &vec![6, 0, 0]));
            assert!((one.seconds - 0.033).abs() < 1e-9 && (one.run_seconds - 0.006).abs() < 1e-9);
        };
        let snapshot = statistics.snapshot();
        assert_eq!(snapshot.subjects.len(), 2);
        check(snapshot.subjects.iter().find(|one| one.version == 1).unwrap());
        assert_eq!(snapshot.slow.len(), 6);
        let slow = &snapshot.slow[0];
        assert_eq!((&*slow.request_id, &*slow.client, slow.rows), ("id", "ranker", 2));
        let gone = statistics.retire("m", 2);
        assert_eq!((gone.subjects.len(), gone.subjects[0].counts[2]), (1, 3));
        // retire() has replaced the counters (cells) of the ended threads by one cell with their sums.
        assert_eq!(lock(&statistics.cells).len(), 1);
        count(&statistics, &one, Duration::from_millis(1));
        let left = statistics.snapshot().subjects;
        assert_eq!((left.len(), left[0].counts[0], left[0].rows), (1, 4, 14));
    }

    #[test]
    fn nothing_is_left_of_a_forgotten_model() {
        let statistics = Statistics::new(vec![0.1], vec![0.1], Vec::new(), Duration::MAX);
        for version in [1, 2] {
            count(&statistics, &answered(version), Duration::ZERO);
        }
        for model in ["m", "n"] {
            statistics.refused(model, "queue");
            let subject = faults::Subject { model: model.into(), version: None, signature: String::new() };
            statistics.failed(Method::Lookup, subject, Code::Unavailable, "text", "id", String::new());
            statistics.waited(&model.into(), Duration::ZERO);
        }
        statistics.forget("m");
        let left = statistics.snapshot();
        assert!(left.subjects.is_empty());
        assert_eq!(left.refused.iter().filter(|(model, ..)| !model.is_empty()).count(), 1);
        assert_eq!((&*left.failed[0].model, left.failed.len()), ("n", 1));
        assert_eq!((&*left.waited[0].model, left.waited.len()), ("n", 1));
        count(&statistics, &answered(1), Duration::ZERO);
        assert_eq!(statistics.snapshot().subjects[0].counts, [1, 0]);
    }

    #[test]
    fn numbers_of_examples_are_counted_for_methods_that_have_them() {
        let statistics = Statistics::new(Vec::new(), Vec::new(), vec![1, 2, 4], Duration::MAX);
        for rows in [0, 1, 2, 3, 4, 900] {
            for method in [Method::Classify, Method::HttpRegress, Method::Predict] {
                let answered = Answered { rows, ..answered(1) };
                statistics.succeeded(method, &answered, Duration::ZERO, Default::default);
            }
        }
        let mut found: Vec<_> = statistics.snapshot().subjects;
        found.sort_by_key(|one| one.method);
        let counts: Vec<_> = found.iter().map(|one| (one.method, &one.example_counts[..], one.rows)).collect();
        assert_eq!(
            counts,
            [("Classify", &[1, 1, 2, 2][..], 910), ("Predict", &[], 910), ("regress", &[1, 1, 2, 2], 910)]
        );
    }

    #[test]
    fn rows_of_tables_are_counted_under_their_method_and_events_always() {
        let statistics = Statistics::new(Vec::new(), Vec::new(), vec![1, 2, 4], Duration::ZERO);
        let rows = Answered { signature: NO_SIGNATURE, ..answered(1) };
        statistics.succeeded(Method::Rows, &rows, Duration::ZERO, Default::default);
        statistics.failed(Method::Rows, faults::Subject::default(), Code::NotFound, "text", "id", "ranker".into());
        statistics.count(Event::DeclinedSearch);
        statistics.count(Event::ConnectedHttp);
        statistics.count(Event::ConnectedHttp);
        statistics.count(Event::DisconnectedHttp);
        let snapshot = statistics.snapshot();
        let [counted] = &snapshot.subjects[..] else { panic!("{:?}", snapshot.subjects) };
        assert_eq!(
            (&*counted.signature, counted.kind, counted.rows, &counted.counts[..]),
            ("rows", "lookup", 2, &[1][..])
        );
        assert_eq!((snapshot.slow.len(), &*snapshot.slow[0].signature), (1, "rows"));
        assert_eq!((snapshot.failed[0].method, snapshot.failed[0].count, snapshot.failures.len()), ("rows", 1, 1));
        assert_eq!((&*snapshot.failures[0].client, &*snapshot.failures[0].message), ("ranker", "text"));
        assert!(snapshot.declined.contains(&("search", 1)));
        assert_eq!(snapshot.connections, [("grpc", 0), ("http", 1)]);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert!(text.contains("\"declined\":[[\"too_large\",0]"), "{text}");
    }
}
