//! One published version: its tables, its vocabularies and its signatures, compiled for requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::batch::{BatchPlace, QueuedRequest};
use super::declined::Declined;
use super::description::{
    Description, FeatureDescription, OutputDescription, SignatureDescription, SignatureKind, TableDescription,
};
use super::effort::Effort;
use super::failure::{Failure, Instead};
use super::graph_output::GraphOutput;
use super::inputs::{DataType, Inputs};
use super::names::Names;
use super::rows_read::RowsRead;
use crate::clusters::{Clusters, RemoteTable};
use crate::tables::hot_rows::HotRows;
use crate::tables::paged::{PagedTable, Pager};
use crate::tables::table::{CombineOptions, Combiner, Dtype, Ints, Policy, Table};
use crate::tables::vocabulary::Vocabulary;

/// The kind of data in an input of a signature: data of a feature, or data for the graph only. A request may send int32
/// in place of int64 and the reverse, except for `Unread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRole {
    /// The input feeds the graph only; no feature reads it.
    Unread,
    /// Ids of a feature.
    Ids,
    /// The input has the row splits or the weights of a feature.
    SplitsOrWeights,
}

/// One input of a signature, compiled for requests.
#[derive(Debug)]
pub struct InputPlan {
    /// Name of the input in its signature.
    pub name: String,
    /// Dtype of the input's tensor.
    pub dtype: DataType,
    /// Sizes of the input's dimensions; None for an unknown rank, or in place of one unknown size.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether a request may leave out the input.
    pub is_optional: bool,
    /// The kind of data in the input: ids, row splits or weights of a feature, or data that no feature reads.
    pub role: InputRole,
    /// Index of the vocabulary that maps keys to ids; None if the input has no vocabulary.
    pub vocabulary: Option<usize>,
    /// Whether clients send only keys, never ids, as the values of this input.
    pub takes_keys: bool,
    /// Whether clients may send strings as the values of this input.
    pub takes_strings: bool,
    /// Lower bound, inclusive, and upper bound, exclusive, of the ids of a predict; for other ids, the core forwards
    /// the request before it runs the graph.
    pub bounds: (i64, i64),
}

/// Says which rows of a feature must have at least one id. If such a row of a request has none, the request is
/// forwarded to the reference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedsIds {
    /// No row.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

/// The way in which table rows become the vectors of a feature.
#[derive(Clone, Copy, Debug)]
pub enum LookupKind {
    /// No combiner: each id of the feature gives one vector, its row of the table.
    Gather {
        /// Rank of the ids tensor: 1 for shape `[B]`, 2 for `[B, K]`; None if the signature allows any rank except 0.
        ids_rank: Option<usize>,
    },
    /// Each row of ids gives one vector, combined from the table rows of its ids.
    Combine(CombineOptions),
    /// Each row of ids gives the table rows of its first L ids; zeros fill up a shorter row.
    Sequence {
        /// L, the number of vectors that each row of ids gives.
        length: usize,
    },
}

/// One feature of a signature, compiled for requests.
#[derive(Debug)]
pub struct FeaturePlan {
    /// Name of the feature's ids in JSON requests.
    pub name: String,
    /// Index of the input with the feature's ids, or, behind the last input, of an id tensor that the graph computes.
    pub ids: usize,
    /// Index of the input with the feature's row splits; None if the feature is not ragged.
    pub row_splits: Option<usize>,
    /// Index of the input with the feature's weights; None if the feature takes no weights.
    pub weights: Option<usize>,
    /// Index of the table that the feature reads, in the version's list of tables.
    pub table: usize,
    /// The way in which table rows become the feature's vectors.
    pub lookup: LookupKind,
    /// The policy of the lookup for an id outside the table.
    pub policy: Policy,
    /// Says which rows of a request must have an id of the feature.
    pub needs_ids: NeedsIds,
}

/// One output of a signature, compiled for requests.
#[derive(Debug)]
pub struct OutputPlan {
    /// Name of the output in its signature.
    pub name: String,
    /// Dtype of the output tensor.
    pub dtype: DataType,
    /// Indexes of the features whose vectors stand side by side in the output.
    pub parts: Vec<usize>,
    /// Whether vectors of shape `[K, D]` are flattened to `K * D` numbers.
    pub is_flat: bool,
    /// For an output of a predict: bytes of one row, as far as its shape is known, for the limit on the size of an
    /// answer.
    pub row_bytes: usize,
}

