//! Compiles the description of a model version, validates the inputs of a request, and runs its lookup or predict.

mod description;
mod features;
mod grant;
mod graph;
mod graph_limit;
mod inputs;
mod names;
mod numbers;
mod paged_rows;
mod remote_rows;
mod routes;
mod servable;
#[cfg(test)]
pub(crate) mod tests;
mod validation;
mod work;

pub use description::{
    Description, FeatureDescription, InputDescription, OutputDescription, SignatureDescription, SignatureKind,
    TableDescription, VocabularyDescription,
};
pub use features::Features;
pub use grant::Grant;
pub use graph::{Graph, GraphOutput, OpenGraph, OutputData};
pub use graph_limit::{GraphLimit, GraphPermit};
pub use inputs::{Data, DataType, Dims, Inputs, Strings, Tensor};
pub use paged_rows::read_table;
pub use routes::{ModelRoutes, Routes};
pub use servable::{
    Counts, FeaturePlan, InputPlan, InputRole, LookupKind, MemoryOwner, NeedsIds, OutputPlan, Servable, Signature,
};
pub use work::{Effort, Failure, Instead, OutputShape, Waiting, Work};
