//! Runs the graph of one predict: feeds its session rows of tables and inputs, and returns its outputs.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::SmallVec;

use super::description::{FedInput, FedRows, GraphDescription};
use super::session::{Call, Session};
use super::shared_runs::SharedRuns;
use super::tensor::{Block, Tensor};
use crate::declined::Declined;
use crate::plan::{self, Data, DataType, Dims, Features, Inputs, RanData, RanOutput, Servable, Signature};

/// Most sets of outputs for which a graph is prepared. Clients choose the outputs, and each set takes memory.
const MOST_CALLS: usize = 64;

type Wanted = SmallVec<[usize; 8]>;

/// The graph of one predict: a cut graph, which is fed rows of tables, or a whole graph. Concurrency: any thread.
pub struct Tower {
    session: Arc<Session>,
    description: GraphDescription,
    /// The call that computes ids; None: the graph computes none.
    computing: Option<Call>,
    calls: RwLock<HashMap<Wanted, Arc<Call>>>,
    shared: Option<SharedRuns<Request, Result<Vec<RanOutput>, Declined>>>,
}

/// The tensors that one request feeds to a run, each of `rows` rows.
struct Request {
    call: Arc<Call>,
    feeds: Vec<Tensor>,
    rows: usize,
}

impl fmt::Debug for Tower {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Tower in {:?}", self.session)
    }
}

/// Opens the graph of a predict from its part of a description.
///
/// # Errors
/// A sentence: the description is not valid, or its session is not open.
pub fn open(description: &serde_json::Value) -> Result<Box<dyn plan::Graph>, String> {
    let description = GraphDescription::deserialize_from(description)?;
    let number = description.session;
    let session = Session::of_number(number).ok_or_else(|| format!("session {number} is not open"))?;
    let computing = description.computing.as_ref().map(|part| {
        let feeds: Vec<_> = part.inputs.iter().map(|fed| fed.tensor.as_str()).collect();
        let fetches: Vec<_> = part.ids.iter().chain(&part.carried).map(String::as_str).collect();
        session.call(&feeds, &fetches, &[])
    });
    let computing = computing.transpose().map_err(|error| error.to_string())?;
    let shared = (description.batch_rows > 0).then(|| SharedRuns::new(description.batch_rows));
    let tower = Tower { session, description, computing, calls: RwLock::default(), shared };
    // This call fails now, and not at a request, if the graph lacks a name.
    let all = (0..tower.description.outputs.len()).collect();
    tower.call(&all).map_err(|_| format!("session {number} has not all tensors of the description"))?;
    Ok(Box::new(tower))
}

impl GraphDescription {
    fn deserialize_from(value: &serde_json::Value) -> Result<Self, String> {
        serde::Deserialize::deserialize(value).map_err(|error| error.to_string())
    }
}

impl Tower {
    /// Returns the call that fetches these outputs, which are sorted.
    fn call(&self, wanted: &Wanted) -> Result<Arc<Call>, Declined> {
        let known = self.calls.read().unwrap_or_else(PoisonError::into_inner).get(wanted).cloned();
        if let Some(call) = known {
            return Ok(call);
        }
        let GraphDescription { computing, rows, inputs, outputs, targets, .. } = &self.description;
        let rows = rows.iter().map(|fed| fed.tensor.as_str());
        let carried = computing.iter().flat_map(|part| &part.carried).map(String::as_str);
        let feeds: Vec<_> = rows.chain(carried).chain(inputs.iter().map(|fed| fed.tensor.as_str())).collect();
        let fetches = wanted.iter().map(|&output| outputs.get(output).map(String::as_str));
        let fetches: Vec<_> = fetches.collect::<Option<_>>().ok_or(Declined::NotNative)?;
        let targets: Vec<_> = targets.iter().map(String::as_str).collect();
        let call = self.session.call(&feeds, &fetches, &targets).map_err(|_| Declined::NotNative)?;
        let mut calls = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= MOST_CALLS && !calls.contains_key(wanted) {
            return Err(Declined::NotNative);
        }
        Ok(Arc::clone(calls.entry(wanted.clone()).or_insert_with(|| Arc::new(call))))
    }