/// The graph of one predict signature. Concurrency: any thread.
pub trait Graph: Send + Sync + std::fmt::Debug {
    /// Looks up the vectors that the graph gets as inputs, runs the graph, and returns one output for each index in
    /// `wanted`, and the tables whose rows could not all be read.
    ///
    /// The inputs have passed [`super::Work::prepare`]: names, dtypes, ranks, row splits and ids fit the signature,
    /// and each required input is there.
    ///
    /// # Errors
    /// [`Declined::NoRows`]: rows could not be read from a cluster in time. Any other [`Declined`]: the request is then
    /// forwarded to the reference server, which answers or refuses it.
    fn run(
        &self,
        servable: &Servable,
        signature: &Signature,
        inputs: &Inputs<'_>,
        wanted: &[usize],
        effort: Effort<'_>,
    ) -> Result<(Vec<GraphOutput>, Vec<Instead>), Declined>;

    /// Says whether requests for the graph wait in a queue to share runs.
    fn is_batched(&self) -> bool {
        false
    }

    /// Leaves a request in the graph's batch queue; the arguments are those of [`Graph::run`], but for the number of the
    /// signature and the rows that the request has read from clusters. None: the request must run by itself.
    ///
    /// # Errors
    /// The request does not fit into a batch, or too many batches wait.
    fn queue(
        &self,
        _servable: &Arc<Servable>,
        _signature: usize,
        _inputs: &Inputs<'_>,
        _rows: RowsRead,
        _wanted: &[usize],
        _deadline: Option<Instant>,
    ) -> Result<Option<QueuedRequest>, Failure> {
        Ok(None)
    }

    /// Tells the graph whether new requests can reach it. Requests that wait for their batch no longer wait for others
    /// if none can.
    fn set_published(&self, _is_published: bool) {}
}

/// A function that opens the graph of a predict from `SignatureDescription::graph`; its error is one sentence of text.
pub type OpenGraph<'a> = dyn Fn(&serde_json::Value) -> Result<Box<dyn Graph>, String> + 'a;

/// One signature.
#[derive(Debug)]
pub struct Signature {
    /// Name of the signature in its model version.
    pub name: String,
    /// Kind of the signature: a lookup or a predict.
    pub kind: SignatureKind,
    /// Inputs of the signature.
    pub inputs: Vec<InputPlan>,
    /// Features of the signature.
    pub features: Vec<FeaturePlan>,
    /// Outputs of the signature, in the order in which an answer has them.
    pub outputs: Vec<OutputPlan>,
    /// Maximal number of rows in a request for this signature; None for no limit.
    pub max_rows: Option<usize>,
    /// Number of id tensors that the graph computes; their indexes follow those of the inputs.
    pub num_computed: usize,
    /// Whether a feature of the signature reads a table whose rows lie in a Valkey or Redis cluster.
    pub is_remote: bool,
    /// Whether a tensor of another shape than its input's is declined, although no feature reads the input.
    pub strict_shapes: bool,
    /// The graph of a predict; None for a lookup.
    pub graph: Option<Box<dyn Graph>>,
    input_names: Names,
    output_names: Names,
    /// Map from the name of each feature with row splits to the feature's index.
    ragged_names: Names,
}

impl Signature {
    /// Checks that a thread with this limit on work may run the signature. The handlers of wire formats (forms) call
    /// this before they parse the inputs.
    ///
    /// # Errors
    /// [`Declined::TooLarge`]: the signature runs a graph, and the effort is [`Effort::Small`]; [`Declined::Batches`] if
    /// its graph is batched. [`Declined::Waits`]: the
    /// graph is fed rows of a table in a cluster, and the effort is not [`Effort::Wait`].
    #[inline]
    pub fn check_effort(&self, effort: Effort<'_>) -> Result<(), Declined> {
        // A request that ran in a batch needs only its answer written.
        let has_ran = effort.batch().is_some_and(BatchPlace::has_ran);
        match effort {
            _ if self.graph.is_none() || has_ran => Ok(()),
            Effort::Small | Effort::Any | Effort::Queue(_) if self.is_remote => Err(Declined::Waits),
            Effort::Small if self.is_batched() => Err(Declined::Batches),
            Effort::Small => Err(Declined::TooLarge),
            Effort::Any | Effort::Queue(_) | Effort::Wait(_) => Ok(()),
        }
    }

