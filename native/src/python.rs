//! Defines the Python module: publishes servables, starts the edge, reads counts.

use std::collections::{HashMap, HashSet};
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::declined::Declined;
use crate::edge::{self, Access, Caller, Cors, Dispatch, Limits, Listen, Method, Snapshot, Target, Tracing, Wire};
use crate::forms::{self, Answered, Call};
use crate::plan::{self, Description, Effort, Keep, ModelRoutes, Routes};
use crate::{last_words, python_log};

/// One published version of a model. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Servable {
    pub(crate) inner: Arc<plan::Servable>,
}

#[pymethods]
impl Servable {
    /// Compiles a description; `keep` owns the memory that it names and is dropped after the last request.
    #[new]
    fn new(description: &str, keep: Py<PyAny>) -> PyResult<Self> {
        let description: Description =
            serde_json::from_str(description).map_err(|error| PyValueError::new_err(error.to_string()))?;
        // SAFETY: service/native/description.py takes the addresses from arrays that `keep` owns.
        let compiled = unsafe { plan::Servable::compile(description, Keep(Box::new(keep)), &crate::towers::open) };
        Ok(Servable { inner: Arc::new(compiled.map_err(PyValueError::new_err)?) })
    }

    /// Returns the same servable on other tables: the addresses of rows and scales of each; counts are shared.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn on_tables(&self, addresses: Vec<(usize, usize)>, keep: Py<PyAny>) -> PyResult<Self> {
        if addresses.len() != self.inner.tables().len() {
            return Err(PyValueError::new_err("one pair of addresses for each table"));
        }
        // SAFETY: as in `new`.
        let moved = unsafe { self.inner.on_tables(&addresses, Keep(Box::new(keep))) };
        Ok(Servable { inner: Arc::new(moved) })
    }

    /// How many requests and routing tables hold it.
    #[getter]
    fn num_leases(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns (signature, number of the feature, ids, ids without a row) of all lookups so far.
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

    /// Returns how many keys that a vocabulary lacks were sent so far, by vocabulary of the description.
    fn strangers(&self) -> Vec<u64> {
        let strangers = self.inner.strangers().iter();
        strangers.map(|count| count.load(Relaxed)).collect()
    }
}

/// Models by name: versions, with a servable where the core may answer; labels; the share of requests that is logged.
pub type PythonRoutes = Vec<(String, Vec<(i64, Option<Py<Servable>>)>, HashMap<String, i64>, f64)>;

/// Builds a routing table.
#[must_use]
pub fn routes_of(models: &PythonRoutes) -> Routes {
    let models = models.iter().map(|(model, versions, labels, log_rate)| {
        let versions = versions
            .iter()
            .map(|(version, servable)| (*version, servable.as_ref().map(|servable| Arc::clone(&servable.get().inner))));
        let labels = labels.iter().map(|(label, version)| (label.clone(), *version));
        (model.clone(), ModelRoutes { versions: versions.collect(), labels: labels.collect(), log_rate: *log_rate })
    });
    Routes::new(models.collect())
}

/// The forms as a server with its default settings has them.
const FORMS: PlainForms = PlainForms { max_table_rows: 1 << 20 };

/// The module's forms without a socket, for tests that hold them against the reference's codecs.
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
        Forms { routes: routes_of(&models), max_response_bytes, as_content, strict_json }
    }

    /// Returns the answer to one gRPC message, or the reason why the reference must answer it.
    fn grpc<'py>(&self, py: Python<'py>, path: &str, message: &[u8]) -> Result<Bound<'py, PyBytes>, PyErr> {
        let method = Method::of_path(path).ok_or_else(|| PyValueError::new_err("no such method"))?;
        told(py, FORMS.grpc(method, &self.call(), message))
    }

    /// Returns the answer to the body of one HTTP request, or the reason why the reference must answer it.
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
        told(py, FORMS.http(&target, &self.call(), body))
    }
}

impl Forms {
    fn call(&self) -> Call<'_> {
        Call {
            routes: &self.routes,
            effort: Effort::Any,
            max_response_bytes: self.max_response_bytes,
            as_content: self.as_content,
            strict_json: self.strict_json,
            grant: None,
            log_draw: None,
        }
    }
}

fn told(py: Python<'_>, answered: Result<Answered, Declined>) -> PyResult<Bound<'_, PyBytes>> {
    match answered {
        Ok(answered) => Ok(PyBytes::new(py, &answered.body)),
        Err(declined) => Err(PyValueError::new_err(format!("{declined:?}"))),
    }
}

/// The edge, while it serves. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct Server {
    inner: ArcSwapOption<edge::Server>,
    /// What was counted until the server was closed.
    last: ArcSwapOption<Snapshot>,
}

