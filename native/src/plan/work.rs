//! One request on its way through a plan: judged, run, and written into an answer.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::description::SignatureKind;
use super::graph::{RanData, RanOutput};
use super::inputs::{Data, DataType, Dims, Inputs, Tensor};
use super::servable::{FeaturePlan, InputPlan, NeedsIds, Reading, Role, Servable, Signature};
use crate::declined::Declined;
use crate::tables::table::{Ints, OnBadId, Out, Weights};

/// More bytes than this, read of tables and written to an answer, are large work. A request of this size takes some
/// 100 microseconds, about what a thread change in both directions and a wait for the pool cost others.
const SMALL_BYTES: usize = 512 << 10;

/// The most work that the calling thread may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Some tens of microseconds: the thread serves connections. More is [`Declined::TooLarge`].
    Small,
    /// Any: the thread is one of the pool for large work.
    Any,
}

/// Shape of one output of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputShape {
    /// Number of the output in the signature.
    pub output: usize,
    /// Its dtype.
    pub dtype: DataType,
    /// Its sizes.
    pub dims: Dims,
}

impl OutputShape {
    /// Bytes of its numbers; 0 of strings.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }
}

/// Little-endian int64 or float32 numbers, as they lie in the request or as a form decoded them.
enum Octets<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    Ints(Vec<i64>),
}

impl std::ops::Deref for Octets<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Octets::Borrowed(bytes) => bytes,
            Octets::Owned(bytes) => bytes,
            Octets::Ints(numbers) => Ints::of(numbers).as_bytes(),
        }
    }
}

/// Ids, row splits and weights of one feature of a lookup, judged but for the ids' rows.
struct Sent<'r> {
    ids: Octets<'r>,
    /// Sizes of the ids input, `[B]` or `[B, K]`.
    sizes: Dims,
    splits: Option<Octets<'r>>,
    weights: Option<Octets<'r>>,
}

impl Sent<'_> {
    fn ids(&self) -> Ints<'_> {
        Ints::new(&self.ids)
    }

    fn splits(&self) -> Option<Ints<'_>> {
        self.splits.as_deref().map(Ints::new)
    }

    fn rows(&self) -> usize {
        self.splits().map_or(self.sizes[0], |splits| splits.len() - 1)
    }
}

#[allow(clippy::large_enum_variant, reason = "a box would cost each lookup an allocation")]
enum Content<'r> {
    Lookup {
        /// By feature; None: it was not sent.
        sent: SmallVec<[Option<Sent<'r>>; 8]>,
        /// By feature: ids without a row so far, and whether it was read.
        missing: SmallVec<[Option<usize>; 8]>,
    },
    Predict(Vec<RanOutput>),
}

/// A judged request.
///
/// A form calls `prepare`, then `outputs` to learn how large the answer is, then `fill` once for each output, and
/// `finish` at the end. A lookup reads its rows in `fill`, straight into the answer; a predict has run in `prepare`.
pub struct Work<'s, 'r> {
    servable: &'s Servable,
    signature: usize,
    rows: usize,
    outputs: SmallVec<[OutputShape; 4]>,
    content: Content<'r>,
    strangers: Strangers,
}

