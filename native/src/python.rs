//! The Python module `service._native`: classes that publish servables, run the server and read its counts.

use std::collections::{HashMap, HashSet};
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::edge::{self, Access, Caller, Dispatch, Listen, LogEntry, Method, Records, Snapshot, Target, Wire};
use crate::forms::{self, Answered, Call, TensorEncoding};
use crate::plan::faults::Code;
use crate::plan::{self, Declined, Description, Effort, ModelRoutes, Routes, VersionMemory, Waiting};
use crate::python_tables::{Map, Mark, memories};
use crate::tables::paged;
use crate::{clusters, last_words, threads, towers};

pyo3::create_exception!(
    _native,
    Unanswered,
    pyo3::exceptions::PyException,
    "The name of a canonical code and a text: why the core does not answer a request with an answer of the model."
);

/// One version of a model, compiled for requests. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Servable {
    pub(crate) inner: Arc<plan::Servable>,
}

#[pymethods]
impl Servable {
    /// Compiles the JSON description of a model version, which service/core/description.py writes. The description
    /// names `buffers` by their places in the list; `mark` and `maps` are those of the version's files. `clusters` opens
    /// the tables that lie in clusters, `pager` reads pages of mapped ones, `batcher` batches runs of graphs.
    /// `openers` open the graphs whose description is `{"opener": place in the list}`, and return the description as JSON.
    #[new]
    #[pyo3(signature = (description, buffers, mark = None, maps = vec![], clusters = None, pager = None, batcher = None, openers = vec![]))]
    #[allow(clippy::needless_pass_by_value, clippy::too_many_arguments, reason = "what pyo3 hands over")]
    fn new(
        py: Python<'_>,
        description: &str,
        buffers: Vec<Bound<'_, PyAny>>,
        mark: Option<&Bound<'_, Mark>>,
        maps: Vec<Bound<'_, Map>>,
        clusters: Option<&Bound<'_, Clusters>>,
        pager: Option<&Bound<'_, Pager>>,
        batcher: Option<&Bound<'_, Batcher>>,
        openers: Vec<Py<PyAny>>,
    ) -> PyResult<Self> {
        let description: Description =
            serde_json::from_str(description).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let memory = VersionMemory {
            buffers: memories(py, &buffers)?,
            maps: maps.iter().map(|map| Arc::clone(&map.get().0)).collect(),
            mark: mark.map_or_else(Arc::default, |mark| Arc::clone(&mark.get().0)),
        };
        let batcher = batcher.map(|batcher| batcher.get().inner.clone());
        let openers: Vec<_> = openers.into_iter().map(Arc::new).collect();
        let open = |graph: &serde_json::Value| {
            let Some(opener) = graph.get("opener") else { return towers::open(graph, batcher.as_ref()) };
            let opener = opener.as_u64().and_then(|place| openers.get(usize::try_from(place).ok()?)).cloned();
            let opener = opener.ok_or_else(|| format!("there is no opener for {graph}"))?;
            Ok(lazy_graph(opener, batcher.clone()))
        };
        let compiled = plan::Servable::compile(description, memory, &open);
        let clusters = clusters.map(|clusters| &clusters.get().inner);
        let compiled = compiled.and_then(|compiled| compiled.with_clusters(clusters));
        let mut compiled = compiled.map_err(PyValueError::new_err)?;
        if let Some(pager) = pager {
            let pager = &pager.get().inner;
            compiled = py.detach(|| compiled.with_pager(pager))?;
        }
        Ok(Servable { inner: Arc::new(compiled) })
    }

