//! Runs the graph of one predict: feeds it vectors of features and inputs of the request, and returns its outputs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::{SmallVec, smallvec};

use super::batching::Batcher;
use super::description::{FedForm, FedInput, FedRows, Feeding, GraphDescription};
use super::session::{Callable, GraphError, Session};
use super::tensor::{AlignedBuffer, Tensor};
use crate::plan::faults::{self, BoxedFault};
use crate::plan::{
    self, Data, DataType, Declined, Dims, Effort, Features, GraphOutput, GraphRequest, GraphResult, Inputs, OutputData,
    Signature, graph_refusal, lookup_refusal,
};
use crate::tables::table::Ints;

/// Maximal number of sets of outputs for which a graph keeps a callable. Clients choose the outputs, and each callable
/// takes memory.
const MAX_CALLABLES: usize = 64;

type OutputIndexes = SmallVec<[usize; 8]>;

/// The graph of one predict: a graph cut behind its lookups, which is fed vectors of features, or a whole graph.
/// Concurrency: any thread.
pub struct Tower {
    session: Arc<Session>,
    description: GraphDescription,
    /// The callable that computes ids; None if requests have all ids.
    computing: Option<Callable>,
    /// By whether the graph is fed each feature's vectors apart, and the outputs.
    callables: RwLock<HashMap<(bool, OutputIndexes), Arc<Callable>>>,
    /// Indexes of the outputs that an answer can carry.
    carried_outputs: OutputIndexes,
}

impl fmt::Debug for Tower {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Tower in {:?}", self.session)
    }
}

/// Prepares the graph of a predict in a session that is already open; `description` is a [`GraphDescription`] as JSON.
/// `batcher` batches the requests of a graph whose description has batching parameters.
///
/// # Errors
/// A sentence: the description is not valid, its session is not open, or the session's graph lacks one of its tensors.
pub fn open(description: &serde_json::Value, batcher: Option<&Batcher>) -> Result<Box<dyn plan::Graph>, String> {
    let description = GraphDescription::deserialize_from(description)?;
    let number = description.session;
    let session = Session::of_number(number).ok_or_else(|| format!("session {number} is not open"))?;
    let computing = description.computing.as_ref().map(|part| {
        let feeds: Vec<_> = part.inputs.iter().map(|fed| fed.tensor.as_str()).collect();
        let fetches: Vec<_> = part.ids.iter().chain(&part.carried).map(String::as_str).collect();
        session.callable(&feeds, &fetches, &[])
    });
    let computing = computing.transpose().map_err(|error| error.to_string())?;
    let outputs = description.outputs.iter().enumerate().filter(|(_, tensor)| !tensor.is_empty());
    let carried_outputs: OutputIndexes = outputs.map(|(index, _)| index).collect();
    let tower = Tower { session, description, computing, callables: RwLock::default(), carried_outputs };
    // The callable of all outputs is made when the version loads, so that the load tells it, and not the first request,
    // if the graph lacks an output or feed.
    tower.add_callable(&tower.description.fed, false, &tower.carried_outputs).map_err(|error| error.message)?;
    let batching = tower.description.batching.clone();
    match (batcher, batching) {
        (Some(batcher), Some(parameters)) => batcher.wrap(Box::new(tower), &parameters),
        _ => Ok(Box::new(tower)),
    }
}

impl GraphDescription {
    fn deserialize_from(value: &serde_json::Value) -> Result<Self, String> {
        serde::Deserialize::deserialize(value).map_err(|error| error.to_string())
    }
}

impl Tower {
    /// Returns the callable that fetches these outputs, whose indexes are sorted, and the indexes of the outputs that it
    /// fetches: those of all outputs once [`MAX_CALLABLES`] callables are kept.
    fn callable(&self, feeding: &Feeding, is_apart: bool, wanted: OutputIndexes) -> Result<Run, BoxedFault> {
        let (known, is_full) = {
            let callables = self.callables.read().unwrap_or_else(PoisonError::into_inner);
            (callables.get(&(is_apart, wanted.clone())).cloned(), callables.len() >= MAX_CALLABLES)
        };
        if let Some(callable) = known {
            return Ok((callable, wanted));
        }
        if is_full && wanted != self.carried_outputs {
            return self.callable(feeding, is_apart, self.carried_outputs.clone());
        }
        let added = self.add_callable(feeding, is_apart, &wanted);
        Ok((added.map_err(|error| faults::graph_failed(error.message))?, wanted))
    }

