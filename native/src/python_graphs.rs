//! Python classes for TensorFlow sessions, so that the control servers and the core share one copy of a graph's
//! variables.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::plan::{self, Data, DataType, Declined, Effort, Inputs, Strings, Waiting, Work};

use crate::towers::c_api::Api;
use crate::towers::session::{self, Callable, GraphError, Session};
use crate::towers::tensor::{AlignedBuffer, Tensor};

pyo3::create_exception!(
    _native,
    GraphFailure,
    pyo3::exceptions::PyException,
    "TensorFlow's code, a number of google.rpc.Code, and its message."
);

fn failure(error: GraphError) -> PyErr {
    if error.code == GraphError::UNAVAILABLE {
        // A load that fails by it is tried again.
        return PyOSError::new_err((libc::EAGAIN, error.message));
    }
    GraphFailure::new_err((error.code, error.message))
}

/// The session of a `GraphSession`; None after `close`.
type SharedSession = Arc<Mutex<Option<Arc<Session>>>>;

fn open_session(session: &SharedSession) -> PyResult<Arc<Session>> {
    let session = session.lock().unwrap_or_else(PoisonError::into_inner).clone();
    session.ok_or_else(|| failure(GraphError { code: 1, message: "the session is closed".to_owned() }))
}

/// A TensorFlow session that Python opens, with a graph and its variables. Concurrency: any thread.
#[pyclass(frozen, module = "service._native")]
pub struct GraphSession {
    session: SharedSession,
    /// Number by which a graph's description names the session to the core.
    #[pyo3(get)]
    number: u64,
}

#[pymethods]
impl GraphSession {
    /// Opens a session with a graph, whose variables hold no values yet.
    ///
    /// Args:
    ///   library: full path of TensorFlow's library.
    ///   `graph_def`, config: a `GraphDef` and a `ConfigProto`.
    ///   `num_threads`: number of threads of the session's pools.
    ///
    /// Raises `GraphFailure`; `RuntimeError` if the library can not be loaded; `OSError` without enough threads.
    #[staticmethod]
    fn open(py: Python<'_>, library: &str, graph_def: &[u8], config: &[u8], num_threads: usize) -> PyResult<Self> {
        let api = api_of(py, library)?;
        let session = py.detach(|| Session::open(api, graph_def, config, num_threads)).map_err(failure)?;
        Ok(GraphSession { number: session.number, session: Arc::new(Mutex::new(Some(session))) })
    }

    /// Returns a callable for a part of the graph; `feeds` and `fetches` are names of tensors, `targets` names of
    /// operations that run too.
    ///
    /// Raises `GraphFailure` if the graph lacks one of the names.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn call(&self, feeds: Vec<String>, fetches: Vec<String>, targets: Vec<String>) -> PyResult<GraphCall> {
        let session = open_session(&self.session)?;
        let call = session.callable(&texts(&feeds), &texts(&fetches), &texts(&targets)).map_err(failure)?;
        Ok(GraphCall { session: Arc::clone(&self.session), call })
    }

    /// Lets a second session, with a `ConfigProto`, run long requests.
    ///
    /// Args:
    ///   steps: operations that prepare it, each with the texts of scalar tensors that are fed.
    ///   `num_weights`: numbers that are multiplied for each row of a request.
    ///
    /// Raises `GraphFailure` if the session is closed.
    fn open_for_long_runs(&self, config: Vec<u8>, steps: Vec<session::Step>, num_weights: u64) -> PyResult<()> {
        open_session(&self.session)?.open_for_long_runs(config, steps, num_weights);
        Ok(())
    }

    /// Returns the shape of a tensor as far as the graph says it: None in place of a size, or of the whole shape.
    ///
    /// Raises `GraphFailure` if the graph lacks the tensor.
    fn shape(&self, tensor: &str) -> PyResult<Option<Vec<Option<i64>>>> {
        open_session(&self.session)?.shape(tensor).map_err(failure)
    }

    /// Closes the session: from now on runs raise `GraphFailure`. The variables are freed after the last request that
    /// uses the session.
    fn close(&self, py: Python<'_>) {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(session));
    }
}

