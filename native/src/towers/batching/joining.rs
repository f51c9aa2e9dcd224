//! Joins the inputs of requests to those of one batch, and splits the batch's outputs.
//!
//! Source of the rules: `tensorflow_serving/batching/{batching_session.cc,batching_util.h}` (9d981c5).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::plan::faults::{self, BoxedFault};
use crate::plan::{self, Data, DataType, Dims, GraphOutput, Inputs, OutputData, Signature, Strings};

/// In [`Shapes`], stands for an inner size that may differ between the requests of a batch.
const ANY_SIZE: usize = usize::MAX;

/// Largest size in bytes of an input whose smaller rows are filled up. Requests whose batch would have a larger one run
/// apart.
const MAX_FILLED_UP: usize = 1 << 28;

/// The meaning of the first dimension of a signature's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// The input has one element for each row.
    Rows,
    /// The input has one element for each id of a ragged feature; the row splits are in the input of this index.
    Ids { splits: usize },
    /// The input has the weights of a ragged feature: one for each id, or none, if each id has weight 1.
    Weights { splits: usize, ids: usize },
    /// The input has the row splits of a ragged feature.
    Splits {
        /// Whether the graph is fed a sparse matrix, which has as many columns as the longest row has values.
        is_sparse: bool,
    },
}

/// Returns the kind of each input of a signature.
pub fn input_kinds(plan: &Signature) -> Vec<InputKind> {
    let kind = |index: usize| {
        for ragged in &plan.ragged {
            let splits = ragged.row_splits;
            if splits == index {
                return InputKind::Splits { is_sparse: ragged.is_sparse };
            }
            if ragged.values == index {
                return InputKind::Ids { splits };
            }
            if ragged.weights == Some(index) {
                return InputKind::Weights { splits, ids: ragged.values };
            }
        }
        InputKind::Rows
    };
    (0..plan.inputs.len()).map(kind).collect()
}

/// The elements of an input tensor that a waiting request owns.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Elements {
    /// Little-endian numbers, end to end.
    Numbers(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

/// An input tensor that a waiting request owns. Row splits are always int64.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    dtype: DataType,
    dims: Dims,
    elements: Elements,
}

/// The input tensors of a waiting request, or of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedInputs(SmallVec<[Option<Owned>; 8]>);

/// The shapes by which requests share a batch, if they are equal: dtype and inner shape of each input that was sent, and
/// which features have ids without weights.
#[derive(Debug, PartialEq, Eq)]
pub struct Shapes(SmallVec<[Option<(DataType, Dims, bool)>; 8]>);

impl OwnedInputs {
    /// Copies the inputs of a request.
    pub fn copy_of(kinds: &[InputKind], inputs: &Inputs<'_>) -> Self {
        let kinds = kinds.iter().enumerate();
        OwnedInputs(kinds.map(|(index, kind)| Some(owned(*kind, inputs.get(index)?))).collect())
    }