    /// Runs the part of the graph that computes ids; returns the ids, and further tensors that the second run is fed.
    fn compute(
        &self,
        signature: &Signature,
        inputs: &Inputs<'_>,
    ) -> Result<(Vec<plan::Tensor<'static>>, Vec<Tensor>), Declined> {
        let (Some(call), Some(part)) = (&self.computing, &self.description.computing) else {
            return Ok((Vec::new(), Vec::new()));
        };
        let mut feeds = Vec::with_capacity(part.inputs.len());
        self.feed_inputs(&mut feeds, &part.inputs, signature, inputs)?;
        let mut found = self.session.run(call, &feeds).map_err(|_| Declined::Graph)?;
        let carried = found.split_off(part.ids.len().min(found.len()));
        let computed = found.iter().map(|tensor| {
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
            let tensor = inputs.get(fed.input).and_then(Option::as_ref).ok_or(Declined::Unfit)?;
            feeds.push(self.fed_input(plan.dtype, tensor)?);
        }
        Ok(())
    }

    fn fed_rows(&self, features: &Features<'_, '_>, fed: &FedRows) -> Result<Tensor, Declined> {
        let (block, dims) = gathered(features, fed)?;
        let tensor = Tensor::new(self.session.api(), DataType::Float32 as u32, &signed(&dims)?, block);
        tensor.ok_or(Declined::Unfit)
    }

    fn fed_input(&self, wanted: DataType, tensor: &plan::Tensor<'_>) -> Result<Tensor, Declined> {
        let api = self.session.api();
        let dims = signed(&tensor.dims)?;
        if let Data::Strings(strings) = &tensor.data {
            let parts = strings.parts.iter().map(|part| &**part);
            let made = (wanted == DataType::String).then(|| Tensor::of_strings(api, &dims, parts));
            return made.flatten().ok_or(Declined::Unfit);
        }
        Tensor::new(api, wanted as u32, &dims, numbers(wanted, tensor)?).ok_or(Declined::Unfit)
    }
}

impl Tower {
    fn run_alone(&self, call: &Call, feeds: &[Tensor]) -> Result<Vec<RanOutput>, Declined> {
        let found = self.session.run(call, feeds).map_err(|_| Declined::Graph)?;
        found.into_iter().map(ran_output).collect::<Option<_>>().ok_or(Declined::NotNative)
    }

    /// Runs requests of the same call in one run, and returns the outputs of each request.
    fn run_together(&self, requests: &[Request]) -> Vec<Result<Vec<RanOutput>, Declined>> {
        if let [only] = requests {
            return vec![self.run_alone(&only.call, &only.feeds)];
        }
        let parts = self.joined(requests).and_then(|(call, feeds)| {
            let found = self.session.run(call, &feeds).map_err(|_| Declined::Graph)?;
            split(found, requests)
        });
        // If the graph refuses one request the whole batch fails; the reference then runs each request alone.
        parts.map_or_else(
            |declined| requests.iter().map(|_| Err(declined)).collect(),
            |all| all.into_iter().map(Ok).collect(),
        )
    }

    fn joined<'a>(&self, requests: &'a [Request]) -> Result<(&'a Call, Vec<Tensor>), Declined> {
        let first = requests.first().ok_or(Declined::Graph)?;
        let rows: usize = requests.iter().map(|request| request.rows).sum();
        let join = |number: usize, like: &Tensor| {
            let parts: Vec<&[u8]> = requests.iter().filter_map(|r| r.feeds.get(number)).map(Tensor::bytes).collect();
            let dims: Dims = [rows].into_iter().chain(like.dims().into_iter().skip(1)).collect();
            Tensor::new(self.session.api(), like.dtype(), &signed(&dims)?, Block::joined(&parts)).ok_or(Declined::Unfit)
        };
        let feeds = first.feeds.iter().enumerate().map(|(number, like)| join(number, like));
        Ok((&first.call, feeds.collect::<Result<_, _>>()?))
    }
}

