//! Opens sessions of TensorFlow, restores their variables, and runs their graphs from tensors to tensors.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::c_api::{Api, Graph, OK, Operation, Output, RawSession, Status};
use super::tensor::Tensor;

/// An error that TensorFlow returned, or one in its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// A number of google.rpc.Code.
    pub code: u32,
    /// TensorFlow's message.
    pub message: String,
}

impl GraphError {
    /// Returns an `INVALID_ARGUMENT` error; Python's session raises the same for a call that does not fit the graph.
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

/// One run that makes a new session ready: it restores variables, or fills vocabularies.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The operation to run.
    pub operation: String,
    /// Tensors of strings that are fed, each with its one string: the checkpoint's path, an asset's path.
    pub feeds: Vec<(String, Vec<u8>)>,
}

struct StatusGuard {
    api: &'static Api,
    raw: *mut Status,
}

impl StatusGuard {
    fn new(api: &'static Api) -> Self {
        // SAFETY: the function has no conditions.
        let raw = unsafe { (api.new_status)() };
        StatusGuard { api, raw }
    }

    fn result(&self) -> Result<(), GraphError> {
        // SAFETY: the status lives, and the message lives as long as the status.
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
        // SAFETY: nobody else holds the status.
        unsafe { (self.api.delete_status)(self.raw) };
    }
}

/// An open session. Dropping it frees the variables. Concurrency: any thread.
pub struct Session {
    /// Number of the session in this process; Python names a session to the core by this number.
    pub number: u64,
    api: &'static Api,
    graph: NonNull<Graph>,
    raw: Option<NonNull<RawSession>>,
}