fn api_of(py: Python<'_>, library: &str) -> PyResult<&'static Api> {
    py.detach(|| Api::open(Path::new(library))).map_err(PyRuntimeError::new_err)
}

/// Returns the serialised `OpDef` of one of TensorFlow's ops; None if there is no op of this name.
///
/// Args:
///   library: full path of TensorFlow's library.
///
/// Raises `GraphFailure`; `RuntimeError` if the library can not be loaded; `OSError` without enough threads.
#[pyfunction]
fn op_definition<'py>(py: Python<'py>, library: &str, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let api = api_of(py, library)?;
    // The first call registers all ops, which takes a while.
    let found = py.detach(|| session::op_definition(api, name)).map_err(failure)?;
    Ok(found.map(|definition| PyBytes::new(py, &definition)))
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// A callable part of a graph, with fixed tensors to feed and to fetch. Concurrency: any thread, several at a time.
#[pyclass(frozen, module = "service._native")]
pub struct GraphCall {
    session: SharedSession,
    call: Callable,
}

#[pymethods]
impl GraphCall {
    /// Runs the part of the graph for which this callable was prepared, and returns the tensors that it fetches.
    ///
    /// Args:
    /// feeds: for each fed tensor its dtype as a number of `types.proto`, its shape, and its numbers as contiguous
    /// bytes or its strings as a list.
    ///
    /// Raises `GraphFailure`.
    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    fn run(&self, py: Python<'_>, feeds: Vec<(u32, Vec<i64>, Bound<'_, PyAny>)>) -> PyResult<Vec<GraphTensor>> {
        let session = open_session(&self.session)?;
        let api = session.api();
        let given = feeds
            .iter()
            .map(|(dtype, dims, data)| fed_tensor(api, *dtype, dims, data))
            .collect::<PyResult<Vec<_>>>()?;
        let fetched = py.detach(|| {
            let fetched = session.run(&self.call, &given);
            // Dropping the last reference to the session frees its variables, so the drop runs without the interpreter
            // lock.
            drop((given, session));
            fetched
        });
        Ok(fetched.map_err(failure)?.into_iter().map(|tensor| GraphTensor { tensor }).collect())
    }
}

fn fed_tensor(api: &'static Api, dtype: u32, dims: &[i64], data: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let tensor = if let Ok(strings) = data.cast::<PyList>() {
        let strings: Vec<Bound<'_, PyBytes>> = strings.extract()?;
        Tensor::of_strings(api, dims, strings.iter().map(PyBytesMethods::as_bytes))
    } else {
        let buffer: PyBuffer<u8> = PyBuffer::get(data)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the bytes of a tensor are not contiguous"));
        }
        let bytes = match buffer.len_bytes() {
            0 => &[],
            // SAFETY: the buffer of the Python object has `len` bytes, and the caller in Python does not write to it
            // while they are copied.
            len => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) },
        };
        let no_memory = || PyMemoryError::new_err("there is no memory for a tensor");
        let buffer = AlignedBuffer::copy_of(bytes).ok_or_else(no_memory)?;
        Tensor::new(api, dtype, dims, buffer)
    };
    tensor.ok_or_else(|| PyValueError::new_err("a tensor does not have as many elements as its shape says"))
}

/// A tensor that a run fetched. Python reads its numbers through the buffer protocol, without a copy.
#[pyclass(frozen, module = "service._native")]
pub struct GraphTensor {
    tensor: Tensor,
}

#[pymethods]
impl GraphTensor {
    #[getter]
    fn dtype(&self) -> u32 {
        self.tensor.dtype()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.tensor.dims()
    }