    /// Says whether requests for the signature wait in a queue to share runs of its graph.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        // A request reads its rows from clusters before it joins a batch, so that a slow cluster does not keep other
        // requests from their runs. If the graph computes the ids, the request can not.
        let reads_late = self.is_remote && self.num_computed > 0;
        !reads_late && self.graph.as_ref().is_some_and(|graph| graph.is_batched())
    }

    /// Returns the index of the input with this name.
    #[must_use]
    #[inline]
    pub fn input(&self, name: &[u8]) -> Option<usize> {
        self.input_names.index(name)
    }

    /// Returns the index of a feature with row splits by its one name in JSON requests, where nested lists take the
    /// place of ids and row splits.
    #[must_use]
    pub fn ragged_feature(&self, name: &[u8]) -> Option<usize> {
        self.ragged_names.index(name)
    }

    /// Returns the index of the output with this name.
    #[must_use]
    pub fn output(&self, name: &[u8]) -> Option<usize> {
        self.output_names.index(name)
    }
}

/// Counts the ids that lookups of one feature have had so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of ids that requests had for the feature.
    pub ids: AtomicU64,
    /// Number of ids that lay outside the feature's table.
    pub missing: AtomicU64,
}

/// The owner of the memory whose addresses a servable reads. This value is dropped with the servable, after the last
/// request that uses the servable.
pub struct MemoryOwner(#[allow(dead_code, reason = "held for its drop only")] pub Box<dyn std::any::Any + Send + Sync>);

impl std::fmt::Debug for MemoryOwner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keep")
    }
}

/// The parts of a version that stay the same when an update replaces its rows: everything but the tables' addresses.
#[derive(Debug)]
pub struct SharedParts {
    /// Name of the model to which this version belongs.
    pub model: String,
    /// Version number.
    pub version: i64,
    /// The signatures.
    pub signatures: Vec<Signature>,
    /// The description of each table, such as its name, V, D and dtype.
    pub tables: Vec<TableDescription>,
    /// The vocabularies.
    pub vocabularies: Vec<Vocabulary>,
    /// Counts of the ids that lookups had, by signature and feature.
    pub counts: Vec<Vec<Counts>>,
    /// For each vocabulary, the number of keys in requests that the vocabulary lacked so far. A key counts once for its
    /// input, even if several features read the input.
    pub unknown_keys: Vec<AtomicU64>,
    /// The hot rows of each table; empty if ids are not sampled.
    pub hot_rows: Vec<HotRows>,
    damage_flag: *const AtomicU64,
    has_serving_default: bool,
    /// The owner of the memory of the vocabularies, of the damage flag, and of the tables as they were first published.
    _owner: MemoryOwner,
}

// SAFETY: any thread may own the value, because threads read the word at `damage_flag` atomically, and `_owner` keeps
// that word in memory.
unsafe impl Send for SharedParts {}
// SAFETY: shared use by several threads is safe, because threads only read the word at `damage_flag`, and read it
// atomically.
unsafe impl Sync for SharedParts {}

/// One published version of a model. Each request that uses it holds an `Arc`; Python unmaps the tables after the last
/// `Arc` is dropped.
#[derive(Debug)]
pub struct Servable {
    /// The pages of each table that is larger than memory; empty if no table is. Rust drops them before `_owner`.
    paged_tables: Arc<[Option<Arc<PagedTable>>]>,
    shared: Arc<SharedParts>,
    tables: Vec<Table>,
    /// For each table, the object that reads its rows from a Valkey or Redis cluster; None for a mapped table. Empty if
    /// all tables are mapped.
    remote_tables: Arc<[Option<Arc<RemoteTable>>]>,
    /// Owns the memory of the tables, if `on_tables` made the servable; else None, and `shared` owns that memory.
    _owner: Option<MemoryOwner>,
}

