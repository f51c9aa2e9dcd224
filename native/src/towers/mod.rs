//! Runs predicts in TensorFlow through its C API: graphs cut behind their lookups, and whole ones.

pub mod c_api;
mod description;
#[cfg(feature = "python")]
pub mod python;
pub mod session;
mod shared_runs;
pub mod tensor;
#[cfg(test)]
mod tests;
mod tower;

pub use tower::{Tower, open};
