//! Reads tables and vocabularies in memory. The code of this folder knows no wire format and no signature.
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "an id below 0 is compared as the large unsigned number that its bits are; words have 64 bits, see below"
)]
#![allow(clippy::cast_ptr_alignment, reason = "numbers of files and requests are read unaligned")]
#![allow(clippy::inline_always, reason = "only code that is inlined into a function with AVX2 is compiled to AVX2")]
#![allow(clippy::doc_markdown, reason = "sources are named by the paths of their files")]

const _: () = assert!(usize::BITS == 64, "ids and row numbers are int64");

mod combine;
pub mod fingerprint;
mod gather;
mod guard;
pub mod halves;
pub mod hot_rows;
pub mod key_index;
pub mod labels;
mod lanes;
mod lookup;
pub mod map;
pub mod memory;
pub mod neighbors;
pub mod norms;
mod numbers;
pub mod paged;
mod processor;
mod residency;
mod rows;
mod sequence;
mod stored;
mod summation;
pub mod table;
pub mod vocabulary;

#[cfg(all(test, not(feature = "model")))]
mod oracle;
#[cfg(all(test, not(feature = "model")))]
mod tests;
