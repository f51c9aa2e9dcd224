//! Runs the graph of one predict: feeds it vectors of features and inputs of the request, and returns its outputs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::SmallVec;

use super::batching::Batcher;
use super::description::{FedInput, FedRows, GraphDescription};
use super::session::{Callable, GraphError, Session};
use super::tensor::{AlignedBuffer, Tensor};
use crate::plan::{
    self, Data, DataType, Declined, Dims, Effort, Features, GraphOutput, Inputs, Instead, OutputData, Servable,
    Signature, graph_refusal,
};

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
    /// The callables by the outputs that they fetch, and whether they are fed the rows of each feature apart.
    callables: RwLock<HashMap<(OutputIndexes, bool), Arc<Callable>>>,
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
    let tower = Tower { session, description, computing, callables: RwLock::default() };
    // The callable of all outputs is made when the version loads, so that the load fails, and not the first request, if
    // the graph lacks an output or feed.
    let all = (0..tower.description.outputs.len()).collect();
    tower.callable(&(all, false)).map_err(|_| format!("session {number} has not all tensors of the description"))?;
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
    /// Returns the callable that fetches these outputs, whose indexes are sorted; prepares it at the first request for
    /// them. Declines further sets of outputs once [`MAX_CALLABLES`] callables are kept.
    fn callable(&self, key: &(OutputIndexes, bool)) -> Result<Arc<Callable>, Declined> {
        let known = self.callables.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        if let Some(callable) = known {
            return Ok(callable);
        }
        let GraphDescription { computing, outputs, targets, .. } = &self.description;
        let (wanted, is_apart) = key;
        let (rows, inputs) = self.feeds(*is_apart).ok_or(Declined::NotNative)?;
        let rows = rows.iter().map(|fed| fed.tensor.as_str());
        let carried = computing.iter().flat_map(|part| &part.carried).map(String::as_str);
        let feeds: Vec<_> = rows.chain(carried).chain(inputs.iter().map(|fed| fed.tensor.as_str())).collect();
        let fetches = wanted.iter().map(|&output| outputs.get(output).map(String::as_str));
        let fetches: Vec<_> = fetches.collect::<Option<_>>().ok_or(Declined::NotNative)?;
        let targets: Vec<_> = targets.iter().map(String::as_str).collect();
        let callable = self.session.callable(&feeds, &fetches, &targets).map_err(|_| Declined::NotNative)?;
        let mut callables = self.callables.write().unwrap_or_else(PoisonError::into_inner);
        if callables.len() >= MAX_CALLABLES && !callables.contains_key(key) {
            return Err(Declined::NotNative);
        }
        Ok(Arc::clone(callables.entry(key.clone()).or_insert_with(|| Arc::new(callable))))
    }

    /// Returns the tensors that a run is fed rows, and those that it is fed inputs; None if rows are never fed apart.
    fn feeds(&self, is_apart: bool) -> Option<(&[FedRows], &[FedInput])> {
        if is_apart {
            return self.description.apart.as_ref().map(|apart| (&*apart.rows, &*apart.inputs));
        }
        Some((&self.description.rows, &self.description.inputs))
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
        let mut fetched = ran.map_err(|error| refused(signature, inputs, &error))?;
        drop(permit);
        let carried = fetched.split_off(part.ids.len().min(fetched.len()));
        let computed = fetched.iter().map(|tensor| {
            let dtype = DataType::of_number(u64::from(tensor.dtype())).ok_or(Declined::NotNative)?;
            if !matches!(dtype, DataType::Int64 | DataType::Int32) {
                return Err(Declined::NotNative);
            }
            let dims = tensor.dims().into_iter().collect();
            Ok(plan::Tensor { dtype, dims, data: Data::Bytes(tensor.bytes().to_vec()) })
        });
        Ok((computed.collect::<Result<_, _>>()?, carried))
    }

    fn feed_inputs(
        &self,
        feeds: &mut Vec<Tensor>,
        fed: &[FedInput],
        signature: &Signature,
        inputs: &Inputs<'_>,
    ) -> Result<(), Declined> {
        for fed in fed {
            let plan = signature.inputs.get(fed.input).ok_or(Declined::NotNative)?;
            let tensor = inputs.get(fed.input).and_then(Option::as_ref).ok_or(Declined::NotNative)?;
            feeds.push(self.input_tensor(plan.dtype, tensor)?);
        }
        Ok(())
    }

    fn rows_tensor(&self, features: &Features<'_, '_>, fed: &FedRows, dims: &[usize]) -> Result<Tensor, Declined> {
        let (dtype, buffer) = gather_rows(features, fed, dims)?;
        let tensor = Tensor::new(self.session.api(), dtype as u32, &signed_dims(dims)?, buffer);
        tensor.ok_or(Declined::NotNative)
    }

    fn input_tensor(&self, wanted: DataType, tensor: &plan::Tensor<'_>) -> Result<Tensor, Declined> {
        let api = self.session.api();
        let dims = signed_dims(&tensor.dims)?;
        if let Data::Strings(strings) = &tensor.data {
            let parts = strings.parts.iter().map(|part| &**part);
            let made = (wanted == DataType::String).then(|| Tensor::of_strings(api, &dims, parts));
            return made.flatten().ok_or(Declined::NotNative);
        }
        Tensor::new(api, wanted as u32, &dims, numbers(wanted, tensor)?).ok_or(Declined::NotNative)
    }
}

