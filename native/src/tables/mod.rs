//! Rows in memory: tables, the kernels that read them, and vocabularies. Knows no wire and no signature.

pub mod table;
pub mod vocabulary;
