//! Tests of the rules of batches with a clock that the test moves, and threads whose work the test does by hand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::joining::{InputKind, OwnedInputs, join, join_outputs, split};
use super::parameters::Parameters;
use super::queue::{Queued, Task};
use super::scheduler::{BatchCall, Scheduler};
use super::{Counts, Limits};
use crate::plan::faults::{self, BoxedFault, Code};
use crate::plan::{Data, DataType, Dims, GraphOutput, Inputs, OutputData, Strings, Tensor};

/// Batches that ran: for each task, its number, begin and end.
type Runs = Arc<Mutex<Vec<Vec<(usize, usize, usize)>>>>;

/// A request whose run only records its rows.
struct Fake {
    number: usize,
    rows: usize,
    group: char,
    deadline: Option<Instant>,
    parameters: Arc<Parameters>,
    runs: Runs,
    state: Mutex<(bool, Option<BoxedFault>)>,
    panics: bool,
    /// A request that must be over, within 30 s, before the run ends.
    awaits: Option<Arc<Fake>>,
}

impl Queued for Fake {
    type Group = char;

    fn rows(&self) -> usize {
        self.rows
    }

    fn group(&self) -> &char {
        &self.group
    }
}

impl BatchCall for Fake {
    fn is_over(&self) -> bool {
        self.state.lock().unwrap().0
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn fail(&self, fault: BoxedFault) {
        *self.state.lock().unwrap() = (true, Some(fault));
    }

    fn lose(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn padding(&self, rows: usize) -> usize {
        self.parameters.padded_rows(rows) - rows
    }

    fn run(tasks: &[Task<Self>]) {
        let parts = tasks.iter().map(|task| (task.call.number, task.begin, task.end)).collect();
        tasks[0].call.runs.lock().unwrap().push(parts);
        assert!(tasks.iter().all(|task| !task.call.panics), "on purpose");
        let begun = Instant::now();
        while tasks[0].call.awaits.as_ref().is_some_and(|awaited| !awaited.is_over()) && begun.elapsed().as_secs() < 30
        {
            std::thread::yield_now();
        }
        for task in tasks {
            task.call.state.lock().unwrap().0 |= task.end == task.call.rows;
        }
    }
}

/// A scheduler without threads, with one queue.
struct Bench {
    scheduler: Arc<Scheduler<Fake>>,
    queue: u64,
    parameters: Arc<Parameters>,
    now: Instant,
    runs: Runs,
    next: AtomicUsize,
}

fn parameters() -> Parameters {
    Parameters {
        max_batch_size: 1000,
        batch_timeout_micros: 1_000_000,
        max_enqueued_batches: 10,
        allowed_batch_sizes: vec![],
        pad_variable_length_inputs: false,
        enable_large_batch_splitting: false,
        max_execution_batch_size: 1000,
    }
}

fn of_size(rows: usize) -> Parameters {
    Parameters { max_batch_size: rows, max_execution_batch_size: rows, ..parameters() }
}

impl Bench {
    fn new(parameters: Parameters) -> Self {
        let scheduler = Scheduler::new(0, "batch", Limits { wait_s: vec![0.5], rows: vec![1, 4] });
        let parameters = Arc::new(parameters);
        let queue = scheduler.add_queue(Arc::clone(&parameters));
        let (runs, next) = (Arc::default(), AtomicUsize::new(1));
        Bench { scheduler, queue, parameters, now: Instant::now(), runs, next }
    }

    fn call(&self, rows: usize, group: char, deadline: Option<Duration>) -> Arc<Fake> {
        Arc::new(Fake {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            rows,
            group,
            deadline: deadline.map(|after| self.now + after),
            parameters: Arc::clone(&self.parameters),
            runs: Arc::clone(&self.runs),
            state: Mutex::default(),
            panics: false,
            awaits: None,
        })
    }

    fn push(&self, call: &Arc<Fake>) -> Result<usize, BoxedFault> {
        self.scheduler.push(self.queue, call, self.now)
    }

    /// Queues requests of these rows, numbered from 1.
    fn ask(&self, rows: &[usize]) -> Vec<Arc<Fake>> {
        let calls: Vec<_> = rows.iter().map(|&rows| self.call(rows, 'a', None)).collect();
        for call in &calls {
            self.push(call).unwrap();
        }
        calls
    }

    /// Runs all batches that are ready, and returns them: the number, begin and end of each task.
    fn run_ready(&self) -> Vec<Vec<(usize, usize, usize)>> {
        while self.scheduler.run_ready(self.now) {}
        std::mem::take(&mut *self.runs.lock().unwrap())
    }

    fn pass(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
    }

    fn counts(&self) -> Counts {
        self.scheduler.counts()
    }
}

#[test]
fn a_batch_waits_for_its_timeout_or_until_it_is_full() {
    let mut bench = Bench::new(of_size(3));
    bench.ask(&[1]);
    assert!(bench.run_ready().is_empty());
    bench.pass(999_999);
    assert!(bench.run_ready().is_empty());
    bench.ask(&[2]);
    assert_eq!(bench.run_ready(), [[(1, 0, 1), (2, 0, 2)]]);
    bench.ask(&[1]);
    bench.pass(999_999);
    assert!(bench.run_ready().is_empty());
    bench.pass(1);
    assert_eq!(bench.run_ready(), [[(3, 0, 1)]]);
}

#[test]
fn without_a_timeout_requests_that_wait_for_a_thread_share_the_next_run() {
    let bench = Bench::new(Parameters { batch_timeout_micros: 0, ..of_size(4) });
    bench.ask(&[1, 2, 2, 1]);
    assert_eq!(bench.run_ready(), [vec![(1, 0, 1), (2, 0, 2)], vec![(3, 0, 2), (4, 0, 1)]]);
}

#[test]
fn a_request_that_does_not_fit_closes_the_batch_before_it() {
    let mut bench = Bench::new(of_size(3));
    bench.ask(&[2, 2]);
    assert_eq!(bench.run_ready(), [[(1, 0, 2)]]);
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready(), [[(2, 0, 2)]]);
}

#[test]
fn requests_of_unlike_shapes_wait_in_batches_of_their_own() {
    let mut bench = Bench::new(parameters());
    for group in ['a', 'b', 'a', 'b'] {
        bench.push(&bench.call(1, group, None)).unwrap();
    }
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready(), [[(1, 0, 1), (3, 0, 1)], [(2, 0, 1), (4, 0, 1)]]);
}

