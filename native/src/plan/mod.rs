//! Compiles the description of a model version, validates the inputs of a request, and runs its lookup or predict.

mod batch;
mod declined;
mod description;
mod effort;
pub mod faults;
mod feature_inputs;
mod feature_lookup;
mod features;
pub mod foreign;
mod grant;
mod graph_limit;
mod graph_output;
mod graph_refusal;
mod inputs;
mod links;
mod memory;
mod names;
pub mod near_names;
mod notes;
mod numbers;
mod paged_rows;
mod remote_rows;
mod routes;
mod rows_read;
mod servable;
mod small_table;
mod sparse;
#[cfg(all(test, not(feature = "model")))]
pub(crate) mod tests;
mod validation;
mod work;

pub use batch::{BatchPlace, BatchTicket, GraphResult, Queue, QueuedRequest, Ran};
pub use declined::Declined;
pub use description::{
    Description, FeatureDescription, InputDescription, OnEmptyRow, OtherSignature, OutputPlan, RaggedNames,
    SignatureDescription, SignatureKind, TableDescription, VocabularyDescription, WhyNot,
};
pub use effort::{Effort, Waiting};
pub use features::{Features, unknown_keys_of};
pub use grant::Grant;
pub use graph_limit::{GraphLimit, GraphPermit};
pub use graph_output::{GraphOutput, OutputData};
pub use graph_refusal::{graph_refusal, lookup_refusal};
pub use inputs::{Data, DataType, Dims, Inputs, Strings, Tensor};
pub use memory::has_room;
pub use notes::{Instead, Notes};
pub use numbers::{int64_bytes, integers};
pub use remote_rows::read_table;
pub use routes::{ModelRoutes, Routes, Version};
pub use rows_read::RowsRead;
pub use servable::{
    Counts, FeaturePlan, Graph, GraphRequest, InputPlan, InputRole, LookupKind, OpenGraph, Ragged, Servable, Signature,
    VersionMemory,
};
pub use validation::{array_of, check_names, set_no_rows};
pub use work::{OutputShape, Work, check_answer_size};
