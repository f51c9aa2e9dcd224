//! Validates the inputs of one request, runs its lookup or predict, and writes the numbers of its outputs.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::batch::Ran;
use super::declined::Declined;
use super::description::SignatureKind;
use super::effort::Effort;
use super::faults::{self, BoxedFault, Names};
use super::feature_inputs::{FeatureInputs, check_rows, feature_inputs};
use super::feature_lookup::{Placement, VectorForm};
use super::features::{Features, product, read, shape_too_large, vector_dims, vector_width};
use super::graph_output::{GraphOutput, OutputData};
use super::inputs::{DataType, Dims, Inputs, UnknownKeyCounts};
use super::memory::has_room;
use super::notes::Notes;
use super::paged_rows;
use super::remote_rows;
use super::rows_read::{RemoteRows, RowsRead};
use super::servable::{GraphRequest, Servable, Signature};
use super::sparse::Sparse;
use super::validation::{check_names, count_rows, shape_faults, validate_tensors};
use crate::tables::halves::Half;
use crate::tables::memory::copy;
use crate::tables::table::OutputRows;

/// A lookup that reads and writes more than this number of bytes runs on the thread pool for large work. A lookup of
/// this size takes some 100 microseconds, about as long as handing it to the pool and back.
const SMALL_BYTES: usize = 512 << 10;

/// Why a feature of an output has inputs: [`lookup_outputs`] leaves the other outputs out.
const SENT: &str = "an output of an answer has all its features";

/// The shape of one output of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputShape {
    /// Index of the output in the signature.
    pub output: usize,
    /// Dtype of the output tensor.
    pub dtype: DataType,
    /// Sizes of the output's dimensions in this answer.
    pub dims: Dims,
}

impl OutputShape {
    /// Returns how many bytes the output's numbers take; 0 for strings.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }
}

#[allow(clippy::large_enum_variant, reason = "a box would cost each lookup an allocation")]
enum Content<'r> {
    Lookup {
        /// The input tensors of each feature that the request has.
        sent: Sparse<FeatureInputs<'r>>,
        /// For each feature, its rows that were read from a Valkey or Redis cluster; empty if no feature has its table
        /// in a cluster.
        remote: Vec<Option<RemoteRows>>,
    },
    Predict {
        /// The output tensors of the predict's graph.
        outputs: Vec<GraphOutput>,
        /// The notes that the run of the graph adds to its outputs.
        notes: Notes,
    },
}

/// The work for one validated request: runs its lookup or predict, and writes the numbers of its answer.
///
/// A form calls `prepare`, then `outputs` for the sizes of the answer, then `append` once for each output, and `finish`
/// at the end. A predict runs in `prepare`; a lookup runs in `append`, which writes table rows straight into the answer.
pub struct Work<'s, 'r> {
    servable: &'s Servable,
    signature: usize,
    rows: usize,
    outputs: SmallVec<[OutputShape; 4]>,
    content: Content<'r>,
    unknown_keys: UnknownKeyCounts,
    /// The 16 bits in which the answer has the numbers of float32 outputs; None for float32.
    half: Option<Half>,
}

