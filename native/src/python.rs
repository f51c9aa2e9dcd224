//! The whole seam to Python: servables are published, the edge is started, counts are read.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::forms::{Answered, Call, Version};
use crate::plan::{self, Description, Effort, Keep, ModelRoutes, Routes};

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
        // SAFETY: service/dataplane/description.py takes the addresses from arrays that `keep` owns.
        let compiled = unsafe { plan::Servable::compile(description, Keep(Box::new(keep)), &crate::towers::open) };
        Ok(Servable {
            inner: Arc::new(compiled.map_err(PyValueError::new_err)?),
        })
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

    /// Returns (signature, number of the feature, ids, ids without a row, keys without a row) of all lookups so far.
    fn counts(&self) -> Vec<(String, usize, u64, u64, u64)> {
        use std::sync::atomic::Ordering::Relaxed;
        let of_signature = self.inner.signatures().iter().zip(self.inner.counts());
        of_signature
            .flat_map(|(signature, features)| {
                features.iter().enumerate().map(|(number, counts)| {
                    let (ids, missing) = (counts.ids.load(Relaxed), counts.missing.load(Relaxed));
                    (
                        signature.name.clone(),
                        number,
                        ids,
                        missing,
                        counts.strangers.load(Relaxed),
                    )
                })
            })
            .collect()
    }
}

/// What Python says of one model: its versions, with a servable where the core may answer, and its labels.
pub type PythonRoutes = Vec<(String, Vec<(i64, Option<Py<Servable>>)>, HashMap<String, i64>)>;

/// Builds a routing table of what Python says.
#[must_use]
pub fn routes_of(models: &PythonRoutes) -> Routes {
    let models = models.iter().map(|(model, versions, labels)| {
        let versions = versions.iter().map(|(version, servable)| {
            (
                *version,
                servable.as_ref().map(|servable| Arc::clone(&servable.get().inner)),
            )
        });
        let labels = labels.iter().map(|(label, version)| (label.clone(), *version));
        (
            model.clone(),
            ModelRoutes {
                versions: versions.collect(),
                labels: labels.collect(),
            },
        )
    });
    Routes::new(models.collect())
}

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
        Forms {
            routes: routes_of(&models),
            max_response_bytes,
            as_content,
            strict_json,
        }
    }
}

/// The native core of embedding-server.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    crate::towers::python::register(module)?;
    module.add_class::<Servable>()?;
    module.add_class::<Forms>()
}