    fn add_callable(
        &self,
        feeding: &Feeding,
        is_apart: bool,
        wanted: &OutputIndexes,
    ) -> Result<Arc<Callable>, GraphError> {
        let GraphDescription { computing, outputs, targets, .. } = &self.description;
        let rows = feeding.rows.iter().map(|fed| fed.tensor.as_str());
        let carried = computing.iter().flat_map(|part| &part.carried).map(String::as_str);
        let feeds: Vec<_> = rows.chain(carried).chain(feeding.inputs.iter().map(|fed| fed.tensor.as_str())).collect();
        let fetches: Vec<_> = wanted.iter().filter_map(|&output| outputs.get(output)).map(String::as_str).collect();
        let targets: Vec<_> = targets.iter().map(String::as_str).collect();
        let callable = Arc::new(self.session.callable(&feeds, &fetches, &targets)?);
        let mut callables = self.callables.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(callables.entry((is_apart, wanted.clone())).or_insert(callable)))
    }

    /// Runs the part of the graph that computes ids; returns the id tensors, and the other tensors that the second run
    /// is fed.
    fn compute_ids(
        &self,
        signature: &Signature,
        inputs: &Inputs<'_>,
        effort: Effort<'_>,
    ) -> Result<(Vec<plan::Tensor<'static>>, Vec<Tensor>), Declined> {
        let (Some(callable), Some(part)) = (&self.computing, &self.description.computing) else {
            return Ok((Vec::new(), Vec::new()));
        };
        let mut feeds = Vec::with_capacity(part.inputs.len());
        self.feed_inputs(&mut feeds, &part.inputs, signature, inputs)?;
        let permit = effort.graph_permit();
        let ran = self.session.run(callable, &feeds);
        let mut fetched = ran.map_err(|error| graph_refusal(signature, inputs, error.code, &error.message))?;
        drop(permit);
        let carried = fetched.split_off(part.ids.len().min(fetched.len()));
        let computed = fetched.iter().map(|tensor| {
            let dtype = DataType::of_number(u64::from(tensor.dtype()));
            let Some(dtype @ (DataType::Int64 | DataType::Int32)) = dtype else {
                return Err(faults::internal("the graph computed ids that are neither int64 nor int32"));
            };
            let dims = tensor.dims().into_iter().collect();
            Ok(plan::Tensor { dtype, dims, data: Data::Bytes(tensor.bytes().to_vec()) })
        });
        Ok((computed.collect::<Result<_, BoxedFault>>()?, carried))
    }

    fn feed_inputs(
        &self,
        feeds: &mut Vec<Tensor>,
        fed: &[FedInput],
        signature: &Signature,
        inputs: &Inputs<'_>,
    ) -> Result<(), Declined> {
        for fed in fed {
            let missing = || faults::internal("a predict lacks an input, and its signature has no default");
            let plan = signature.inputs.get(fed.input).ok_or_else(missing)?;
            let tensor = signature.sent_or_default(inputs, fed.input).ok_or_else(missing)?;
            feeds.push(match fed.form {
                FedForm::Tensor => self.input_tensor(plan.dtype, tensor)?,
                FedForm::Indices => self.sparse_part(tensor, sparse_indices)?,
                FedForm::DenseShape => {
                    self.sparse_part(tensor, |splits| (smallvec![2], dense_shape(splits).to_vec()))?
                }
            });
        }
        Ok(())
    }

    /// Makes a part of a sparse matrix from the row splits of a request.
    fn sparse_part(
        &self,
        row_splits: &plan::Tensor<'_>,
        part: impl Fn(Ints<'_>) -> (SmallVec<[i64; 4]>, Vec<i64>),
    ) -> Result<Tensor, Declined> {
        let (dims, numbers) = part(Ints::new(&plan::int64_bytes(row_splits)));
        let dtype = DataType::Int64;
        let buffer = AlignedBuffer::copy_of(Ints::of(&numbers).as_bytes()).ok_or_else(|| no_memory(dtype, &dims))?;
        Ok(Tensor::new(self.session.api(), dtype as u32, &dims, buffer).ok_or_else(unfit_tensor)?)
    }

    fn rows_tensor(&self, features: &Features<'_, '_>, fed: &FedRows, dims: &[usize]) -> Result<Tensor, Declined> {
        let buffer = gather_rows(features, fed, dims)?;
        let tensor = Tensor::new(self.session.api(), fed.dtype as u32, &signed_dims(dims)?, buffer);
        Ok(tensor.ok_or_else(unfit_tensor)?)
    }

    fn input_tensor(&self, wanted: DataType, tensor: &plan::Tensor<'_>) -> Result<Tensor, Declined> {
        let api = self.session.api();
        let dims = signed_dims(&tensor.dims)?;
        let made = if let Data::Strings(strings) = &tensor.data {
            Tensor::of_strings(api, &dims, strings.parts.iter().map(|part| &**part))
        } else {
            // Ids may be sent as int32 in place of int64, and the reverse. A default of another dtype than its input's is
            // fed as it is, and the graph refuses it.
            let are_ids = |dtype| matches!(dtype, DataType::Int64 | DataType::Int32);
            let dtype = if are_ids(tensor.dtype) && are_ids(wanted) { wanted } else { tensor.dtype };
            let buffer = numbers(dtype, tensor).ok_or_else(|| no_memory(dtype, &dims))?;
            Tensor::new(api, dtype as u32, &dims, buffer)
        };
        Ok(made.ok_or_else(unfit_tensor)?)
    }
}