    /// Returns a copy of the servable that reads other tables; `buffers` has the rows of each table, then its scales.
    /// Both servables add to the same counts.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn on_tables(&self, py: Python<'_>, buffers: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let buffers = memories(py, &buffers)?;
        let pairs = buffers.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let moved = self.inner.on_tables(pairs).map_err(PyValueError::new_err)?;
        Ok(Servable { inner: Arc::new(moved) })
    }

    /// Returns the answer to a request that names this model: the work of a request that arrives at the gRPC port, but
    /// never in a batch, and with an answer of any size. The servable need not be published. `method`: the gRPC method of
    /// TensorFlow Serving, such as "Predict".
    ///
    /// Raises `Unanswered`.
    fn answer<'py>(&self, py: Python<'py>, method: &str, request: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let path = format!("/tensorflow.serving.PredictionService/{method}");
        let method = Method::of_path(&path).ok_or_else(|| PyValueError::new_err(format!("no method {method:?}")))?;
        let versions = vec![(self.inner.version(), Some(Arc::clone(&self.inner)))];
        let model = ModelRoutes { versions, labels: vec![], problem: String::new(), log_rate: 0.0 };
        let routes = Routes::default().with(HashMap::from([(self.inner.model().to_owned(), model)]), &[]);
        let answered = py.detach(|| {
            let waiting = Waiting::default();
            let call = Call {
                routes: &routes,
                effort: Effort::Wait(&waiting),
                max_response_bytes: usize::MAX,
                encoding: TensorEncoding::Content,
                strict_json: false,
                grant: None,
                log: None,
            };
            FORMS.grpc(method, &call, request)
        });
        answered.map(|answered| PyBytes::new(py, &answered.body)).map_err(|declined| unanswered(&declined))
    }

    fn closed_graphs(&self) -> HashMap<String, String> {
        let others = self.inner.other_signatures().iter();
        let closed = others.filter(|other| other.why == plan::WhyNot::CanNotRun);
        closed.map(|other| (other.name.clone(), other.reason.clone())).collect()
    }

    /// Returns how many requests and routing tables use the servable.
    #[getter]
    fn num_leases(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    fn forget_counts(&self) {
        self.inner.forget_counts();
    }

    /// Returns the counts of ids in all lookups so far, for each feature: (signature, index of the feature, number of
    /// ids, number of ids outside the table).
    fn counts(&self) -> Vec<(String, usize, u64, u64)> {
        let of_signature = self.inner.signatures().iter().zip(self.inner.counts());
        of_signature
            .flat_map(|(signature, features)| {
                features.iter().enumerate().map(|(number, counts)| {
                    let (ids, missing) = (counts.ids.load(Relaxed), counts.missing.load(Relaxed));
                    (signature.name.clone(), number, ids, missing)
                })
            })
            .collect()
    }

    /// Returns which rows of a table lookups read most, by a sample of the ids; None if ids are not sampled. `table` is
    /// the table's index in the servable's description, `most` the maximal number of rows. The tuple has the sample's
    /// size, the estimated number of looked-up ids, the estimated number of distinct rows in the sample, by how much a
    /// row's count may be too large, and each row with its estimated lookups.
    fn hot_rows(&self, py: Python<'_>, table: usize, most: usize) -> Option<HotRows> {
        let found = py.detach(|| self.inner.hot_rows().get(table).map(|hot| hot.snapshot(most)))?;
        Some((found.samples, found.lookups, found.distinct, found.overcount, found.rows))
    }

    /// Returns for each vocabulary of the description the number of keys in requests that the vocabulary lacked so far.
    fn unknown_keys(&self) -> Vec<u64> {
        let unknown_keys = self.inner.unknown_keys().iter();
        unknown_keys.map(|count| count.load(Relaxed)).collect()
    }
}

fn unanswered(declined: &Declined) -> PyErr {
    let (code, text) = match declined {
        Declined::Fault(fault) => (fault.code, fault.text.as_str()),
        Declined::Search => (Code::Unimplemented, "a search for nearest rows is no request of a signature"),
        Declined::TooLarge
        | Declined::Waits
        | Declined::Batches
        | Declined::Queued
        | Declined::Unusual
        | Declined::Malformed => (Code::Unimplemented, "the core does not read requests of this form"),
    };
    Unanswered::new_err((code.name(), text.to_owned()))
}

fn lazy_graph(opener: Arc<Py<PyAny>>, batcher: Option<towers::Batcher>) -> Box<dyn plan::Graph> {
    Box::new(towers::LazyGraph::new(Box::new(move || {
        let called = Python::attach(|py| opener.call0(py)?.extract::<String>(py));
        let text = called.map_err(|error: PyErr| error.to_string())?;
        let graph = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        towers::open(&graph, batcher.as_ref())
    })))
}

type HotRows = (u64, u64, u64, u64, Vec<(i64, u64)>);

/// The Valkey and Redis clusters in which tables of this server lie. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Clusters {
    inner: clusters::Clusters,
}

#[pymethods]
impl Clusters {
    /// Creates the reader of tables in Valkey or Redis clusters, with a cache of at most `cache_bytes` bytes of rows; 0
    /// means no cache.
    #[new]
    fn new(cache_bytes: u64) -> Self {
        Clusters { inner: clusters::Clusters::new(cache_bytes) }
    }