impl Servable {
    /// Compiles the description of a model version; `owner` owns all memory whose addresses are in the description.
    ///
    /// # Safety
    /// The addresses in `description` meet the conditions of [`Table::new`], [`Vocabulary::new`] and [`Pager::open`]
    /// until `owner` is dropped.
    ///
    /// # Errors
    /// A sentence that names the part of the description that contradicts another part.
    pub unsafe fn compile(
        description: Description,
        owner: MemoryOwner,
        open_graph: &OpenGraph<'_>,
    ) -> Result<Self, String> {
        let Description {
            model,
            version,
            tables,
            vocabularies,
            signatures,
            damage_flag_at,
            has_serving_default,
            has_hot_rows,
            strict_shapes,
        } = description;
        let compiled = signatures.into_iter().map(|one| {
            let compiled = signature(one, &tables, vocabularies.len(), open_graph)?;
            Ok::<_, String>(Signature { strict_shapes, ..compiled })
        });
        let signatures = compiled.collect::<Result<Vec<_>, _>>()?;
        let vocabularies: Vec<_> = vocabularies
            .into_iter()
            .map(|v| {
                let data = (v.data.0 as *const u8, v.data.1);
                let keys = (v.keys.0 as *const i64, v.keys.1);
                let slots = (v.slots.0 as *const i32, v.slots.1);
                // SAFETY: the caller promises that the addresses of each vocabulary in the description fulfil the
                // conditions of `Vocabulary::new`.
                unsafe { Vocabulary::new(v.has_strings, data, keys, slots, v.rows) }
            })
            .collect();
        let counts = signatures.iter().map(|s| s.features.iter().map(|_| Counts::default()).collect()).collect();
        let unknown_keys = vocabularies.iter().map(|_| AtomicU64::new(0)).collect();
        let sampled = tables.iter().filter(|_| has_hot_rows);
        let hot_rows = sampled.map(|table| HotRows::new(table.vocabulary_size)).collect();
        // SAFETY: the caller promises that the addresses of each table's rows and scales fulfil the conditions of
        // `Table::new`.
        let mapped = tables.iter().map(|table| unsafe { table_at(table, table.rows_at, table.scales_at) }).collect();
        let damage_flag = damage_flag_at as *const AtomicU64;
        let has_serving_default = has_serving_default || signatures.iter().any(|one| one.name == "serving_default");
        let shared = SharedParts {
            model,
            version,
            signatures,
            tables,
            vocabularies,
            counts,
            unknown_keys,
            hot_rows,
            damage_flag,
            has_serving_default,
            _owner: owner,
        };
        Ok(Servable {
            paged_tables: Arc::default(),
            shared: Arc::new(shared),
            tables: mapped,
            remote_tables: Arc::default(),
            _owner: None,
        })
    }

    /// Returns a copy of the servable that reads other tables of the same shapes, whose memory `owner` owns. Both
    /// servables add to the same counts of ids.
    ///
    /// # Safety
    /// `addresses` has the addresses of rows and scales of each table, which meet the conditions of [`Table::new`].
    ///
    /// # Panics
    /// There are not as many pairs as tables.
    #[must_use]
    pub unsafe fn on_tables(&self, addresses: &[(usize, usize)], owner: MemoryOwner) -> Self {
        assert_eq!(addresses.len(), self.tables.len());
        let pairs = self.shared.tables.iter().zip(addresses);
        // SAFETY: the caller promises that the addresses of each table's rows and scales fulfil the conditions of
        // `Table::new`.
        let tables: Vec<_> = pairs.map(|(table, at)| unsafe { table_at(table, at.0, at.1) }).collect();
        let remote_tables = Arc::clone(&self.remote_tables);
        // A table at a new address is no longer paged: it has changed rows in a private memory map, not in the file,
        // and dropping a page would lose them.
        let pairs = self.paged_tables.iter().zip(self.tables.iter().zip(&tables));
        let paged_tables = pairs.map(|(paged, (before, now))| paged.clone().filter(|_| before.is_at(now))).collect();
        let shared = Arc::clone(&self.shared);
        Servable { paged_tables, shared, tables, remote_tables, _owner: Some(owner) }
    }

    /// Tells the graphs of the version whether new requests can reach them.
    pub fn set_published(&self, is_published: bool) {
        for graph in self.shared.signatures.iter().filter_map(|signature| signature.graph.as_ref()) {
            graph.set_published(is_published);
        }
    }

