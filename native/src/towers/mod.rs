//! Runs the graphs of predicts in TensorFlow, through its C API. A tower is a graph that was cut behind its lookups, so
//! that the core looks the rows up; some graphs run whole.

pub mod batching;
pub mod c_api;
mod description;
mod lazy;
pub mod session;
pub mod tensor;
#[cfg(all(test, not(feature = "model")))]
mod tests;
mod tower;

pub use batching::Batcher;
pub use lazy::LazyGraph;
pub use tower::{Tower, open};