#[test]
fn a_request_larger_than_a_batch_is_refused() {
    for is_split in [false, true] {
        let bench = Bench::new(Parameters {
            enable_large_batch_splitting: is_split,
            max_execution_batch_size: if is_split { 2 } else { 16 },
            ..of_size(16)
        });
        let refused = bench.push(&bench.call(17, 'a', None)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert_eq!(refused.text, "Task size 17 is larger than maximum input batch size 16");
        assert!(!refused.may_retry);
        assert_eq!(bench.counts().rejected, [("INVALID_ARGUMENT", 1)].into());
    }
}

#[test]
fn a_full_queue_refuses_until_a_batch_leaves_it() {
    let bench = Bench::new(Parameters { max_enqueued_batches: 2, ..of_size(2) });
    bench.ask(&[2, 1]);
    let refused = bench.push(&bench.call(2, 'a', None)).unwrap_err();
    assert_eq!((refused.code, refused.may_retry), (Code::Unavailable, true));
    assert_eq!(
        refused.text,
        "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and \
         max_enqueued_batches is 2"
    );
    // A request that fits into the open batch needs no further batch. One of another shape does.
    assert!(bench.push(&bench.call(1, 'b', None)).is_err());
    bench.ask(&[1]);
    assert_eq!(bench.run_ready().len(), 2);
    assert!(bench.push(&bench.call(2, 'a', None)).is_ok());
    assert_eq!(bench.counts().rejected, [("UNAVAILABLE", 2)].into());
}

#[test]
fn a_queue_of_no_batches_holds_one() {
    let bench = Bench::new(Parameters { max_enqueued_batches: 0, ..of_size(2) });
    bench.ask(&[1]);
    assert!(bench.push(&bench.call(2, 'a', None)).unwrap_err().text.ends_with("max_enqueued_batches is 1"));
}

#[test]
fn a_large_request_is_split_over_batches_where_splitting_is_on() {
    let split = Parameters { enable_large_batch_splitting: true, max_execution_batch_size: 3, ..of_size(10) };
    let mut bench = Bench::new(split);
    bench.ask(&[2, 5, 1]);
    assert_eq!(bench.run_ready(), [vec![(1, 0, 2), (2, 0, 1)], vec![(2, 1, 4)]]);
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready(), [vec![(2, 4, 5), (3, 0, 1)]]);
}

