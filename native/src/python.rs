//! The whole seam to Python.

use pyo3::prelude::*;

/// The native core of embedding-server.
#[pymodule]
fn _native(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
