//! Reads the JSON description of one version of a model, which `service/core/description.py` writes.

use serde::Deserialize;

use super::inputs::DataType;
use crate::clusters::RemoteDescription;
use crate::tables::key_index::RowMapping;
use crate::tables::table::{Combiner, Dtype, OnBadId, Summation};

/// One version of a model. Tables, vocabularies, inputs and features are named by their index in the lists of this
/// object, buffers by their index in `VersionMemory::buffers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub model: String,
    pub version: i64,
    pub tables: Vec<TableDescription>,
    pub vocabularies: Vec<VocabularyDescription>,
    pub signatures: Vec<SignatureDescription>,
    /// The version's signatures that the core does not run.
    #[serde(default)]
    pub other_signatures: Vec<OtherSignature>,
    /// Whether the version has a signature `serving_default`, even if the core does not run it.
    #[serde(default)]
    pub has_serving_default: bool,
    /// Whether ids are sampled to find the hot rows of each table.
    #[serde(default)]
    pub has_hot_rows: bool,
    /// Whether predicts are refused whose inputs have other shapes than the signature declares (`--strict_shapes`), even
    /// where TensorFlow Serving would run the graph.
    #[serde(default)]
    pub strict_shapes: bool,
}

/// A signature that the core does not run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherSignature {
    pub name: String,
    pub why: WhyNot,
    /// The part of the error text that is the signature's own; "" for none.
    #[serde(default)]
    pub reason: String,
}

/// Why the core does not run a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyNot {
    /// It prepares the graph, when the version is loaded.
    Initializes,
    /// It runs a graph, and the server runs without TensorFlow.
    NoTensorflow,
    /// Its graph can not be run, or not with the tensors of a request.
    CanNotRun,
    /// Its graph is not open yet.
    Loading,
}

/// The description of one table, whose rows lie in mapped memory or in a Valkey or Redis cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDescription {
    pub name: String,
    pub dtype: Dtype,
    pub vocabulary_size: usize,
    pub embedding_dim: usize,
    /// Index of the buffer of V rows; None for a table whose rows lie in a Valkey or Redis cluster.
    #[serde(default)]
    pub rows: Option<usize>,
    /// Index of the buffer of V float32 numbers, the scales of the table's rows; None if the dtype has no scales.
    #[serde(default)]
    pub scales: Option<usize>,
    /// The labels of the rows; None for a table without labels.
    #[serde(default)]
    pub labels: Option<LabelsDescription>,
    /// The place of the rows in a Valkey or Redis cluster; None for a table in mapped memory.
    #[serde(default)]
    pub remote: Option<RemoteDescription>,
    /// Whether a pager reads the table's pages.
    #[serde(default)]
    pub paging: Paging,
}

/// How the pages of a mapped table come into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paging {
    /// A thread that needs a page reads it.
    #[default]
    Off,
    /// A pager reads the pages that lookups need, and meanwhile all others, because the table fits into memory.
    Fits,
    /// A pager reads the pages that lookups need, and drops pages that they need no longer.
    Larger,
}

/// The labels of a table's rows, as `service/artifact/row_labels.py` opens them.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelsDescription {
    /// Index of the buffer of the text, with a line for each row; None for an empty text.
    pub text: Option<usize>,
    /// Index of the buffer of the int64 offsets of the lines, and of the end.
    pub starts: Option<usize>,
    /// The row of the first line.
    pub first_row: i64,
}

/// The description of one vocabulary, whose arrays are those of `service/tables/vocabulary.py`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularyDescription {
    /// Whether the vocabulary's keys are strings; if not, they are int64.
    pub has_strings: bool,
    /// Index of the buffer of the mapped vocabulary file; None for int64 keys and for hashed keys.
    #[serde(default)]
    pub data: Option<usize>,
    /// Index of the buffer of the `[N + 1]` int64 offsets of the vocabulary file's lines, or of the `[N]` int64 keys;
    /// None for hashed keys.
    #[serde(default)]
    pub keys: Option<usize>,
    /// Index of the buffer of the `[2^k]` int32 slots of the hash index; None for hashed keys.
    #[serde(default)]
    pub slots: Option<usize>,
    /// The rules by which a key becomes a table row.
    pub rows: RowMapping,
}

/// The kind of a signature, a lookup or a predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureKind {
    /// A lookup, which maps ids to vectors; a request may have any of the features.
    Lookup,
    /// A predict, which runs a graph of the model; a request must have every input that is not optional.
    Predict,
}

/// One signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureDescription {
    pub name: String,
    pub kind: SignatureKind,
    pub inputs: Vec<InputDescription>,
    /// Features of the signature. For a lookup, the manifest's features; for a predict, the features whose vectors are
    /// fed to the graph.
    pub features: Vec<FeatureDescription>,
    pub outputs: Vec<OutputPlan>,
    /// Ragged features of the signature by their names in JSON.
    #[serde(default)]
    pub ragged_names: Vec<RaggedNames>,
    /// Maximal number of rows in a request for the signature; None for no limit.
    pub max_rows: Option<usize>,
    /// Number of id tensors that a predict's graph computes itself, before rows are looked up.
    #[serde(default)]
    pub num_computed: usize,
    /// The text form of its `SignatureDef`, for error texts of Classify and Regress; "" if no such text has it.
    #[serde(default)]
    pub definition: String,
    /// Description of a predict's graph, as towers/description.rs reads it; None for a lookup.
    pub graph: Option<serde_json::Value>,
}