    pub fn borrowed(&self) -> Inputs<'_> {
        self.0.iter().map(|tensor| tensor.as_ref().map(borrow)).collect()
    }

    /// Returns the number of rows of the request.
    ///
    /// # Errors
    /// The inputs differ in their number of rows, or an input has no dimension, or there is no input.
    pub fn num_rows(&self, kinds: &[InputKind]) -> Result<usize, BoxedFault> {
        let mut rows = None;
        for (tensor, kind) in self.0.iter().zip(kinds) {
            let Some(tensor) = tensor else { continue };
            let Some(&size) = tensor.dims.first() else {
                return Err(faults::batch_of_scalar());
            };
            let found = match kind {
                InputKind::Rows => size,
                InputKind::Splits { .. } => size.saturating_sub(1),
                InputKind::Ids { .. } | InputKind::Weights { .. } => continue,
            };
            if *rows.get_or_insert(found) != found {
                return Err(faults::batch_rows_differ());
            }
        }
        rows.ok_or_else(faults::batch_without_inputs)
    }

    /// Returns what another request's inputs must have in common with these. With `pads`, inputs of rows may differ in
    /// their inner sizes, but not in their rank; an empty input has no value to pad with, so it needs equal inner sizes.
    pub fn shapes(&self, kinds: &[InputKind], pads: bool) -> Shapes {
        let shape = |(tensor, kind): (&Option<Owned>, &InputKind)| {
            let tensor = tensor.as_ref()?;
            let mut inner: Dims = tensor.dims.iter().skip(1).copied().collect();
            if pads && *kind == InputKind::Rows && !tensor.dims.contains(&0) {
                inner.fill(ANY_SIZE);
            }
            if *kind == (InputKind::Splits { is_sparse: true }) {
                // The columns of a sparse matrix may be columns of an output, so requests with another number of columns
                // would change it.
                let rows = tensor.dims.first().map_or(0, |size| size.saturating_sub(1));
                inner.push((0..rows).map(|row| tensor.split(row + 1) - tensor.split(row)).max().unwrap_or(0));
            }
            // The ids of a request without weights would lack weights in a batch with weighted requests.
            let is_unweighted = matches!(kind, InputKind::Weights { ids, .. } if self.is_unweighted(tensor, *ids));
            Some((tensor.dtype, inner, is_unweighted))
        };
        Shapes(self.0.iter().zip(kinds).map(shape).collect())
    }

    fn is_unweighted(&self, weights: &Owned, ids: usize) -> bool {
        weights.dims.first() == Some(&0) && self.0[ids].as_ref().is_some_and(|ids| ids.dims.first() != Some(&0))
    }

    /// Returns the range of an input's elements that belongs to these rows.
    pub fn elements(&self, kinds: &[InputKind], index: usize, rows: &Range<usize>) -> Range<usize> {
        let Some((tensor, kind)) = self.0.get(index).and_then(Option::as_ref).zip(kinds.get(index)) else {
            return 0..0;
        };
        let inner: usize = tensor.dims.iter().skip(1).product();
        let range = self.range(index, *kind, rows);
        range.start * inner..range.end * inner
    }

    /// Returns the range of an input's first dimension that belongs to these rows.
    fn range(&self, index: usize, kind: InputKind, rows: &Range<usize>) -> Range<usize> {
        let of_ids = |splits: usize| {
            let split = |row: usize| self.0[splits].as_ref().map_or(0, |splits| splits.split(row));
            split(rows.start)..split(rows.end)
        };
        match kind {
            InputKind::Rows => rows.clone(),
            InputKind::Splits { .. } => rows.start..rows.end + 1,
            InputKind::Ids { splits } => of_ids(splits),
            InputKind::Weights { splits, ids } => {
                let is_unweighted = self.0[index].as_ref().is_some_and(|weights| self.is_unweighted(weights, ids));
                if is_unweighted { 0..0 } else { of_ids(splits) }
            }
        }
    }
}

impl Owned {
    fn split(&self, row: usize) -> usize {
        let Elements::Numbers(bytes) = &self.elements else { return 0 };
        let number = bytes.as_chunks::<8>().0.get(row).map_or(0, |number| i64::from_le_bytes(*number));
        usize::try_from(number).unwrap_or(0)
    }

    /// Returns the size in memory of the element that fills up smaller rows.
    fn filling_bytes(&self) -> usize {
        match &self.elements {
            Elements::Numbers(_) => self.dtype.size(),
            Elements::Strings(strings) => size_of::<Vec<u8>>() + strings.first().map_or(0, Vec::len),
        }
    }

    /// Returns the number of bytes of one element of the first dimension; 1 for strings, which are counted one by one.
    fn stride(&self) -> usize {
        let inner: usize = self.dims.iter().skip(1).product();
        inner * if self.dtype == DataType::String { 1 } else { self.dtype.size() }
    }
}

fn borrow(tensor: &Owned) -> plan::Tensor<'_> {
    let data = match &tensor.elements {
        Elements::Numbers(bytes) => Data::Raw(bytes),
        Elements::Strings(strings) => {
            Data::Strings(Strings { parts: strings.iter().map(|string| string.as_slice().into()).collect() })
        }
    };
    plan::Tensor { dtype: tensor.dtype, dims: tensor.dims.clone(), data }
}

