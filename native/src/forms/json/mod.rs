//! JSON text: what every JSON form reads and writes. Knows no signature and no table.

pub mod floats;
