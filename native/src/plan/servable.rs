//! One published version: its tables, its vocabularies and its signatures, compiled for requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::description::{
    Description, FeatureDescription, OutputDescription, SignatureDescription, SignatureKind, TableDescription,
};
use super::graph::{Graph, OpenGraph};
use super::inputs::DataType;
use super::names::Names;
use super::work::Effort;
use crate::declined::Declined;
use crate::tables::table::{Combiner, Combining, Dtype, Policy, Table};
use crate::tables::vocabulary::Vocabulary;

/// The role of an input for the features of its signature. A request may send int32 for int64 and the reverse, except
/// for `Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A tensor that no feature reads.
    Free,
    /// Ids.
    Ids,
    /// Row splits or weights.
    Part,
}

/// One input of a signature.
#[derive(Debug)]
pub struct InputPlan {
    /// Name of the input.
    pub name: String,
    /// Dtype of the input.
    pub dtype: DataType,
    /// Sizes of the input; None where the rank, or a size, is open.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether a request may leave out the input.
    pub is_optional: bool,
    /// Role of the input for the features.
    pub role: Role,
    /// Number of the vocabulary that maps keys to ids.
    pub vocabulary: Option<usize>,
    /// Whether clients send keys and never ids.
    pub takes_keys: bool,
    /// Whether clients may send strings, in place of ids or as keys.
    pub takes_strings: bool,
    /// Bounds of the ids before a predict runs: ids below the first number, and ids from the second on, are refused.
    pub bounds: (i64, i64),
}

/// The rows without ids for which the core leaves a feature to the reference, which treats such rows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedsIds {
    /// No row.
    None,
    /// The last row.
    Last,
    /// Any row.
    All,
}

/// The way to make the vectors of a feature.
#[derive(Clone, Copy, Debug)]
pub enum Reading {
    /// One row of the table for each id.
    Gather {
        /// The rank of the ids: 1, or 2 for shape `[B, K]`; None: any rank but 0.
        ids_rank: Option<usize>,
    },
    /// One vector for each row of ids.
    Combine(Combining),
    /// L vectors for each row of ids; zeros fill up a shorter row.
    Sequence {
        /// L, the vectors of a row.
        length: usize,
    },
}

/// One feature of a signature.
#[derive(Debug)]
pub struct FeaturePlan {
    /// Name under which JSON takes the feature's ids.
    pub name: String,
    /// Number of the input with the feature's ids.
    pub ids: usize,
    /// Number of the input with the feature's row splits.
    pub row_splits: Option<usize>,
    /// Number of the input with the feature's weights.
    pub weights: Option<usize>,
    /// Number of the feature's table.
    pub table: usize,
    /// The way to make the feature's vectors.
    pub reading: Reading,
    /// The policy for an id without a row.
    pub policy: Policy,
    /// The rows without ids that the core leaves to the reference.
    pub needs_ids: NeedsIds,
}

/// One output of a signature.
#[derive(Debug)]
pub struct OutputPlan {
    /// Name of the output.
    pub name: String,
    /// Dtype of the output.
    pub dtype: DataType,
    /// Numbers of the features that stand side by side in the output.
    pub parts: Vec<usize>,
    /// Whether the answer has vectors of shape `[K, D]` as one vector of `K * D` numbers.
    pub is_flat: bool,
}

/// One signature.
#[derive(Debug)]
pub struct Signature {
    /// Name of the signature.
    pub name: String,
    /// Kind of the signature.
    pub kind: SignatureKind,
    /// Inputs of the signature.
    pub inputs: Vec<InputPlan>,
    /// Features of the signature.
    pub features: Vec<FeaturePlan>,
    /// Outputs of the signature, in the order of answers.
    pub outputs: Vec<OutputPlan>,
    /// Bytes of one row of all outputs, for the limit on answers.
    pub row_bytes: usize,
    /// Most rows of a request.
    pub max_rows: Option<usize>,
    /// Number of id tensors that the graph computes; features number these tensors behind the inputs.
    pub num_computed: usize,
    /// The graph of a predict.
    pub graph: Option<Box<dyn Graph>>,
    input_names: Names,
    output_names: Names,
    /// Names of the features that have row splits.
    ragged_names: Names,
}

impl Signature {
    /// Checks that a thread of this effort may answer the signature. Forms call this before they read the inputs.
    ///
    /// # Errors
    /// [`Declined::TooLarge`]: the signature runs a graph, and the effort is [`Effort::Small`].
    #[inline]
    pub fn admit(&self, effort: Effort) -> Result<(), Declined> {
        if self.graph.is_some() && effort == Effort::Small { Err(Declined::TooLarge) } else { Ok(()) }
    }

