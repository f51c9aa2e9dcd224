//! Reads the JSON description of a predict's graph, which `service/graph/native_graph.py` writes.

use serde::Deserialize;

/// The description of a predict's graph. It names inputs, features and outputs by their index in the lists of the
/// signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDescription {
    /// Number of the open session (`Session::number`) that runs the graph.
    pub session: u64,
    /// The part of the graph that computes ids, which runs before the lookups; None if requests have all ids.
    pub computing: Option<ComputingDescription>,
    /// Tensors of the graph to which vectors of features are fed.
    pub rows: Vec<FedRows>,
    /// Tensors of the graph to which inputs of the request are fed.
    pub inputs: Vec<FedInput>,
    /// Names of the graph's tensors that are the outputs of the signature.
    pub outputs: Vec<String>,
    /// Names of operations that must run with the fetches of each request, such as assertions, which may refuse the
    /// request.
    pub targets: Vec<String>,
    /// The feeds of a run for a request whose features differ in their number of rows; None if no tensor joins or
    /// reshapes rows.
    #[serde(default)]
    pub apart: Option<ApartDescription>,
    /// The batching parameters of the signature (`batching::Parameters`); None: each request runs by itself.
    pub batching: Option<serde_json::Value>,
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

/// The feeds of a run that joins and reshapes rows in the graph, which refuses or broadcasts them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApartDescription {
    /// For each feature, the tensor to which its vectors are fed.
    pub rows: Vec<FedRows>,
    /// Tensors of the graph to which inputs of the request are fed.
    pub inputs: Vec<FedInput>,
}

/// A tensor that is fed the vectors of one or several features, side by side.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedRows {
    /// Name of the tensor to which the vectors are fed.
    pub tensor: String,
    /// The features whose vectors the tensor is fed, in the order of their columns.
    pub parts: Vec<FedPart>,
    /// Shape of one row of the tensor that is fed the vectors; None if only one feature is fed and the tensor's shape
    /// depends on the request.
    pub shape: Option<Vec<usize>>,
}

/// One feature whose vectors are columns of a fed tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedPart {
    /// Index of the feature in the signature.
    pub feature: usize,
    /// Number of columns of the feature in the tensor; None if it is the only feature and its width depends on the
    /// request.
    pub width: Option<usize>,
}

/// A tensor of the graph to which an input of the request is fed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedInput {
    /// Name of the tensor to which the input is fed.
    pub tensor: String,
    /// Index of the input in the signature.
    pub input: usize,
}