    /// Says whether another servable is the same version: it may read other tables.
    #[must_use]
    pub fn is_same_version(&self, other: &Servable) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Lets a pager read the pages of the tables that are larger than memory.
    ///
    /// # Errors
    /// The system gives no further descriptor of a table's file.
    pub fn with_pager(self, pager: &Arc<Pager>) -> io::Result<Self> {
        if self.shared.tables.iter().all(|table| table.paged.is_empty()) {
            return Ok(self);
        }
        let open = |table: &TableDescription| {
            if table.paged.is_empty() {
                return Ok(None);
            }
            // SAFETY: the caller of `compile` promised that the rows stay mapped, in shared read-only maps, as
            // `Pager::open` requires.
            unsafe { pager.open(table.vocabulary_size, &table.paged) }.map(|table| Some(Arc::new(table)))
        };
        let paged_tables = self.shared.tables.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Servable { paged_tables, ..self })
    }

    /// Says whether a table of the version is larger than memory.
    #[must_use]
    #[inline]
    pub fn is_paged(&self) -> bool {
        !self.paged_tables.is_empty()
    }

    /// Returns the object that reads the pages of a table; None for a table that is not larger than memory.
    #[must_use]
    pub fn paged_table(&self, table: usize) -> Option<&PagedTable> {
        self.paged_tables.get(table)?.as_deref()
    }

    /// Opens the version's tables that lie in Valkey or Redis clusters. Before this call, requests for these tables are
    /// declined.
    #[must_use]
    pub fn with_clusters(self, clusters: &Clusters) -> Self {
        let SharedParts { model, version, tables, .. } = &*self.shared;
        if tables.iter().all(|table| table.remote.is_none()) {
            return self;
        }
        let open = |table: &TableDescription| {
            let remote = table.remote.as_ref()?;
            Some(clusters.open(model, *version, &table.name, table.vocabulary_size, remote))
        };
        let remote_tables = tables.iter().map(open).collect();
        Servable { remote_tables, ..self }
    }

    /// Returns true if the version has tables in Valkey or Redis clusters, and these tables are open.
    #[must_use]
    pub fn has_clusters(&self) -> bool {
        !self.remote_tables.is_empty()
    }

    /// Returns the object that reads a table's rows from a Valkey or Redis cluster, and V, its number of rows; None for
    /// a mapped table.
    #[must_use]
    pub fn remote_table(&self, table: usize) -> Option<(&RemoteTable, usize)> {
        let remote = self.remote_tables.get(table)?.as_deref()?;
        Some((remote, self.shared.tables[table].vocabulary_size))
    }

    /// Returns the name of the servable's model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.shared.model
    }

    /// Returns the number of the servable's version.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.shared.version
    }

    /// Returns the version's signatures that the core itself can run.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.shared.signatures
    }

    /// Returns the index of a signature; None if the core does not run it. The empty name means `serving_default`, or
    /// `fallback` if the version has no `serving_default`.
    #[must_use]
    pub fn signature(&self, name: &str, fallback: &str) -> Option<usize> {
        let wanted = match name {
            "" if self.shared.has_serving_default || fallback.is_empty() => "serving_default",
            "" => fallback,
            name => name,
        };
        self.shared.signatures.iter().position(|signature| signature.name == wanted)
    }

    /// Returns the version's tables, in the order of the version's description.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Returns the name of the table with this index.
    #[must_use]
    pub fn table_name(&self, table: usize) -> &str {
        &self.shared.tables[table].name
    }

    /// Returns the index of the table with this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<usize> {
        self.shared.tables.iter().position(|table| table.name == name)
    }

    /// Returns the version's vocabularies, in the order of the version's description.
    #[must_use]
    pub fn vocabularies(&self) -> &[Vocabulary] {
        &self.shared.vocabularies
    }

    /// Returns the counts of ids that lookups have had, by signature and feature.
    #[must_use]
    pub fn counts(&self) -> &[Vec<Counts>] {
        &self.shared.counts
    }

    /// Returns for each vocabulary the number of keys in requests that the vocabulary lacked so far.
    #[must_use]
    pub fn unknown_keys(&self) -> &[AtomicU64] {
        &self.shared.unknown_keys
    }

    /// Returns the hot rows of each table; empty if ids are not sampled.
    #[must_use]
    pub fn hot_rows(&self) -> &[HotRows] {
        &self.shared.hot_rows
    }

    /// Samples the ids of a lookup in a table for the table's hot rows.
    #[inline]
    pub(super) fn see(&self, table: usize, ids: Ints<'_>) {
        if let Some(hot) = self.shared.hot_rows.get(table) {
            hot.see(ids);
        }
    }

    /// Says whether a mapped file of the servable is damaged. Call this after the last read of a row.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        // SAFETY: if `damage_flag` is not null, it points to a word that `_owner` keeps in memory.
        !self.shared.damage_flag.is_null() && unsafe { (*self.shared.damage_flag).load(Ordering::Acquire) != 0 }
    }
}