impl<'s, 'r> Work<'s, 'r> {
    /// Validates the inputs of a request; then runs the graph of a predict, or reads those rows of a lookup that are
    /// not in memory.
    ///
    /// `signature` is an index into [`Servable::signatures`]; `inputs` has one element for each input of the signature;
    /// `wanted` has the indexes of the requested outputs, each once, and is empty for all outputs.
    ///
    /// # Errors
    /// The reason why the handler declines the request; [`Declined`] says what the server then does.
    pub fn prepare(
        servable: &'s Arc<Servable>,
        signature: usize,
        mut inputs: Inputs<'r>,
        wanted: &[usize],
        effort: Effort<'_>,
        max_response_bytes: usize,
    ) -> Result<Self, Declined> {
        let plan = &servable.signatures()[signature];
        if let Some(ran) = effort.batch().and_then(|place| place.take_ran(signature)) {
            check_answer_size(ran.num_bytes(), ran.rows, max_response_bytes)?;
            return Ok(Work::of_ran(servable, signature, wanted, ran));
        }
        plan.check_effort(effort)?;
        check_names(plan, &inputs, &[])?;
        let unknown_keys = validate_tensors(servable, plan, &mut inputs)?;
        let rows = count_rows(plan, &inputs)?;
        if plan.strict_shapes && plan.kind == SignatureKind::Predict {
            let faults = shape_faults(plan, &inputs);
            if !faults.is_empty() {
                return Err(faults::wrong_shape(&faults).into());
            }
        }
        let mut work = Work {
            servable,
            signature,
            rows,
            outputs: SmallVec::new(),
            content: Content::Predict { outputs: vec![], notes: Notes::default() },
            unknown_keys,
            half: None,
        };
        if let Some(graph) = &plan.graph {
            let all: SmallVec<[usize; 8]> = (0..plan.outputs.len()).collect();
            let numbers = if wanted.is_empty() { &all[..] } else { wanted };
            let row_bytes: usize = numbers.iter().map(|&index| plan.outputs[index].row_bytes).sum();
            check_answer_size(rows.saturating_mul(row_bytes), rows, max_response_bytes)?;
            let request = GraphRequest { servable, signature, inputs: &inputs, wanted: numbers };
            if let Some(place) = effort.batch() {
                if plan.is_batched() {
                    let deadline = effort.waiting().and_then(|waiting| waiting.deadline);
                    let read = read_remote(servable, plan, &inputs, effort)?;
                    if let Some(queued) = graph.queue(request, read, deadline)? {
                        place.leave(queued.with_validated(signature, rows, work.unknown_keys));
                        return Err(Declined::Queued);
                    }
                }
                effort.check_alone()?;
            }
            let (outputs, notes) = graph.run(request, effort)?;
            // Before the run, the size of outputs of strings and of unknown shapes is not known.
            check_answer_size(outputs.iter().map(GraphOutput::num_bytes).sum(), rows, max_response_bytes)?;
            work.outputs = graph_shapes(numbers, &outputs);
            work.content = Content::Predict { outputs, notes };
        } else {
            let sent = feature_inputs(plan, inputs, Sparse::new(0));
            work.outputs = lookup_outputs(servable, plan, &sent, wanted)?;
            // The limit counts the outputs of this answer only: a request may have few of the signature's features.
            let written = work.outputs.iter().fold(0_usize, |sum, one| sum.saturating_add(one.num_bytes()));
            check_answer_size(written, rows, max_response_bytes)?;
            check_rows(plan, &sent, work.outputs.iter().map(|one| one.output))?;
            let is_remote = remote_rows::reads_any(servable, plan, &sent);
            work.content = Content::Lookup { sent, remote: Vec::new() };
            if effort == Effort::Small && work.cost_bytes() > SMALL_BYTES {
                return Err(if is_remote { Declined::Waits } else { Declined::TooLarge });
            }
            if servable.may_miss_pages()
                && let Content::Lookup { sent, .. } = &work.content
            {
                paged_rows::read(servable, plan, sent, effort)?;
            }
            if is_remote && let Content::Lookup { sent, remote, .. } = &mut work.content {
                let outputs = &work.outputs;
                let is_needed = |part: usize| outputs.iter().any(|one| plan.outputs[one.output].parts.contains(&part));
                *remote = remote_rows::read(servable, plan, sent, &is_needed, effort)?;
            }
        }
        Ok(work)
    }

    /// Returns the work for a request whose graph has run in a batch.
    fn of_ran(servable: &'s Servable, signature: usize, wanted: &[usize], ran: Ran) -> Self {
        let Ran { outputs, notes, rows, unknown_keys, .. } = ran;
        let all: SmallVec<[usize; 8]> = (0..servable.signatures()[signature].outputs.len()).collect();
        let shapes = graph_shapes(if wanted.is_empty() { &all } else { wanted }, &outputs);
        let content = Content::Predict { outputs, notes };
        Work { servable, signature, rows, outputs: shapes, content, unknown_keys, half: None }
    }

