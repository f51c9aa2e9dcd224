//! Reads the JSON description of a predict's graph, which `service/graph/native_graph.py` writes.

use serde::Deserialize;

use crate::plan::DataType;

/// The description of a predict's graph. It names inputs, features and outputs by their index in the lists of the
/// signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDescription {
    /// Number of the open session (`Session::number`) that runs the graph.
    pub session: u64,
    /// The part of the graph that computes ids, which runs before the lookups; None if requests have all ids.
    pub computing: Option<ComputingDescription>,
    pub fed: Feeding,
    /// The tensors that the graph is fed if the shapes of a request do not fit those of `fed`: each feature's vectors by
    /// themselves, so that the graph joins them or refuses the request, and single rows for a lookup that has not the
    /// sizes of `sized_by`. None if `fed` takes any shapes.
    pub apart: Option<Feeding>,
    /// Names of the graph's tensors that are the outputs of the signature; "" for a sparse or composite output, which no
    /// answer can carry.
    pub outputs: Vec<String>,
    /// Names of operations that must run with the fetches of each request, such as assertions, which may refuse the
    /// request.
    pub targets: Vec<String>,
    /// Indexes of features and inputs: `fed` is for requests whose lookup of the feature has as many rows as the input
    /// has elements.
    #[serde(default)]
    pub sized_by: Vec<(usize, usize)>,
    /// The batching parameters of the signature (`batching::Parameters`); None: each request runs by itself.
    pub batching: Option<serde_json::Value>,
}

/// The tensors that a run of a graph is fed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feeding {
    pub rows: Vec<FedRows>,
    pub inputs: Vec<FedInput>,
}

/// The part of a graph that computes ids. It runs first, before the core looks up rows and runs the rest of the graph.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputingDescription {
    /// Tensors of the graph to which the first run is fed inputs of the request.
    pub inputs: Vec<FedInput>,
    /// Names of the id tensors that the first run fetches, in the order of their indexes, which follow the indexes of
    /// the signature's inputs.
    pub ids: Vec<String>,
    /// Names of tensors, other than ids, that the first run of the graph fetches and that are fed to the second run.
    pub carried: Vec<String>,
}

/// A tensor that is fed the vectors of one or several features, side by side.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedRows {
    pub tensor: String,
    /// The features whose vectors the tensor is fed, in the order of their columns.
    pub parts: Vec<FedPart>,
    /// Shape of one row of the tensor that is fed the vectors; None if only one feature is fed and the tensor's shape
    /// depends on the request.
    pub shape: Option<Vec<usize>>,
    /// Dtype of the tensor: float32, or the dtype in which the feature's table stores its numbers.
    pub dtype: DataType,
}

/// One feature whose vectors are columns of a fed tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedPart {
    pub feature: usize,
    /// Number of columns of the feature in the tensor; None if it is the only feature and its width depends on the
    /// request.
    pub width: Option<usize>,
}

/// A tensor of the graph to which an input of the request is fed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedInput {
    pub tensor: String,
    pub input: usize,
    /// The part of the input that is fed.
    #[serde(default)]
    pub form: FedForm,
}

/// The part of an input that is fed to a tensor of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FedForm {
    /// The input as it is.
    #[default]
    Tensor,
    /// The indices of the sparse `[B, K]` matrix whose rows the input, row splits, separates: `[N, 2]` int64, row and
    /// place in the row.
    Indices,
    /// The dense shape of this matrix: `[2]` int64, B and K, the length of the longest row.
    DenseShape,
}
