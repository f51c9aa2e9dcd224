//! Reads the JSON description of one version of a model, which `service/native/description.py` writes.

use serde::Deserialize;

use super::inputs::DataType;
use crate::tables::table::{Combiner, Dtype, OnBadId, Summation};
use crate::tables::vocabulary;

/// One servable. Numbers of tables, vocabularies, inputs and features are places in the lists of the same object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name of the model.
    pub model: String,
    /// Number of the version.
    pub version: i64,
    /// All tables that lookups of this servable read.
    pub tables: Vec<TableDescription>,
    /// All vocabularies that they use.
    pub vocabularies: Vec<VocabularyDescription>,
    /// The signatures that the core may answer; others are forwarded.
    pub signatures: Vec<SignatureDescription>,
    /// Whether the version has a signature `serving_default`, answered by the core or not.
    #[serde(default)]
    pub has_serving_default: bool,
    /// Address of one 64-bit word in memory, other than 0 once a file of the servable was damaged; 0: there is none.
    pub mark_at: usize,
}

/// One table in memory that the publisher keeps mapped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDescription {
    /// Name of the table.
    pub name: String,
    /// What its numbers are stored as.
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
    /// Address and bytes of the file, of strings; 0 and 0 for int64 keys and for hashed ones.
    pub data: (usize, usize),
    /// Address and length of the `[N + 1]` int64 where lines start, or of the `[N]` int64 keys.
    pub keys: (usize, usize),
    /// Address and length of the `[2^k]` int32 slots of the index.
    pub slots: (usize, usize),
    /// How keys become rows.
    pub rows: vocabulary::Rows,
}

/// Whether a signature only reads tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureKind {
    /// Ids to vectors; any of its features may be sent.
    Lookup,
    /// A model's prediction; every input that is not optional must be sent.
    Predict,
}

/// One signature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureDescription {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: SignatureKind,
    /// Its inputs; forms find them by name.
    pub inputs: Vec<InputDescription>,
    /// Its features: of a lookup those of the manifest; of a predict those whose rows are fed to what is left of its
    /// graph.
    pub features: Vec<FeatureDescription>,
    /// Its outputs, in the order of answers.
    pub outputs: Vec<OutputDescription>,
    /// Bytes of one row of all outputs, for the limit on answers (`SignatureSpec.row_bytes`).
    pub row_bytes: usize,
    /// Most rows of a request; None: no limit of its own.
    pub max_rows: Option<usize>,
    /// Number of id tensors that the graph of a predict computes itself, before rows are looked up.
    #[serde(default)]
    pub num_computed: usize,
    /// Number of the graph session that runs the rest of a predict (see `towers`); None: a lookup.
    pub graph: Option<serde_json::Value>,
}

/// One input of a signature; fields as in `TensorSpec` of service/types.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputDescription {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DataType,
    /// Its sizes; None where the rank, or a size, is open.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether a request may leave it out.
    pub is_optional: bool,
    /// V of the table that its ids read, of a predict that judges them itself.
    pub vocabulary_size: Option<usize>,
    /// Which ids of a predict are refused before it runs: "both", "upper" or "none".
    pub bounds: String,
    /// Number of the vocabulary that maps keys to ids.
    pub vocabulary: Option<usize>,
    /// Whether keys are sent and never ids.
    pub takes_keys: bool,
    /// Whether strings may be sent, in place of ids or as keys.
    pub takes_strings: bool,
}

/// One feature; fields as in `LookupFeature` of service/artifact/manifest.py.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureDescription {
    /// Name under which JSON takes its ids: `RaggedNames.feature`, or the ids input's name of a dense feature.
    pub name: String,
    /// Number of the input with its ids; ids that the graph works out itself are numbered behind the inputs.
    pub ids: usize,
    /// Number of the input with its row splits; None: one id per row.
    pub row_splits: Option<usize>,
    /// Number of the input with its weights.
    pub weights: Option<usize>,
    /// Number of its table.
    pub table: usize,
    /// How its rows are combined; None: not at all.
    pub combiner: Option<Combiner>,
    /// The order of additions.
    pub summation: Summation,
    /// As in the manifest.
    pub on_bad_id: OnBadId,
    /// As in the manifest.
    pub default_row: usize,
    /// Whether a mean divides by `max(sum(w), 1)`.
    pub at_least_one: bool,
    /// Whether ids count only where their weight is above 0.
    pub positive_only: bool,
    /// K, the most ids of a row; 0: no limit.
    pub max_ids: usize,
    /// Whether a longer row is cut at K.
    pub truncates: bool,
    /// L, the rows of a sequence; 0: it is no sequence.
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
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DataType,
    /// Of a lookup, numbers of the features whose vectors stand side by side in it.
    pub parts: Vec<usize>,
    /// Whether vectors of shape `[K, D]` are answered as one of `K * D`.
    pub is_flat: bool,
}