/// The description of one input of a signature; its fields are those of `TensorSpec` in service/types.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputDescription {
    pub name: String,
    /// Name of the graph's tensor, which error texts have.
    #[serde(default)]
    pub tensor_name: String,
    pub dtype: DataType,
    /// Sizes of the input's dimensions; None for an unknown rank, or in place of one unknown size.
    pub shape: Option<Vec<Option<usize>>>,
    pub is_optional: bool,
    /// The tensor that a graph is fed if a request leaves out the input; None if the input has no default.
    #[serde(default)]
    pub default: Option<DefaultDescription>,
    /// Number of rows of the table to which the input's ids belong; None if no table is known.
    pub vocabulary_size: Option<usize>,
    /// Which ids of a predict are out of bounds: "both" (below 0, or V and more), "upper" (V and more) or "none".
    pub bounds: String,
    /// Index of the vocabulary that maps keys to ids; None if the input has no vocabulary.
    pub vocabulary: Option<usize>,
    pub takes_keys: bool,
    pub takes_strings: bool,
}

/// The default of an input of a predict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultDescription {
    pub dtype: DataType,
    pub shape: Vec<usize>,
    /// Index of the buffer of the default's elements, end to end; None if they have no bytes.
    pub data: Option<usize>,
    /// The number of bytes of each string of a default of dtype string.
    #[serde(default)]
    pub lengths: Vec<usize>,
}

/// The names of the inputs of one ragged feature: `RaggedNames` of service/types.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaggedNames {
    /// Name of the feature in JSON requests, which have nested lists of ids for it.
    pub feature: String,
    pub values: usize,
    pub row_splits: usize,
    pub weights: String,
    /// Index of the input with the feature's weights; None if the signature lacks this input.
    #[serde(skip)]
    pub weights_input: Option<usize>,
}

/// The description of one feature; its fields are those of `LookupFeature` in service/artifact/manifest.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is a rule of the manifest")]
pub struct FeatureDescription {
    /// Name of the feature's ids in JSON requests: `RaggedNames.feature`, or for a dense feature the name of its ids
    /// input.
    pub name: String,
    /// Index of the input with the feature's ids. Indexes behind the last input are those of id tensors that the graph
    /// computes.
    pub ids: usize,
    pub row_splits: Option<usize>,
    pub weights: Option<usize>,
    pub table: usize,
    pub combiner: Option<Combiner>,
    /// The order in which the feature's combiner adds vectors.
    pub summation: Summation,
    /// The feature's rule for an id outside the table (`on_bad_id` of the manifest).
    pub on_bad_id: OnBadId,
    /// The row that the feature reads for an id outside the table, if its rule is to read a default row (`default_row`
    /// of the manifest).
    pub default_row: usize,
    /// Whether the combiner mean divides by `max(sum(w), 1)`, where w are the weights of a row.
    pub at_least_one: bool,
    /// Whether the lookup leaves out ids whose weight is 0 or less.
    pub positive_only: bool,
    /// K, the maximal number of ids of the feature in one row of a request; 0 for no limit.
    pub max_ids: usize,
    /// Whether the lookup ignores the ids of a row after the first K (`max_ids`); if not, it refuses a longer row.
    pub truncates: bool,
    /// L, the number of vectors in a sequence; 0 if the feature is no sequence.
    pub length: usize,
    /// Index of the vocabulary that maps the keys in the input of a predict's feature to ids; None if the input has ids.
    #[serde(default)]
    pub vocabulary: Option<usize>,
    /// Dtype of the feature's vectors: float32, or the table's own, whose rows are then copied as they are stored.
    #[serde(default = "float32")]
    pub dtype: DataType,
    /// The largest norm of a table row: a longer row is scaled down to this norm before it is weighted and combined.
    #[serde(default)]
    pub max_norm: Option<f32>,
    /// The vector of a row in which no id counts.
    #[serde(default)]
    pub on_empty_row: OnEmptyRow,
    /// Whether the vectors of such rows at the end of a request are kept or left out.
    #[serde(default)]
    pub trailing_empty_rows: TrailingEmptyRows,
}

/// The vector of an empty row of a feature with a combiner: a row without ids, or whose ids were all dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnEmptyRow {
    #[default]
    Zeros,
    /// NaN in each column.
    Nan,
    /// The feature's default row.
    DefaultRow,
}

/// The rule for rows at the end of a request in which no id counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrailingEmptyRows {
    /// They have vectors, as all empty rows.
    #[default]
    Keep,
    /// They are left out.
    Cut,
}

fn float32() -> DataType {
    DataType::Float32
}

/// One output of a signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputPlan {
    pub name: String,
    pub dtype: DataType,
    /// Indexes of the features whose vectors stand side by side in the output.
    pub parts: Vec<usize>,
    /// Whether vectors of shape `[K, D]` are flattened to `K * D` numbers.
    pub is_flat: bool,
    /// For an output of a predict: bytes of one row as far as the output's shape is known.
    /// The limit on the size of an answer needs them before the graph is run; the outputs of a lookup have exact shapes.
    #[serde(default)]
    pub row_bytes: usize,
}
