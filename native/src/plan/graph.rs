//! Defines the interface to a predict's graph, which `towers` runs in TensorFlow.

use super::inputs::{DataType, Dims, Inputs};
use super::servable::{Servable, Signature};
use crate::declined::Declined;

/// The elements of one output of a graph.
pub enum RanData {
    /// Little-endian numbers end to end, in memory that the graph's library gave.
    Numbers(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// Elements of a string output.
    Strings(Vec<Vec<u8>>),
}

/// One output of a graph.
pub struct RanOutput {
    /// Dtype of the output.
    pub dtype: DataType,
    /// Sizes of the output.
    pub dims: Dims,
    /// Elements of the output.
    pub data: RanData,
}

/// The part of a predict that TensorFlow computes. Concurrency: any thread.
pub trait Graph: Send + Sync + std::fmt::Debug {
    /// Looks up the rows that the graph is fed, runs the graph, and returns one output for each number in `wanted`.
    ///
    /// The inputs have passed [`super::Work::prepare`]: names, dtypes, ranks, row splits and ids fit the signature,
    /// and each required input is there.
    ///
    /// # Errors
    /// [`Declined`]; the reference then answers, or refuses with its own message.
    fn run(
        &self,
        servable: &Servable,
        signature: &Signature,
        inputs: &Inputs<'_>,
        wanted: &[usize],
    ) -> Result<Vec<RanOutput>, Declined>;
}

/// Opens the graph of a predict from its part of a description.
pub type OpenGraph<'a> = dyn Fn(&serde_json::Value) -> Result<Box<dyn Graph>, String> + 'a;