impl plan::Graph for Tower {
    fn run(&self, request: GraphRequest<'_, '_>, effort: Effort<'_>) -> GraphResult {
        let GraphRequest { servable, inputs, wanted, .. } = request;
        let signature = request.plan();
        // The output indexes are sorted, so that requests for the same outputs in another order use the same callable.
        let mut sorted: OutputIndexes = wanted.iter().copied().collect();
        sorted.sort_unstable();
        if let Some(index) = sorted.iter().find(|index| !self.carried_outputs.contains(index)) {
            let output = signature.outputs.get(*index).map_or("", |output| &output.name);
            return Err(faults::output_not_carried(&signature.name, output).into());
        }
        let (computed, carried) = self.compute_ids(signature, inputs, effort)?;
        let mut features = Features::new(servable, signature, inputs, computed)?;
        // All shapes and inputs are validated first, so that an invalid request does not wait for rows of clusters.
        let GraphDescription { fed, apart, sized_by, .. } = &self.description;
        let mut is_sized = true;
        for &(feature, input) in sized_by {
            let rows = features.dims(feature, false)?.first().copied();
            is_sized &=
                inputs.get(input).is_some_and(|sent| sent.dims.len() == 1 && sent.dims.first().copied() == rows);
        }
        let (feeding, is_apart, shapes) = match (shapes_of(&features, fed)?.filter(|_| is_sized), apart) {
            (Some(shapes), _) => (fed, false, shapes),
            (None, Some(apart)) => (apart, true, shapes_of(&features, apart)?.unwrap_or_default()),
            (None, None) => return Err(faults::internal("the vectors of features do not fit the graph").into()),
        };
        let (callable, of_callable) = self.callable(feeding, is_apart, sorted)?;
        let mut fed_inputs = Vec::with_capacity(feeding.inputs.len());
        self.feed_inputs(&mut fed_inputs, &feeding.inputs, signature, inputs)?;
        let refusal = |declined| lookup_refusal(signature, inputs, declined);
        features.read_remote(effort).map_err(refusal)?;
        let mut feeds = Vec::with_capacity(shapes.len() + carried.len() + fed_inputs.len());
        for (fed, dims) in feeding.rows.iter().zip(&shapes) {
            feeds.push(self.rows_tensor(&features, fed, dims).map_err(refusal)?);
        }
        feeds.extend(carried);
        feeds.extend(fed_inputs);
        let permit = effort.graph_permit();
        effort.check_deadline()?;
        let ran = self.session.run(&callable, &feeds);
        let fetched = ran.map_err(|error| graph_refusal(signature, inputs, error.code, &error.message));
        let fetched = fetched?.into_iter().map(graph_output).collect::<Result<Vec<_>, _>>()?;
        drop(permit);
        let notes = features.finish();
        let mut outputs: HashMap<usize, GraphOutput> = of_callable.into_iter().zip(fetched).collect();
        let ran = wanted.iter().map(|number| outputs.remove(number)).collect::<Option<_>>();
        Ok((ran.ok_or_else(|| faults::internal("a run of the graph lacks an output"))?, notes))
    }
}

