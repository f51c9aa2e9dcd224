//! Reads and writes JSON for the wire formats (forms) whose bodies are JSON.

pub mod base64;
pub(super) mod cursor;
pub mod document;
pub mod explain;
mod float32_text;
pub mod floats;
pub mod nested;
pub mod outputs;
pub mod reader;
pub mod shown;
pub mod tensors;
#[cfg(all(test, not(feature = "model")))]
mod tests;
pub mod values;
