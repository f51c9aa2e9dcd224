//! TensorFlow through its C API: what is left of a predict behind its lookups.

pub mod c_api;
#[cfg(feature = "python")]
pub mod python;
pub mod session;
pub mod tensor;