/// Splits the outputs of a shared run by request.
fn split(found: Vec<Tensor>, requests: &[Request]) -> Result<Vec<Vec<RanOutput>>, Declined> {
    let rows: usize = requests.iter().map(|request| request.rows).sum();
    let mut all: Vec<Vec<RanOutput>> = requests.iter().map(|_| Vec::with_capacity(found.len())).collect();
    for tensor in found {
        let RanOutput { dtype, dims, data } = ran_output(tensor).ok_or(Declined::NotNative)?;
        let (Some((&found_rows, row_dims)), RanData::Numbers(numbers)) = (dims.split_first(), data) else {
            return Err(Declined::Graph);
        };
        if found_rows != rows {
            return Err(Declined::Graph);
        }
        let numbers: Arc<Numbers> = Arc::from(numbers);
        let row_bytes = product(row_dims)? * dtype.size();
        let mut begin = 0;
        for (request, outputs) in requests.iter().zip(&mut all) {
            let end = begin + request.rows * row_bytes;
            let part = Part { whole: Arc::clone(&numbers), range: begin..end };
            let dims = [request.rows].into_iter().chain(row_dims.iter().copied()).collect();
            outputs.push(RanOutput { dtype, dims, data: RanData::Numbers(Box::new(part)) });
            begin = end;
        }
    }
    Ok(all)
}

type Numbers = dyn AsRef<[u8]> + Send + Sync;

/// The rows of an output that belong to one request.
struct Part {
    whole: Arc<Numbers>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        (*self.whole).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl plan::Graph for Tower {
    fn run(
        &self,
        servable: &Servable,
        signature: &Signature,
        inputs: &Inputs<'_>,
        wanted: &[usize],
    ) -> Result<Vec<RanOutput>, Declined> {
        // The outputs are sorted, so a client that asks for them in another order prepares no further call.
        let mut sorted: Wanted = wanted.iter().copied().collect();
        sorted.sort_unstable();
        let call = self.call(&sorted)?;
        let (computed, carried) = self.compute(signature, inputs)?;
        let mut feeds = Vec::with_capacity(self.description.rows.len() + self.description.inputs.len() + carried.len());
        if !self.description.rows.is_empty() {
            let features = Features::new(servable, signature, inputs, computed)?;
            for fed in &self.description.rows {
                feeds.push(self.fed_rows(&features, fed)?);
            }
        }
        feeds.extend(carried);
        self.feed_inputs(&mut feeds, &self.description.inputs, signature, inputs)?;
        let found = match (&self.shared, rows_of(&feeds)) {
            (Some(shared), Some(rows)) if rows <= self.description.batch_rows => {
                let request = Request { call, feeds, rows };
                shared.run(request, rows, fits, |requests| self.run_together(requests)).ok_or(Declined::Graph)?
            }
            _ => self.run_alone(&call, &feeds),
        }?;
        let mut outputs: HashMap<usize, RanOutput> = sorted.iter().copied().zip(found).collect();
        let ran = wanted.iter().map(|number| outputs.remove(number));
        ran.collect::<Option<_>>().ok_or(Declined::NotNative)
    }
}

/// Returns the number of rows, which all tensors share; None if the number differs, or a tensor can not be joined to
/// others.
fn rows_of(feeds: &[Tensor]) -> Option<usize> {
    let mut rows = None;
    for tensor in feeds {
        let own = *tensor.dims().first()?;
        if *rows.get_or_insert(own) != own || tensor.dtype() == DataType::String as u32 {
            return None;
        }
    }
    rows
}

/// Says whether two requests ask for the same outputs, and feed rows of the same shapes.
fn fits(one: &Request, other: &Request) -> bool {
    let is_like = |(a, b): (&Tensor, &Tensor)| a.dtype() == b.dtype() && a.dims().get(1..) == b.dims().get(1..);
    Arc::ptr_eq(&one.call, &other.call) && one.feeds.iter().zip(&other.feeds).all(is_like)
}

/// Reads the rows of a fed tensor into a new block; returns the block with the tensor's shape.
fn gathered(features: &Features<'_, '_>, fed: &FedRows) -> Result<(Block, Dims), Declined> {
    if let [part] = fed.parts[..] {
        let vectors = features.dims(part.feature, false)?;
        let mut dims = vectors.clone();
        if let Some(shape) = &fed.shape {
            let width = product(vectors.get(1..).unwrap_or_default())?;
            if part.width != Some(width) || product(shape)? != width {
                return Err(Declined::Unfit);
            }
            dims = vectors.iter().take(1).chain(shape).copied().collect();
        }
        let mut block = Block::new(bytes_of(product(&vectors)?)?);
        features.read(part.feature, block.memory())?;
        return Ok((block, dims));
    }
    let shape = fed.shape.as_ref().ok_or(Declined::NotNative)?;
    let mut rows = None;
    let mut width = 0_usize;
    for part in &fed.parts {
        let vectors = features.dims(part.feature, true)?;
        // If the shapes do not fit each other, the reference runs the graph, whose error the client then receives.
        let [of_part, numbers] = vectors[..] else {
            return Err(Declined::Unfit);
        };
        if part.width != Some(numbers) || *rows.get_or_insert(of_part) != of_part {
            return Err(Declined::Unfit);
        }
        width = width.checked_add(numbers).ok_or(Declined::OverLimit)?;
    }
    let rows = rows.ok_or(Declined::NotNative)?;
    if product(shape)? != width {
        return Err(Declined::NotNative);
    }
    let mut block = Block::new(bytes_of(product(&[rows, width])?)?);
    let mut skip = 0;
    for part in &fed.parts {
        features.read_column(part.feature, block.memory(), skip, width * 4)?;
        skip += part.width.unwrap_or(0) * 4;
    }
    Ok((block, [rows].into_iter().chain(shape.iter().copied()).collect()))
}

fn product(sizes: &[usize]) -> Result<usize, Declined> {
    sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).ok_or(Declined::OverLimit)
}

