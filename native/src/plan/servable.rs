//! One published version: its tables, its vocabularies and its signatures, compiled for requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::batch::{BatchPlace, GraphResult, QueuedRequest};
use super::declined::Declined;
use super::description::{
    DefaultDescription, Description, FeatureDescription, OnEmptyRow, OtherSignature, OutputPlan, Paging, RaggedNames,
    SignatureDescription, SignatureKind, TableDescription, TrailingEmptyRows, WhyNot,
};
use super::effort::Effort;
use super::faults::{self, Asked, BoxedFault, Names as KnownNames};
use super::inputs::{Data, DataType, Inputs, Strings, Tensor, UnknownKeyCounts};
use super::links::Links;
use super::names::Names;
use super::rows_read::RowsRead;
use super::sparse::Sparse;
use crate::clusters::{Clusters, RemoteTable};
use crate::tables::hot_rows::HotRows;
use crate::tables::labels::Labels;
use crate::tables::map::{Map, Mark};
use crate::tables::memory::Memory;
use crate::tables::paged::{PagedTable, Pager};
use crate::tables::table::{CombineOptions, Combiner, Dtype, Ints, Policy, Table};
use crate::tables::vocabulary::Vocabulary;

/// The kind of data in an input of a signature: data of a feature, or data for the graph only. A request may send int32
/// in place of int64 and the reverse, except for `Unread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRole {
    /// The input feeds the graph only; no feature reads it.
    Unread,
    /// Ids of a feature, or the values of a ragged input.
    Ids,
    /// The input has the row splits or the weights of a feature, or of a ragged input.
    SplitsOrWeights,
}

/// One input of a signature, compiled for requests.
#[derive(Debug)]
pub struct InputPlan {
    pub name: String,
    /// Name of the graph's tensor, which error texts have.
    pub tensor_name: String,
    pub dtype: DataType,
    /// Sizes of the input's dimensions; None for an unknown rank, or in place of one unknown size.
    pub shape: Option<Vec<Option<usize>>>,
    pub is_optional: bool,
    /// The tensor that a graph is fed if a request leaves out the input.
    pub default: Option<Tensor<'static>>,
    /// The kind of data in the input: ids, row splits or weights of a feature, or data that no feature reads.
    pub role: InputRole,
    /// Index of the vocabulary that maps keys to ids; None if the input has no vocabulary.
    pub vocabulary: Option<usize>,
    /// Whether clients send only keys, never ids, as the values of this input.
    pub takes_keys: bool,
    /// Whether clients may send strings as the values of this input.
    pub takes_strings: bool,
    /// Lower bound, inclusive, and upper bound, exclusive, of the ids of a predict: the core refuses other ids before it
    /// runs the graph.
    pub bounds: (i64, i64),
    /// Number of rows of the table to which the input's ids belong; None if no table is known.
    pub vocabulary_size: Option<i64>,
}

impl RaggedNames {
    /// Returns the name of the input with the feature's ids.
    #[must_use]
    pub fn values<'s>(&self, signature: &'s Signature) -> &'s str {
        &signature.inputs[self.values].name
    }

    /// Returns the name of the input with the feature's row splits.
    #[must_use]
    pub fn row_splits<'s>(&self, signature: &'s Signature) -> &'s str {
        &signature.inputs[self.row_splits].name
    }

    /// Says whether the inputs have the feature's name with the usual suffixes.
    #[must_use]
    pub fn has_suffixes(&self, signature: &Signature) -> bool {
        let is = |name: &str, suffix: &str| name.strip_prefix(self.feature.as_str()) == Some(suffix);
        is(self.values(signature), "__values")
            && is(self.row_splits(signature), "__row_splits")
            && is(&self.weights, "__weights")
    }
}

/// The inputs of a signature that together are one ragged tensor: those of a feature with row splits, or those that a
/// graph is fed.
#[derive(Debug)]
pub struct Ragged {
    /// Name of the tensor in JSON requests, which have nested lists for it.
    pub name: String,
    pub values: usize,
    pub row_splits: usize,
    /// Index of the input with a weight for each value; None if the tensor takes no weights.
    pub weights: Option<usize>,
    /// Whether the graph is fed a sparse matrix, which has as many columns as the longest row has values.
    pub is_sparse: bool,
}

/// The way in which table rows become the vectors of a feature.
#[derive(Clone, Copy, Debug)]
pub enum LookupKind {
    /// No combiner: each id of the feature gives one vector, its row of the table.
    Gather,
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
    pub weights: Option<usize>,
    pub table: usize,
    /// The way in which table rows become the feature's vectors.
    pub lookup: LookupKind,
    pub policy: Policy,
    /// Index of the vocabulary that maps the keys in the feature's input to ids, although the graph may be fed the keys;
    /// None: the input has ids, or its own vocabulary gives them.
    pub vocabulary: Option<usize>,
    /// V, the number of rows of the table, wherever its rows lie.
    pub vocabulary_size: usize,
    pub table_dtype: Dtype,
    /// Dtype of the feature's vectors: float32, or the table's, whose rows are then copied as they are stored.
    pub dtype: DataType,
    /// The largest norm of a row: a longer row is scaled down to this norm before it is weighted and combined.
    pub max_norm: Option<f32>,
    /// Whether a request's rows are copied to a small float32 table, because no kernel reads them as they are.
    pub copies_rows: bool,
    /// The vector of an empty row.
    pub on_empty_row: OnEmptyRow,
    /// Whether the vectors of empty rows at the end of a request are left out.
    pub cuts_empty_rows: bool,
}