/// A callable, and the indexes of the outputs that it fetches.
type Run = (Arc<Callable>, OutputIndexes);

/// Returns the shape of each tensor to which vectors are fed; None if the vectors of a request do not fit them.
fn shapes_of(features: &Features<'_, '_>, feeding: &Feeding) -> Result<Option<Vec<Dims>>, Declined> {
    feeding.rows.iter().map(|fed| fed_dims(features, fed)).collect()
}

/// Returns the shape of one tensor to which vectors of features are fed; None if the request's vectors have another.
fn fed_dims(features: &Features<'_, '_>, fed: &FedRows) -> Result<Option<Dims>, Declined> {
    if let [part] = fed.parts[..] {
        let vectors = features.dims(part.feature, false)?;
        let Some(shape) = &fed.shape else { return Ok(Some(vectors)) };
        let width = product(vectors.get(1..).unwrap_or_default())?;
        if vectors.len() < 2 || part.width != Some(width) || product(shape)? != width {
            return Ok(None);
        }
        return Ok(Some(vectors.iter().take(1).chain(shape).copied().collect()));
    }
    let Some(shape) = &fed.shape else { return Ok(None) };
    let mut rows = None;
    let mut width = 0_usize;
    for part in &fed.parts {
        // The features of a request may differ in their number of rows, or of ids in a row.
        let vectors = features.dims(part.feature, true)?;
        let [of_part, numbers] = vectors[..] else { return Ok(None) };
        if part.width != Some(numbers) || *rows.get_or_insert(of_part) != of_part {
            return Ok(None);
        }
        width = width.checked_add(numbers).ok_or_else(too_large)?;
    }
    let Some(rows) = rows.filter(|_| product(shape).is_ok_and(|of_row| of_row == width)) else { return Ok(None) };
    Ok(Some([rows].into_iter().chain(shape.iter().copied()).collect()))
}

/// Looks up the vectors that one tensor of shape `dims` is fed; returns them in a new buffer.
fn gather_rows(features: &Features<'_, '_>, fed: &FedRows, dims: &[usize]) -> Result<AlignedBuffer, Declined> {
    let number_bytes = fed.dtype.size();
    let num_bytes = bytes_of(product(dims)?, number_bytes)?;
    let mut buffer = AlignedBuffer::try_new(num_bytes).ok_or_else(|| no_memory(fed.dtype, dims))?;
    if let [part] = fed.parts[..] {
        features.read(part.feature, buffer.memory())?;
        return Ok(buffer);
    }
    let stride = bytes_of(product(dims.get(1..).unwrap_or_default())?, number_bytes)?;
    let mut skip = 0;
    for part in &fed.parts {
        features.read_column(part.feature, buffer.memory(), skip, stride)?;
        skip += part.width.unwrap_or(0) * number_bytes;
    }
    Ok(buffer)
}