impl<'s, 'r> Work<'s, 'r> {
    /// Judges the inputs of a request, and runs a predict.
    ///
    /// Arguments: `signature` is its number in the servable; `inputs` has one element for each of its inputs; `wanted`
    /// are the numbers of the outputs that the request names, none twice, or none for all that it can have.
    ///
    /// # Errors
    /// The reason why the reference must answer.
    pub fn prepare(
        servable: &'s Servable,
        signature: usize,
        inputs: Inputs<'r>,
        wanted: &[usize],
        effort: Effort,
        max_response_bytes: usize,
    ) -> Result<Self, Declined> {
        let plan = &servable.signatures()[signature];
        plan.admit(effort)?;
        check_names(plan, &inputs)?;
        let (inputs, strangers) = judge_tensors(servable, plan, inputs)?;
        let rows = count_rows(plan, &inputs)?;
        if rows.saturating_mul(plan.row_bytes) > max_response_bytes {
            return Err(Declined::OverLimit);
        }
        let mut work =
            Work { servable, signature, rows, outputs: SmallVec::new(), content: Content::Predict(vec![]), strangers };
        if let Some(graph) = &plan.graph {
            let all: SmallVec<[usize; 8]> = (0..plan.outputs.len()).collect();
            let numbers = if wanted.is_empty() { &all[..] } else { wanted };
            let ran = graph.run(servable, plan, &inputs, numbers)?;
            let shapes = numbers.iter().zip(&ran);
            work.outputs =
                shapes.map(|(&o, ran)| OutputShape { output: o, dtype: ran.dtype, dims: ran.dims.clone() }).collect();
            work.content = Content::Predict(ran);
        } else {
            let sent = sent_features(plan, inputs)?;
            work.outputs = lookup_outputs(servable, plan, &sent, wanted)?;
            let missing = sent.iter().map(|_| None).collect();
            work.content = Content::Lookup { sent, missing };
            if effort == Effort::Small && work.cost_bytes() > SMALL_BYTES {
                return Err(Declined::TooLarge);
            }
        }
        Ok(work)
    }

    /// Returns B, the number of rows of the request.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The outputs of the answer, in its order.
    #[must_use]
    pub fn outputs(&self) -> &[OutputShape] {
        &self.outputs
    }

    /// Writes the little-endian numbers of output `number` of [`Work::outputs`], end to end.
    ///
    /// # Errors
    /// As `prepare`; the memory is then not initialised.
    ///
    /// # Panics
    /// The memory has not [`OutputShape::num_bytes`] bytes, or the output is of dtype string.
    pub fn fill(&mut self, number: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        assert_eq!(to.len(), self.outputs[number].num_bytes());
        let plan = &self.servable.signatures()[self.signature];
        match &mut self.content {
            Content::Predict(ran) => {
                let RanData::Numbers(numbers) = &ran[number].data else {
                    return Err(Declined::Graph);
                };
                let from: &[u8] = (**numbers).as_ref();
                if from.len() != to.len() {
                    return Err(Declined::Graph);
                }
                // SAFETY: both have as many bytes, and a MaybeUninit<u8> lies in memory as a u8 does.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), from.len()) };
                Ok(())
            }
            Content::Lookup { sent, missing } => {
                let output = &plan.outputs[self.outputs[number].output];
                let dims = &self.outputs[number].dims;
                let stride = dims[dims.len() - 1] * 4;
                let mut skip = 0;
                for &part in &output.parts {
                    let feature = &plan.features[part];
                    let Some(sent) = &sent[part] else {
                        return Err(Declined::Unfit);
                    };
                    let place = Place { skip, stride, is_flat: output.is_flat && dims.len() == 2 };
                    let count = read(self.servable, feature, sent, to, &place)?;
                    missing[part] = Some(count);
                    skip += vector_width(self.servable, feature, sent, output.is_flat) * 4;
                }
                Ok(())
            }
        }
    }

    /// Returns the strings of output `number` of [`Work::outputs`], none where it is of another dtype.
    #[must_use]
    pub fn strings(&self, number: usize) -> &[Vec<u8>] {
        match &self.content {
            Content::Predict(ran) => match &ran[number].data {
                RanData::Strings(strings) => strings,
                RanData::Numbers(_) => &[],
            },
            Content::Lookup { .. } => &[],
        }
    }