    /// Opens a table of `rows` rows in a cluster, and reads its default rows. `description` is JSON in the same form as
    /// in a servable's description; a servable that describes the table equally reads the same open table.
    ///
    /// Raises `OSError` if a default row can not be read.
    fn open(
        &self,
        py: Python<'_>,
        model: &str,
        version: i64,
        table: &str,
        rows: usize,
        description: &str,
    ) -> PyResult<ClusterTable> {
        let description = serde_json::from_str(description).map_err(value_error)?;
        let opened = py.detach(|| self.inner.open_with_default_rows(model, version, table, rows, &description));
        Ok(ClusterTable { inner: opened.map_err(PyOSError::new_err)? })
    }

    /// Removes rows of a table from the row cache, because they have changed in the table's cluster; None: all rows of
    /// the table. Reads changed default rows again.
    #[allow(clippy::needless_pass_by_value, reason = "pyo3 passes a list by value")]
    fn forget(&self, py: Python<'_>, model: &str, version: i64, table: &str, rows: Option<Vec<u64>>) {
        py.detach(|| self.inner.forget(model, version, table, rows.as_deref()));
    }

    /// Records that the server has read all changes of a table up to `age_s` seconds ago, so that the table's cached rows
    /// are valid for a while.
    fn heard(&self, model: &str, version: i64, table: &str, age_s: f64) {
        self.inner.heard(model, version, table, time_of(age_s));
    }

    /// Returns the blocks of a table that lacked a row that was read since the last call, and the table's numbers of
    /// reads and of failed reads.
    fn lost(&self, model: &str, version: i64, table: &str) -> (Vec<u64>, u64, u64) {
        self.inner.lost(model, version, table)
    }

    /// Allows reads from these replicas of Valkey or Redis clusters, given by host, port, and the number of seconds from
    /// now on.
    fn set_in_sync(&self, nodes: Vec<(String, u16, f64)>) {
        self.inner.set_in_sync(nodes.into_iter().map(|(host, port, left_s)| (host, port, time_of(left_s))));
    }

    fn refresh(&self, py: Python<'_>) {
        py.detach(|| self.inner.refresh());
    }

    /// Reads rows of a table into the cache, in the order of `rows`, for at most `seconds`; returns how many of the
    /// rows the cache had or this call read. `tag`: the beginning of the table's keys.
    #[allow(clippy::needless_pass_by_value, reason = "pyo3 passes a list by value")]
    fn fill(&self, py: Python<'_>, tag: &str, version: i64, rows: Vec<u64>, seconds: f64) -> usize {
        let deadline = Instant::now() + time_of(seconds);
        py.detach(|| self.inner.fill(tag, version, &rows, deadline))
    }

    /// Returns JSON text with the read counts of each remote table, then those of the row cache (null without a row
    /// cache).
    fn counts(&self) -> PyResult<String> {
        serde_json::to_string(&(self.inner.counts(), self.inner.cache_counts())).map_err(value_error)
    }
}

fn time_of(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 3600.0))
}

/// An open table in a Valkey or Redis cluster. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct ClusterTable {
    inner: Arc<clusters::RemoteTable>,
}

#[pymethods]
impl ClusterTable {
    /// Reads rows from the cache or the cluster, for at most `seconds`, and at most the longest time of the cluster's
    /// address. Returns the bytes of the rows, end to end; how many of these rows the cache has replaced, because they
    /// could not be read; the positions of rows that could not be read; and why.
    #[allow(clippy::needless_pass_by_value, reason = "pyo3 passes a list by value")]
    fn read<'py>(&self, py: Python<'py>, rows: Vec<u64>) -> (Bound<'py, PyBytes>, Vec<u32>, String) {
        let (want, why) = py.detach(|| {
            let mut wants = [clusters::Want::new(&self.inner, rows)];
            let why = clusters::read(&mut wants, None);
            let [want] = wants;
            (want, why)
        });
        (PyBytes::new(py, &want.rows), want.left, why)
    }

    /// Returns the bytes of a default row, and counts `uses` uses of it; None: the table has no such default row.
    fn default_row<'py>(&self, py: Python<'py>, row: u64, uses: usize) -> Option<Bound<'py, PyBytes>> {
        let bytes = self.inner.default_row(row)?;
        self.inner.count_default_rows(uses);
        Some(PyBytes::new(py, &bytes))
    }
}