/// Returns the indices of the values of a sparse matrix: the shape `[N, 2]`, and for each value its row and its place in
/// the row.
fn sparse_indices(splits: Ints<'_>) -> (SmallVec<[i64; 4]>, Vec<i64>) {
    let mut indices = Vec::new();
    for row in 0..splits.len().saturating_sub(1) {
        let number = i64::try_from(row).unwrap_or(i64::MAX);
        indices.extend((0..splits.get(row + 1) - splits.get(row)).flat_map(|place| [number, place]));
    }
    let count = i64::try_from(indices.len() / 2).unwrap_or(i64::MAX);
    (smallvec![count, 2], indices)
}

/// Returns B and K of a sparse `[B, K]` matrix; K is the length of the longest row.
pub(super) fn dense_shape(splits: Ints<'_>) -> [i64; 2] {
    let rows = splits.len().saturating_sub(1);
    let longest = (0..rows).map(|row| splits.get(row + 1) - splits.get(row)).max().unwrap_or(0);
    [i64::try_from(rows).unwrap_or(i64::MAX), longest]
}

/// Returns the error for a tensor without memory, in the words of TensorFlow for its own.
fn no_memory(dtype: DataType, dims: &[impl ToString]) -> BoxedFault {
    let sizes = dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    faults::no_memory(&format!("OOM when allocating tensor with shape[{sizes}] and type {}", dtype.graph_name()))
}

fn unfit_tensor() -> BoxedFault {
    faults::internal("a fed tensor has not as many elements as its shape says")
}

fn too_large() -> BoxedFault {
    faults::no_memory("a tensor would be larger than the address space")
}

fn product(sizes: &[usize]) -> Result<usize, BoxedFault> {
    sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).ok_or_else(too_large)
}

/// Returns the size of `numbers` numbers in bytes; refuses a size of a quarter of the address space or more.
fn bytes_of(numbers: usize, number_bytes: usize) -> Result<usize, BoxedFault> {
    numbers
        .checked_mul(number_bytes)
        .filter(|&bytes| isize::try_from(bytes).is_ok_and(|n| n < isize::MAX / 2))
        .ok_or_else(too_large)
}

fn signed_dims(dims: &[usize]) -> Result<SmallVec<[i64; 4]>, BoxedFault> {
    dims.iter().map(|&size| i64::try_from(size).map_err(|_| too_large())).collect()
}

/// Copies the numbers of a tensor to an aligned buffer, in the given dtype: the tensor's own, or int64 or int32 for a
/// tensor of one of the two; None if there is no memory for the copy.
fn numbers(wanted: DataType, tensor: &plan::Tensor<'_>) -> Option<AlignedBuffer> {
    match (&tensor.data, wanted) {
        (Data::Raw(bytes), _) if tensor.dtype == wanted => AlignedBuffer::copy_of(bytes),
        (Data::Bytes(bytes), _) if tensor.dtype == wanted => AlignedBuffer::copy_of(bytes),
        (Data::Floats(numbers), _) => {
            AlignedBuffer::copy_of(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
        }
        // Ids that do not fit int32 are refused before.
        (_, DataType::Int32) => {
            #[allow(clippy::cast_possible_truncation, reason = "validate_tensors() has refused larger numbers")]
            let narrow =
                plan::integers(tensor).iter().flat_map(|&number| (number as i32).to_le_bytes()).collect::<Vec<_>>();
            AlignedBuffer::copy_of(&narrow)
        }
        _ => AlignedBuffer::copy_of(&plan::int64_bytes(tensor)),
    }
}

fn graph_output(tensor: Tensor) -> Result<GraphOutput, BoxedFault> {
    let number = tensor.dtype();
    let unknown = || faults::graph_failed(format!("an output has dtype {number}, which no answer can carry"));
    let dtype = DataType::of_number(u64::from(number)).ok_or_else(unknown)?;
    let dims = tensor.dims().into_iter().collect();
    let data = if dtype == DataType::String {
        OutputData::Strings(tensor.strings().into_iter().map(<[u8]>::to_vec).collect())
    } else {
        OutputData::Numbers(Box::new(tensor))
    };
    Ok(GraphOutput { dtype, dims, data })
}
