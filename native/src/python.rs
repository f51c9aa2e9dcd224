//! The whole seam to Python.

use pyo3::prelude::*;

/// The native core of embedding-server.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    crate::towers::python::register(module)?;
    Ok(())
}
