//! Reads the JSON description of a predict's graph, which `service/graph/native_graph.py` writes.

use serde::Deserialize;

/// One graph. Numbers of inputs, features and outputs are places in the lists of the signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDescription {
    /// Number of the open session.
    pub session: u64,
    /// The part of the graph that works out ids, and so runs before the lookups; None: requests bring all ids.
    pub computing: Option<ComputingDescription>,
    /// Tensors that are fed rows of tables.
    pub rows: Vec<FedRows>,
    /// Tensors that are fed inputs of the request as they are.
    pub inputs: Vec<FedInput>,
    /// The tensor of each output of the signature.
    pub outputs: Vec<String>,
    /// Operations that run besides, because they may refuse a request.
    pub targets: Vec<String>,
    /// Most rows of a run that several waiting requests share; 0: each request has a run of its own.
    pub batch_rows: usize,
}

/// The part of a graph that computes ids. It runs first, before rows are looked up.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputingDescription {
    /// Tensors that this part is fed, from inputs of the request.
    pub inputs: Vec<FedInput>,
    /// The id tensors that it computes, in the order in which the signature numbers them behind its inputs.
    pub ids: Vec<String>,
    /// Further tensors that this run fetches and the second run is fed.
    pub carried: Vec<String>,
}

/// A tensor that is fed vectors of features, side by side.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedRows {
    /// Its name.
    pub tensor: String,
    /// The features in their order.
    pub parts: Vec<FedPart>,
    /// Shape of one row; None: that of the one feature, which differs from request to request.
    pub shape: Option<Vec<usize>>,
}

/// A feature in a fed tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedPart {
    /// Its number.
    pub feature: usize,
    /// How many numbers of a row are its own; None where it is alone and that differs from request to request.
    pub width: Option<usize>,
}

/// A tensor that is fed an input.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedInput {
    /// Its name.
    pub tensor: String,
    /// Number of the input.
    pub input: usize,
}