/// Batches the runs of graphs of all models. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Batcher {
    inner: towers::Batcher,
}

#[pymethods]
impl Batcher {
    /// Creates a batcher that runs at most `num_threads` batches at a time, in threads whose names begin with
    /// `thread_pool_name`; `limits` are those of its histograms, as JSON.
    #[new]
    fn new(num_threads: usize, thread_pool_name: &str, limits: &str) -> PyResult<Self> {
        let limits = serde_json::from_str(limits).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Batcher { inner: towers::Batcher::new(num_threads, thread_pool_name, limits) })
    }

    fn counts(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner.counts()).map_err(value_error)
    }
}

/// Reads the pages of mapped tables. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Pager {
    inner: Arc<paged::Pager>,
}

#[pymethods]
impl Pager {
    /// Creates a pager; `max_bytes` is the maximal number of bytes of pages that stay in memory.
    #[new]
    fn new(max_bytes: u64) -> Self {
        Pager { inner: paged::Pager::new(max_bytes) }
    }

    /// Returns the counts of page reads and drops of all paged tables together, as JSON text.
    fn counts(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner.counts()).map_err(value_error)
    }
}

/// One model in Python's list: its name; pairs of a version and its servable, None if only the control servers can
/// run it; versions by label; the fraction of requests to log; why no version is AVAILABLE, "" if one is.
pub type PythonRoutes = Vec<(String, Vec<(i64, Option<Py<Servable>>)>, HashMap<String, i64>, f64, String)>;

type PythonRecords = (Vec<(String, i64, String, u64, Py<PyBytes>)>, String, HashMap<String, u64>, u64, Vec<String>);

#[must_use]
pub fn routes_of(models: &PythonRoutes) -> HashMap<String, ModelRoutes> {
    let models = models.iter().map(|(model, versions, labels, log_rate, problem)| {
        let versions = versions
            .iter()
            .map(|(version, servable)| (*version, servable.as_ref().map(|servable| Arc::clone(&servable.get().inner))));
        let labels = labels.iter().map(|(label, version)| (label.clone(), *version));
        let (versions, labels) = (versions.collect(), labels.collect());
        (model.clone(), ModelRoutes { versions, labels, problem: problem.clone(), log_rate: *log_rate })
    });
    models.collect()
}

const FORMS: PlainForms = PlainForms { max_table_rows: 1 << 20 };

/// The handlers of the wire formats (forms) without a network server, for tests that compare them with the reference
/// implementation.
#[pyclass(frozen, module = "service._native")]
pub struct Forms {
    routes: Routes,
    max_response_bytes: usize,
    as_content: bool,
    strict_json: bool,
}

#[pymethods]
impl Forms {
    #[new]
    #[pyo3(signature = (models, *, max_response_bytes = 1 << 30, as_content = false, strict_json = false))]
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn new(models: PythonRoutes, max_response_bytes: usize, as_content: bool, strict_json: bool) -> Self {
        Forms { routes: Routes::default().with(routes_of(&models), &[]), max_response_bytes, as_content, strict_json }
    }

    /// Returns the answer to one gRPC message. Raises `ValueError` with the name of the `Declined` variant if the core
    /// does not answer it.
    fn grpc<'py>(&self, py: Python<'py>, path: &str, message: &[u8]) -> Result<Bound<'py, PyBytes>, PyErr> {
        let method = Method::of_path(path).ok_or_else(|| PyValueError::new_err("no such method"))?;
        body_or_error(py, FORMS.grpc(method, &self.call(&Waiting::default()), message))
    }

    /// Returns the answer to the body of one HTTP request. Raises `ValueError` as the method `grpc` does.
    #[pyo3(signature = (path, body, json_length = None))]
    fn http<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        body: &[u8],
        json_length: Option<usize>,
    ) -> Result<Bound<'py, PyBytes>, PyErr> {
        let target = edge::target(path).ok_or_else(|| PyValueError::new_err("no such path"))?;
        let target = Target { json_length, ..target };
        body_or_error(py, FORMS.http(&target, &self.call(&Waiting::default()), body))
    }
}

impl Forms {
    fn call<'a>(&'a self, waiting: &'a Waiting) -> Call<'a> {
        Call {
            routes: &self.routes,
            effort: Effort::Wait(waiting),
            max_response_bytes: self.max_response_bytes,
            encoding: TensorEncoding::of_server(self.as_content),
            strict_json: self.strict_json,
            grant: None,
            log: None,
        }
    }
}