    /// Rounds the numbers of float32 outputs to 16 bits; None leaves them as they are. Call this once, after `prepare`.
    ///
    /// The limit on the size of the answer counts such numbers as float32.
    pub fn round_to(&mut self, half: Option<Half>) {
        self.half = half;
        if let Some(half) = half {
            let floats = self.outputs.iter_mut().filter(|shape| shape.dtype == DataType::Float32);
            floats.for_each(|shape| shape.dtype = half.into());
        }
    }

    /// Returns B, the number of rows of the validated request.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the dtype and shape of each output, in the order of the answer.
    #[must_use]
    pub fn outputs(&self) -> &[OutputShape] {
        &self.outputs
    }

    /// Writes the little-endian numbers of `Work::outputs()[index]`, end to end, to `to`.
    ///
    /// # Errors
    /// As `prepare`; `to` is then not initialised.
    fn fill(&mut self, index: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        let plan = &self.servable.signatures()[self.signature];
        match &mut self.content {
            Content::Predict { outputs, .. } => {
                let from: &[u8] = match &outputs[index].data {
                    OutputData::Numbers(numbers) => (**numbers).as_ref(),
                    OutputData::Strings(_) => &[],
                };
                let half = self.half.filter(|_| outputs[index].dtype == DataType::Float32);
                let size = if half.is_some() { 2 * to.len() } else { to.len() };
                if from.len() != size {
                    return Err(faults::internal("an output has not as many numbers as its shape says").into());
                }
                match half {
                    Some(half) => half.round(from, OutputRows::new(to, 0, size / 2, size / 2, 1)),
                    None => copy(from, to),
                }
                Ok(())
            }
            Content::Lookup { sent, remote } => {
                let OutputShape { output, dtype, dims } = &self.outputs[index];
                let output = &plan.outputs[*output];
                let size = dtype.size();
                let stride = dims[dims.len() - 1] * size;
                let mut skip = 0;
                for &part in &output.parts {
                    let feature = &plan.features[part];
                    let sent = sent.get_mut(part).expect(SENT);
                    let remote = remote.get(part).and_then(Option::as_ref);
                    let is_flat = output.is_flat && dims.len() == 2;
                    let placement = Placement { skip, stride, is_flat, form: VectorForm::of(feature, self.half) };
                    let read = read(self.servable, plan, feature, sent, remote, to, &placement);
                    if matches!(read, Err(Declined::Fault(_))) {
                        // A refused lookup counts the id for which it is refused.
                        let counts = &self.servable.counts()[self.signature][part];
                        counts.ids.fetch_add(1, Ordering::Relaxed);
                        counts.missing.fetch_add(1, Ordering::Relaxed);
                    }
                    let count = read?;
                    sent.missing = Some(count);
                    skip += vector_width(self.servable, plan, feature, sent, output.is_flat) * size;
                }
                Ok(())
            }
        }
    }

    /// Appends the little-endian numbers of `Work::outputs()[index]`, end to end, to `to`.
    ///
    /// # Errors
    /// As `prepare`; `to` is then unchanged.
    pub fn append(&mut self, index: usize, to: &mut Vec<u8>) -> Result<(), Declined> {
        let num_bytes = self.outputs[index].num_bytes();
        to.reserve(num_bytes);
        self.fill(index, &mut to.spare_capacity_mut()[..num_bytes])?;
        // SAFETY: `to` has `num_bytes` reserved bytes, and fill() has written them, so the vector may grow by this length.
        unsafe { to.set_len(to.len() + num_bytes) };
        Ok(())
    }