#[test]
fn a_full_queue_refuses_a_request_that_would_be_split() {
    let split = Parameters {
        enable_large_batch_splitting: true,
        max_execution_batch_size: 2,
        max_enqueued_batches: 2,
        ..of_size(4)
    };
    let bench = Bench::new(split);
    bench.ask(&[3]);
    let refused = bench.push(&bench.call(2, 'a', None)).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert_eq!(
        refused.text,
        "The batch scheduling queue to which this task was submitted is full; task size is 2 but scheduling capacity \
         is only 1 (num_enqueued_batches=2, max_enqueued_batches=2, open_batch_size=1, max_execution_batch_size=2)"
    );
    assert!(bench.push(&bench.call(1, 'a', None)).is_ok());
}

#[test]
fn a_request_whose_deadline_passed_is_dropped_before_the_run() {
    let mut bench = Bench::new(parameters());
    let (tardy, patient) = (bench.call(1, 'a', Some(Duration::from_secs(1))), bench.call(2, 'a', None));
    bench.push(&tardy).unwrap();
    bench.push(&patient).unwrap();
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready(), [[(2, 0, 2)]]);
    assert_eq!(tardy.state.lock().unwrap().1, Some(faults::late_for_batch()));
    assert_eq!(faults::late_for_batch().text, "Run() timeout exceeded while waiting in batching queue");
    let alone = bench.call(1, 'a', Some(Duration::from_secs(1)));
    bench.push(&alone).unwrap();
    bench.pass(2_000_000);
    assert!(bench.run_ready().is_empty());
    assert!(alone.is_over());
    assert_eq!(bench.counts().rejected, [("DEADLINE_EXCEEDED", 2)].into());
    assert_eq!(bench.counts().num_runs, 1);
}

#[test]
fn a_request_that_nobody_waits_for_leaves_the_queue() {
    let mut bench = Bench::new(Parameters { max_enqueued_batches: 1, ..of_size(2) });
    let calls = bench.ask(&[1, 1]);
    assert_eq!(bench.scheduler.remove(bench.queue, &calls[0]), 1);
    assert_eq!(bench.scheduler.remove(bench.queue, &calls[0]), 0);
    bench.ask(&[1]);
    assert_eq!(bench.run_ready(), [[(2, 0, 1), (3, 0, 1)]]);
    let last = bench.ask(&[1]);
    assert_eq!(bench.scheduler.remove(bench.queue, &last[0]), 1);
    bench.pass(1_000_000);
    assert!(bench.run_ready().is_empty());
}

#[test]
fn batches_of_a_version_that_is_unloaded_do_not_wait() {
    let bench = Bench::new(parameters());
    bench.ask(&[1]);
    bench.scheduler.set_closing(bench.queue, true);
    assert_eq!(bench.run_ready(), [[(1, 0, 1)]]);
    bench.ask(&[1]);
    assert_eq!(bench.run_ready(), [[(2, 0, 1)]]);
    bench.scheduler.set_closing(bench.queue, false);
    bench.ask(&[1]);
    assert!(bench.run_ready().is_empty());
}