    /// Returns the number of the input with this name.
    #[must_use]
    #[inline]
    pub fn input(&self, name: &[u8]) -> Option<usize> {
        self.input_names.number(name)
    }

    /// Returns the number of the feature with row splits that JSON bodies call by this name.
    #[must_use]
    pub fn ragged_feature(&self, name: &[u8]) -> Option<usize> {
        self.ragged_names.number(name)
    }

    /// Returns the number of the output with this name.
    #[must_use]
    pub fn output(&self, name: &[u8]) -> Option<usize> {
        self.output_names.number(name)
    }
}

/// Counts of the ids that lookups of one feature read.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of ids that were sent.
    pub ids: AtomicU64,
    /// Number of sent ids without a row.
    pub missing: AtomicU64,
}

/// Owns memory whose addresses a servable reads; dropped with the last request that holds the servable.
pub struct Keep(#[allow(dead_code, reason = "held for its drop only")] pub Box<dyn std::any::Any + Send + Sync>);

impl std::fmt::Debug for Keep {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keep")
    }
}

/// The parts of a version that stay the same when its rows change: everything but its tables' addresses.
#[derive(Debug)]
pub struct Shared {
    /// Name of the model.
    pub model: String,
    /// Number of the version.
    pub version: i64,
    /// The signatures.
    pub signatures: Vec<Signature>,
    /// Name, V, D and dtype of each table.
    pub tables: Vec<TableDescription>,
    /// The vocabularies.
    pub vocabularies: Vec<Vocabulary>,
    /// Counts of the ids that lookups read, by signature and feature.
    pub counts: Vec<Vec<Counts>>,
    /// Number of sent keys that each vocabulary lacks; a key counts once for the input that it was sent in.
    pub strangers: Vec<AtomicU64>,
    mark: *const AtomicU64,
    has_serving_default: bool,
    /// Owns the memory of the vocabularies and of the mark.
    _keep: Keep,
}

// SAFETY: threads only read the word behind mark, atomically, and its publisher keeps it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// One published version of a model. A request holds it by its `Arc`: Python unmaps tables after all are dropped.
#[derive(Debug)]
pub struct Servable {
    shared: Arc<Shared>,
    tables: Vec<Table>,
    /// Owns the memory of the tables.
    _keep: Option<Keep>,
}

impl Servable {
    /// Compiles a description; `keep` owns all memory that the description names.
    ///
    /// # Safety
    /// The addresses in `description` are what [`Table::new`] and [`Vocabulary::new`] ask for, and stay so until the
    /// servable and all servables that came of [`Servable::on_tables`] are dropped.
    ///
    /// # Errors
    /// A sentence about a number in the description that does not fit the rest of the description.
    pub unsafe fn compile(description: Description, keep: Keep, open_graph: &OpenGraph<'_>) -> Result<Self, String> {
        let Description { model, version, tables, vocabularies, signatures, mark_at, has_serving_default } =
            description;
        let compiled = signatures.into_iter().map(|one| signature(one, &tables, vocabularies.len(), open_graph));
        let signatures = compiled.collect::<Result<Vec<_>, _>>()?;
        let vocabularies: Vec<_> = vocabularies
            .into_iter()
            .map(|v| {
                let data = (v.data.0 as *const u8, v.data.1);
                let keys = (v.keys.0 as *const i64, v.keys.1);
                let slots = (v.slots.0 as *const i32, v.slots.1);
                // SAFETY: the caller promises that the addresses are what `Vocabulary::new` asks for.
                unsafe { Vocabulary::new(v.has_strings, data, keys, slots, v.rows) }
            })
            .collect();
        let counts = signatures.iter().map(|s| s.features.iter().map(|_| Counts::default()).collect()).collect();
        let strangers = vocabularies.iter().map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the caller promises that the addresses are what `Table::new` asks for.
        let mapped = tables.iter().map(|table| unsafe { table_at(table, table.rows_at, table.scales_at) }).collect();
        let mark = mark_at as *const AtomicU64;
        let has_serving_default = has_serving_default || signatures.iter().any(|one| one.name == "serving_default");
        let shared = Shared {
            model,
            version,
            signatures,
            tables,
            vocabularies,
            counts,
            strangers,
            mark,
            has_serving_default,
            _keep: keep,
        };
        Ok(Servable { shared: Arc::new(shared), tables: mapped, _keep: None })
    }

