//! Decides which requests run, which wait and which are refused: queues that are fair between models and clients, counts
//! of the memory that requests hold, and the threads for large work.

pub(crate) mod account;
pub(crate) mod fair_queue;
mod fair_tree;
pub mod gate;
pub(crate) mod large;
pub mod limits;
pub(crate) mod long_calls;
pub(crate) mod pace;