fn owned(kind: InputKind, tensor: &plan::Tensor<'_>) -> Owned {
    let mut dtype = tensor.dtype;
    let elements = match &tensor.data {
        Data::Strings(strings) => Elements::Strings(strings.parts.iter().map(|part| part.to_vec()).collect()),
        _ if matches!(kind, InputKind::Splits { .. }) => {
            dtype = DataType::Int64;
            Elements::Numbers(plan::integers(tensor).iter().flat_map(|number| number.to_le_bytes()).collect())
        }
        Data::Raw(bytes) => Elements::Numbers(bytes.to_vec()),
        Data::Bytes(bytes) => Elements::Numbers(bytes.clone()),
        Data::Floats(numbers) => Elements::Numbers(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Data::Ints(numbers) if dtype == DataType::Int32 => {
            // The request's parser has checked that each number of an int32 tensor fits.
            #[allow(clippy::cast_possible_truncation, reason = "the parser has checked that the number fits")]
            let narrow = numbers.iter().flat_map(|&number| (number as i32).to_le_bytes());
            Elements::Numbers(narrow.collect())
        }
        Data::Ints(numbers) => Elements::Numbers(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()),
    };
    Owned { dtype, dims: tensor.dims.clone(), elements }
}

/// Joins rows of requests of equal [`Shapes`] to the inputs of one batch.
///
/// # Errors
/// With what fills up smaller rows, an input would have more than [`MAX_FILLED_UP`] bytes.
pub fn join(kinds: &[InputKind], parts: &[(&OwnedInputs, Range<usize>)]) -> Result<OwnedInputs, BoxedFault> {
    let join_input = |(index, kind): (usize, &InputKind)| {
        let first = parts.first()?.0.0[index].as_ref()?;
        let pieces = parts
            .iter()
            .filter_map(|(inputs, rows)| Some((inputs.0[index].as_ref()?, inputs.range(index, *kind, rows))));
        let are_splits = matches!(kind, InputKind::Splits { .. });
        Some(if are_splits { Ok(join_splits(pieces)) } else { join_rows(first, pieces) })
    };
    let joined = kinds.iter().enumerate().map(|input| join_input(input).transpose());
    Ok(OwnedInputs(joined.collect::<Result<_, _>>()?))
}

/// Joins the row splits of several requests, each moved by the number of ids before it.
fn join_splits<'a>(pieces: impl Iterator<Item = (&'a Owned, Range<usize>)>) -> Owned {
    let mut joined = vec![0_i64];
    for (splits, range) in pieces {
        let begin = joined.last().copied().unwrap_or(0);
        let first = splits.split(range.start);
        for row in range.skip(1) {
            joined.push(begin + i64::try_from(splits.split(row) - first).unwrap_or(i64::MAX));
        }
    }
    let dims = [joined.len()].into_iter().collect();
    let bytes = joined.iter().flat_map(|number| number.to_le_bytes()).collect();
    Owned { dtype: DataType::Int64, dims, elements: Elements::Numbers(bytes) }
}

/// Joins ranges of tensors along their first dimension. Tensors of smaller inner sizes than the largest are filled up
/// with the first element of the request's own tensor.
fn join_rows<'a>(
    first: &Owned,
    pieces: impl Iterator<Item = (&'a Owned, Range<usize>)> + Clone,
) -> Result<Owned, BoxedFault> {
    let mut inner: Dims = first.dims.iter().skip(1).copied().collect();
    for (piece, _) in pieces.clone() {
        for (size, other) in inner.iter_mut().zip(piece.dims.iter().skip(1)) {
            *size = (*size).max(*other);
        }
    }
    let is_alike = |piece: &Owned| piece.dims[1..] == inner[..];
    let bytes = pieces.clone().map(|(piece, rows)| rows.len().saturating_mul(piece.filling_bytes()));
    let bytes = inner.iter().fold(bytes.fold(0, usize::saturating_add), |all, size| all.saturating_mul(*size));
    if bytes > MAX_FILLED_UP && !pieces.clone().all(|(piece, _)| is_alike(piece)) {
        return Err(faults::no_memory("The requests of a batch differ too much in their shapes"));
    }
    let mut count = 0;
    let elements = match &first.elements {
        Elements::Numbers(_) => {
            let width = first.dtype.size();
            let mut joined = Vec::new();
            for (piece, range) in pieces {
                let Elements::Numbers(bytes) = &piece.elements else { continue };
                count += range.len();
                let stride = piece.stride();
                let rows = &bytes[range.start * stride..range.end * stride];
                if is_alike(piece) {
                    joined.extend_from_slice(rows);
                } else {
                    let filling = &bytes[..width];
                    let push = |joined: &mut Vec<u8>, place: Option<usize>| {
                        let element = place.map_or(filling, |place| &rows[place * width..(place + 1) * width]);
                        joined.extend_from_slice(element);
                    };
                    fill_up(&mut joined, range.len(), &piece.dims[1..], &inner, push);
                }
            }
            Elements::Numbers(joined)
        }
        Elements::Strings(_) => {
            let mut joined = Vec::new();
            for (piece, range) in pieces {
                let Elements::Strings(strings) = &piece.elements else { continue };
                count += range.len();
                let stride = piece.stride();
                let rows = &strings[range.start * stride..range.end * stride];
                if is_alike(piece) {
                    joined.extend_from_slice(rows);
                } else {
                    let push = |joined: &mut Vec<Vec<u8>>, place: Option<usize>| {
                        joined.push(place.map_or(&strings[0], |place| &rows[place]).clone());
                    };
                    fill_up(&mut joined, range.len(), &piece.dims[1..], &inner, push);
                }
            }
            Elements::Strings(joined)
        }
    };
    Ok(Owned { dtype: first.dtype, dims: [count].into_iter().chain(inner).collect(), elements })
}

