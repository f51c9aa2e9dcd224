//! Signatures compiled against their tables: judges inputs, says how large the answer is, reads the rows.

mod description;
mod inputs;
mod routes;
mod servable;
mod work;

pub use description::{Description, SignatureKind};
pub use inputs::{Data, DataType, Dims, Inputs, Strings, Tensor};
pub use routes::{ModelRoutes, Routes};
pub use servable::{InputPlan, OutputPlan, Servable, Signature};
pub use work::{Effort, OutputShape, Work};
