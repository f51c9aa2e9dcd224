//! The outputs of a graph.

use super::inputs::{DataType, Dims};

/// The elements of one output of a graph.
pub enum OutputData {
    /// Numbers of the output tensor, little-endian, end to end, in memory that TensorFlow owns.
    Numbers(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// The elements of an output of dtype string, in row-major order.
    Strings(Vec<Vec<u8>>),
}

/// One output tensor of a predict's graph run.
pub struct GraphOutput {
    pub dtype: DataType,
    pub dims: Dims,
    pub data: OutputData,
}

impl GraphOutput {
    /// Returns how many bytes the numbers or strings of the output have.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        match &self.data {
            OutputData::Numbers(numbers) => (**numbers).as_ref().len(),
            OutputData::Strings(strings) => strings.iter().map(Vec::len).sum(),
        }
    }
}