impl FeaturePlan {
    /// Returns the row that empty rows read; None if they read none.
    #[must_use]
    pub fn default_row_if_read(&self) -> Option<usize> {
        (self.on_empty_row == OnEmptyRow::DefaultRow).then_some(self.policy.default_row)
    }
}

/// A request that has passed [`super::Work::prepare`], for a graph: names, dtypes, ranks, row splits and ids fit the
/// signature, and each required input is there.
#[derive(Clone, Copy)]
pub struct GraphRequest<'a, 'r> {
    pub servable: &'a Arc<Servable>,
    pub signature: usize,
    pub inputs: &'a Inputs<'r>,
    /// Indexes of the wanted outputs, each once.
    pub wanted: &'a [usize],
}

impl<'a> GraphRequest<'a, '_> {
    #[must_use]
    pub fn plan(&self) -> &'a Signature {
        &self.servable.signatures()[self.signature]
    }
}

/// The graph of one predict signature. Concurrency: any thread.
pub trait Graph: Send + Sync + std::fmt::Debug {
    /// Looks up the vectors that the graph gets as inputs, runs the graph, and returns the wanted outputs, and what the
    /// client is told beside the answer.
    ///
    /// # Errors
    /// [`Declined::Fault`]: rows could not be read from a cluster in time, or the graph failed. Others as
    /// [`super::Work::prepare`].
    fn run(&self, request: GraphRequest<'_, '_>, effort: Effort<'_>) -> GraphResult;

    /// Says whether the graph is open: if not, the first run opens it, which takes seconds.
    fn is_open(&self) -> bool {
        true
    }

    /// Says whether requests for the graph wait in a queue to share runs.
    fn is_batched(&self) -> bool {
        false
    }

    /// Leaves a request in the graph's batch queue, with the rows that it has read from clusters. None: the request must
    /// run by itself.
    ///
    /// # Errors
    /// The request does not fit into a batch, or too many batches wait.
    fn queue(
        &self,
        _request: GraphRequest<'_, '_>,
        _rows: RowsRead,
        _deadline: Option<Instant>,
    ) -> Result<Option<QueuedRequest>, BoxedFault> {
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
    pub name: String,
    pub kind: SignatureKind,
    pub inputs: Vec<InputPlan>,
    pub features: Vec<FeaturePlan>,
    pub outputs: Vec<OutputPlan>,
    /// Ragged features of the signature by their names in JSON.
    pub ragged_names: Vec<RaggedNames>,
    /// Ragged tensors of the signature. Two of them may share inputs.
    pub ragged: Vec<Ragged>,
    /// Maximal number of rows in a request for this signature; None for no limit.
    pub max_rows: Option<usize>,
    /// Number of id tensors that the graph computes; their indexes follow those of the inputs.
    pub num_computed: usize,
    /// Whether a feature of the signature reads a table whose rows lie in a Valkey or Redis cluster.
    pub is_remote: bool,
    /// Whether a tensor of another shape than its input's is declined, although no feature reads the input.
    pub strict_shapes: bool,
    /// The text form of its `SignatureDef`, for error texts of Classify and Regress; "" if no such text has it.
    pub definition: String,
    /// The graph of a predict; None for a lookup.
    pub graph: Option<Box<dyn Graph>>,
    input_names: Names,
    output_names: Names,
    /// Map from the name of each feature with row splits to the feature's index.
    ragged_by_name: Names,
    links: SignatureLinks,
}

impl Signature {
    /// Returns the name under which clients know an input with ids or keys: that of its feature, if it has one.
    #[must_use]
    pub fn name_of_values(&self, input: usize) -> &str {
        let ragged = self.ragged_names_of(input).find(|names| names.values == input);
        ragged.map_or(&self.inputs[input].name, |names| &names.feature)
    }

    /// Checks that a thread with this limit on work may run the signature. The handlers of wire formats (forms) call
    /// this before they parse the inputs.
    ///
    /// # Errors
    /// [`Declined::TooLarge`]: the signature runs a graph, and the effort is [`Effort::Small`]; [`Declined::Batches`] if
    /// its graph is batched. [`Declined::Waits`]: the graph is fed rows of a table in a cluster, or is not open yet, and
    /// the effort is not [`Effort::Wait`].
    #[inline]
    pub fn check_effort(&self, effort: Effort<'_>) -> Result<(), Declined> {
        // A request that ran in a batch needs only its answer written.
        let has_ran = effort.batch().is_some_and(BatchPlace::has_ran);
        let is_closed = self.graph.as_ref().is_some_and(|graph| !graph.is_open());
        match effort {
            _ if self.graph.is_none() || has_ran => Ok(()),
            Effort::Small | Effort::Any | Effort::Queue(_) if self.is_remote || is_closed => Err(Declined::Waits),
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

    /// Returns the index of a ragged tensor by its one name in JSON requests, where nested lists take the place of values
    /// and row splits.
    #[must_use]
    pub fn ragged_index(&self, name: &[u8]) -> Option<usize> {
        self.ragged_by_name.index(name)
    }

    /// Says whether an input has the values, the row splits or the weights of a ragged tensor.
    #[must_use]
    pub fn is_ragged_part(&self, input: usize) -> bool {
        !self.links.ragged_by_part.of(input).is_empty()
    }

    /// Returns the last feature that reads an input, or an id tensor that the graph computes; None if no feature does.
    #[must_use]
    #[inline]
    pub(super) fn last_reader(&self, input: usize) -> Option<usize> {
        self.links.last_readers.get(input).copied().flatten()
    }

    /// Returns the tensor of an input in a request, or else the input's default; None if it has none.
    #[must_use]
    pub fn sent_or_default<'t>(&'t self, inputs: &'t Inputs<'_>, input: usize) -> Option<&'t Tensor<'t>> {
        inputs.get(input).or_else(|| self.inputs.get(input)?.default.as_ref())
    }

    /// Says whether a request has all inputs that it may not leave out.
    #[must_use]
    pub fn has_required(&self, inputs: &Inputs<'_>) -> bool {
        self.links.required.iter().all(|&index| inputs.has(index))
    }

    /// Returns the features whose ids these inputs are, or these id tensors that the graph computes. Like the next three, it
    /// may return others too, of which the request has nothing.
    pub(super) fn features_of<T>(&self, ids: &Sparse<T>) -> impl Iterator<Item = usize> + use<T> {
        self.links.features_by_ids.of_values(ids)
    }

    /// Returns the outputs whose first parts are these features.
    pub(super) fn outputs_of<T>(&self, first_parts: &Sparse<T>) -> impl Iterator<Item = usize> + use<T> {
        self.links.outputs_by_part.of_values(first_parts)
    }

    /// Returns the ragged tensors of which these inputs are parts.
    pub(super) fn ragged_of_values<T>(&self, parts: &Sparse<T>) -> impl Iterator<Item = &Ragged> {
        self.links.ragged_by_part.of_values(parts).map(|index| &self.ragged[index])
    }

    /// Returns the ragged names of whose inputs these are some.
    pub(super) fn ragged_names_of_values<T>(&self, parts: &Sparse<T>) -> impl Iterator<Item = &RaggedNames> {
        self.links.names_by_part.of_values(parts).map(|index| &self.ragged_names[index])
    }

    /// Returns the ragged tensors of which an input is a part.
    pub fn ragged_of(&self, part: usize) -> impl Iterator<Item = &Ragged> {
        self.links.ragged_by_part.of(part).iter().map(|&index| &self.ragged[index])
    }

    fn ragged_names_of(&self, part: usize) -> impl Iterator<Item = &RaggedNames> {
        self.links.names_by_part.of(part).iter().map(|&index| &self.ragged_names[index])
    }

    /// Returns the names of the ragged feature with this name in JSON requests.
    #[must_use]
    pub fn ragged(&self, name: &str) -> Option<&RaggedNames> {
        self.ragged_names.iter().rfind(|names| names.feature == name)
    }

    /// Returns the ragged feature of which an input is the ids, the row splits or the weights.
    #[must_use]
    pub fn ragged_owner(&self, input: usize) -> Option<&RaggedNames> {
        self.ragged_names_of(input).next()
    }

    /// Returns the name that errors have for an input: the feature's for its ids if their name is made of it, for the
    /// request's user may never have typed that name.
    #[must_use]
    pub fn told_name(&self, input: usize) -> &str {
        let name = self.inputs.get(input).map_or("", |input| &*input.name);
        let owner = self.ragged_names_of(input).find(|one| one.values == input);
        owner.filter(|one| name.strip_prefix(&*one.feature) == Some("__values")).map_or(name, |one| &*one.feature)
    }

    /// Returns the names that a JSON request may have: ragged features, and inputs that belong to none.
    pub fn json_names(&self) -> impl Iterator<Item = &str> {
        let ragged = self.ragged_names.iter().map(|names| &*names.feature);
        let inputs = self.inputs.iter().enumerate().filter(|(index, _)| self.ragged_owner(*index).is_none());
        ragged.chain(inputs.map(|(_, input)| &*input.name))
    }

    /// Says whether the signature has what TensorFlow Serving lacks: it is a lookup, or has ragged features,
    /// vocabularies or inputs with a known table.
    #[must_use]
    pub fn is_described(&self) -> bool {
        let has_table = |input: &InputPlan| input.vocabulary.is_some() || input.vocabulary_size.is_some();
        self.kind == SignatureKind::Lookup || !self.ragged_names.is_empty() || self.inputs.iter().any(has_table)
    }

    /// Returns the indexes of the outputs that a request names.
    ///
    /// # Errors
    /// The signature has no such output, or the request names one twice.
    pub fn output_indexes<'n>(
        &self,
        names: &(impl Iterator<Item = &'n str> + Clone),
    ) -> Result<SmallVec<[usize; 8]>, BoxedFault> {
        let mut indexes = SmallVec::new();
        for name in names.clone() {
            let Some(index) = self.output(name.as_bytes()) else {
                let mut known: Vec<&str> = self.outputs.iter().map(|output| &*output.name).collect();
                known.sort_unstable();
                return Err(faults::unknown_output(name, &known.join(",")));
            };
            if names.clone().filter(|other| *other == name).nth(1).is_some() {
                return Err(faults::output_twice(name));
            }
            indexes.push(index);
        }
        Ok(indexes)
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

/// The memory that a version's description names, and its files.
#[derive(Debug, Default)]
pub struct VersionMemory {
    /// Rows and scales of tables, arrays of vocabularies.
    pub buffers: Vec<Memory>,
    /// The maps in which the mapped tables lie.
    pub maps: Vec<Arc<Map>>,
    /// The mark of the version's files.
    pub mark: Arc<Mark>,
}

impl VersionMemory {
    /// Returns a buffer, or no bytes for None.
    fn buffer(&self, index: Option<usize>) -> Result<Memory, String> {
        let Some(index) = index else { return Ok(Memory::default()) };
        self.buffers.get(index).cloned().ok_or_else(|| format!("there is no buffer {index}"))
    }
}

/// The parts of a version that stay the same when an update replaces its rows: everything but the tables' addresses.
#[derive(Debug)]
pub struct SharedParts {
    pub model: String,
    pub version: i64,
    pub signatures: Vec<Signature>,
    pub tables: Vec<TableDescription>,
    pub vocabularies: Vec<Vocabulary>,
    /// The labels of each table's rows; None for a table without labels.
    labels: Vec<Option<Labels>>,
    /// Counts of the ids that lookups had, by signature and feature.
    pub counts: Vec<Vec<Counts>>,
    /// For each vocabulary, the number of keys in requests that the vocabulary lacked so far. A key counts once for its
    /// input, even if several features read the input.
    pub unknown_keys: Vec<AtomicU64>,
    /// The hot rows of each table; empty if ids are not sampled.
    pub hot_rows: Vec<HotRows>,
    mark: Arc<Mark>,
    maps: Vec<Arc<Map>>,
    other_signatures: Vec<OtherSignature>,
    has_serving_default: bool,
}

/// One published version of a model. Each request that uses it holds an `Arc`; the tables' memory is freed after the last
/// `Arc` is dropped.
#[derive(Debug)]
pub struct Servable {
    /// The pages of each table whose pages a pager reads; empty if no table is.
    paged_tables: Arc<[Option<Arc<PagedTable>>]>,
    pager: Option<Arc<Pager>>,
    shared: Arc<SharedParts>,
    tables: Vec<Table>,
    /// For each table, the object that reads its rows from a Valkey or Redis cluster; None for a mapped table. Empty if
    /// all tables are mapped.
    remote_tables: Arc<[Option<Arc<RemoteTable>>]>,
}

impl Servable {
    /// Compiles the description of a model version, whose buffers are in `memory`.
    ///
    /// # Errors
    /// A sentence that names the part of the description that contradicts another part, or a buffer.
    pub fn compile(
        description: Description,
        memory: VersionMemory,
        open_graph: &OpenGraph<'_>,
    ) -> Result<Self, String> {
        let Description {
            model,
            version,
            tables,
            vocabularies,
            signatures,
            mut other_signatures,
            has_serving_default,
            has_hot_rows,
            strict_shapes,
        } = description;
        let mut compiled = Vec::with_capacity(signatures.len());
        for one in signatures {
            let (name, definition) = (one.name.clone(), one.definition.clone());
            match signature(one, &tables, vocabularies.len(), &memory, open_graph) {
                Ok(signature) => compiled.push(Signature { strict_shapes, definition, ..signature }),
                Err(Unfit::Description(problem)) => return Err(problem),
                // The version's other signatures are served.
                Err(Unfit::Graph(reason)) => {
                    other_signatures.push(OtherSignature { name, why: WhyNot::CanNotRun, reason });
                }
            }
        }
        let signatures = compiled;
        let vocabularies = vocabularies.into_iter().enumerate().map(|(index, v)| {
            let (data, keys, slots) = (memory.buffer(v.data)?, memory.buffer(v.keys)?, memory.buffer(v.slots)?);
            Vocabulary::new(v.has_strings, data, keys, slots, v.rows)
                .map_err(|part| format!("the {part} of vocabulary {index} do not fit its other arrays"))
        });
        let vocabularies = vocabularies.collect::<Result<Vec<_>, String>>()?;
        let labels = tables.iter().map(|one| {
            let Some(named) = one.labels else { return Ok(None) };
            let (text, starts) = (memory.buffer(named.text)?, memory.buffer(named.starts)?);
            let labels = Labels::new(text, starts, named.first_row);
            labels.map(Some).map_err(|part| format!("the {part} of the labels of table {:?} are wrong", one.name))
        });
        let labels = labels.collect::<Result<Vec<_>, String>>()?;
        let counts = signatures.iter().map(|s| s.features.iter().map(|_| Counts::default()).collect()).collect();
        let unknown_keys = vocabularies.iter().map(|_| AtomicU64::new(0)).collect();
        let sampled = tables.iter().filter(|_| has_hot_rows);
        let hot_rows = sampled.map(|table| HotRows::new(table.vocabulary_size)).collect();
        let mapped = tables.iter().map(|one| table(one, &memory.buffer(one.rows)?, &memory.buffer(one.scales)?));
        let mapped = mapped.collect::<Result<Vec<_>, String>>()?;
        let has_serving_default = has_serving_default || signatures.iter().any(|one| one.name == "serving_default");
        let shared = SharedParts {
            model,
            version,
            signatures,
            tables,
            vocabularies,
            labels,
            counts,
            unknown_keys,
            hot_rows,
            mark: memory.mark,
            maps: memory.maps,
            other_signatures,
            has_serving_default,
        };
        Ok(Servable {
            paged_tables: Arc::default(),
            pager: None,
            shared: Arc::new(shared),
            tables: mapped,
            remote_tables: Arc::default(),
        })
    }

    /// Returns a copy of the servable that reads other tables of the same shapes, given by the rows and scales of each.
    /// Both servables add to the same counts of ids.
    ///
    /// # Errors
    /// A sentence that names the table that does not fit.
    pub fn on_tables(&self, memory: Vec<(Memory, Memory)>) -> Result<Self, String> {
        if memory.len() != self.tables.len() {
            return Err(format!("expected rows and scales of {} tables", self.tables.len()));
        }
        let pairs = self.shared.tables.iter().zip(memory);
        let tables = pairs.map(|(one, (rows, scales))| table(one, &rows, &scales)).collect::<Result<Vec<_>, _>>()?;
        let remote_tables = Arc::clone(&self.remote_tables);
        // A changed table lies in a private map of the same file, so a page that the pager has read is in memory for both.
        let (paged_tables, pager) = (Arc::clone(&self.paged_tables), self.pager.clone());
        let shared = Arc::clone(&self.shared);
        Ok(Servable { paged_tables, pager, shared, tables, remote_tables })
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

    /// Lets a pager read the pages of the tables that their description names.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn with_pager(self, pager: &Arc<Pager>) -> io::Result<Self> {
        if self.shared.tables.iter().all(|table| table.paging == Paging::Off) {
            return Ok(self);
        }
        let open = |(description, table): (&TableDescription, &Table)| {
            let is_paged = description.paging != Paging::Off && description.remote.is_none();
            let is_warmed = description.paging == Paging::Fits;
            if !is_paged {
                return Ok(None);
            }
            Ok(pager.open(table, &self.shared.maps, is_warmed)?.map(Arc::new))
        };
        let paged_tables = self.shared.tables.iter().zip(&self.tables).map(open).collect::<io::Result<_>>()?;
        Ok(Servable { paged_tables, pager: Some(Arc::clone(pager)), ..self })
    }

    /// Says whether rows of the version may not be in memory.
    #[must_use]
    #[inline]
    pub fn may_miss_pages(&self) -> bool {
        self.pager.as_ref().is_some_and(|pager| pager.has_missing_pages())
    }

    /// Returns the object that reads the pages of a table; None for a table whose pages no pager reads.
    #[must_use]
    pub fn paged_table(&self, table: usize) -> Option<&PagedTable> {
        self.paged_tables.get(table)?.as_deref()
    }

    /// Opens the version's tables that lie in Valkey or Redis clusters. Before this call, these tables have no rows.
    ///
    /// # Errors
    /// A sentence: the version has such tables, and there are no clusters.
    pub fn with_clusters(self, clusters: Option<&Clusters>) -> Result<Self, String> {
        let SharedParts { model, version, tables, .. } = &*self.shared;
        let Some(remote) = tables.iter().find(|table| table.remote.is_some()) else { return Ok(self) };
        let Some(clusters) = clusters else {
            return Err(format!("table {:?} lies in a cluster, and there are no clusters", remote.name));
        };
        let open = |table: &TableDescription| {
            let remote = table.remote.as_ref()?;
            Some(clusters.open(model, *version, &table.name, table.vocabulary_size, remote))
        };
        let remote_tables = tables.iter().map(open).collect();
        Ok(Servable { remote_tables, ..self })
    }

    /// Returns the object that reads a table's rows from a Valkey or Redis cluster, and V, its number of rows; None for
    /// a mapped table.
    #[must_use]
    pub fn remote_table(&self, table: usize) -> Option<(&RemoteTable, usize)> {
        let remote = self.remote_tables.get(table)?.as_deref()?;
        Some((remote, self.shared.tables[table].vocabulary_size))
    }

    #[must_use]
    pub fn model(&self) -> &str {
        &self.shared.model
    }

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

    /// Returns the labels under which a request for the signature with this index counts.
    #[must_use]
    pub fn subject(&self, signature: usize) -> faults::Subject {
        let name = self.signatures().get(signature).map_or_else(String::new, |signature| signature.name.clone());
        faults::Subject { model: self.model().to_owned(), version: Some(self.version()), signature: name }
    }

    /// Returns the index of a signature, by the rules of [`Servable::signature`]. `is_latest`: the request names no version.
    ///
    /// # Errors
    /// The version has no such signature, or no request can run it; `asked` chooses the text, see
    /// [`faults::unknown_signature`].
    pub fn find_signature(
        &self,
        name: &str,
        fallback: &str,
        asked: Asked,
        is_latest: bool,
    ) -> Result<usize, BoxedFault> {
        if let Some(index) = self.signature(name, fallback) {
            return Ok(index);
        }
        let other = |wanted: &str| self.shared.other_signatures.iter().find(|other| other.name == wanted);
        let found = if name.is_empty() { other("serving_default").or_else(|| other(fallback)) } else { other(name) };
        let Some(found) = found else {
            let own = self.shared.signatures.iter().map(|signature| &*signature.name);
            let others = self.shared.other_signatures.iter().filter(|other| other.why != WhyNot::Initializes);
            let known = own.chain(others.map(|other| &*other.name));
            return Err(faults::unknown_signature(name, known, asked).of_model(self.model()));
        };
        let run = self.shared.signatures.iter().map(|signature| &signature.name);
        let runnable = || match KnownNames::sorted(run) {
            names if names.is_empty() => KnownNames::sorted(["none"]),
            names => names,
        };
        let fault = match found.why {
            WhyNot::Initializes => faults::init_signature(&found.name),
            WhyNot::NoTensorflow => faults::no_tensorflow(&found.name, &found.reason, runnable()),
            WhyNot::CanNotRun => faults::signature_not_run(&found.name, &found.reason, runnable()),
            WhyNot::Loading if is_latest => faults::only_lookups(self.model(), self.version()),
            // While the version is LOADING, only its lookups are there.
            WhyNot::Loading => {
                return Err(faults::unknown_version(self.model(), self.version(), "").of_model(self.model()));
            }
        };
        let subject = faults::Subject {
            model: self.model().to_owned(),
            version: Some(self.version()),
            signature: found.name.clone(),
        };
        Err(fault.at(subject))
    }

    /// Says whether the version has a signature of this name, even if no request can run it.
    #[must_use]
    pub fn has_signature(&self, name: &str) -> bool {
        let others = &self.shared.other_signatures;
        self.signature(name, "").is_some() || others.iter().any(|other| other.name == name)
    }

    /// Returns the signatures that the core can not run, with the reasons.
    #[must_use]
    pub fn other_signatures(&self) -> &[OtherSignature] {
        &self.shared.other_signatures
    }

    /// Returns the index of the table with this name.
    ///
    /// # Errors
    /// The version has no such table.
    pub fn find_table(&self, name: &str) -> Result<usize, BoxedFault> {
        if let Some(index) = self.table(name) {
            return Ok(index);
        }
        let mut known = KnownNames::sorted(self.shared.tables.iter().map(|table| &table.name));
        if known.is_empty() {
            known = KnownNames::sorted(["none"]);
        }
        Err(faults::unknown_table(self.model(), name, known))
    }

    /// Says whether a table's rows lie in a Valkey or Redis cluster.
    #[must_use]
    pub fn is_remote(&self, table: usize) -> bool {
        self.shared.tables[table].remote.is_some()
    }

    /// Returns V, the number of rows of a table, wherever its rows lie.
    #[must_use]
    pub fn vocabulary_size(&self, table: usize) -> usize {
        self.shared.tables[table].vocabulary_size
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

    /// Returns the labels of a table's rows; None for a table without labels.
    #[must_use]
    pub fn labels(&self, table: usize) -> Option<&Labels> {
        self.shared.labels[table].as_ref()
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

    pub fn forget_counts(&self) {
        let counts = self.counts().iter().flatten().flat_map(|one| [&one.ids, &one.missing]);
        counts.chain(self.unknown_keys()).for_each(|count| count.store(0, Ordering::Relaxed));
        self.hot_rows().iter().for_each(HotRows::clear);
    }

    /// Returns for each vocabulary the number of keys in requests that the vocabulary lacked so far.
    #[must_use]
    pub fn unknown_keys(&self) -> &[AtomicU64] {
        &self.shared.unknown_keys
    }

    /// Adds the unknown keys of a request to the counts of the vocabularies.
    pub(super) fn count_unknown_keys(&self, found: &UnknownKeyCounts) {
        for one in found {
            self.unknown_keys()[one.vocabulary].fetch_add(one.count as u64, Ordering::Relaxed);
        }
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

    /// Returns the error for a request whose answer was read from a damaged file.
    #[must_use]
    #[cold]
    pub fn damaged(&self) -> BoxedFault {
        faults::damaged(self.model(), self.version()).of_model(self.model())
    }

    /// Says whether a mapped file of the servable is damaged. Call this after the last read of a row.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.shared.mark.is_set()
    }
}

/// Why a signature can not be compiled.
enum Unfit {
    /// Its description contradicts another part of the version's.
    Description(String),
    /// Its graph can not be opened.
    Graph(String),
}

impl From<String> for Unfit {
    fn from(problem: String) -> Self {
        Unfit::Description(problem)
    }
}

fn table(description: &TableDescription, rows: &Memory, scales: &Memory) -> Result<Table, String> {
    let TableDescription { dtype, embedding_dim, .. } = *description;
    // No row of a remote table is in memory, so a kernel must refuse every id.
    let vocabulary_size = if description.remote.is_some() { 0 } else { description.vocabulary_size };
    let table = Table::new(dtype, vocabulary_size, embedding_dim, rows, scales)
        .map_err(|_| format!("the buffers of table {:?} do not hold its rows", description.name))?;
    if description.remote.as_ref().is_some_and(|remote| remote.row_bytes != table.row_bytes()) {
        return Err(format!("the rows of table {:?} have another size in the cluster", description.name));
    }
    Ok(table)
}

fn signature(
    description: SignatureDescription,
    tables: &[TableDescription],
    num_vocabularies: usize,
    memory: &VersionMemory,
    open_graph: &OpenGraph<'_>,
) -> Result<Signature, Unfit> {
    let SignatureDescription {
        name, kind, inputs, features, outputs, ragged_names, max_rows, num_computed, graph, ..
    } = description;
    if kind == SignatureKind::Lookup && num_computed > 0 {
        return Err(format!("signature {name:?} is a lookup and has no graph that works out ids").into());
    }
    let num_inputs = inputs.len();
    if ragged_names.iter().any(|one| one.values >= num_inputs || one.row_splits >= num_inputs) {
        return Err(format!("signature {name:?} has a ragged feature without its inputs").into());
    }
    let mut parts: Vec<usize> = features.iter().flat_map(|f| f.row_splits.into_iter().chain(f.weights)).collect();
    let mut ids: Vec<usize> = features.iter().map(|f| f.ids).collect();
    for one in &ragged_names {
        ids.push(one.values);
        parts.push(one.row_splits);
        parts.extend(inputs.iter().position(|input| input.name == one.weights));
    }
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
                tensor_name: input.tensor_name,
                dtype: input.dtype,
                shape: input.shape,
                is_optional: input.is_optional,
                default: input.default.map(|default| default_tensor(default, memory)).transpose()?,
                role: match input.vocabulary_size {
                    _ if parts.contains(&index) => InputRole::SplitsOrWeights,
                    None if !ids.contains(&index) => InputRole::Unread,
                    _ => InputRole::Ids,
                },
                vocabulary: input.vocabulary,
                takes_keys: input.takes_keys,
                takes_strings: input.takes_strings,
                bounds,
                vocabulary_size: input.vocabulary_size.and_then(|size| i64::try_from(size).ok()),
            })
        })
        .collect::<Result<Vec<_>, String>>()?;
    if let Some(one) = features.iter().find(|one| one.vocabulary.is_some_and(|index| index >= num_vocabularies)) {
        return Err(format!("feature {:?} has no such vocabulary", one.name).into());
    }
    let features: Vec<FeaturePlan> =
        features.into_iter().map(|f| feature(f, num_inputs, num_computed, tables)).collect::<Result<Vec<_>, _>>()?;
    outputs.iter().try_for_each(|one| check_output(one, kind, &features))?;
    let graph = match (kind, graph) {
        (SignatureKind::Predict, Some(graph)) => Some(open_graph(&graph).map_err(Unfit::Graph)?),
        (SignatureKind::Lookup, None) => None,
        _ => {
            return Err(format!("signature {name:?} is a predict without a graph, or a lookup with one").into());
        }
    };
    let is_remote = features.iter().any(|feature| tables[feature.table].remote.is_some());
    let input_names = Names::new(inputs.iter().enumerate().map(|(i, input)| (input.name.as_str(), i)));
    let output_names = Names::new(outputs.iter().enumerate().map(|(o, output)| (output.name.as_str(), o)));
    let linked = |one: RaggedNames| RaggedNames { weights_input: input_names.index(one.weights.as_bytes()), ..one };
    let ragged_names: Vec<RaggedNames> = ragged_names.into_iter().map(linked).collect();
    let ragged = ragged_tensors(&features, &ragged_names, &inputs);
    // A feature whose ids and row splits have no common name in JSON has the name of its ids, and is sent as two inputs.
    let is_named = |one: &Ragged| {
        inputs.get(one.values).is_none_or(|ids| ids.name != one.name)
            || ragged_names.iter().any(|known| known.feature == one.name)
    };
    let named = ragged.iter().enumerate().filter(|(_, one)| is_named(one));
    let ragged_by_name = Names::new(named.map(|(index, one)| (one.name.as_str(), index)));
    let links = SignatureLinks::new(&inputs, num_computed, &features, &outputs, &ragged, &ragged_names);
    Ok(Signature {
        name,
        kind,
        inputs,
        features,
        outputs,
        ragged_names,
        ragged,
        max_rows,
        num_computed,
        is_remote,
        strict_shapes: false,
        definition: String::new(),
        graph,
        input_names,
        output_names,
        ragged_by_name,
        links,
    })
}

/// The indexes that belong together in one signature.
#[derive(Debug)]
struct SignatureLinks {
    /// The inputs that a request may not leave out.
    required: Vec<usize>,
    /// For each input, and after these for each id tensor that the graph computes, the last feature that reads it.
    last_readers: Vec<Option<usize>>,
    /// For each input, and after these for each id tensor that the graph computes, the features that read its ids.
    features_by_ids: Links,
    /// For each feature, the outputs whose first part it is.
    outputs_by_part: Links,
    /// For each input, the ragged tensors of which it has the values, the row splits or the weights.
    ragged_by_part: Links,
    /// For each input, the ragged names of which it has the ids, the row splits or the weights.
    names_by_part: Links,
}

impl SignatureLinks {
    /// Links the parts of a signature whose graph computes `num_computed` id tensors.
    fn new(
        inputs: &[InputPlan],
        num_computed: usize,
        features: &[FeaturePlan],
        outputs: &[OutputPlan],
        ragged: &[Ragged],
        names: &[RaggedNames],
    ) -> Self {
        let num_tensors = inputs.len() + num_computed;
        let mut last_readers = vec![None; num_tensors];
        for (number, feature) in features.iter().enumerate() {
            for read in [Some(feature.ids), feature.row_splits, feature.weights].into_iter().flatten() {
                last_readers.get_mut(read).into_iter().for_each(|last| *last = Some(number));
            }
        }
        let by_part = |parts: Vec<[Option<usize>; 3]>| {
            let num_parted = parts.len();
            let pairs = parts.into_iter().enumerate();
            let pairs = pairs.flat_map(|(number, parts)| parts.into_iter().flatten().map(move |part| (part, number)));
            Links::new(inputs.len(), num_parted, pairs)
        };
        let required = inputs.iter().enumerate().filter(|(_, input)| !input.is_optional);
        let ids = features.iter().map(|feature| feature.ids).enumerate();
        let first_parts = outputs.iter().enumerate().filter_map(|(number, one)| Some((*one.parts.first()?, number)));
        let of_names = names.iter().map(|one| [Some(one.values), Some(one.row_splits), one.weights_input]);
        SignatureLinks {
            required: required.map(|(index, _)| index).collect(),
            last_readers,
            features_by_ids: Links::new(num_tensors, features.len(), ids.map(|(number, ids)| (ids, number))),
            outputs_by_part: Links::new(features.len(), outputs.len(), first_parts),
            ragged_by_part: by_part(ragged.iter().map(|r| [Some(r.values), Some(r.row_splits), r.weights]).collect()),
            names_by_part: by_part(of_names.collect()),
        }
    }
}

fn ragged_tensors(features: &[FeaturePlan], names: &[RaggedNames], inputs: &[InputPlan]) -> Vec<Ragged> {
    let of_features = features.iter().filter_map(|one| Some((&one.name, one.ids, one.row_splits?, one.weights)));
    let of_names = names.iter().map(|one| (&one.feature, one.values, one.row_splits, one.weights_input));
    let mut found: Vec<Ragged> = Vec::new();
    for (name, values, row_splits, weights) in of_features.chain(of_names) {
        let is_same = |one: &&mut Ragged| (&one.name, one.values, one.row_splits) == (name, values, row_splits);
        if let Some(known) = found.iter_mut().find(is_same) {
            known.weights = known.weights.or(weights);
            continue;
        }
        // The graph has no tensor of row splits: service/graph/sparse.py describes a sparse input so.
        let is_sparse = inputs.get(row_splits).is_some_and(|input| input.tensor_name.is_empty());
        found.push(Ragged { name: name.clone(), values, row_splits, weights, is_sparse });
    }
    found
}

fn default_tensor(one: DefaultDescription, memory: &VersionMemory) -> Result<Tensor<'static>, String> {
    let DefaultDescription { dtype, shape, data, lengths } = one;
    let bytes = memory.buffer(data)?;
    let bytes = bytes.as_bytes();
    let unfit = || "the default of an input has not as many elements as its shape says".to_owned();
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size)).ok_or_else(unfit)?;
    let data = if dtype == DataType::String {
        let mut rest = bytes;
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (part, behind) = rest.split_at_checked(length).ok_or_else(unfit)?;
            parts.push(part.to_vec().into());
            rest = behind;
        }
        if parts.len() != count {
            return Err(unfit());
        }
        Data::Strings(Strings { parts })
    } else {
        if count.checked_mul(dtype.size()) != Some(bytes.len()) {
            return Err(unfit());
        }
        Data::Bytes(bytes.to_vec())
    };
    Ok(Tensor { dtype, dims: shape.into_iter().collect(), data })
}

