//! TensorFlow sessions: opens them, restores their variables, and runs parts of their graphs.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::c_api::{Api, Buffer, Graph, OK, Operation, Output, RawSession, Status};
use super::tensor::Tensor;
use crate::denormals::FlushDenormals;
use crate::threads;

/// An error from TensorFlow, or from the functions of this file, with a status code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    pub code: u32,
    pub message: String,
}

impl GraphError {
    /// Returns an `INVALID_ARGUMENT` error, as TensorFlow's session in Python raises for feeds and fetches that do not
    /// fit the graph.
    fn invalid(message: impl Into<String>) -> Self {
        GraphError { code: 3, message: message.into() }
    }

    /// The code of an error whose reason lies outside of the graph.
    pub const UNAVAILABLE: u32 = 14;
}

/// Number of threads that TensorFlow may start for a graph beside those of a session's pools.
const MORE_THREADS: usize = 4;

/// Returns an error if TensorFlow would get fewer than `num` threads, and some more: it would end the process.
fn check_threads(num: usize) -> Result<(), GraphError> {
    threads::check(num + MORE_THREADS)
        .map_err(|error| GraphError { code: GraphError::UNAVAILABLE, message: error.to_string() })
}

impl fmt::Display for GraphError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "TensorFlow, code {}: {}", self.code, self.message)
    }
}

impl std::error::Error for GraphError {}

struct StatusGuard {
    api: &'static Api,
    raw: *mut Status,
}

impl StatusGuard {
    fn new(api: &'static Api) -> Self {
        // SAFETY: the C function `TF_NewStatus` has no preconditions.
        let raw = unsafe { (api.new_status)() };
        StatusGuard { api, raw }
    }

    fn result(&self) -> Result<(), GraphError> {
        // SAFETY: only drop() deletes the `TF_Status`, and the text of its message lives as long as the status.
        let (code, message) = unsafe { ((self.api.get_code)(self.raw), CStr::from_ptr((self.api.message)(self.raw))) };
        if code == OK {
            return Ok(());
        }
        let message = String::from_utf8_lossy(message.to_bytes()).into_owned();
        Err(GraphError { code: code.unsigned_abs(), message })
    }
}

impl Drop for StatusGuard {
    fn drop(&mut self) {
        // SAFETY: only this guard has the pointer to the `TF_Status`, so drop() deletes the status once.
        unsafe { (self.api.delete_status)(self.raw) };
    }
}

/// Products of weights from which a run is long: some 8 ms of one processor.
///
/// A run on one thread is left alone below it: with two threads within each operation, 32 rows of three layers of 1024
/// columns took 1.6 times, and one row twice the processor time, and small towers had 0.6 times the requests a second.
const LEAST_PRODUCTS: u64 = 1 << 27;

/// An operation that prepares a session, and the text that is fed to each of some scalar tensors.
pub type Step = (String, Vec<(String, Vec<u8>)>);

/// The second session of a graph, which the first long run opens. Its operations use several threads, because its
/// `config`, a serialised `ConfigProto`, says so.
struct LongRuns {
    config: Vec<u8>,
    steps: Vec<Step>,
    /// Number of weights that are multiplied for each row.
    num_weights: u64,
    /// None inside: TensorFlow did not open it, so the first session runs everything.
    opened: OnceLock<Option<NonNull<RawSession>>>,
}

/// An open TensorFlow session. Dropping it frees its graph and variables. Concurrency: any thread.
pub struct Session {
    /// Number of the session, unique in this process; a graph's description in Python names its session by this number.
    pub number: u64,
    api: &'static Api,
    graph: NonNull<Graph>,
    raw: Option<NonNull<RawSession>>,
    /// Number of threads of its pools.
    num_threads: usize,
    long_runs: OnceLock<LongRuns>,
}

// SAFETY: any thread may own or share a session, because TensorFlow's graphs and sessions have their own locks.
unsafe impl Send for Session {}
// SAFETY: threads may share a session, because TensorFlow's graphs and sessions have their own locks.
unsafe impl Sync for Session {}