unsafe fn table_at(table: &TableDescription, rows: usize, scales: usize) -> Table {
    let TableDescription { dtype, embedding_dim, .. } = *table;
    // No row of a remote table is in memory, so a kernel must refuse every id.
    let vocabulary_size = if table.remote.is_some() { 0 } else { table.vocabulary_size };
    // SAFETY: the caller promises that `rows` and `scales` fulfil the conditions of `Table::new`.
    unsafe { Table::new(dtype, vocabulary_size, embedding_dim, rows as *const u8, scales as *const f32) }
}

fn signature(
    description: SignatureDescription,
    tables: &[TableDescription],
    num_vocabularies: usize,
    open_graph: &OpenGraph<'_>,
) -> Result<Signature, String> {
    let SignatureDescription { name, kind, inputs, features, outputs, max_rows, num_computed, graph } = description;
    if kind == SignatureKind::Lookup && num_computed > 0 {
        return Err(format!("signature {name:?} is a lookup and has no graph that works out ids"));
    }
    let parts: Vec<usize> = features.iter().flat_map(|f| f.row_splits.into_iter().chain(f.weights)).collect();
    let ids: Vec<usize> = features.iter().map(|f| f.ids).collect();
    let num_inputs = inputs.len();
    let inputs = inputs
        .into_iter()
        .enumerate()
        .map(|(index, input)| {
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
                    _ if parts.contains(&index) => InputRole::SplitsOrWeights,
                    None if !ids.contains(&index) => InputRole::Unread,
                    _ => InputRole::Ids,
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
    let is_remote = features.iter().any(|feature| tables[feature.table].remote.is_some());
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
        max_rows,
        num_computed,
        is_remote,
        strict_shapes: false,
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
    let is_sequence = |part: &usize| matches!(features[*part].lookup, LookupKind::Sequence { .. });
    if one.parts.len() > 1 && !one.is_flat && one.parts.iter().any(is_sequence) {
        return Err(format!("output {:?} joins a sequence row by row", one.name));
    }
    Ok(OutputPlan {
        name: one.name,
        dtype: one.dtype,
        parts: one.parts,
        is_flat: one.is_flat,
        row_bytes: one.row_bytes,
    })
}

fn feature(
    one: FeatureDescription,
    num_inputs: usize,
    num_computed: usize,
    tables: &[TableDescription],
) -> Result<FeaturePlan, String> {
    let parts = [one.row_splits, one.weights];
    // Only a feature without row splits may read ids that the graph computes.
    let num_ids = if one.row_splits.is_some() { num_inputs } else { num_inputs.saturating_add(num_computed) };
    if one.ids >= num_ids || parts.into_iter().flatten().any(|index| index >= num_inputs) {
        return Err(format!("feature {:?} has no such input", one.name));
    }
    let Some(table) = tables.get(one.table) else {
        return Err(format!("feature {:?} has no such table", one.name));
    };
    if table.dtype == Dtype::Float64 || one.default_row >= table.vocabulary_size {
        return Err(format!("feature {:?} does not fit its table", one.name));
    }
    let lookup = match (one.row_splits, one.combiner, one.length) {
        (None, None, 0) => LookupKind::Gather { ids_rank: one.ids_rank },
        (Some(_), None, length) if length > 0 => LookupKind::Sequence { length },
        (Some(_), Some(combiner), 0) => LookupKind::Combine(combine_options(&one, combiner)),
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
        lookup,
        policy: Policy { on_bad_id: one.on_bad_id, default_row: one.default_row },
        needs_ids,
    })
}

fn combine_options(one: &FeatureDescription, combiner: Combiner) -> CombineOptions {
    CombineOptions {
        combiner,
        summation: one.summation,
        at_least_one: one.at_least_one,
        positive_only: one.positive_only,
        max_ids: one.max_ids,
        truncates: one.truncates,
    }
}