fn body_or_error(py: Python<'_>, answered: Result<Answered, Declined>) -> PyResult<Bound<'_, PyBytes>> {
    match answered {
        Ok(answered) => Ok(PyBytes::new(py, &answered.body)),
        Err(declined) => Err(PyValueError::new_err(format!("{declined:?}"))),
    }
}

/// The core's network server, as a Python class. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Server {
    inner: ArcSwapOption<edge::Server>,
    /// The last values of all counters, taken when Python called `close`.
    last: ArcSwapOption<Snapshot>,
    /// The records of sampled requests, of which some may be left after `close`.
    records: ArcSwapOption<Records>,
}

#[pymethods]
impl Server {
    /// Starts the server; `config` is JSON of service/core/edge.py.
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let config: ServerConfig =
            serde_json::from_str(config).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let dispatch = Arc::new(PlainForms { max_table_rows: config.max_table_rows });
        let config = config.edge()?;
        let server = py.detach(|| edge::Server::start(config, dispatch))?;
        let records = ArcSwapOption::from(Some(server.records()));
        Ok(Server { inner: ArcSwapOption::from_pointee(server), last: ArcSwapOption::empty(), records })
    }

    #[getter]
    fn ports(&self) -> PyResult<HashMap<&'static str, Vec<u16>>> {
        let server = self.running()?;
        let of = |wire| server.addresses(wire).iter().map(std::net::SocketAddr::port).collect();
        Ok(HashMap::from([("grpc", of(Wire::Grpc)), ("http", of(Wire::Http))]))
    }

    /// Changes the routes of some models and removes others, for new requests; requests in progress keep their
    /// servables.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn change_routes(&self, py: Python<'_>, models: PythonRoutes, removed: Vec<String>) {
        let routes = routes_of(&models);
        drop(models);
        if let Some(server) = self.inner.load_full() {
            // The change of routes runs without the interpreter lock, because it may drop the last reference to a
            // servable, and that drop takes the interpreter lock to release `keep`.
            py.detach(|| server.change_routes(routes, &removed));
        }
    }

    /// Replaces the list of known callers for all later requests; `callers` is JSON in the same form as `access` in the
    /// server's configuration.
    fn set_access(&self, callers: &str) -> PyResult<()> {
        let callers: Vec<Caller> = serde_json::from_str(callers).map_err(value_error)?;
        let access = Access::new(&callers).map_err(value_error)?;
        if let Some(server) = self.inner.load_full() {
            server.set_access(access);
        }
        Ok(())
    }

    /// Sets the TLS certificate of a wire for new connections; all arguments are PEM bytes. With `require_client`,
    /// clients must show a certificate that one of `authorities` signed.
    #[pyo3(signature = (wire, certificates, key, authorities, require_client))]
    fn set_tls(
        &self,
        wire: &str,
        certificates: &[u8],
        key: &[u8],
        authorities: Option<&[u8]>,
        require_client: bool,
    ) -> PyResult<()> {
        let wire = wire_of(wire)?;
        let authorities = authorities.filter(|_| require_client);
        let config = edge::server_config(certificates, key, authorities, protocols(wire)).map_err(value_error)?;
        self.running()?.set_tls(wire, Some(config));
        Ok(())
    }

    /// Whether a control server has not answered the core's questions for 10 seconds, so that status, metrics and all
    /// requests that the core forwards fail.
    #[getter]
    fn is_silent(&self) -> bool {
        self.inner.load_full().is_some_and(|server| server.is_silent())
    }

    /// Sets the answers to health checks for the next 10 seconds: the names of the gRPC services that are SERVING, and
    /// whether the server is ready. If `serving` is None, Python answers the health checks.
    #[pyo3(signature = (serving, is_ready))]
    fn set_health(&self, serving: Option<HashSet<String>>, is_ready: bool) {
        if let Some(server) = self.inner.load_full() {
            server.set_health(serving.map(|serving| edge::Health::new(serving, is_ready)));
        }
    }

    /// Returns the records of sampled requests; waits for some at most `timeout_s` seconds. None: the server has answered
    /// its last request, and all records are taken. The tuple has entries for request logs (model, version, signature,
    /// second since 1970, a `PredictionLog` without its metadata), the spans as JSON text (edge/records.rs), how many entries
    /// were dropped, by model, how many spans, and the names of models of which a request found a file damaged.
    fn take_records(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<PythonRecords>> {
        let Some(server) = self.records.load_full() else { return Ok(None) };
        let timeout = time_of(timeout_s);
        let Some(taken) = py.detach(|| server.take(timeout)) else { return Ok(None) };
        let spans = serde_json::to_string(&taken.spans).map_err(value_error)?;
        let entry = |one: LogEntry| {
            let log = PyBytes::new(py, &one.log).unbind();
            (one.model, one.version, one.signature, one.answered_s, log)
        };
        let entries = taken.entries.into_iter().map(entry).collect();
        Ok(Some((entries, spans, taken.dropped_entries, taken.dropped_spans, taken.damaged.into_iter().collect())))
    }

    /// Returns the values of all counters as JSON text (edge/snapshot.rs); after `close`, the values at the time of
    /// that call.
    fn statistics(&self) -> PyResult<String> {
        match (self.inner.load_full(), self.last.load_full()) {
            (Some(server), _) => serde_json::to_string(&server.statistics()),
            (None, last) => serde_json::to_string(&last.as_deref()),
        }
        .map_err(value_error)
    }

    /// Removes the counts of a model version's answered requests, and returns them as JSON text.
    fn retire(&self, model: &str, version: i64) -> PyResult<String> {
        serde_json::to_string(&self.running()?.retire(model, version)).map_err(value_error)
    }

    fn forget(&self, model: &str) -> PyResult<()> {
        self.running()?.forget(model);
        Ok(())
    }

    /// Stops accepting connections, waits up to `timeout_s` seconds for the open requests, then closes the connections
    /// that are left; returns true if no connection was left.
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> bool {
        let Some(server) = self.inner.load_full() else {
            return true;
        };
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(|| server.drain(timeout))
    }

    fn close(&self, py: Python<'_>) {
        let server = self.inner.swap(None);
        py.detach(|| {
            if let Some(server) = &server {
                self.last.store(Some(Arc::new(server.statistics())));
                // `cut` closes the connections here, because the drop below does not close them while a thread in
                // `drain` still has a reference to the server.
                server.cut();
                server.records().close();
            }
            drop(server);
        });
    }
}

