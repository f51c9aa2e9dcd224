//! Reads the JSON description of a predict's graph, which `service/graph/native_graph.py` writes.

use serde::Deserialize;

/// One graph. Numbers of inputs, features and outputs are places in the lists of the signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDescription {
    /// Number of the open session.
    pub session: u64,
    /// The part of the graph that computes ids, and so runs before the lookups; None: requests bring all ids.
    pub computing: Option<ComputingDescription>,
    /// Tensors that the run feeds with rows of tables.
    pub rows: Vec<FedRows>,
    /// Tensors that the run feeds with unchanged inputs of the request.
    pub inputs: Vec<FedInput>,
    /// The tensor of each output of the signature.
    pub outputs: Vec<String>,
    /// Operations that run besides the outputs, because they may refuse a request.
    pub targets: Vec<String>,
    /// Most rows of a run that several waiting requests share; 0 gives each request a run of its own.
    pub batch_rows: usize,
}

/// The part of a graph that computes ids. This part runs before rows are looked up.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputingDescription {
    /// Tensors that the first run feeds with inputs of the request.
    pub inputs: Vec<FedInput>,
    /// The id tensors that this part computes, in the order in which the signature numbers them behind its inputs.
    pub ids: Vec<String>,
    /// Further tensors that the first run fetches and the second run is fed.
    pub carried: Vec<String>,
}

/// A tensor that is fed vectors of features, side by side.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedRows {
    /// Name of the tensor.
    pub tensor: String,
    /// The features in their order.
    pub parts: Vec<FedPart>,
    /// Shape of one row; None: the shape of the only feature's rows, which differs from request to request.
    pub shape: Option<Vec<usize>>,
}

/// A feature in a fed tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedPart {
    /// Number of the feature.
    pub feature: usize,
    /// Number of the feature's columns in a row; None for an only feature whose width differs from request to request.
    pub width: Option<usize>,
}

/// A tensor that is fed an input.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedInput {
    /// Name of the tensor.
    pub tensor: String,
    /// Number of the input.
    pub input: usize,
}