    /// Returns the strings of `Work::outputs()[index]`; none if the output has another dtype.
    #[must_use]
    pub fn strings(&self, index: usize) -> &[Vec<u8>] {
        match &self.content {
            Content::Predict { outputs, .. } => match &outputs[index].data {
                OutputData::Strings(strings) => strings,
                OutputData::Numbers(_) => &[],
            },
            Content::Lookup { .. } => &[],
        }
    }

    /// Checks that no mapped file was damaged during the reads, and adds the request's unknown keys and, for a lookup,
    /// its ids to the counts. Call this after the last `append`. Returns what the client is told beside the answer.
    ///
    /// # Errors
    /// A mapped file was damaged: the answer must not be sent.
    pub fn finish(self) -> Result<Option<Box<Notes>>, Declined> {
        // The damage flag is checked after the last read of a row, because a damaged file reads as zeros.
        if self.servable.is_damaged() {
            return Err(self.servable.damaged().into());
        }
        self.servable.count_unknown_keys(&self.unknown_keys);
        let (sent, remote) = match self.content {
            Content::Predict { mut notes, .. } => {
                notes.unknown_keys.extend(self.unknown_keys);
                return Ok(notes.boxed());
            }
            Content::Lookup { sent, remote } => (sent, remote),
        };
        let counts = &self.servable.counts()[self.signature];
        let features = &self.servable.signatures()[self.signature].features;
        for (index, sent) in sent.iter() {
            if let Some(missing) = sent.missing {
                let counts = &counts[index];
                self.servable.see(features[index].table, sent.ids());
                counts.ids.fetch_add(sent.ids().len() as u64, Ordering::Relaxed);
                if missing > 0 {
                    counts.missing.fetch_add(missing as u64, Ordering::Relaxed);
                }
            }
        }
        let instead = remote_rows::instead(self.servable, &self.servable.signatures()[self.signature], &remote);
        Ok(Notes { instead, unknown_keys: self.unknown_keys }.boxed())
    }

    /// Returns the number of bytes that a lookup reads from tables and writes to its answer.
    fn cost_bytes(&self) -> usize {
        let Content::Lookup { sent, .. } = &self.content else {
            return 0;
        };
        let plan = &self.servable.signatures()[self.signature];
        let written: usize = self.outputs.iter().map(OutputShape::num_bytes).sum();
        let read = sent
            .iter()
            .map(|(index, sent)| sent.ids().len() * self.servable.tables()[plan.features[index].table].row_bytes());
        read.sum::<usize>() + written
    }
}

/// Reads the rows of a request that joins a batch from clusters.
fn read_remote(
    servable: &Servable,
    plan: &Signature,
    inputs: &Inputs<'_>,
    effort: Effort<'_>,
) -> Result<RowsRead, Declined> {
    if !plan.is_remote {
        return Ok(RowsRead::default());
    }
    let mut features = Features::new(servable, plan, inputs, Vec::new())?;
    features.read_remote(effort)?;
    Ok(features.into_rows_read())
}

/// Checks an answer of `size` bytes, as arrays, against the server's limit, and whether there is memory for it.
///
/// # Errors
/// The answer is larger.
pub fn check_answer_size(size: usize, rows: usize, limit: usize) -> Result<(), BoxedFault> {
    if size > limit {
        return Err(faults::answer_too_large(size, rows, limit));
    }
    if has_room(size) { Ok(()) } else { Err(faults::no_memory(&format!("The answer takes {size} bytes"))) }
}

/// Returns the shapes of a graph's outputs, whose indexes are `numbers`.
fn graph_shapes(numbers: &[usize], outputs: &[GraphOutput]) -> SmallVec<[OutputShape; 4]> {
    let shape = |(&index, output): (&usize, &GraphOutput)| OutputShape {
        output: index,
        dtype: output.dtype,
        dims: output.dims.clone(),
    };
    numbers.iter().zip(outputs).map(shape).collect()
}