impl Server {
    fn running(&self) -> PyResult<Arc<edge::Server>> {
        self.inner.load_full().ok_or_else(|| PyValueError::new_err("the server is closed"))
    }
}

/// Calls the handler of the wire format (form) in this crate that answers a request.
struct PlainForms {
    max_table_rows: usize,
}

impl Dispatch for PlainForms {
    fn grpc(&self, method: Method, call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
        match method {
            Method::Predict => forms::predict_proto::answer(call, message),
            Method::ModelInfer => forms::oip_proto::answer(call, message),
            Method::Classify => forms::examples_proto::classify(call, message),
            Method::Regress => forms::examples_proto::regress(call, message),
            Method::MultiInference => forms::examples_proto::multi_inference(call, message),
            _ => Err(Declined::Unusual),
        }
    }

    fn model<'m>(&self, method: Method, message: &'m [u8]) -> &'m str {
        match method {
            Method::Predict | Method::Classify | Method::Regress => forms::predict_proto::model(message),
            Method::MultiInference => forms::examples_proto::multi_inference_model(message),
            Method::ModelInfer => forms::oip_proto::model(message),
            _ => "",
        }
    }

    fn http(&self, target: &Target<'_>, call: &Call<'_>, body: &[u8]) -> Result<Answered, Declined> {
        use forms::InferenceMethod::{Classify, Regress};
        let Target { model, version, table, .. } = *target;
        match target.method {
            Method::HttpPredict => forms::tensorflow_json::answer(call, model, version, body),
            Method::Lookup => forms::lookup_json::answer(call, model, version, body),
            Method::Rows => forms::table_rows::answer(call, model, version, table, self.max_table_rows, body),
            Method::Infer => forms::oip_json::answer(call, model, version, target.json_length, body),
            Method::HttpClassify => forms::examples_json::answer(call, Classify, model, version, body),
            Method::HttpRegress => forms::examples_json::answer(call, Regress, model, version, body),
            _ => Err(Declined::Unusual),
        }
    }
}

