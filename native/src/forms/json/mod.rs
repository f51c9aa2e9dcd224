//! JSON text: what every JSON form reads and writes. Knows no signature and no table.

pub mod base64;
mod cursor;
pub mod floats;
pub mod nested;
pub mod reader;