/// Returns the shapes of the outputs whose features were all sent; if the request names outputs, only of these outputs.
fn lookup_outputs(
    servable: &Servable,
    plan: &Signature,
    sent: &Sparse<FeatureInputs<'_>>,
    wanted: &[usize],
) -> Result<SmallVec<[OutputShape; 4]>, Declined> {
    let mut shapes = SmallVec::new();
    let of_features = wanted.is_empty().then(|| plan.outputs_of(sent)).into_iter().flatten();
    let lacks = |index: &usize| plan.outputs[*index].parts.iter().any(|&part| !sent.has(part));
    if let Some(&index) = wanted.iter().find(|index| plan.outputs[**index].parts.len() > 1 && lacks(index)) {
        return Err(lacking_features(plan, sent, index).into());
    }
    for index in wanted.iter().copied().chain(of_features) {
        if lacks(&index) {
            continue;
        }
        let output = &plan.outputs[index];
        let mut dims = Dims::new();
        for &part in &output.parts {
            let (feature, sent_part) = (&plan.features[part], sent_of(sent, part));
            let of_part = vector_dims(servable, plan, feature, sent_part, output.is_flat)?;
            let Some((width, outer)) = of_part.split_last() else { continue };
            match dims.split_last_mut() {
                None => dims = of_part,
                Some((joined, of_all)) if of_all == outer => *joined = joined.saturating_add(*width),
                Some(_) => return Err(joined_rows_differ(servable, plan, sent, index)?.into()),
            }
            let is_small = product(&dims).is_some_and(|numbers| numbers.checked_mul(output.dtype.size()).is_some());
            if !is_small {
                return Err(shape_too_large(plan, feature, sent_part).into());
            }
        }
        shapes.push(OutputShape { output: index, dtype: output.dtype, dims });
    }
    if shapes.is_empty() && wanted.is_empty() {
        // The error names the output that lacks the fewest features.
        let count = |index: &usize| plan.outputs[*index].parts.iter().filter(|&&part| !sent.has(part)).count();
        let joined = (0..plan.outputs.len()).filter(|&index| plan.outputs[index].parts.len() > 1);
        if let Some(index) = joined.min_by_key(count) {
            return Err(lacking_features(plan, sent, index).into());
        }
    }
    Ok(shapes)
}

/// Returns the inputs of a feature in an output of the answer.
///
/// # Panics
/// The request lacks the feature: [`lookup_outputs`] leaves such outputs out.
fn sent_of<'a, 'r>(sent: &'a Sparse<FeatureInputs<'r>>, part: usize) -> &'a FeatureInputs<'r> {
    sent.get(part).expect(SENT)
}

/// Returns the error for an output that joins several features of which the request lacks some.
fn lacking_features(plan: &Signature, sent: &Sparse<FeatureInputs<'_>>, output: usize) -> BoxedFault {
    let output = &plan.outputs[output];
    let missing = output.parts.iter().filter(|&&part| !sent.has(part)).map(|&part| &plan.features[part].name);
    faults::lacking_feature(&output.name, &plan.name, Names::sorted(missing))
}

/// Returns the error for an output that joins features with different numbers of rows.
fn joined_rows_differ(
    servable: &Servable,
    plan: &Signature,
    sent: &Sparse<FeatureInputs<'_>>,
    output: usize,
) -> Result<BoxedFault, BoxedFault> {
    let output = &plan.outputs[output];
    let mut told = Vec::new();
    for &part in &output.parts {
        let feature = &plan.features[part];
        let sent = sent_of(sent, part);
        let dims = vector_dims(servable, plan, feature, sent, output.is_flat)?;
        let mut size = match dims[..] {
            [rows, ids, _, ..] => format!("{rows} rows of {ids} ids"),
            _ => dims[0].to_string(),
        };
        let num_cut = sent.rows() - sent.kept_rows();
        if num_cut > 0 {
            let told = "rows hold no ids, and the model's graph leaves them out";
            size = format!("{size} (its last {num_cut} {told})");
        }
        told.push(format!("\"{}\" has {size}", plan.inputs[feature.ids].name));
    }
    Ok(faults::joined_rows_differ(&output.name, &told.join(", ")))
}
