//! Rows in memory: tables, the kernels that read them, and vocabularies. Knows no wire and no signature.
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "an id below 0 is compared as the large unsigned number that its bits are, in one comparison with V"
)]
#![allow(
    clippy::inline_always,
    reason = "only code that is inlined into a function with AVX2 is compiled to AVX2"
)]

mod combine;
pub mod fingerprint;
mod gather;
pub mod guard;
pub mod key_index;
mod lanes;
mod numbers;
mod processor;
mod rows;
mod sequence;
mod summation;
pub mod table;
pub mod vocabulary;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