impl plan::Graph for Tower {
    fn run(
        &self,
        servable: &Servable,
        signature: &Signature,
        inputs: &Inputs<'_>,
        wanted: &[usize],
        effort: Effort<'_>,
    ) -> Result<(Vec<GraphOutput>, Vec<Instead>), Declined> {
        // The output indexes are sorted, so that requests for the same outputs in another order use the same callable.
        let mut sorted: OutputIndexes = wanted.iter().copied().collect();
        sorted.sort_unstable();
        let (computed, carried) = self.compute_ids(signature, inputs, effort)?;
        let mut features = Features::new(servable, signature, inputs, computed)?;
        // All shapes and inputs are validated first, so that an invalid request does not wait for rows of clusters.
        let dims_of =
            |rows: &[FedRows]| rows.iter().map(|fed| fed_dims(&features, fed)).collect::<Result<Option<_>, _>>();
        let joined: Option<Vec<Dims>> = dims_of(&self.description.rows)?;
        let is_apart = joined.is_none();
        let key = (sorted, is_apart);
        let callable = self.callable(&key)?;
        let (rows, of_inputs) = self.feeds(is_apart).ok_or(Declined::NotNative)?;
        let dims = if let Some(dims) = joined { dims } else { dims_of(rows)?.ok_or(Declined::NotNative)? };
        let mut fed_inputs = Vec::with_capacity(of_inputs.len());
        self.feed_inputs(&mut fed_inputs, of_inputs, signature, inputs)?;
        features.read_remote(effort)?;
        let mut feeds = Vec::with_capacity(rows.len() + carried.len() + fed_inputs.len());
        for (fed, dims) in rows.iter().zip(&dims) {
            feeds.push(self.rows_tensor(&features, fed, dims)?);
        }
        feeds.extend(carried);
        feeds.extend(fed_inputs);
        let permit = effort.graph_permit();
        effort.check_deadline()?;
        let ran = self.session.run(&callable, &feeds);
        let fetched = ran.map_err(|error| refused(signature, inputs, &error)).and_then(graph_outputs)?;
        drop(permit);
        features.count_unknown_keys();
        let mut outputs: HashMap<usize, GraphOutput> = key.0.iter().copied().zip(fetched).collect();
        let ran = wanted.iter().map(|number| outputs.remove(number));
        Ok((ran.collect::<Option<_>>().ok_or(Declined::NotNative)?, features.instead()))
    }
}

/// Returns the shape of one tensor to which vectors of features are fed; None if they do not fit, so that the graph must
/// join or reshape them.
fn fed_dims(features: &Features<'_, '_>, fed: &FedRows) -> Result<Option<Dims>, Declined> {
    let Some(shape) = &fed.shape else {
        let [part] = fed.parts[..] else { return Ok(None) };
        return features.dims(part.feature, false).map(Some);
    };
    let mut rows = None;
    let mut width = 0_usize;
    for part in &fed.parts {
        let vectors = features.dims(part.feature, true)?;
        let [of_part, numbers] = vectors[..] else { return Ok(None) };
        if part.width != Some(numbers) || *rows.get_or_insert(of_part) != of_part {
            return Ok(None);
        }
        width = width.saturating_add(numbers);
    }
    let fits = product(shape)? == width;
    Ok(rows.filter(|_| fits).map(|rows| [rows].into_iter().chain(shape.iter().copied()).collect()))
}

