//! TensorFlow through its C API: what is left of a predict behind its lookups, and graphs that could not be cut.

pub mod c_api;
mod description;
#[cfg(feature = "python")]
pub mod python;
pub mod session;
pub mod tensor;
#[cfg(test)]
mod tests;
mod tower;

pub use tower::{Tower, open};
