//! Compiles the description of a model version, validates the inputs of a request, and runs its lookup or predict.

mod declined;
mod description;
mod effort;
pub mod faults;
mod feature_inputs;
mod features;
mod grant;
mod graph_limit;
mod graph_refusal;
mod inputs;
mod names;
mod near_names;
mod numbers;
mod paged_rows;
mod remote_rows;
mod routes;
mod servable;
#[cfg(test)]
pub(crate) mod tests;
mod validation;
mod work;

pub use declined::Declined;
pub use description::{
    Description, FeatureDescription, InputDescription, OutputDescription, SignatureDescription, SignatureKind,
    TableDescription, VocabularyDescription,
};
pub use effort::{Effort, Instead, Waiting};
pub use features::Features;
pub use grant::Grant;
pub use graph_limit::{GraphLimit, GraphPermit};
pub use graph_refusal::graph_refusal;
pub use inputs::{Data, DataType, Dims, Inputs, Strings, Tensor};
pub use paged_rows::read_table;
pub use routes::{ModelRoutes, Routes, Version};
pub use servable::{
    Counts, FeaturePlan, Graph, GraphOutput, InputPlan, InputRole, LookupKind, NeedsIds, OpenGraph, OutputData,
    OutputPlan, RaggedNames, Servable, Signature, VersionMemory,
};
pub use validation::check_names;
pub use work::{OutputShape, Work};