// SAFETY: TensorFlow's graphs and sessions lock what they change.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// Open sessions by their number, each for as long as somebody holds it.
static OPEN: Mutex<Option<HashMap<u64, Weak<Session>>>> = Mutex::new(None);
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Session {
    /// Opens a session and runs the steps one after the other.
    ///
    /// `graph_def` is a `GraphDef`, `config` a `ConfigProto`.
    ///
    /// # Errors
    /// [`GraphError`]: the first failure of the open or of a step.
    pub fn open(
        api: &'static Api,
        graph_def: &[u8],
        config: &[u8],
        steps: &[Step],
    ) -> Result<Arc<Session>, GraphError> {
        let status = StatusGuard::new(api);
        // SAFETY: the function has no conditions.
        let Some(graph) = NonNull::new(unsafe { (api.new_graph)() }) else {
            return Err(GraphError { code: 8, message: "TensorFlow made no graph".into() });
        };
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on, dropping the session frees the graph.
        let mut session = Session { number, api, graph, raw: None };
        // SAFETY: TensorFlow copies the bytes of the graph and of the config; this block frees all objects that it
        // makes.
        unsafe {
            let buffer = (api.new_buffer_from_string)(graph_def.as_ptr().cast(), graph_def.len());
            let options = (api.new_import_options)();
            (api.import_graph_def)(graph.as_ptr(), buffer, options, status.raw);
            (api.delete_import_options)(options);
            (api.delete_buffer)(buffer);
        }
        status.result()?;
        // SAFETY: as above.
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
        for step in steps {
            let feeds: Vec<&str> = step.feeds.iter().map(|(name, _)| name.as_str()).collect();
            let call = session.call(&feeds, &[], &[&step.operation])?;
            let scalars = step
                .feeds
                .iter()
                .filter_map(|(_, text)| Tensor::of_strings(api, &[], std::iter::once(text.as_slice())));
            session.run(&call, &scalars.collect::<Vec<_>>())?;
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = open.get_or_insert_with(HashMap::new);
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.insert(number, Arc::downgrade(&session));
        Ok(session)
    }

    /// Returns the open session with this number.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Arc<Session>> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()?.get(&number)?.upgrade()
    }

    /// Returns the library that runs the session.
    #[must_use]
    pub fn api(&self) -> &'static Api {
        self.api
    }

    /// Returns a call that runs a part of the graph.
    ///
    /// feeds, fetches: tensors, "operation:output". targets: operations that run besides.
    ///
    /// # Errors
    /// The graph has no tensor or operation of such a name.
    pub fn call(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Result<Call, GraphError> {
        let tensors = |names: &[&str]| names.iter().map(|name| self.tensor(name)).collect::<Result<Vec<_>, _>>();
        let targets = targets.iter().map(|name| self.operation(name).map(|o| o.as_ptr().cast_const()));
        Ok(Call {
            feeds: tensors(feeds)?,
            fetches: tensors(fetches)?,
            targets: targets.collect::<Result<_, _>>()?,
            session: self.number,
        })
    }

    fn tensor(&self, name: &str) -> Result<Output, GraphError> {
        let (operation, index) = name.rsplit_once(':').unwrap_or((name, "0"));
        let operation = self.operation(operation)?;
        // SAFETY: the operation is one of the graph's.
        let count = unsafe { (self.api.num_outputs)(operation.as_ptr()) };
        match index.parse::<c_int>() {
            Ok(index) if (0..count).contains(&index) => Ok(Output { operation: operation.as_ptr(), index }),
            _ => Err(GraphError::invalid(format!("the graph has no tensor {name:?}"))),
        }
    }

    fn operation(&self, name: &str) -> Result<NonNull<Operation>, GraphError> {
        let missing = || GraphError::invalid(format!("the graph has no operation {name:?}"));
        let text = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the graph lives as long as the session, and `text` outlives the call.
        let found = unsafe { (self.api.operation_by_name)(self.graph.as_ptr(), text.as_ptr()) };
        NonNull::new(found).ok_or_else(missing)
    }

    /// Runs a call: takes one tensor for each feed, and returns one tensor for each fetch.
    ///
    /// # Errors
    /// The graph refuses the tensors or fails, or the call belongs to another session.
    pub fn run(&self, call: &Call, feeds: &[Tensor]) -> Result<Vec<Tensor>, GraphError> {
        let (api, Some(session)) = (self.api, self.raw.filter(|_| call.session == self.number)) else {
            return Err(GraphError::invalid("the call belongs to another session"));
        };
        if feeds.len() != call.feeds.len() {
            let message = format!("{} tensors are fed, and {} are wanted", feeds.len(), call.feeds.len());
            return Err(GraphError::invalid(message));
        }
        let given: Vec<_> = feeds.iter().map(Tensor::raw).collect();
        let mut found = vec![std::ptr::null_mut(); call.fetches.len()];
        let count = |len: usize| c_int::try_from(len).unwrap_or(c_int::MAX);
        let status = StatusGuard::new(api);
        // SAFETY: the operations of the call are this session's, as its number says; all pointers are to as many elements
        // as the counts beside them say; the tensors are only read.
        unsafe {
            (api.session_run)(
                session.as_ptr(),
                std::ptr::null(),
                call.feeds.as_ptr(),
                given.as_ptr(),
                count(given.len()),
                call.fetches.as_ptr(),
                found.as_mut_ptr(),
                count(found.len()),
                call.targets.as_ptr(),
                count(call.targets.len()),
                std::ptr::null_mut(),
                status.raw,
            );
        }
        // SAFETY: the tensors that a run leaves in `found` belong to the caller, also those of a failed run.
        let found: Vec<_> = found.into_iter().map(|raw| unsafe { Tensor::own(api, raw) }).collect();
        status.result()?;
        let found: Option<Vec<_>> = found.into_iter().collect();
        found.ok_or_else(|| GraphError { code: 13, message: "TensorFlow left a fetched tensor out".into() })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let status = StatusGuard::new(self.api);
        // SAFETY: whoever runs a call holds the session, so no run is in progress and none begins.
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

/// A part of a session's graph, from fed to fetched tensors. Concurrency: any thread, several at a time.
pub struct Call {
    session: u64,
    feeds: Vec<Output>,
    fetches: Vec<Output>,
    targets: Vec<*const Operation>,
}

// SAFETY: only Session::run uses the call's pointers, and only on the session that they belong to.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl fmt::Debug for Call {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Call of {} feeds in session {}", self.feeds.len(), self.session)
    }
}