    fn strings<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let strings = self.tensor.strings();
        strings.into_iter().map(|string| PyBytes::new(py, string)).collect()
    }

    #[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let bytes = slf.get().tensor.bytes();
        let len = ffi::Py_ssize_t::try_from(bytes.len())?;
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: Python passes a valid `Py_buffer` view; the filled view keeps a reference to the tensor, so the
        // tensor's read-only bytes stay valid.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// One output of `predict`: dtype as a number of `types.proto`, shape, and the bytes of its numbers or a list of its
/// strings.
type Predicted<'py> = (u32, Vec<usize>, Bound<'py, PyAny>);

/// Runs a predict on inputs from Python, without a request on a wire; tests compare the outputs with those of the
/// reference.
///
/// Args:
/// inputs: for each input its name, dtype as a number of `types.proto`, shape, and bytes or strings. outputs: names of
/// the wanted outputs; empty for all outputs.
///
/// Raises `ValueError` with the name of the `Declined` variant if the core does not run it.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what pyo3 hands over")]
fn predict<'py>(
    py: Python<'py>,
    servable: &Bound<'py, crate::python::Servable>,
    signature: &str,
    inputs: Vec<(String, u64, Vec<usize>, Bound<'py, PyAny>)>,
    outputs: Vec<String>,
) -> PyResult<Vec<Predicted<'py>>> {
    let servable = Arc::clone(&servable.get().inner);
    let unknown = || PyValueError::new_err("Unknown");
    let number = servable.signature(signature, "").ok_or_else(unknown)?;
    let plan = &servable.signatures()[number];
    let mut sent = Inputs::new(plan.inputs.len());
    for (name, dtype, dims, data) in &inputs {
        let input = plan.input(name.as_bytes()).ok_or_else(unknown)?;
        let data = match data.cast::<PyList>() {
            Ok(strings) => {
                let strings: Vec<Vec<u8>> = strings.extract()?;
                let parts = strings.into_iter().map(std::borrow::Cow::Owned).collect();
                Data::Strings(Strings { parts })
            }
            Err(_) => Data::Bytes(PyBuffer::get(data)?.to_vec(py)?),
        };
        let dtype = DataType::of_number(*dtype).ok_or_else(unknown)?;
        let dims = dims.iter().copied().collect();
        sent.insert(input, plan::Tensor { dtype, dims, data });
    }
    let wanted: Option<Vec<usize>> = outputs.iter().map(|name| plan.output(name.as_bytes())).collect();
    let wanted = wanted.ok_or_else(unknown)?;
    let declined = |why: Declined| PyValueError::new_err(format!("{why:?}"));
    let ran = py.detach(|| {
        let waiting = Waiting::default();
        Work::prepare(&servable, number, sent, &wanted, Effort::Wait(&waiting), usize::MAX)
    });
    let mut work = ran.map_err(declined)?;
    let shapes = work.outputs().to_vec();
    let mut fetched = Vec::with_capacity(shapes.len());
    for (i, shape) in shapes.iter().enumerate() {
        let data = if shape.dtype == DataType::String {
            let strings = work.strings(i).iter().map(|string| PyBytes::new(py, string));
            PyList::new(py, strings.collect::<Vec<_>>())?.into_any()
        } else {
            let mut bytes = Vec::new();
            work.append(i, &mut bytes).map_err(declined)?;
            PyBytes::new(py, &bytes).into_any()
        };
        fetched.push((shape.dtype as u32, shape.dims.to_vec(), data));
    }
    work.finish().map_err(declined)?;
    Ok(fetched)
}

/// Adds the classes, the function and the exception of this file to the native module.
///
/// # Errors
/// Python could not add one of them.
pub fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    parent.add_class::<GraphSession>()?;
    parent.add_class::<GraphCall>()?;
    parent.add_class::<GraphTensor>()?;
    parent.add_function(wrap_pyfunction!(predict, parent)?)?;
    parent.add_function(wrap_pyfunction!(op_definition, parent)?)?;
    parent.add("GraphFailure", parent.py().get_type::<GraphFailure>())
}