/// Open sessions by their number; the weak references do not keep them open.
static OPEN: Mutex<Option<HashMap<u64, Weak<Session>>>> = Mutex::new(None);
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Session {
    /// Opens a session, whose variables hold no values yet.
    ///
    /// `graph_def` is a serialised `GraphDef`, `config` a serialised `ConfigProto`, by which the session's pools, also
    /// those for long runs, have at most `num_threads` threads.
    ///
    /// # Errors
    /// [`GraphError`]: TensorFlow refuses the graph or the config, or the system starts no threads for them.
    pub fn open(
        api: &'static Api,
        graph_def: &[u8],
        config: &[u8],
        num_threads: usize,
    ) -> Result<Arc<Session>, GraphError> {
        check_threads(num_threads)?;
        let status = StatusGuard::new(api);
        // SAFETY: the C function `TF_NewGraph` has no preconditions.
        let Some(graph) = NonNull::new(unsafe { (api.new_graph)() }) else {
            return Err(GraphError { code: 8, message: "TensorFlow made no graph".into() });
        };
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on `session` owns the graph: dropping `session` frees it.
        let mut session = Session { number, api, graph, raw: None, num_threads, long_runs: OnceLock::new() };
        // SAFETY: TensorFlow copies the bytes of the graph; this block frees all C objects that it creates.
        unsafe {
            let buffer = (api.new_buffer_from_string)(graph_def.as_ptr().cast(), graph_def.len());
            let options = (api.new_import_options)();
            (api.import_graph_def)(graph.as_ptr(), buffer, options, status.raw);
            (api.delete_import_options)(options);
            (api.delete_buffer)(buffer);
        }
        status.result()?;
        session.raw = session.open_raw(config)?;
        let session = Arc::new(session);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = open.get_or_insert_with(HashMap::new);
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.insert(number, Arc::downgrade(&session));
        Ok(session)
    }

    fn open_raw(&self, config: &[u8]) -> Result<Option<NonNull<RawSession>>, GraphError> {
        let (api, status) = (self.api, StatusGuard::new(self.api));
        let mut raw = None;
        // SAFETY: TensorFlow copies the bytes of the config, and this block frees the options that it creates; the graph
        // lives as long as this session, which closes `raw` before.
        unsafe {
            let options = (api.new_session_options)();
            (api.set_config)(options, config.as_ptr().cast(), config.len(), status.raw);
            if status.result().is_ok() {
                raw = NonNull::new((api.new_session)(self.graph.as_ptr(), options, status.raw));
            }
            (api.delete_session_options)(options);
        }
        status.result().map(|()| raw)
    }

    /// Lets a second session, with `config`, run long requests; `steps` prepare it, and `num_weights` weights are
    /// multiplied for each row.
    pub fn open_for_long_runs(&self, config: Vec<u8>, steps: Vec<Step>, num_weights: u64) {
        self.long_runs.get_or_init(|| LongRuns { config, steps, num_weights, opened: OnceLock::new() });
    }

    /// Returns whether a long run has opened the second session.
    #[cfg(all(test, not(feature = "model")))]
    pub(super) fn is_open_for_long_runs(&self) -> bool {
        self.long_runs.get().is_some_and(|long| matches!(long.opened.get(), Some(Some(_))))
    }

    /// Returns the session that runs `feeds`.
    fn raw_for(&self, feeds: &[Tensor]) -> Option<NonNull<RawSession>> {
        let Some(long) = self.long_runs.get() else { return self.raw };
        let rows = feeds.iter().filter_map(|tensor| tensor.dims().first().copied()).max().unwrap_or(1);
        if (rows as u64).saturating_mul(long.num_weights) < LEAST_PRODUCTS {
            return self.raw;
        }
        // Without it, only speed is lost.
        long.opened.get_or_init(|| self.open_long(long).ok().flatten()).or(self.raw)
    }

    fn open_long(&self, long: &LongRuns) -> Result<Option<NonNull<RawSession>>, GraphError> {
        check_threads(self.num_threads)?;
        let Some(raw) = self.open_raw(&long.config)? else { return Ok(None) };
        let prepared = long.steps.iter().try_for_each(|(operation, texts)| {
            let feeds: Vec<_> = texts.iter().map(|(tensor, _)| tensor.as_str()).collect();
            let callable = self.callable(&feeds, &[], &[operation])?;
            let made = texts.iter().map(|(_, text)| Tensor::of_strings(self.api, &[], [text.as_slice()].into_iter()));
            let fed: Option<Vec<_>> = made.collect();
            let fed = fed.ok_or_else(|| GraphError::invalid("no tensor holds the text"))?;
            self.run_in(raw, &callable, &fed).map(drop)
        });
        if prepared.is_err() {
            self.close_raw(raw);
        }
        prepared.map(|()| Some(raw))
    }

    fn close_raw(&self, raw: NonNull<RawSession>) {
        let status = StatusGuard::new(self.api);
        // SAFETY: no run is in progress in `raw`, which no one uses from here on.
        unsafe {
            (self.api.close_session)(raw.as_ptr(), status.raw);
            (self.api.delete_session)(raw.as_ptr(), status.raw);
        }
    }

    /// Returns the open session with this number; None if no open session has it.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Arc<Session>> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()?.get(&number)?.upgrade()
    }

    /// Returns the C functions of the library that runs the session.
    #[must_use]
    pub fn api(&self) -> &'static Api {
        self.api
    }

    /// Returns the shape of a tensor as far as the graph says it: None in place of a size, or of the whole shape.
    ///
    /// # Errors
    /// The graph has no tensor with this name.
    pub fn shape(&self, name: &str) -> Result<Option<Vec<Option<i64>>>, GraphError> {
        let tensor = self.tensor(name)?;
        let status = StatusGuard::new(self.api);
        // SAFETY: `tensor` comes from the graph of this session, which still exists.
        let rank = unsafe { (self.api.tensor_num_dims)(self.graph.as_ptr(), tensor, status.raw) };
        status.result()?;
        let Ok(len) = usize::try_from(rank) else { return Ok(None) };
        let mut sizes = vec![0; len];
        // SAFETY: `sizes` has as many elements as `rank` says, and `tensor` comes from the session's graph.
        unsafe { (self.api.tensor_shape)(self.graph.as_ptr(), tensor, sizes.as_mut_ptr(), rank, status.raw) };
        status.result()?;
        Ok(Some(sizes.into_iter().map(|size| (size >= 0).then_some(size)).collect()))
    }

    /// Prepares a part of the session's graph for runs: resolves the names of its tensors and operations.
    ///
    /// `feeds` and `fetches` are names of tensors, "operation:output"; `targets` are names of operations that run too.
    ///
    /// # Errors
    /// The graph has no tensor or operation with one of the names.
    pub fn callable(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Result<Callable, GraphError> {
        let tensors = |names: &[&str]| names.iter().map(|name| self.tensor(name)).collect::<Result<Vec<_>, _>>();
        let targets = targets.iter().map(|name| self.operation(name).map(|o| o.as_ptr().cast_const()));
        Ok(Callable {
            feeds: tensors(feeds)?,
            fetches: tensors(fetches)?,
            targets: targets.collect::<Result<_, _>>()?,
            session: self.number,
            was_run: Default::default(),
        })
    }

    fn tensor(&self, name: &str) -> Result<Output, GraphError> {
        let (operation, index) = name.rsplit_once(':').unwrap_or((name, "0"));
        let operation = self.operation(operation)?;
        // SAFETY: the pointer `operation` comes from the graph of this session, which still exists.
        let count = unsafe { (self.api.num_outputs)(operation.as_ptr()) };
        match index.parse::<c_int>() {
            Ok(index) if (0..count).contains(&index) => Ok(Output { operation: operation.as_ptr(), index }),
            _ => Err(GraphError::invalid(format!("the graph has no tensor {name:?}"))),
        }
    }

    fn operation(&self, name: &str) -> Result<NonNull<Operation>, GraphError> {
        let missing = || GraphError::invalid(format!("the graph has no operation {name:?}"));
        let text = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the graph lives as long as the session, and the C string `text` lives longer than the call that reads
        // it.
        let found = unsafe { (self.api.operation_by_name)(self.graph.as_ptr(), text.as_ptr()) };
        NonNull::new(found).ok_or_else(missing)
    }

    /// Runs a part of the graph: `feeds` has one tensor for each feed of `callable`; returns one tensor for each fetch.
    ///
    /// # Errors
    /// The graph refuses the tensors or fails, or `callable` belongs to another session.
    pub fn run(&self, callable: &Callable, feeds: &[Tensor]) -> Result<Vec<Tensor>, GraphError> {
        let Some(raw) = self.raw_for(feeds).filter(|_| callable.session == self.number) else {
            return Err(GraphError::invalid("the call belongs to another session"));
        };
        self.run_in(raw, callable, feeds)
    }

    fn run_in(
        &self,
        session: NonNull<RawSession>,
        callable: &Callable,
        feeds: &[Tensor],
    ) -> Result<Vec<Tensor>, GraphError> {
        let api = self.api;
        if feeds.len() != callable.feeds.len() {
            let message = format!("{} tensors are fed, and {} are wanted", feeds.len(), callable.feeds.len());
            return Err(GraphError::invalid(message));
        }
        // For its first run, TensorFlow prepares the part of the graph on pools of its own.
        let was_run = &callable.was_run[usize::from(self.raw != Some(session))];
        if !was_run.load(Ordering::Relaxed) {
            check_threads(self.num_threads)?;
        }
        let given: Vec<_> = feeds.iter().map(Tensor::raw).collect();
        let mut found = vec![std::ptr::null_mut(); callable.fetches.len()];
        let count = |len: usize| c_int::try_from(len).unwrap_or(c_int::MAX);
        let status = StatusGuard::new(api);
        // TensorFlow's single-threaded executor runs the graph on this thread, and all others on threads that flush.
        let flushes = FlushDenormals::new();
        // SAFETY: `callable` was prepared for this session, because it has the session's number, so its operations
        // still exist. Each pointer points to as many elements as the count beside it says; TensorFlow only reads the
        // fed tensors.
        unsafe {
            (api.session_run)(
                session.as_ptr(),
                std::ptr::null(),
                callable.feeds.as_ptr(),
                given.as_ptr(),
                count(given.len()),
                callable.fetches.as_ptr(),
                found.as_mut_ptr(),
                count(found.len()),
                callable.targets.as_ptr(),
                count(callable.targets.len()),
                std::ptr::null_mut(),
                status.raw,
            );
        }
        drop(flushes);
        was_run.store(true, Ordering::Relaxed);
        // SAFETY: TF_SessionRun leaves the tensors in `found` to its caller, which owns and deletes them, even after a
        // failed run.
        let found: Vec<_> = found.into_iter().map(|raw| unsafe { Tensor::from_raw(api, raw) }).collect();
        status.result()?;
        let found: Option<Vec<_>> = found.into_iter().collect();
        found.ok_or_else(|| GraphError { code: 13, message: "TensorFlow left a fetched tensor out".into() })
    }
}

