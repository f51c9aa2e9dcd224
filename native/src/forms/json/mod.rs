//! Reads and writes JSON for the wire formats (forms) whose bodies are JSON.

pub mod base64;
pub(super) mod cursor;
mod float32_text;
pub mod floats;
pub mod nested;
pub mod outputs;
pub mod reader;
pub mod tensors;
#[cfg(test)]
mod tests;