/// Returns the bytes of `numbers` float32.
fn bytes_of(numbers: usize) -> Result<usize, Declined> {
    numbers
        .checked_mul(4)
        .filter(|&bytes| isize::try_from(bytes).is_ok_and(|n| n < isize::MAX / 2))
        .ok_or(Declined::OverLimit)
}

fn signed(dims: &[usize]) -> Result<SmallVec<[i64; 4]>, Declined> {
    dims.iter().map(|&size| i64::try_from(size).map_err(|_| Declined::Unfit)).collect()
}

/// Returns the tensor's numbers, aligned and little-endian, in the dtype that the graph wants.
fn numbers(wanted: DataType, tensor: &plan::Tensor<'_>) -> Result<Block, Declined> {
    match &tensor.data {
        Data::Raw(bytes) if tensor.dtype == wanted => Ok(Block::copy_of(bytes)),
        Data::Bytes(bytes) if tensor.dtype == wanted => Ok(Block::copy_of(bytes)),
        Data::Floats(numbers) if wanted == DataType::Float32 => {
            Ok(Block::copy_of(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()))
        }
        Data::Ints(numbers) if wanted == DataType::Int64 => {
            Ok(Block::copy_of(crate::tables::table::Ints::of(numbers).as_bytes()))
        }
        Data::Ints(numbers) if wanted == DataType::Int32 => narrowed(numbers.iter().copied()),
        Data::Raw(bytes) if (tensor.dtype, wanted) == (DataType::Int64, DataType::Int32) => {
            narrowed(crate::tables::table::Ints::new(bytes).iter())
        }
        Data::Raw(bytes) if (tensor.dtype, wanted) == (DataType::Int32, DataType::Int64) => {
            let numbers = bytes.as_chunks::<4>().0.iter().map(|number| i64::from(i32::from_le_bytes(*number)));
            Ok(Block::copy_of(&numbers.flat_map(i64::to_le_bytes).collect::<Vec<_>>()))
        }
        _ => Err(Declined::Unfit),
    }
}

fn narrowed(numbers: impl Iterator<Item = i64>) -> Result<Block, Declined> {
    let narrow = numbers.map(|number| i32::try_from(number).map_err(|_| Declined::Unfit));
    let narrow = narrow.collect::<Result<Vec<_>, _>>()?;
    Ok(Block::copy_of(&narrow.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<_>>()))
}

fn ran_output(tensor: Tensor) -> Option<RanOutput> {
    let dtype = DataType::of_number(u64::from(tensor.dtype()))?;
    let dims = tensor.dims().into_iter().collect();
    let data = if dtype == DataType::String {
        RanData::Strings(tensor.strings().into_iter().map(<[u8]>::to_vec).collect())
    } else {
        RanData::Numbers(Box::new(tensor))
    };
    Some(RanOutput { dtype, dims, data })
}