/// Writes `rows` rows of inner sizes `from` as rows of the larger inner sizes `to`. `push` appends an element: that at a
/// place of the rows, or, for None, the filling.
fn fill_up<T>(joined: &mut T, rows: usize, from: &[usize], to: &[usize], push: impl Fn(&mut T, Option<usize>)) {
    let (of_row, wanted): (usize, usize) = (from.iter().product(), to.iter().product());
    for row in 0..rows {
        for index in 0..wanted {
            let (mut rest, mut place, mut step, mut is_inside) = (index, 0, 1, true);
            for (size, wide) in from.iter().zip(to).rev() {
                let at = rest % wide;
                rest /= wide;
                is_inside &= at < *size;
                place += at * step;
                step *= size;
            }
            push(joined, is_inside.then_some(row * of_row + place));
        }
    }
}

type Numbers = dyn AsRef<[u8]> + Send + Sync;

/// The rows of one request within an output of a batch.
struct OutputSlice {
    whole: Arc<Numbers>,
    range: Range<usize>,
}

impl AsRef<[u8]> for OutputSlice {
    fn as_ref(&self) -> &[u8] {
        (*self.whole).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

/// Splits the outputs of a batch of `total` rows by request; `rows` has each request's number of rows, and the padding
/// behind them is cut off.
///
/// # Errors
/// An output has not one row for each row of the batch.
pub fn split(outputs: Vec<GraphOutput>, rows: &[usize], total: usize) -> Result<Vec<Vec<GraphOutput>>, BoxedFault> {
    let mut all: Vec<Vec<GraphOutput>> = rows.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for output in outputs {
        let Some((&found, inner)) = output.dims.split_first() else {
            return Err(faults::batch_output_scalar());
        };
        if found != total {
            return Err(faults::batch_output_rows());
        }
        if rows == [total] {
            all[0].push(output);
            continue;
        }
        let row_elements: usize = inner.iter().product();
        let dims = |count: usize| [count].into_iter().chain(inner.iter().copied()).collect();
        let dtype = output.dtype;
        match output.data {
            OutputData::Numbers(numbers) => {
                let whole: Arc<Numbers> = Arc::from(numbers);
                let row_bytes = row_elements * dtype.size();
                let mut start = 0;
                for (&count, outputs) in rows.iter().zip(&mut all) {
                    let range = start..start + count * row_bytes;
                    start = range.end;
                    let data = OutputData::Numbers(Box::new(OutputSlice { whole: Arc::clone(&whole), range }));
                    outputs.push(GraphOutput { dtype, dims: dims(count), data });
                }
            }
            OutputData::Strings(strings) => {
                let mut strings = strings.into_iter();
                for (&count, outputs) in rows.iter().zip(&mut all) {
                    let data = OutputData::Strings(strings.by_ref().take(count * row_elements).collect());
                    outputs.push(GraphOutput { dtype, dims: dims(count), data });
                }
            }
        }
    }
    Ok(all)
}

/// Joins the outputs of the parts of one request that ran in several batches, in their order. None if the parts differ
/// in their outputs' dtypes or inner shapes.
pub fn join_outputs(parts: Vec<Vec<GraphOutput>>) -> Option<Vec<GraphOutput>> {
    let mut parts = parts.into_iter();
    let mut joined = parts.next()?;
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() {
        return Some(joined);
    }
    let mut more: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
    for output in &mut joined {
        let mut numbers = match &output.data {
            OutputData::Numbers(numbers) => (**numbers).as_ref().to_vec(),
            OutputData::Strings(_) => Vec::new(),
        };
        for part in &mut more {
            let next = part.next()?;
            if next.dtype != output.dtype || next.dims.get(1..) != output.dims.get(1..) {
                return None;
            }
            *output.dims.first_mut()? += next.dims.first()?;
            match (&mut output.data, next.data) {
                (OutputData::Strings(strings), OutputData::Strings(more)) => strings.extend(more),
                (OutputData::Numbers(_), OutputData::Numbers(more)) => numbers.extend_from_slice((*more).as_ref()),
                _ => return None,
            }
        }
        if matches!(output.data, OutputData::Numbers(_)) {
            output.data = OutputData::Numbers(Box::new(numbers));
        }
    }
    Some(joined)
}
