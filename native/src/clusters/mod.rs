//! Reads rows of tables that lie in a Valkey or Redis cluster, by a deadline.
//!
//! `service/remote/layout.py` says where a row lies there. A key names the fingerprint of one version, so a row of one
//! version can not be taken for a row of another version. A replica may answer while it is in sync with its primary.
#![allow(
    clippy::cast_possible_truncation,
    reason = "a read has fewer than 2^32 rows; words have 64 bits, as `tables` checks"
)]
#![allow(clippy::doc_markdown, reason = "sources are named by the paths of their files")]

mod all_clusters;
mod cache;
mod changes;
mod connection;
mod description;
mod hedging;
mod network;
mod read;
mod remote_table;
#[cfg(all(test, not(feature = "model")))]
mod simulation;
#[cfg(all(test, not(feature = "model")))]
mod tests;
mod topology;

pub use all_clusters::Clusters;
pub use cache::CacheCounts;
pub use description::{Address, RemoteDescription};
pub use read::{Want, read};
pub use remote_table::{RemoteTable, TableCounts};