#[test]
fn queues_take_turns() {
    let mut bench = Bench::new(parameters());
    let other = bench.scheduler.add_queue(Arc::new(parameters()));
    for (number, group) in "abc".chars().enumerate() {
        bench.push(&bench.call(1, group, None)).unwrap();
        if number < 2 {
            bench.scheduler.push(other, &bench.call(1, group, None), bench.now).unwrap();
        }
    }
    bench.pass(1_000_000);
    let order: Vec<usize> = bench.run_ready().iter().map(|batch| batch[0].0).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
}

#[test]
fn batches_are_counted_with_their_padding_and_waits() {
    let sizes = Parameters { allowed_batch_sizes: vec![2, 5, 8], ..of_size(8) };
    for (rows, padded) in [(1, 2), (2, 2), (3, 5), (5, 5), (6, 8), (8, 8)] {
        assert_eq!(sizes.padded_rows(rows), padded);
    }
    assert_eq!(of_size(8).padded_rows(3), 3);
    let mut bench = Bench::new(sizes);
    bench.ask(&[1, 2]);
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready().len(), 1);
    let counts = bench.counts();
    assert_eq!((counts.num_runs, counts.num_requests), (1, 2));
    assert_eq!((counts.waits.counts, counts.waits.sum), (vec![0, 2], 2.0));
    assert_eq!((counts.arrived.counts, counts.arrived.sum), (vec![0, 2, 0], 3));
    assert_eq!((counts.run.counts, counts.run.sum), (vec![0, 0, 1], 5));
    assert_eq!((&counts.padding[&5].counts, counts.padding[&5].sum), (&vec![0, 1, 0], 2));
}

#[test]
fn a_run_that_panics_ends_the_requests_of_its_batch_only() {
    let mut bench = Bench::new(of_size(2));
    let wrong = Fake { panics: true, ..Arc::into_inner(bench.call(1, 'a', None)).unwrap() };
    let (wrong, beside, later) = (Arc::new(wrong), bench.call(1, 'a', None), bench.call(1, 'a', None));
    for call in [&wrong, &beside, &later] {
        bench.push(call).unwrap();
    }
    bench.pass(1_000_000);
    assert_eq!(bench.run_ready().len(), 2);
    assert!(wrong.is_over() && beside.is_over() && later.is_over());
}

#[test]
fn a_batch_that_is_due_runs_beside_a_long_one() {
    let bench = Bench::new(of_size(2));
    let scheduler = Scheduler::new(2, "batch", Limits::default());
    let queues = [500_000, 0]
        .map(|micros| scheduler.add_queue(Arc::new(Parameters { batch_timeout_micros: micros, ..of_size(2) })));
    let due = bench.call(1, 'a', None);
    let long = Arc::new(Fake { awaits: Some(Arc::clone(&due)), ..Arc::into_inner(bench.call(1, 'a', None)).unwrap() });
    scheduler.push(queues[0], &due, Instant::now()).unwrap();
    // Time for the only thread to fall asleep until the batch is due.
    std::thread::sleep(Duration::from_millis(50));
    scheduler.push(queues[1], &long, Instant::now()).unwrap();
    while !long.is_over() {
        std::thread::yield_now();
    }
    assert!(due.is_over());
}

