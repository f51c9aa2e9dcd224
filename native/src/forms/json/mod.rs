//! JSON text: what every JSON form reads and writes.

pub mod base64;
mod cursor;
mod float32_text;
pub mod floats;
pub mod nested;
pub mod outputs;
pub mod reader;
pub mod tensors;
#[cfg(test)]
mod tests;