    /// Returns the same servable on other tables of the same shapes, whose memory `keep` owns; both servables share
    /// their counts.
    ///
    /// # Safety
    /// As [`Servable::compile`], for the addresses of rows and scales, one pair for each table.
    ///
    /// # Panics
    /// The number of pairs is not the number of tables.
    #[must_use]
    pub unsafe fn on_tables(&self, addresses: &[(usize, usize)], keep: Keep) -> Self {
        assert_eq!(addresses.len(), self.tables.len());
        let pairs = self.shared.tables.iter().zip(addresses);
        // SAFETY: the caller promises that the addresses are what `Table::new` asks for.
        let tables = pairs.map(|(table, at)| unsafe { table_at(table, at.0, at.1) }).collect();
        Servable { shared: Arc::clone(&self.shared), tables, _keep: Some(keep) }
    }

    /// Returns the name of the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.shared.model
    }

    /// Returns the number of the version.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.shared.version
    }

    /// Returns the signatures that the core answers.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.shared.signatures
    }

    /// Returns the number of a signature; the empty name means `serving_default`, or `fallback` in a version without
    /// `serving_default`. None also for a signature that only the reference runs.
    #[must_use]
    pub fn signature(&self, name: &str, fallback: &str) -> Option<usize> {
        let wanted = match name {
            "" if self.shared.has_serving_default || fallback.is_empty() => "serving_default",
            "" => fallback,
            name => name,
        };
        self.shared.signatures.iter().position(|signature| signature.name == wanted)
    }

    /// Returns the tables, in the order of the description.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Returns the number of the table with this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<usize> {
        self.shared.tables.iter().position(|table| table.name == name)
    }

    /// Returns the vocabularies, in the order of the description.
    #[must_use]
    pub fn vocabularies(&self) -> &[Vocabulary] {
        &self.shared.vocabularies
    }

    /// Returns the counts of ids, by signature and feature.
    #[must_use]
    pub fn counts(&self) -> &[Vec<Counts>] {
        &self.shared.counts
    }

    /// Returns for each vocabulary how many keys were sent that it lacks.
    #[must_use]
    pub fn strangers(&self) -> &[AtomicU64] {
        &self.shared.strangers
    }

    /// Says whether a file of the servable was damaged. Call this after the rows were read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        // SAFETY: the publisher keeps the word, if `mark` is not null.
        !self.shared.mark.is_null() && unsafe { (*self.shared.mark).load(Ordering::Acquire) != 0 }
    }
}

unsafe fn table_at(table: &TableDescription, rows: usize, scales: usize) -> Table {
    let TableDescription { dtype, vocabulary_size, embedding_dim, .. } = *table;
    // SAFETY: the caller promises that the addresses are what `Table::new` asks for.
    unsafe { Table::new(dtype, vocabulary_size, embedding_dim, rows as *const u8, scales as *const f32) }
}

fn signature(
    description: SignatureDescription,
    tables: &[TableDescription],
    num_vocabularies: usize,
    open_graph: &OpenGraph<'_>,
) -> Result<Signature, String> {
    let SignatureDescription { name, kind, inputs, features, outputs, row_bytes, max_rows, num_computed, graph } =
        description;
    if kind == SignatureKind::Lookup && num_computed > 0 {
        return Err(format!("signature {name:?} is a lookup and has no graph that works out ids"));
    }
    let parts: Vec<usize> = features.iter().flat_map(|f| f.row_splits.into_iter().chain(f.weights)).collect();
    let ids: Vec<usize> = features.iter().map(|f| f.ids).collect();
    let num_inputs = inputs.len();
    let inputs = inputs
        .into_iter()
        .enumerate()
        .map(|(number, input)| {
            if input.vocabulary.is_some_and(|vocabulary| vocabulary >= num_vocabularies) {
                return Err(format!("input {:?} has no such vocabulary", input.name));
            }
            let size = input.vocabulary_size.and_then(|size| i64::try_from(size).ok()).unwrap_or(i64::MAX);
            let bounds = match input.bounds.as_str() {
                _ if kind == SignatureKind::Lookup || input.vocabulary_size.is_none() => (i64::MIN, i64::MAX),
                "both" => (0, size),
                "upper" => (i64::MIN, size),
                _ => (i64::MIN, i64::MAX),
            };
            Ok(InputPlan {
                name: input.name,
                dtype: input.dtype,
                shape: input.shape,
                is_optional: input.is_optional,
                role: match input.vocabulary_size {
                    _ if parts.contains(&number) => Role::Part,
                    None if !ids.contains(&number) => Role::Free,
                    _ => Role::Ids,
                },
                vocabulary: input.vocabulary,
                takes_keys: input.takes_keys,
                takes_strings: input.takes_strings,
                bounds,
            })
        })
        .collect::<Result<Vec<_>, String>>()?;
    let features =
        features.into_iter().map(|f| feature(f, num_inputs, num_computed, tables)).collect::<Result<Vec<_>, _>>()?;
    let outputs = outputs.into_iter().map(|one| output(one, kind, &features)).collect::<Result<Vec<_>, _>>()?;
    let graph = match (kind, graph) {
        (SignatureKind::Predict, Some(graph)) => Some(open_graph(&graph)?),
        (SignatureKind::Lookup, None) => None,
        _ => {
            return Err(format!("signature {name:?} is a predict without a graph, or a lookup with one"));
        }
    };
    let input_names = Names::new(inputs.iter().enumerate().map(|(i, input)| (input.name.as_str(), i)));
    let output_names = Names::new(outputs.iter().enumerate().map(|(o, output)| (output.name.as_str(), o)));
    let ragged = features.iter().enumerate().filter(|(_, feature)| feature.row_splits.is_some());
    let ragged_names = Names::new(ragged.map(|(f, feature)| (feature.name.as_str(), f)));
    Ok(Signature {
        name,
        kind,
        inputs,
        features,
        outputs,
        row_bytes,
        max_rows,
        num_computed,
        graph,
        input_names,
        output_names,
        ragged_names,
    })
}