#[test]
fn many_clients_are_answered_by_the_schedulers_own_threads() {
    for micros in [0, 500] {
        let scheduler = Scheduler::new(2, "batch", Limits::default());
        let parameters =
            Arc::new(Parameters { batch_timeout_micros: micros, max_enqueued_batches: 1000, ..of_size(8) });
        let queues: Vec<u64> = (0..3).map(|_| scheduler.add_queue(Arc::clone(&parameters))).collect();
        let runs: Arc<Mutex<Vec<_>>> = Arc::default();
        std::thread::scope(|scope| {
            for client in 0..8 {
                let (scheduler, queues, parameters, runs) = (&scheduler, &queues, &parameters, &runs);
                scope.spawn(move || {
                    for number in 0..50 {
                        let call = Arc::new(Fake {
                            number: client * 50 + number,
                            rows: 1,
                            group: if number % 2 == 0 { 'a' } else { 'b' },
                            deadline: None,
                            parameters: Arc::clone(parameters),
                            runs: Arc::clone(runs),
                            state: Mutex::default(),
                            panics: false,
                            awaits: None,
                        });
                        scheduler.push(queues[(client + number) % 3], &call, Instant::now()).unwrap();
                        while !call.is_over() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let mut numbers: Vec<usize> =
            runs.lock().unwrap().iter().flatten().map(|part: &(usize, _, _)| part.0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    }
}

#[allow(clippy::unnecessary_wraps, reason = "an input that was sent")]
fn floats(dims: &[usize], numbers: &[f32]) -> Option<Tensor<'static>> {
    Some(Tensor { dtype: DataType::Float32, dims: dims.into(), data: Data::Floats(numbers.to_vec()) })
}

#[allow(clippy::unnecessary_wraps, reason = "an input that was sent")]
fn ints(numbers: &[i64]) -> Option<Tensor<'static>> {
    Some(Tensor {
        dtype: DataType::Int64,
        dims: Dims::from_slice(&[numbers.len()]),
        data: Data::Ints(numbers.to_vec()),
    })
}

#[allow(clippy::unnecessary_wraps, reason = "an input that was sent")]
fn strings(dims: &[usize], parts: &[&'static str]) -> Option<Tensor<'static>> {
    let parts = parts.iter().map(|part| part.as_bytes().into()).collect();
    Some(Tensor { dtype: DataType::String, dims: dims.into(), data: Data::Strings(Strings { parts }) })
}

const ROWS: [InputKind; 1] = [InputKind::Rows];

fn owned(kinds: &[InputKind], tensors: Vec<Option<Tensor<'static>>>) -> OwnedInputs {
    OwnedInputs::copy_of(kinds, &tensors.into_iter().collect::<Inputs<'_>>())
}

/// Joins parts of requests, with `padding` copies of the first row of the last part behind them.
fn joined(kinds: &[InputKind], parts: &[(&OwnedInputs, std::ops::Range<usize>)], padding: usize) -> OwnedInputs {
    for (part, _) in parts {
        assert_eq!(part.shapes(kinds, true), parts[0].0.shapes(kinds, true));
    }
    let (last, rows) = parts.last().unwrap();
    let padding = std::iter::repeat_n((*last, rows.start..rows.start + 1), padding);
    join(kinds, &parts.iter().cloned().chain(padding).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_batch_is_padded_with_the_first_row_of_its_last_request() {
    let one = owned(&ROWS, vec![floats(&[1], &[1.0])]);
    let other = owned(&ROWS, vec![floats(&[2], &[2.0, 3.0])]);
    let found = joined(&ROWS, &[(&one, 0..1), (&other, 0..2)], 2);
    assert_eq!(found, owned(&ROWS, vec![floats(&[5], &[1.0, 2.0, 3.0, 2.0, 2.0])]));
    // A part of a split request is padded with its own first row.
    assert_eq!(joined(&ROWS, &[(&other, 1..2)], 1), owned(&ROWS, vec![floats(&[2], &[3.0, 3.0])]));
    let words = owned(&ROWS, vec![strings(&[2, 1], &["a", "bc"])]);
    assert_eq!(joined(&ROWS, &[(&words, 0..2)], 1), owned(&ROWS, vec![strings(&[3, 1], &["a", "bc", "a"])]));
}

#[test]
fn inputs_of_unequal_inner_sizes_are_filled_up_with_their_own_first_element() {
    let wide = owned(&ROWS, vec![floats(&[1, 2], &[1.0, 2.0])]);
    let narrow = owned(&ROWS, vec![floats(&[2, 1], &[3.0, 4.0])]);
    assert_ne!(wide.shapes(&ROWS, false), narrow.shapes(&ROWS, false));
    let found = joined(&ROWS, &[(&wide, 0..1), (&narrow, 0..2)], 0);
    assert_eq!(found, owned(&ROWS, vec![floats(&[3, 2], &[1.0, 2.0, 3.0, 3.0, 4.0, 3.0])]));
    let tall = owned(&ROWS, vec![floats(&[1, 2, 1], &[5.0, 6.0])]);
    let broad = owned(&ROWS, vec![floats(&[1, 1, 2], &[7.0, 8.0])]);
    let found = joined(&ROWS, &[(&tall, 0..1), (&broad, 0..1)], 0);
    assert_eq!(found, owned(&ROWS, vec![floats(&[2, 2, 2], &[5.0, 5.0, 6.0, 5.0, 7.0, 8.0, 7.0, 7.0])]));
    let words = owned(&ROWS, vec![strings(&[1, 2], &["a", "b"])]);
    let word = owned(&ROWS, vec![strings(&[1, 1], &["c"])]);
    let found = joined(&ROWS, &[(&words, 0..1), (&word, 0..1)], 0);
    assert_eq!(found, owned(&ROWS, vec![strings(&[2, 2], &["a", "b", "c", "c"])]));
}

#[test]
fn requests_run_apart_if_filling_up_takes_too_much_memory() {
    const SIZE: usize = 1 << 14;
    let tall = owned(&ROWS, vec![floats(&[1, SIZE, 1], &[1.0; SIZE])]);
    let broad = owned(&ROWS, vec![floats(&[1, 1, SIZE], &[1.0; SIZE])]);
    assert!(join(&ROWS, &[(&tall, 0..1), (&broad, 0..1)]).is_err());
    assert!(join(&ROWS, &[(&tall, 0..1), (&tall, 0..1)]).is_ok());
    let long = owned(&ROWS, vec![strings(&[1, 1], &["a".repeat(1 << 20).leak()])]);
    let many = owned(&ROWS, vec![strings(&[1, SIZE], &["b"; SIZE])]);
    assert!(join(&ROWS, &[(&long, 0..1), (&many, 0..1)]).is_err());
}

#[test]
fn only_requests_of_like_inputs_share_a_batch() {
    let shapes = |tensor: Option<Tensor<'static>>, pads| owned(&ROWS, vec![tensor]).shapes(&ROWS, pads);
    for pads in [false, true] {
        assert_eq!(shapes(floats(&[1], &[1.0]), pads), shapes(floats(&[2], &[1.0, 2.0]), pads));
        assert_ne!(shapes(floats(&[1], &[1.0]), pads), shapes(ints(&[1]), pads));
        assert_ne!(shapes(floats(&[1], &[1.0]), pads), shapes(None, pads));
        assert_ne!(shapes(floats(&[1], &[1.0]), pads), shapes(floats(&[1, 1], &[1.0]), pads));
        // An empty input has no element to be filled up with.
        assert_ne!(shapes(floats(&[1, 0], &[]), pads), shapes(floats(&[1, 1], &[1.0]), pads));
    }
}

const BAG: [InputKind; 3] =
    [InputKind::Ids { splits: 1 }, InputKind::Splits { is_sparse: false }, InputKind::Weights { splits: 1, ids: 0 }];

#[test]
fn ids_and_row_splits_of_ragged_features_are_joined() {
    let one = owned(&BAG, vec![ints(&[1, 2, 4]), ints(&[0, 2, 3]), floats(&[3], &[0.1, 0.2, 0.4])]);
    let other = owned(&BAG, vec![ints(&[8, 16]), ints(&[0, 0, 2]), floats(&[2], &[0.8, 1.6])]);
    assert_eq!((one.num_rows(&BAG).unwrap(), other.num_rows(&BAG).unwrap()), (2, 2));
    let found = joined(&BAG, &[(&one, 0..2), (&other, 0..2)], 1);
    let wanted = [ints(&[1, 2, 4, 8, 16]), ints(&[0, 2, 3, 3, 5, 5]), floats(&[5], &[0.1, 0.2, 0.4, 0.8, 1.6])];
    assert_eq!(found, owned(&BAG, wanted.to_vec()));
    let found = joined(&BAG, &[(&other, 1..2), (&one, 1..2)], 1);
    let wanted = [ints(&[8, 16, 4, 4]), ints(&[0, 2, 3, 4]), floats(&[4], &[0.8, 1.6, 0.4, 0.4])];
    assert_eq!(found, owned(&BAG, wanted.to_vec()));
    // Empty weights stand for weight 1 of each id, so such a request shares no batch with weighted ones.
    let unweighted = owned(&BAG, vec![ints(&[3]), ints(&[0, 1]), floats(&[0], &[])]);
    assert_ne!(unweighted.shapes(&BAG, false), one.shapes(&BAG, false));
    let found = joined(&BAG, &[(&unweighted, 0..1), (&unweighted, 0..1)], 0);
    assert_eq!(found, owned(&BAG, vec![ints(&[3, 3]), ints(&[0, 1, 2]), floats(&[0], &[])]));
}

#[test]
fn inputs_without_a_common_number_of_rows_are_refused_in_tensorflow_servings_words() {
    let kinds = [InputKind::Rows; 2];
    let refused = |tensors| owned(&kinds, tensors).num_rows(&kinds).unwrap_err().text;
    assert_eq!(refused(vec![None, None]), "Batching Run() must have at least one input tensor");
    assert_eq!(
        refused(vec![floats(&[], &[1.0]), None]),
        "Batching Run() input tensors must have at least one dimension"
    );
    assert_eq!(
        refused(vec![floats(&[1], &[1.0]), ints(&[1, 2])]),
        "Batching Run() input tensors must have equal 0th-dimension size"
    );
}

fn output(dims: &[usize], bytes: &[u8]) -> GraphOutput {
    GraphOutput { dtype: DataType::Uint8, dims: dims.into(), data: OutputData::Numbers(Box::new(bytes.to_vec())) }
}

fn words(parts: &[&str]) -> GraphOutput {
    let strings = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
    GraphOutput { dtype: DataType::String, dims: Dims::from_slice(&[parts.len()]), data: OutputData::Strings(strings) }
}

fn plain(outputs: &[GraphOutput]) -> Vec<(Vec<usize>, Vec<Vec<u8>>)> {
    let elements = |data: &OutputData| match data {
        OutputData::Numbers(numbers) => vec![(**numbers).as_ref().to_vec()],
        OutputData::Strings(strings) => strings.clone(),
    };
    outputs.iter().map(|output| (output.dims.to_vec(), elements(&output.data))).collect()
}

#[test]
fn outputs_are_split_by_request_without_the_padding_and_joined_again() {
    let outputs = || vec![output(&[4, 2], &[1, 2, 3, 4, 5, 6, 7, 8]), words(&["a", "b", "c", "d"])];
    let parts = split(outputs(), &[1, 2], 4).unwrap();
    assert_eq!(plain(&parts[0]), [(vec![1, 2], vec![vec![1, 2]]), (vec![1], vec![b"a".to_vec()])]);
    assert_eq!(plain(&parts[1]), [(vec![2, 2], vec![vec![3, 4, 5, 6]]), (vec![2], vec![b"b".to_vec(), b"c".to_vec()])]);
    let whole = join_outputs(split(outputs(), &[1, 3], 4).unwrap()).unwrap();
    assert_eq!(plain(&whole), plain(&outputs()));
    assert!(join_outputs(vec![vec![output(&[1], &[1])], vec![words(&["a"])]]).is_none());
}

#[test]
fn outputs_without_the_batchs_rows_are_refused() {
    let refused = |dims: &[usize]| {
        let fault = split(vec![output(dims, &[1; 3])], &[1, 1], 2).map(|_| ()).unwrap_err();
        assert_eq!(fault.code, Code::FailedPrecondition);
        fault.text
    };
    assert_eq!(refused(&[]), "Batched output tensor has 0 dimensions");
    assert_eq!(
        refused(&[3]),
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors"
    );
}
