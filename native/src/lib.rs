//! The native core of embedding-server: accepts connections, and answers requests or forwards them to the servers in
//! Python.
//!
//! Python reads artifacts, chooses versions and publishes their descriptions to this crate. This crate accepts
//! connections, parses requests, looks rows up and writes answers. Each module uses only those that follow it in this
//! list: `edge`, `forward`, `admission`, `forms` and `towers`, `plan`, `clusters` and `tables`;
//! `tests/test_house_rules.py` has the exact table. The modules `python` have the classes and functions that Python
//! uses; no other module uses them.
//!
//! The errors of data requests are in `plan/faults.rs`. Control requests, and searches for nearest rows, are
//! forwarded to the servers in Python, which answer or refuse them.

// Clippy knows tests by cfg(test) alone, and most are also left out of a build for loom. It sees all other code without
// tests, too.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod clusters;
pub mod denormals;
pub mod edge;
pub mod forms;
pub mod forward;
pub mod last_words;
pub mod plan;
pub mod priority;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_graphs;
#[cfg(feature = "python")]
mod python_log;
#[cfg(feature = "python")]
mod python_tables;
mod sync;
pub mod tables;
pub mod threads;
pub mod towers;

/// The native core of embedding-server: servables, their tables in clusters and on disk, wire formats, and the network
/// server.
#[cfg(feature = "python")]
#[pyo3::pymodule]
fn _native(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
    python_log::install();
    python_graphs::register(module)?;
    python::register(module)?;
    python_tables::register(module)
}
