//! Names the interface to a predict's graph, which `towers` runs in TensorFlow.

use super::inputs::{DataType, Dims, Inputs};
use super::servable::{Servable, Signature};
use crate::declined::Declined;

/// The elements of one output of a graph.
pub enum RanData {
    /// Little-endian numbers end to end, in memory that the graph's library gave.
    Numbers(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// Of dtype string.
    Strings(Vec<Vec<u8>>),
}

/// One output of a graph.
pub struct RanOutput {
    /// Its dtype.
    pub dtype: DataType,
    /// Its sizes.
    pub dims: Dims,
    /// Its elements.
    pub data: RanData,
}

/// The part of a predict that TensorFlow computes. Concurrency: any thread.
pub trait Graph: Send + Sync + std::fmt::Debug {
    /// Looks up what the graph reads of tables, runs it, and returns one output for each number in `wanted`.
    ///
    /// The inputs have passed [`super::Work::prepare`]: names, dtypes, ranks, row splits and ids fit the signature, and
    /// each required input is there.
    ///
    /// # Errors
    /// [`Declined`]; the reference then answers or words the refusal.
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
