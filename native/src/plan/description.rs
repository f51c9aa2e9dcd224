//! Reads the JSON description of one version of a model, which `service/native/description.py` writes.

use serde::Deserialize;

use super::inputs::DataType;
use crate::tables::table::{Combiner, Dtype, OnBadId, Summation};
use crate::tables::vocabulary;

/// One servable. A number of a table, vocabulary, input or feature is its place in the list of the same object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name of the model.
    pub model: String,
    /// Number of the version.
    pub version: i64,
    /// All tables that lookups of this servable read.
    pub tables: Vec<TableDescription>,
    /// All vocabularies that signatures of this servable use.
    pub vocabularies: Vec<VocabularyDescription>,
    /// The signatures that the core may answer; other signatures go to the reference.
    pub signatures: Vec<SignatureDescription>,
    /// Whether the version has a signature `serving_default`, answered by the core or not.
    #[serde(default)]
    pub has_serving_default: bool,
    /// Address of one 64-bit word, which is not 0 once a file of the servable was damaged; 0 where there is no such
    /// word.
    pub mark_at: usize,
}

/// One table in memory that the publisher keeps mapped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDescription {
    /// Name of the table.
    pub name: String,
    /// The dtype of the stored numbers.
    pub dtype: Dtype,
    /// V, the number of rows.
    pub vocabulary_size: usize,
    /// D, the numbers of a row.
    pub embedding_dim: usize,
    /// Address of row 0.
    pub rows_at: usize,
    /// Address of V float32; 0 where the dtype has no scales.
    pub scales_at: usize,
}

/// One vocabulary, as the arrays of `service/tables/vocabulary.py` in memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularyDescription {
    /// Whether keys are strings; else they are int64.
    pub has_strings: bool,
    /// Address and length in bytes of the file of strings; 0 and 0 for int64 keys and for hashed keys.
    pub data: (usize, usize),
    /// Address and length of the `[N + 1]` int64 where lines start, or of the `[N]` int64 keys.
    pub keys: (usize, usize),
    /// Address and length of the `[2^k]` int32 slots of the index.
    pub slots: (usize, usize),
    /// The mapping from keys to rows.
    pub rows: vocabulary::Rows,
}

/// The kind of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureKind {
    /// Maps ids to vectors; a request may send any of the features.
    Lookup,
    /// Predicts with a model; a request must send every input that is not optional.
    Predict,
}

/// One signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureDescription {
    /// Name of the signature.
    pub name: String,
    /// Kind of the signature.
    pub kind: SignatureKind,
    /// Inputs of the signature; forms find an input by its name.
    pub inputs: Vec<InputDescription>,
    /// Features of the signature: of a lookup the manifest's features; of a predict the features whose rows the rest
    /// of the graph is fed.
    pub features: Vec<FeatureDescription>,
    /// Outputs of the signature, in the order of answers.
    pub outputs: Vec<OutputDescription>,
    /// Bytes of one row of all outputs, for the limit on answers (`SignatureSpec.row_bytes`).
    pub row_bytes: usize,
    /// Most rows of a request; None where the signature sets no limit.
    pub max_rows: Option<usize>,
    /// Number of id tensors that the graph of a predict computes itself, before rows are looked up.
    #[serde(default)]
    pub num_computed: usize,
    /// Description of the graph that runs the rest of a predict (see `towers`); None for a lookup.
    pub graph: Option<serde_json::Value>,
}

/// One input of a signature; fields as in `TensorSpec` of service/types.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputDescription {
    /// Name of the input.
    pub name: String,
    /// Dtype of the input.
    pub dtype: DataType,
    /// Sizes of the input; None where the rank, or a size, is open.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether a request may leave out the input.
    pub is_optional: bool,
    /// V of the table that the input's ids read, in a predict that judges the ids itself.
    pub vocabulary_size: Option<usize>,
    /// The ids of a predict that the core refuses before it runs the graph: "both", "upper" or "none".
    pub bounds: String,
    /// Number of the vocabulary that maps keys to ids.
    pub vocabulary: Option<usize>,
    /// Whether clients send keys and never ids.
    pub takes_keys: bool,
    /// Whether clients may send strings, in place of ids or as keys.
    pub takes_strings: bool,
}

/// One feature; fields as in `LookupFeature` of service/artifact/manifest.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureDescription {
    /// Name under which JSON takes the feature's ids: `RaggedNames.feature`, or the ids input's name of a dense
    /// feature.
    pub name: String,
    /// Number of the input with the feature's ids; ids that the graph computes itself are numbered behind the inputs.
    pub ids: usize,
    /// Number of the input with the feature's row splits; None for one id in each row.
    pub row_splits: Option<usize>,
    /// Number of the input with the feature's weights.
    pub weights: Option<usize>,
    /// Number of the feature's table.
    pub table: usize,
    /// Combiner of the feature's rows; None where rows are not combined.
    pub combiner: Option<Combiner>,
    /// The order of additions.
    pub summation: Summation,
    /// `on_bad_id` of the manifest.
    pub on_bad_id: OnBadId,
    /// `default_row` of the manifest.
    pub default_row: usize,
    /// Whether a mean divides by `max(sum(w), 1)`.
    pub at_least_one: bool,
    /// Whether an id counts only where its weight is above 0.
    pub positive_only: bool,
    /// K, the most ids of a row; 0 for no limit.
    pub max_ids: usize,
    /// Whether a longer row is cut at K.
    pub truncates: bool,
    /// L, the rows of a sequence; 0 for a feature that is no sequence.
    pub length: usize,
    /// Rank of the ids input: 1, or 2 for ids of shape `[B, K]`; None: any rank but 0.
    pub ids_rank: Option<usize>,
    /// Rows of ids that the core leaves to the reference when they hold no id: "none", "last" or "all".
    pub needs_ids: String,
}

/// One output of a signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputDescription {
    /// Name of the output.
    pub name: String,
    /// Dtype of the output.
    pub dtype: DataType,
    /// Numbers of the features whose vectors stand side by side in an output of a lookup.
    pub parts: Vec<usize>,
    /// Whether the answer has vectors of shape `[K, D]` as one vector of `K * D` numbers.
    pub is_flat: bool,
}
