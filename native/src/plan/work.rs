//! Judges one request, runs the request, and writes its answer.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::features::{Place, Sent, read, sent_features, vector_dims, vector_width};
use super::graph::{RanData, RanOutput};
use super::inputs::{DataType, Dims, Inputs};
use super::judging::{Strangers, check_names, count_rows, judge_tensors};
use super::servable::{Servable, Signature};
use crate::declined::Declined;

/// A request that reads from tables and writes to its answer more bytes than this is large work. A request of this
/// size takes some 100 microseconds, about as long as a thread change in both directions and a wait for the pool.
const SMALL_BYTES: usize = 512 << 10;

/// The most work that the calling thread may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Some tens of microseconds, because the thread serves connections. More work is [`Declined::TooLarge`].
    Small,
    /// Any amount of work, because the thread is one of the pool for large work.
    Any,
}

/// Shape of one output of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputShape {
    /// Number of the output in the signature.
    pub output: usize,
    /// Dtype of the output.
    pub dtype: DataType,
    /// Sizes of the output.
    pub dims: Dims,
}

impl OutputShape {
    /// Returns the bytes of the output's numbers; 0 for strings.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }
}

#[allow(clippy::large_enum_variant, reason = "a box would cost each lookup an allocation")]
enum Content<'r> {
    Lookup {
        /// The sent tensors of each feature; None for a feature that was not sent.
        sent: SmallVec<[Option<Sent<'r>>; 8]>,
        /// The number of ids without a row of each feature; None for a feature that was not read yet.
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
    /// Arguments: `signature` is the signature's number in the servable; `inputs` has one element for each input of
    /// the signature; `wanted` has the numbers of the outputs that the request names, each once, or none for all
    /// outputs.
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

    /// Returns the outputs, in the order of the answer.
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
                // SAFETY: both slices have as many bytes, and a MaybeUninit<u8> lies in memory as a u8 does.
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

    /// Returns the strings of output `number` of [`Work::outputs`]; empty for an output of another dtype.
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

    /// Counts the ids that were read, and says whether the files were sound to the end. Call this after all `fill`s.
    ///
    /// # Errors
    /// [`Declined::Damaged`].
    pub fn finish(self) -> Result<(), Declined> {
        // This check follows the last read, because a page that could not be read gave zeros.
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

    /// Returns the number of bytes that a lookup reads from tables and writes to its answer.
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
