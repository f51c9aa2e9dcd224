//! The native core of embedding-server: everything that happens once per request.
//!
//! Python reads artifacts, chooses versions and publishes descriptions; this crate accepts connections, parses
//! requests, looks rows up and writes answers. Each folder uses only folders that follow it in this list: `edge`,
//! `forms`, `forward` and `towers`, `plan`, `tables`. `python` is the whole seam to Python.
//!
//! A request that a form does not read as plain is forwarded, unchanged, to the reference servers in Python; they answer
//! or refuse it. So each error is worded in one place, the reference.

pub mod declined;
pub mod edge;
pub mod forms;
pub mod forward;
pub mod last_words;
pub mod plan;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_log;
pub mod tables;
pub mod towers;