fn output(one: OutputDescription, kind: SignatureKind, features: &[FeaturePlan]) -> Result<OutputPlan, String> {
    if one.parts.iter().any(|&part| part >= features.len()) {
        return Err(format!("output {:?} has no such feature", one.name));
    }
    if kind == SignatureKind::Lookup && (one.parts.is_empty() || one.dtype != DataType::Float32) {
        return Err(format!("output {:?} is no float32 vector of features", one.name));
    }
    let is_sequence = |part: &usize| matches!(features[*part].reading, Reading::Sequence { .. });
    if one.parts.len() > 1 && !one.is_flat && one.parts.iter().any(is_sequence) {
        return Err(format!("output {:?} joins a sequence row by row", one.name));
    }
    Ok(OutputPlan { name: one.name, dtype: one.dtype, parts: one.parts, is_flat: one.is_flat })
}

fn feature(
    one: FeatureDescription,
    num_inputs: usize,
    num_computed: usize,
    tables: &[TableDescription],
) -> Result<FeaturePlan, String> {
    let parts = [one.row_splits, one.weights];
    // The row splits and the weights of a feature are inputs, and so are the ids that belong to them.
    let num_ids = if one.row_splits.is_some() { num_inputs } else { num_inputs.saturating_add(num_computed) };
    if one.ids >= num_ids || parts.into_iter().flatten().any(|number| number >= num_inputs) {
        return Err(format!("feature {:?} has no such input", one.name));
    }
    let Some(table) = tables.get(one.table) else {
        return Err(format!("feature {:?} has no such table", one.name));
    };
    if table.dtype == Dtype::Float64 || one.default_row >= table.vocabulary_size {
        return Err(format!("feature {:?} does not fit its table", one.name));
    }
    let reading = match (one.row_splits, one.combiner, one.length) {
        (None, None, 0) => Reading::Gather { ids_rank: one.ids_rank },
        (Some(_), None, length) if length > 0 => Reading::Sequence { length },
        (Some(_), Some(combiner), 0) => Reading::Combine(combining(&one, combiner)),
        _ => {
            return Err(format!("feature {:?} is neither gathered, combined nor a sequence", one.name));
        }
    };
    let needs_ids = match one.needs_ids.as_str() {
        "none" => NeedsIds::None,
        "last" => NeedsIds::Last,
        "all" => NeedsIds::All,
        other => return Err(format!("feature {:?} has needs_ids {other:?}", one.name)),
    };
    Ok(FeaturePlan {
        name: one.name,
        ids: one.ids,
        row_splits: one.row_splits,
        weights: one.weights,
        table: one.table,
        reading,
        policy: Policy { on_bad_id: one.on_bad_id, default_row: one.default_row },
        needs_ids,
    })
}

fn combining(one: &FeatureDescription, combiner: Combiner) -> Combining {
    Combining {
        combiner,
        summation: one.summation,
        at_least_one: one.at_least_one,
        positive_only: one.positive_only,
        max_ids: one.max_ids,
        truncates: one.truncates,
    }
}
