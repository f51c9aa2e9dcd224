//! TensorFlow sessions: opens them, restores their variables, and runs parts of their graphs.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::c_api::{Api, Buffer, Graph, OK, Operation, Output, RawSession, Status};
use super::tensor::Tensor;
use crate::denormals::FlushDenormals;

/// An error from TensorFlow, or from the functions of this file, with a status code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// The status code of the error, a number of google.rpc.Code.
    pub code: u32,
    /// TensorFlow's message.
    pub message: String,
}

impl GraphError {
    /// Returns an `INVALID_ARGUMENT` error, as TensorFlow's session in Python raises for feeds and fetches that do not
    /// fit the graph.
    fn invalid(message: impl Into<String>) -> Self {
        GraphError { code: 3, message: message.into() }
    }
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

/// An open TensorFlow session. Dropping it frees its graph and variables. Concurrency: any thread.
pub struct Session {
    /// Number of the session, unique in this process; a graph's description in Python names its session by this number.
    pub number: u64,
    api: &'static Api,
    graph: NonNull<Graph>,
    raw: Option<NonNull<RawSession>>,
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
    /// `graph_def` is a serialised `GraphDef`, `config` a serialised `ConfigProto`.
    ///
    /// # Errors
    /// [`GraphError`]: TensorFlow refuses the graph or the config.
    pub fn open(api: &'static Api, graph_def: &[u8], config: &[u8]) -> Result<Arc<Session>, GraphError> {
        let status = StatusGuard::new(api);
        // SAFETY: the C function `TF_NewGraph` has no preconditions.
        let Some(graph) = NonNull::new(unsafe { (api.new_graph)() }) else {
            return Err(GraphError { code: 8, message: "TensorFlow made no graph".into() });
        };
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on `session` owns the graph: dropping `session` frees it.
        let mut session = Session { number, api, graph, raw: None };
        // SAFETY: TensorFlow copies the bytes of the graph and of the config; this block frees all C objects that it
        // creates.
        unsafe {
            let buffer = (api.new_buffer_from_string)(graph_def.as_ptr().cast(), graph_def.len());
            let options = (api.new_import_options)();
            (api.import_graph_def)(graph.as_ptr(), buffer, options, status.raw);
            (api.delete_import_options)(options);
            (api.delete_buffer)(buffer);
        }
        status.result()?;
        // SAFETY: TensorFlow copies the bytes of the config, and this block frees the options that it creates.
        unsafe {
            let options = (api.new_session_options)();
            (api.set_config)(options, config.as_ptr().cast(), config.len(), status.raw);
            if status.result().is_ok() {
                session.raw = NonNull::new((api.new_session)(graph.as_ptr(), options, status.raw));
            }
            (api.delete_session_options)(options);
        }
        status.result()?;
        let session = Arc::new(session);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = open.get_or_insert_with(HashMap::new);
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.insert(number, Arc::downgrade(&session));
        Ok(session)
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
        let (api, Some(session)) = (self.api, self.raw.filter(|_| callable.session == self.number)) else {
            return Err(GraphError::invalid("the call belongs to another session"));
        };
        if feeds.len() != callable.feeds.len() {
            let message = format!("{} tensors are fed, and {} are wanted", feeds.len(), callable.feeds.len());
            return Err(GraphError::invalid(message));
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
/// [`GraphError`]: TensorFlow can not serialise the definition.
pub fn op_definition(api: &'static Api, name: &str) -> Result<Option<Vec<u8>>, GraphError> {
    const NOT_FOUND: u32 = 5;
    let Ok(name) = CString::new(name) else { return Ok(None) };
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
        let status = StatusGuard::new(self.api);
        // SAFETY: no run is in progress when the session is dropped, because every run borrows the session.
        unsafe {
            if let Some(session) = self.raw {
                (self.api.close_session)(session.as_ptr(), status.raw);
                (self.api.delete_session)(session.as_ptr(), status.raw);
            }
            (self.api.delete_graph)(self.graph.as_ptr());
        }
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