#[pymethods]
impl Server {
    /// Starts to listen and to serve, as a JSON object of service/native/edge.py says.
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let config: ServerConfig =
            serde_json::from_str(config).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let dispatch = Arc::new(PlainForms { max_table_rows: config.max_table_rows });
        let config = config.edge()?;
        let server = py.detach(|| edge::Server::start(config, dispatch))?;
        Ok(Server { inner: ArcSwapOption::from_pointee(server), last: ArcSwapOption::empty() })
    }

    /// Ports of the TCP listeners, by wire.
    #[getter]
    fn ports(&self) -> PyResult<HashMap<&'static str, Vec<u16>>> {
        let server = self.running()?;
        let of = |wire| server.addresses(wire).iter().map(std::net::SocketAddr::port).collect();
        Ok(HashMap::from([("grpc", of(Wire::Grpc)), ("http", of(Wire::Http))]))
    }

    /// Makes these the models that requests find; requests that run keep those they have.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn set_routes(&self, py: Python<'_>, models: PythonRoutes) {
        let routes = routes_of(&models);
        drop(models);
        if let Some(server) = self.inner.load_full() {
            // Detached: the last holder of a servable that goes drops a Python object.
            py.detach(|| server.set_routes(routes));
        }
    }

    /// Replaces the list of known callers from the next request on. The list is of the form that `Server` takes.
    fn set_access(&self, callers: &str) -> PyResult<()> {
        let callers: Vec<Caller> = serde_json::from_str(callers).map_err(value_error)?;
        let access = Access::new(&callers).map_err(value_error)?;
        if let Some(server) = self.inner.load_full() {
            server.set_access(access);
        }
        Ok(())
    }

    /// Encrypts further connections of a wire by these PEM bytes; clients show certificates where authorities are given.
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

    /// Publishes which services are SERVING for gRPC health checks, and whether the server is ready, for 10 seconds.
    fn set_health(&self, serving: HashSet<String>, is_ready: bool) {
        if let Some(server) = self.inner.load_full() {
            server.set_health(Some(edge::Health::new(serving, is_ready)));
        }
    }

    /// Returns the JSON text of what was counted (edge/snapshot.rs), also after `close`.
    fn statistics(&self) -> PyResult<String> {
        match (self.inner.load_full(), self.last.load_full()) {
            (Some(server), _) => serde_json::to_string(&server.statistics()),
            (None, last) => serde_json::to_string(&last.as_deref()),
        }
        .map_err(value_error)
    }

    /// Forgets what was counted for a version, and returns it as JSON text.
    fn retire(&self, model: &str, version: i64) -> PyResult<String> {
        serde_json::to_string(&self.running()?.retire(model, version)).map_err(value_error)
    }

    /// Accepts no more connections and waits for open requests; says whether all ended. Blocks.
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> bool {
        let Some(server) = self.inner.load_full() else {
            return true;
        };
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(|| server.drain(timeout))
    }

    /// Cuts all connections and ends the threads.
    fn close(&self, py: Python<'_>) {
        let server = self.inner.swap(None);
        py.detach(|| {
            if let Some(server) = &server {
                self.last.store(Some(Arc::new(server.statistics())));
                // A drain that another thread waits for holds the server, too.
                server.cut();
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

/// Answers by the forms of this crate.
struct PlainForms {
    max_table_rows: usize,
}

impl Dispatch for PlainForms {
    fn grpc(&self, method: Method, call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
        match method {
            Method::Predict => forms::predict_proto::answer(call, message),
            Method::ModelInfer => forms::oip_proto::answer(call, message),
            _ => Err(Declined::Unusual),
        }
    }

    fn model<'m>(&self, method: Method, message: &'m [u8]) -> &'m str {
        match method {
            Method::Predict => forms::predict_proto::model(message),
            Method::ModelInfer => forms::oip_proto::model(message),
            _ => "",
        }
    }

    fn http(&self, target: &Target<'_>, call: &Call<'_>, body: &[u8]) -> Result<Answered, Declined> {
        let Target { model, version, table, .. } = *target;
        match target.method {
            Method::HttpPredict => forms::tensorflow_json::answer(call, model, version, body),
            Method::Lookup => forms::lookup_json::answer(call, model, version, body),
            Method::Rows => {
                let body = forms::table_rows::answer(call, model, version, table, self.max_table_rows, body)?;
                let servable = Arc::clone(call.find(model, version)?);
                // Statistics do not look at the signature of this method, for it has none.
                Ok(Answered { body, rows: 0, servable, signature: 0, ran: Duration::ZERO, json_length: None })
            }
            Method::Infer => forms::oip_json::answer(call, model, version, target.json_length, body),
            Method::Predict | Method::ModelInfer => Err(Declined::Unusual),
        }
    }
}

/// The configuration of a server, as `service/native/edge.py` writes it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerConfig {
    threads: usize,
    large_threads: usize,
    #[serde(default)]
    grpc: Vec<Listener>,
    #[serde(default)]
    http: Vec<Listener>,
    grpc_upstream: PathBuf,
    http_upstream: PathBuf,
    #[serde(default)]
    tls: Tls,
    access: Option<Vec<Caller>>,
    tracing: Option<Tracing>,
    seal: String,
    as_content: bool,
    strict_json: bool,
    max_table_rows: usize,
    cors: CorsConfig,
    bucket_limits_s: Vec<f64>,
    wait_limits_s: Vec<f64>,
    slow_from_s: Option<f64>,
    limits: LimitsConfig,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Listener {
    /// A TCP socket that is bound and listens, by its descriptor, which the core owns from now on.
    Fd(i32),
    /// Path of a Unix socket.
    Path(PathBuf),
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    grpc: Option<Pem>,
    http: Option<Pem>,
}

/// PEM text of one wire; authorities must have signed the certificates of clients.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Pem {
    certificates: String,
    key: String,
    authorities: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum CorsConfig {
    Word(String),
    Origins(Vec<String>),
}

/// Limits of `service/configuration/server_settings.py`; times in seconds.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsConfig {
    max_request_bytes: usize,
    max_response_bytes: usize,
    max_bytes_in_flight: usize,
    max_connections: usize,
    max_head_bytes: usize,
    max_queued_requests: usize,
    max_queue_s: f64,
    max_forwarded: usize,
    handshake_timeout_s: f64,
    head_timeout_s: f64,
    stall_timeout_s: f64,
    keep_alive_s: f64,
    http_timeout_s: f64,
}

impl ServerConfig {
    fn edge(self) -> PyResult<edge::Config> {
        let limits = self.limits;
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(value_error);
        Ok(edge::Config {
            threads: self.threads,
            large_threads: self.large_threads,
            grpc: self.grpc.into_iter().map(listen).collect(),
            http: self.http.into_iter().map(listen).collect(),
            grpc_upstream: self.grpc_upstream,
            http_upstream: self.http_upstream,
            grpc_tls: self.tls.grpc.map(|pem| pem.server_config(Wire::Grpc)).transpose()?,
            http_tls: self.tls.http.map(|pem| pem.server_config(Wire::Http)).transpose()?,
            limits: Limits {
                max_request_bytes: limits.max_request_bytes,
                max_response_bytes: limits.max_response_bytes,
                max_bytes_in_flight: limits.max_bytes_in_flight,
                max_connections: limits.max_connections,
                max_head_bytes: limits.max_head_bytes,
                max_queued_requests: limits.max_queued_requests,
                max_queue: time(limits.max_queue_s)?,
                max_forwarded: limits.max_forwarded,
                handshake_timeout: time(limits.handshake_timeout_s)?,
                head_timeout: time(limits.head_timeout_s)?,
                stall_timeout: time(limits.stall_timeout_s)?,
                keep_alive: time(limits.keep_alive_s)?,
                http_timeout: time(limits.http_timeout_s)?,
                ..Limits::default()
            },
            access: self.access.map(|callers| Access::new(&callers)).transpose().map_err(value_error)?,
            tracing: self.tracing,
            seal: self.seal,
            as_content: self.as_content,
            strict_json: self.strict_json,
            cors: match self.cors {
                CorsConfig::Origins(origins) => Cors::Listed(origins),
                CorsConfig::Word(word) if word == "all" => Cors::All,
                CorsConfig::Word(_) => Cors::Off,
            },
            bucket_limits_s: self.bucket_limits_s,
            wait_limits_s: self.wait_limits_s,
            slow_from: self.slow_from_s.map_or(Ok(Duration::MAX), time)?,
            ..edge::Config::default()
        })
    }
}

fn listen(one: Listener) -> Listen {
    match one {
        Listener::Path(path) => Listen::Path(path),
        // SAFETY: service/native/edge.py has detached the descriptor, so nobody else owns it.
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

/// The native core of embedding-server.
/// Copies the bytes that `lines` holds to `standard_error` when the process aborts; both descriptors stay open.
#[pyfunction]
fn keep_last_words(lines: i32, standard_error: i32) -> PyResult<()> {
    Ok(last_words::keep(lines, standard_error)?)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    python_log::install();
    crate::towers::python::register(module)?;
    module.add_class::<Servable>()?;
    module.add_class::<Forms>()?;
    module.add_class::<Server>()?;
    module.add_function(wrap_pyfunction!(keep_last_words, module)?)?;
    crate::tables::python::register(module)
}
