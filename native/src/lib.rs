//! The native core of embedding-server: accepts connections, and answers requests or forwards them to the servers in
//! Python.
//!
//! Python reads artifacts, chooses versions and publishes their descriptions to this crate. This crate accepts
//! connections, parses requests, looks rows up and writes answers. Each module uses only those that follow it in this
//! list: `edge`, `forms`, `forward` and `towers`, `plan`, `tables`. `python` has the classes that Python uses.
//!
//! Each request that this crate can not answer with certainty is forwarded, unchanged, to the reference servers in
//! Python, which answer or refuse it. So each error text exists once, in the reference servers.

pub mod declined;
pub mod denormals;
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