fn check_output(one: &OutputPlan, kind: SignatureKind, features: &[FeaturePlan]) -> Result<(), String> {
    if one.parts.iter().any(|&part| part >= features.len()) {
        return Err(format!("output {:?} has no such feature", one.name));
    }
    if kind == SignatureKind::Lookup
        && (one.parts.is_empty() || one.parts.iter().any(|&part| features[part].dtype != one.dtype))
    {
        return Err(format!("output {:?} has another dtype than its features, or no features", one.name));
    }
    Ok(())
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
    let dtype = one.dtype;
    let has_stored = match table.dtype {
        Dtype::Float16 => dtype == DataType::Float16,
        Dtype::Bfloat16 => dtype == DataType::Bfloat16,
        Dtype::Float64 => dtype == DataType::Float64,
        Dtype::Float32 | Dtype::Int8 | Dtype::Int4 => false,
    };
    let is_stored = has_stored && one.combiner.is_none() && one.max_norm.is_none();
    if one.default_row >= table.vocabulary_size {
        return Err(format!("feature {:?} has a default row outside of its table", one.name));
    }
    if dtype != DataType::Float32 && !is_stored {
        return Err(format!("feature {:?} does not fit its table", one.name));
    }
    let cuts_empty_rows = one.trailing_empty_rows == TrailingEmptyRows::Cut;
    if one.combiner.is_none() && (one.on_empty_row != OnEmptyRow::Zeros || cuts_empty_rows) {
        return Err(format!("feature {:?} combines nothing, but treats empty rows apart", one.name));
    }
    let lookup = match (one.row_splits, one.combiner, one.length) {
        (None, None, 0) => LookupKind::Gather,
        (Some(_), None, length) if length > 0 => LookupKind::Sequence { length },
        (Some(_), Some(combiner), 0) => LookupKind::Combine(combine_options(&one, combiner)),
        _ => {
            return Err(format!("feature {:?} is neither gathered, combined nor a sequence", one.name));
        }
    };
    Ok(FeaturePlan {
        name: one.name,
        ids: one.ids,
        row_splits: one.row_splits,
        weights: one.weights,
        table: one.table,
        lookup,
        policy: Policy { on_bad_id: one.on_bad_id, default_row: one.default_row },
        vocabulary: one.vocabulary,
        vocabulary_size: table.vocabulary_size,
        table_dtype: table.dtype,
        dtype,
        max_norm: one.max_norm,
        copies_rows: one.max_norm.is_some() || (table.dtype == Dtype::Float64 && dtype == DataType::Float32),
        on_empty_row: one.on_empty_row,
        cuts_empty_rows,
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