    /// Counts what was read, and says whether the files were sound to the end. To be called after all `fill`s.
    ///
    /// # Errors
    /// [`Declined::Damaged`].
    pub fn finish(self) -> Result<(), Declined> {
        // After the last read: a page that could not be read was taken for zeros.
        if self.servable.is_damaged() {
            return Err(Declined::Damaged);
        }
        for &(vocabulary, count) in &self.strangers {
            self.servable.strangers()[vocabulary].fetch_add(count as u64, Ordering::Relaxed);
        }
        if let Content::Lookup { sent, missing } = &self.content {
            let counts = &self.servable.counts()[self.signature];
            for ((sent, missing), counts) in sent.iter().zip(missing).zip(counts) {
                if let (Some(sent), Some(missing)) = (sent, missing) {
                    counts.ids.fetch_add(sent.ids().len() as u64, Ordering::Relaxed);
                    counts.missing.fetch_add(*missing as u64, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Bytes that a lookup reads of tables and writes to its answer.
    fn cost_bytes(&self) -> usize {
        let Content::Lookup { sent, .. } = &self.content else {
            return 0;
        };
        let plan = &self.servable.signatures()[self.signature];
        let written: usize = self.outputs.iter().map(OutputShape::num_bytes).sum();
        let features = plan.features.iter().zip(sent);
        let read = features.map(|(feature, sent)| {
            sent.as_ref().map_or(0, |sent| sent.ids().len() * self.servable.tables()[feature.table].row_bytes())
        });
        read.sum::<usize>() + written
    }
}

/// The features of a predict as they were sent, from which a graph reads rows into its own memory.
pub struct Features<'s, 'r> {
    servable: &'s Servable,
    plan: &'s Signature,
    sent: SmallVec<[Option<Sent<'r>>; 8]>,
}

impl<'s, 'r> Features<'s, 'r> {
    /// Takes the features of inputs that [`Work::prepare`] has judged, and of ids that the graph has worked out.
    ///
    /// # Errors
    /// The reference treats some of their rows apart, or the graph gave other tensors than the signature says.
    pub fn new(
        servable: &'s Servable,
        plan: &'s Signature,
        inputs: &Inputs<'r>,
        computed: Vec<Tensor<'r>>,
    ) -> Result<Self, Declined> {
        if computed.len() != plan.num_computed {
            return Err(Declined::NotNative);
        }
        let of_features = inputs.iter().enumerate().map(|(number, tensor)| {
            let is_read = plan.features.iter().any(|feature| uses(feature, number));
            tensor.as_ref().filter(|_| is_read).cloned()
        });
        let sent = sent_features(plan, of_features.chain(computed.into_iter().map(Some)).collect())?;
        Ok(Features { servable, plan, sent })
    }

    /// Returns the shape of a feature's vectors; `is_flat`: those of a row are one vector.
    ///
    /// # Errors
    /// The feature was not sent, or its ids have another rank.
    pub fn dims(&self, feature: usize, is_flat: bool) -> Result<Dims, Declined> {
        let sent = self.sent[feature].as_ref().ok_or(Declined::Unfit)?;
        vector_dims(self.servable, &self.plan.features[feature], sent, is_flat)
    }

    /// Writes a feature's vectors end to end.
    ///
    /// # Errors
    /// The feature was not sent, or an id has no row.
    ///
    /// # Panics
    /// The memory is too short.
    pub fn read(&self, feature: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        let stride = self.servable.tables()[self.plan.features[feature].table].embedding_dim * 4;
        let place = Place { skip: 0, stride, is_flat: false };
        self.read_at(feature, to, &place)
    }

    /// Writes the vector of each row, which begins `skip` bytes into the memory and `stride` bytes behind the last one.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Panics
    /// As `read`.
    pub fn read_column(
        &self,
        feature: usize,
        to: &mut [MaybeUninit<u8>],
        skip: usize,
        stride: usize,
    ) -> Result<(), Declined> {
        self.read_at(feature, to, &Place { skip, stride, is_flat: true })
    }

    fn read_at(&self, feature: usize, to: &mut [MaybeUninit<u8>], place: &Place) -> Result<(), Declined> {
        let sent = self.sent[feature].as_ref().ok_or(Declined::Unfit)?;
        if sent.sizes.iter().product::<usize>() != sent.ids().len() {
            // Ids of another dtype: fewer would be read than there is memory for.
            return Err(Declined::NotNative);
        }
        read(self.servable, &self.plan.features[feature], sent, to, place).map(drop)
    }
}

fn check_names(plan: &Signature, inputs: &Inputs<'_>) -> Result<(), Declined> {
    let is_sent = |number: usize| inputs[number].is_some();
    let lacks = plan.inputs.iter().zip(inputs).any(|(input, sent)| !input.is_optional && sent.is_none());
    if lacks || (plan.kind == SignatureKind::Lookup && inputs.iter().all(Option::is_none)) {
        return Err(Declined::Unfit);
    }
    for feature in &plan.features {
        if let Some(splits) = feature.row_splits {
            let has_weights = feature.weights.is_some_and(is_sent);
            if is_sent(feature.ids) != is_sent(splits) || (has_weights && !is_sent(feature.ids)) {
                return Err(Declined::Unfit);
            }
        }
    }
    Ok(())
}

/// Numbers of vocabularies, and how many keys of an input each lacks. An input has one vocabulary, and features that
/// share the input share the count.
type Strangers = SmallVec<[(usize, usize); 2]>;

/// Returns the inputs with keys as ids, after dtypes, ranks, sizes and the ids of a predict were checked.
fn judge_tensors<'r>(
    servable: &Servable,
    plan: &Signature,
    mut inputs: Inputs<'r>,
) -> Result<(Inputs<'r>, Strangers), Declined> {
    let mut strangers = Strangers::new();
    for (slot, input) in inputs.iter_mut().zip(&plan.inputs) {
        let Some(tensor) = slot else { continue };
        let is_lookup = plan.kind == SignatureKind::Lookup;
        check_shape(plan.kind, input, tensor)?;
        let is_key = match (tensor.dtype, input.dtype) {
            (DataType::String, _) if input.takes_strings => {
                input.vocabulary.is_some() && (is_lookup || !input.takes_keys)
            }
            (DataType::Int64 | DataType::Int32, DataType::Int64 | DataType::Int32)
                if tensor.dtype == input.dtype || input.role != Role::Free =>
            {
                input.takes_keys && is_lookup
            }
            (sent, wanted) if sent == wanted => false,
            _ => return Err(Declined::Unfit),
        };
        if is_key {
            let number = input.vocabulary.ok_or(Declined::Unfit)?;
            let vocabulary = &servable.vocabularies()[number];
            let (ids, lacking) = match &tensor.data {
                Data::Strings(keys) => vocabulary.rows_of_strings(keys.parts.iter().map(AsRef::as_ref)),
                _ => vocabulary.rows_of_integers(integers(tensor).iter().copied()),
            }
            .map_err(|_| Declined::Unfit)?;
            if lacking > 0 {
                strangers.push((number, lacking));
            }
            tensor.data = Data::Ints(ids);
            // Vocabularies give int64, which an int32 input takes as well.
            tensor.dtype = DataType::Int64;
        }
        if tensor.dtype == DataType::Int64 && input.dtype == DataType::Int32 {
            let fits = |id: i64| i32::try_from(id).is_ok();
            if !integers(tensor).iter().all(|&id| fits(id)) {
                return Err(Declined::Unfit);
            }
        }
        let (low, high) = input.bounds;
        if (low, high) != (i64::MIN, i64::MAX)
            && !input.takes_keys
            && integers(tensor).iter().any(|&id| id < low || id >= high)
        {
            return Err(Declined::Unfit);
        }
    }
    Ok((inputs, strangers))
}

fn check_shape(kind: SignatureKind, input: &InputPlan, tensor: &Tensor<'_>) -> Result<(), Declined> {
    let Some(shape) = &input.shape else { return Ok(()) };
    let is_described = kind == SignatureKind::Lookup || input.role != Role::Free;
    if is_described && shape.len() != tensor.dims.len() {
        return Err(Declined::Unfit);
    }
    let mut sizes = shape.iter().zip(&tensor.dims).skip(1);
    if kind == SignatureKind::Lookup && sizes.any(|(wanted, sent)| wanted.is_some_and(|wanted| wanted != *sent)) {
        return Err(Declined::Unfit);
    }
    Ok(())
}

/// Returns B, after the row splits of all ragged features were checked.
fn count_rows(plan: &Signature, inputs: &Inputs<'_>) -> Result<usize, Declined> {
    let mut most = 0;
    let mut first = None;
    let mut differ = false;
    let mut see = |rows: usize| {
        most = most.max(rows);
        differ |= *first.get_or_insert(rows) != rows;
    };
    let mut is_ragged = false;
    for (number, (tensor, input)) in inputs.iter().zip(&plan.inputs).enumerate() {
        let Some(tensor) = tensor else { continue };
        let ragged = plan.features.iter().find(|feature| feature.ids == number && feature.row_splits.is_some());
        if ragged.is_some() || input.role == Role::Part {
            continue;
        }
        let is_open = |shape: &Vec<Option<usize>>| shape.get(1).is_none_or(Option::is_none);
        if plan.kind == SignatureKind::Lookup && tensor.dims.len() == 2 && input.shape.as_ref().is_some_and(is_open) {
            see(tensor.dims.iter().product());
        } else {
            see(tensor.dims.first().copied().unwrap_or(1));
        }
    }
    for feature in &plan.features {
        let Some(splits) = feature.row_splits else { continue };
        is_ragged = true;
        let (Some(ids), Some(splits)) = (&inputs[feature.ids], &inputs[splits]) else {
            continue;
        };
        let weights = feature.weights.and_then(|weights| inputs[weights].as_ref());
        see(check_ragged(ids, splits, weights)?);
    }
    if plan.kind == SignatureKind::Predict && is_ragged && differ {
        return Err(Declined::Unfit);
    }
    Ok(most)
}

fn check_ragged(ids: &Tensor<'_>, splits: &Tensor<'_>, weights: Option<&Tensor<'_>>) -> Result<usize, Declined> {
    if ids.dims.len() != 1 || splits.dims.len() != 1 {
        return Err(Declined::Unfit);
    }
    let num_ids = ids.dims[0];
    let splits = int64_bytes(splits);
    let splits = Ints::new(&splits);
    let mut last = 0;
    for (i, split) in splits.iter().enumerate() {
        if split < last || (i == 0 && split != 0) {
            return Err(Declined::Unfit);
        }
        last = split;
    }
    if splits.is_empty() || usize::try_from(last) != Ok(num_ids) {
        return Err(Declined::Unfit);
    }
    if let Some(weights) = weights
        && (weights.dims.len() != 1 || (weights.dims[0] != 0 && weights.dims[0] != num_ids))
    {
        return Err(Declined::Unfit);
    }
    Ok(splits.len() - 1)
}

fn sent_features<'r>(plan: &Signature, mut inputs: Inputs<'r>) -> Result<SmallVec<[Option<Sent<'r>>; 8]>, Declined> {
    // Several features may read one input, so the last of them takes it and the others copy it.
    let mut sent = SmallVec::new();
    for (f, feature) in plan.features.iter().enumerate() {
        let later = &plan.features[f + 1..];
        let is_last = |number: usize| !later.iter().any(|other| uses(other, number));
        let mut take = |number: usize| {
            let tensor = if is_last(number) { inputs[number].take() } else { inputs[number].clone() };
            tensor.map(|tensor| (tensor.dims.clone(), octets_of(tensor)))
        };
        let Some((sizes, ids)) = take(feature.ids) else {
            sent.push(None);
            continue;
        };
        let splits = feature.row_splits.and_then(&mut take).map(|(_, splits)| splits);
        // No weights at all are the signature's default and mean 1 for every id.
        let weights = feature.weights.and_then(&mut take).map(|(_, weights)| weights).filter(|w| !w.is_empty());
        let one = Sent { ids, sizes, splits, weights };
        if !has_needed_ids(feature, &one) || plan.max_rows.is_some_and(|most| one.rows() > most) {
            return Err(Declined::Unfit);
        }
        sent.push(Some(one));
    }
    Ok(sent)
}

fn uses(feature: &FeaturePlan, input: usize) -> bool {
    feature.ids == input || feature.row_splits == Some(input) || feature.weights == Some(input)
}

fn has_needed_ids(feature: &FeaturePlan, sent: &Sent<'_>) -> bool {
    let Some(splits) = sent.splits() else { return true };
    let last = splits.len() - 1;
    let first = match feature.needs_ids {
        NeedsIds::None => return true,
        NeedsIds::Last => last.saturating_sub(1),
        NeedsIds::All => 0,
    };
    (first..last).all(|row| splits.get(row) < splits.get(row + 1))
}

/// Returns the shapes of the outputs that a lookup answers: those whose features were all sent.
fn lookup_outputs(
    servable: &Servable,
    plan: &Signature,
    sent: &[Option<Sent<'_>>],
    wanted: &[usize],
) -> Result<SmallVec<[OutputShape; 4]>, Declined> {
    let mut shapes = SmallVec::new();
    let all = 0..plan.outputs.len();
    let numbers: SmallVec<[usize; 8]> =
        if wanted.is_empty() { all.collect() } else { wanted.iter().copied().collect() };
    for number in numbers {
        let output = &plan.outputs[number];
        if output.parts.iter().any(|&part| sent[part].is_none()) {
            if !wanted.is_empty() && output.parts.len() > 1 {
                return Err(Declined::Unfit);
            }
            continue;
        }
        let mut dims = Dims::new();
        for &part in &output.parts {
            let Some(sent) = &sent[part] else {
                return Err(Declined::Unfit);
            };
            let of_part = vector_dims(servable, &plan.features[part], sent, output.is_flat)?;
            if dims.is_empty() {
                dims = of_part;
            } else if dims[..dims.len() - 1] == of_part[..of_part.len() - 1] {
                *dims.last_mut().ok_or(Declined::Unfit)? += of_part[of_part.len() - 1];
            } else {
                return Err(Declined::Unfit);
            }
        }
        dims.iter().try_fold(4_usize, |size, dim| size.checked_mul(*dim)).ok_or(Declined::OverLimit)?;
        shapes.push(OutputShape { output: number, dtype: output.dtype, dims });
    }
    // The reference says which features are missing, or answers with no output at all.
    if shapes.is_empty() { Err(Declined::Unfit) } else { Ok(shapes) }
}

fn vector_dims(servable: &Servable, feature: &FeaturePlan, sent: &Sent<'_>, is_flat: bool) -> Result<Dims, Declined> {
    let dim = servable.tables()[feature.table].embedding_dim;
    let rows = sent.rows();
    let mut dims: Dims = match feature.reading {
        Reading::Combine(_) => [rows, dim].into_iter().collect(),
        Reading::Sequence { length } => [rows, length, dim].into_iter().collect(),
        Reading::Gather { ids_rank } => {
            if sent.sizes.is_empty() || ids_rank.is_some_and(|rank| sent.sizes.len() != rank) {
                return Err(Declined::Unfit);
            }
            sent.sizes.iter().copied().chain([dim]).collect()
        }
    };
    if is_flat && dims.len() > 2 {
        let width =
            dims[1..].iter().try_fold(1_usize, |size, dim| size.checked_mul(*dim)).ok_or(Declined::OverLimit)?;
        dims = [dims[0], width].into_iter().collect();
    }
    Ok(dims)
}

/// Returns how many numbers of an output's innermost dimension a feature fills.
fn vector_width(servable: &Servable, feature: &FeaturePlan, sent: &Sent<'_>, is_flat: bool) -> usize {
    vector_dims(servable, feature, sent, is_flat).map_or(0, |dims| dims[dims.len() - 1])
}

/// Where the vectors of one feature lie in an output: the first byte, the bytes from one to the next, and whether the
/// vectors of a row stand side by side in it.
struct Place {
    skip: usize,
    stride: usize,
    is_flat: bool,
}

/// Reads the vectors of one feature into an output; returns how many ids have no row.
fn read(
    servable: &Servable,
    feature: &FeaturePlan,
    sent: &Sent<'_>,
    to: &mut [MaybeUninit<u8>],
    place: &Place,
) -> Result<usize, Declined> {
    let table = &servable.tables()[feature.table];
    let row_bytes = table.embedding_dim * 4;
    let (ids, policy) = (sent.ids(), feature.policy);
    let looked = match feature.reading {
        Reading::Gather { .. } if place.is_flat && sent.sizes.len() == 2 => {
            let (rows, per_row) = (sent.sizes[0], sent.sizes[1]);
            let mut missing = 0;
            for row in 0..rows {
                let out = Out::new(to, place.skip + row * place.stride, row_bytes, row_bytes, per_row);
                missing += table
                    .gather(ids.slice(row * per_row, (row + 1) * per_row), policy, out)
                    .map_err(|_| Declined::Unfit)?;
            }
            Ok(missing)
        }
        Reading::Gather { .. } => {
            table.gather(ids, policy, Out::new(to, place.skip, place.stride, row_bytes, ids.len()))
        }
        Reading::Combine(how) => {
            let splits = sent.splits().ok_or(Declined::Unfit)?;
            let weights = sent.weights.as_deref().map(Weights::new);
            let out = Out::new(to, place.skip, place.stride, row_bytes, splits.len() - 1);
            table.combine(ids, splits, weights, &how, policy, out)
        }
        Reading::Sequence { length } => {
            let splits = sent.splits().ok_or(Declined::Unfit)?;
            let width = length * row_bytes;
            // Joined sequences are flat (see Servable::compile), so one that is not has its output alone.
            let stride = if place.is_flat { place.stride } else { width };
            table.sequence(ids, splits, length, policy, Out::new(to, place.skip, stride, width, splits.len() - 1))
        }
    };
    let missing = looked.map_err(|_| Declined::Unfit)?;
    let drops = matches!(policy.on_bad_id, OnBadId::Drop | OnBadId::DropNegative);
    if missing > 0 && feature.needs_ids != NeedsIds::None && drops {
        // All ids of a row may have been dropped, and the reference treats such a row apart.
        return Err(Declined::Unfit);
    }
    Ok(missing)
}

/// Returns the numbers of an int64 or int32 tensor.
fn integers<'t>(tensor: &'t Tensor<'_>) -> Cow<'t, [i64]> {
    match &tensor.data {
        Data::Ints(numbers) => Cow::Borrowed(numbers),
        Data::Raw(bytes) => Cow::Owned(widened(bytes, tensor.dtype)),
        Data::Bytes(bytes) => Cow::Owned(widened(bytes, tensor.dtype)),
        Data::Floats(_) | Data::Strings(_) => Cow::Borrowed(&[]),
    }
}

fn widened(bytes: &[u8], dtype: DataType) -> Vec<i64> {
    if dtype == DataType::Int32 {
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|number| i64::from(i32::from_le_bytes(*number))).collect()
    } else {
        bytes.as_chunks::<8>().0.iter().map(|number| i64::from_le_bytes(*number)).collect()
    }
}

fn int64_bytes<'t>(tensor: &'t Tensor<'_>) -> Cow<'t, [u8]> {
    match (&tensor.data, tensor.dtype) {
        (Data::Raw(bytes), DataType::Int64) => Cow::Borrowed(bytes),
        (Data::Ints(numbers), _) => Cow::Borrowed(Ints::of(numbers).as_bytes()),
        _ => Cow::Owned(Ints::of(&integers(tensor)).as_bytes().to_vec()),
    }
}

/// Returns little-endian int64 of an integer tensor, and float32 of weights, without a copy where that is possible.
fn octets_of(tensor: Tensor<'_>) -> Octets<'_> {
    match (tensor.data, tensor.dtype) {
        (Data::Raw(bytes), DataType::Int32) => Octets::Ints(widened(bytes, DataType::Int32)),
        (Data::Bytes(bytes), DataType::Int32) => Octets::Ints(widened(&bytes, DataType::Int32)),
        (Data::Raw(bytes), _) => Octets::Borrowed(bytes),
        (Data::Bytes(bytes), _) => Octets::Owned(bytes),
        (Data::Ints(numbers), _) => Octets::Ints(numbers),
        (Data::Floats(numbers), _) => Octets::Owned(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()),
        (Data::Strings(_), _) => Octets::Borrowed(&[]),
    }
}
