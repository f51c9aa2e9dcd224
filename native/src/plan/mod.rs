//! Compiles signatures against their tables, judges inputs, sizes answers and reads rows.

mod description;
mod features;
mod grant;
mod graph;
mod inputs;
mod judging;
mod names;
mod numbers;
mod routes;
mod servable;
#[cfg(test)]
pub(crate) mod tests;
mod work;

pub use description::{
    Description, FeatureDescription, InputDescription, OutputDescription, SignatureDescription, SignatureKind,
    TableDescription, VocabularyDescription,
};
pub use features::Features;
pub use grant::Grant;
pub use graph::{Graph, OpenGraph, RanData, RanOutput};
pub use inputs::{Data, DataType, Dims, Inputs, Strings, Tensor};
pub use routes::{ModelRoutes, Routes};
pub use servable::{Counts, FeaturePlan, InputPlan, Keep, NeedsIds, OutputPlan, Reading, Role, Servable, Signature};
pub use work::{Effort, OutputShape, Work};
