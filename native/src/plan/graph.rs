//! The interface through which a predict runs its graph; the folder `towers` implements it with TensorFlow.

use super::inputs::{DataType, Dims, Inputs};
use super::servable::{Servable, Signature};
use super::work::{Effort, Instead};
use crate::declined::Declined;

/// The elements of one output of a graph.
pub enum OutputData {
    /// Numbers of the output tensor, little-endian, end to end, in memory that TensorFlow owns.
    Numbers(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// The elements of an output of dtype string, in row-major order.
    Strings(Vec<Vec<u8>>),
}

/// One output tensor of a predict's graph run.
pub struct GraphOutput {
    /// Dtype of the output tensor.
    pub dtype: DataType,
    /// Shape of the output tensor.
    pub dims: Dims,
    /// The elements of the output tensor: bytes of numbers, or strings.
    pub data: OutputData,
}

/// The graph of one predict signature. Concurrency: any thread.
pub trait Graph: Send + Sync + std::fmt::Debug {
    /// Looks up the vectors that the graph gets as inputs, runs the graph, and returns one output for each index in
    /// `wanted`, and the tables whose rows could not all be read.
    ///
    /// The inputs have passed [`super::Work::prepare`]: names, dtypes, ranks, row splits and ids fit the signature,
    /// and each required input is there.
    ///
    /// # Errors
    /// [`Declined::NoRows`]: rows could not be read from a cluster in time. Any other [`Declined`]: the request is then
    /// forwarded to the reference server, which answers or refuses it.
    fn run(
        &self,
        servable: &Servable,
        signature: &Signature,
        inputs: &Inputs<'_>,
        wanted: &[usize],
        effort: Effort<'_>,
    ) -> Result<(Vec<GraphOutput>, Vec<Instead>), Declined>;
}

/// A function that opens the graph of a predict from `SignatureDescription::graph`; its error is one sentence of text.
pub type OpenGraph<'a> = dyn Fn(&serde_json::Value) -> Result<Box<dyn Graph>, String> + 'a;
