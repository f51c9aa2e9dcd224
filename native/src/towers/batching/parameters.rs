//! TensorFlow Serving's batching parameters, as `service/wire/config_protos.py` has checked them.

use std::time::Duration;

use serde::Deserialize;

/// The batching parameters of one signature's queue. All sizes are numbers of rows.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Maximal number of rows of a request; without splitting, also of a batch.
    pub max_batch_size: usize,
    pub batch_timeout_micros: u64,
    /// Maximal number of waiting batches; 0 means 1, as in TensorFlow Serving.
    pub max_enqueued_batches: usize,
    /// The sizes to which batches are padded, in ascending order; empty: batches are not padded.
    pub allowed_batch_sizes: Vec<usize>,
    pub pad_variable_length_inputs: bool,
    pub enable_large_batch_splitting: bool,
    pub max_execution_batch_size: usize,
}

impl Parameters {
    /// Returns how long a batch that is not full waits for more requests.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_micros(self.batch_timeout_micros)
    }

    /// Returns the smallest allowed batch size that holds `rows` rows; `rows` itself if there is none.
    #[must_use]
    pub fn padded_rows(&self, rows: usize) -> usize {
        let place = self.allowed_batch_sizes.partition_point(|&size| size < rows);
        self.allowed_batch_sizes.get(place).copied().unwrap_or(rows)
    }
}