/// The configuration of the network server, parsed from JSON of `service/core/edge.py`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerConfig {
    edge: edge::Config,
    #[serde(default)]
    grpc: Vec<Listener>,
    #[serde(default)]
    http: Vec<Listener>,
    #[serde(default)]
    tls: Tls,
    access: Option<Vec<Caller>>,
    max_table_rows: usize,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Listener {
    /// File descriptor of a listening TCP socket, which the core closes.
    Fd(i32),
    /// Path of a Unix socket to listen on.
    Path(PathBuf),
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    grpc: Option<Pem>,
    http: Option<Pem>,
}

/// The TLS configuration of one wire, as PEM text. If it has `authorities`, clients must show a certificate that one of
/// them signed.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Pem {
    certificates: String,
    key: String,
    authorities: Option<String>,
}

impl ServerConfig {
    fn edge(self) -> PyResult<edge::Config> {
        Ok(edge::Config {
            grpc: self.grpc.into_iter().map(listen).collect(),
            http: self.http.into_iter().map(listen).collect(),
            grpc_tls: self.tls.grpc.map(|pem| pem.server_config(Wire::Grpc)).transpose()?,
            http_tls: self.tls.http.map(|pem| pem.server_config(Wire::Http)).transpose()?,
            access: self.access.map(|callers| Access::new(&callers)).transpose().map_err(value_error)?,
            ..self.edge
        })
    }
}

fn listen(one: Listener) -> Listen {
    match one {
        Listener::Path(path) => Listen::Path(path),
        // SAFETY: service/core/edge.py detached the socket from its Python object, so no other code owns the file
        // descriptor.
        Listener::Fd(fd) => Listen::Bound(unsafe { std::net::TcpListener::from_raw_fd(fd) }),
    }
}

impl Pem {
    fn server_config(&self, wire: Wire) -> PyResult<Arc<rustls::ServerConfig>> {
        let authorities = self.authorities.as_deref().map(str::as_bytes);
        edge::server_config(self.certificates.as_bytes(), self.key.as_bytes(), authorities, protocols(wire))
            .map_err(value_error)
    }
}

fn protocols(wire: Wire) -> &'static [&'static [u8]] {
    match wire {
        Wire::Grpc => &[b"h2"],
        Wire::Http => &[b"http/1.1"],
    }
}

fn wire_of(name: &str) -> PyResult<Wire> {
    match name {
        "grpc" => Ok(Wire::Grpc),
        "http" => Ok(Wire::Http),
        other => Err(PyValueError::new_err(format!("no wire {other:?}"))),
    }
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Makes the process write the bytes of `buffer`, a ring buffer, and those in the socket `lines` to `standard_error` if
/// it crashes. The caller keeps both file descriptors open.
#[pyfunction]
#[pyo3(signature = (lines, standard_error, buffer=None))]
fn keep_last_words(lines: i32, standard_error: i32, buffer: Option<PyBuffer<u8>>) -> PyResult<()> {
    let (start, size) = buffer.as_ref().map_or((std::ptr::null_mut(), 0), |found| (found.buf_ptr(), found.len_bytes()));
    // The buffer is never released, so that its memory is never unmapped.
    std::mem::forget(buffer);
    // SAFETY: the memory is a map, which starts at a page; it stays mapped, and only its Python owner writes to it.
    unsafe { last_words::keep(lines, standard_error, start, size) }?;
    Ok(())
}

/// Raises `OSError` if the system does not start `num` further threads.
#[pyfunction]
fn check_threads(py: Python<'_>, num: usize) -> PyResult<()> {
    Ok(py.detach(|| threads::check(num))?)
}

#[pyfunction]
#[allow(clippy::cast_precision_loss, reason = "seconds since 1970")]
fn first_end_s(pem: &str) -> PyResult<f64> {
    edge::first_end_s(pem).map(|end_s| end_s as f64).ok_or_else(|| value_error("a certificate is missing or damaged"))
}

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Servable>()?;
    module.add("Unanswered", module.py().get_type::<Unanswered>())?;
    module.add_class::<Clusters>()?;
    module.add_class::<ClusterTable>()?;
    module.add_class::<Pager>()?;
    module.add_class::<Batcher>()?;
    module.add_class::<Forms>()?;
    module.add_class::<Server>()?;
    module.add_function(wrap_pyfunction!(check_threads, module)?)?;
    module.add_function(wrap_pyfunction!(first_end_s, module)?)?;
    module.add_function(wrap_pyfunction!(keep_last_words, module)?)
}