/// Looks up the vectors that one tensor of shape `dims` is fed; returns their dtype, and the vectors in a new buffer.
fn gather_rows(
    features: &Features<'_, '_>,
    fed: &FedRows,
    dims: &[usize],
) -> Result<(DataType, AlignedBuffer), Declined> {
    // All vectors of a tensor have one dtype: the graph's own ops have joined them.
    let dtype = fed.parts.first().map_or(DataType::Float32, |part| features.dtype(part.feature));
    let bytes_of = |numbers| bytes_of(numbers, dtype.size());
    let mut buffer = AlignedBuffer::new(bytes_of(product(dims)?)?);
    if let [part] = fed.parts[..] {
        features.read(part.feature, buffer.memory())?;
        return Ok((dtype, buffer));
    }
    let stride = bytes_of(product(dims.get(1..).unwrap_or_default())?)?;
    let mut skip = 0;
    for part in &fed.parts {
        features.read_column(part.feature, buffer.memory(), skip, stride)?;
        skip += part.width.unwrap_or(0) * dtype.size();
    }
    Ok((dtype, buffer))
}

fn product(sizes: &[usize]) -> Result<usize, Declined> {
    sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).ok_or(Declined::NotNative)
}

/// Returns the size of `numbers` numbers of `size` bytes; declines a size of a quarter of the address space or more.
fn bytes_of(numbers: usize, size: usize) -> Result<usize, Declined> {
    numbers
        .checked_mul(size)
        .filter(|&bytes| isize::try_from(bytes).is_ok_and(|n| n < isize::MAX / 2))
        .ok_or(Declined::NotNative)
}

fn signed_dims(dims: &[usize]) -> Result<SmallVec<[i64; 4]>, Declined> {
    dims.iter().map(|&size| i64::try_from(size).map_err(|_| Declined::NotNative)).collect()
}

/// Copies the numbers of a request's tensor to an aligned buffer, in the dtype that the graph is fed.
fn numbers(wanted: DataType, tensor: &plan::Tensor<'_>) -> Result<AlignedBuffer, Declined> {
    match &tensor.data {
        Data::Raw(bytes) if tensor.dtype == wanted => Ok(AlignedBuffer::copy_of(bytes)),
        Data::Bytes(bytes) if tensor.dtype == wanted => Ok(AlignedBuffer::copy_of(bytes)),
        Data::Floats(numbers) if wanted == DataType::Float32 => {
            Ok(AlignedBuffer::copy_of(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()))
        }
        Data::Ints(numbers) if wanted == DataType::Int64 => {
            Ok(AlignedBuffer::copy_of(crate::tables::table::Ints::of(numbers).as_bytes()))
        }
        Data::Ints(numbers) if wanted == DataType::Int32 => to_int32(numbers.iter().copied()),
        Data::Raw(bytes) if (tensor.dtype, wanted) == (DataType::Int64, DataType::Int32) => {
            to_int32(crate::tables::table::Ints::new(bytes).iter())
        }
        Data::Raw(bytes) if (tensor.dtype, wanted) == (DataType::Int32, DataType::Int64) => {
            let numbers = bytes.as_chunks::<4>().0.iter().map(|number| i64::from(i32::from_le_bytes(*number)));
            Ok(AlignedBuffer::copy_of(&numbers.flat_map(i64::to_le_bytes).collect::<Vec<_>>()))
        }
        _ => Err(Declined::NotNative),
    }
}

fn to_int32(numbers: impl Iterator<Item = i64>) -> Result<AlignedBuffer, Declined> {
    let narrow = numbers.map(|number| i32::try_from(number).map_err(|_| Declined::NotNative));
    let narrow = narrow.collect::<Result<Vec<_>, _>>()?;
    Ok(AlignedBuffer::copy_of(&narrow.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>()))
}

/// Returns the error of a request whose graph has failed: the fault of the request, or else the reference server runs the
/// graph again and logs the cause.
fn refused(signature: &Signature, inputs: &Inputs<'_>, error: &GraphError) -> Declined {
    graph_refusal(signature, inputs, error.code, &error.message).map_or(Declined::Graph, Declined::from)
}

fn graph_outputs(fetched: Vec<Tensor>) -> Result<Vec<GraphOutput>, Declined> {
    fetched.into_iter().map(graph_output).collect::<Option<_>>().ok_or(Declined::NotNative)
}

fn graph_output(tensor: Tensor) -> Option<GraphOutput> {
    let dtype = DataType::of_number(u64::from(tensor.dtype()))?;
    let dims = tensor.dims().into_iter().collect();
    let data = if dtype == DataType::String {
        OutputData::Strings(tensor.strings().into_iter().map(<[u8]>::to_vec).collect())
    } else {
        OutputData::Numbers(Box::new(tensor))
    };
    Some(GraphOutput { dtype, dims, data })
}