/// Returns the serialised `OpDef` of an op; None if TensorFlow has no op of this name.
///
/// # Errors
/// [`GraphError`]: TensorFlow can not serialise the definition, or the system starts no threads for it.
pub fn op_definition(api: &'static Api, name: &str) -> Result<Option<Vec<u8>>, GraphError> {
    const NOT_FOUND: u32 = 5;
    let Ok(name) = CString::new(name) else { return Ok(None) };
    check_threads(0)?;
    let status = StatusGuard::new(api);
    // SAFETY: this block frees the graph and the buffer that it creates, and copies the bytes of the buffer before.
    let definition = unsafe {
        let (graph, buffer) = ((api.new_graph)(), (api.new_buffer)());
        (api.op_definition)(graph, name.as_ptr(), buffer, status.raw);
        let Buffer { data, length, .. } = *buffer;
        let bytes = if data.is_null() { &[] } else { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        let definition = bytes.to_vec();
        (api.delete_buffer)(buffer);
        (api.delete_graph)(graph);
        definition
    };
    match status.result() {
        Ok(()) => Ok(Some(definition)),
        Err(error) if error.code == NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // No run is in progress, because every run borrows the session.
        let long = self.long_runs.take().and_then(|long| long.opened.into_inner().flatten());
        for raw in self.raw.into_iter().chain(long) {
            self.close_raw(raw);
        }
        // SAFETY: the sessions, which used the graph, are deleted.
        unsafe { (self.api.delete_graph)(self.graph.as_ptr()) };
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Session {}", self.number)
    }
}

/// A part of a session's graph that can be run: the tensors to feed and to fetch, and operations that run too.
/// Concurrency: any thread, several at a time.
pub struct Callable {
    session: u64,
    feeds: Vec<Output>,
    fetches: Vec<Output>,
    targets: Vec<*const Operation>,
    /// Whether it was run in the first session of the graph, and in the second one.
    was_run: [AtomicBool; 2],
}

// SAFETY: a callable may be used by any thread: only Session::run uses its pointers to operations, and only for the
// session to which they belong.
unsafe impl Send for Callable {}
// SAFETY: threads may share a callable, because only Session::run uses its pointers to operations.
unsafe impl Sync for Callable {}

impl fmt::Debug for Callable {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Call of {} feeds in session {}", self.feeds.len(), self.session)
    }
}
