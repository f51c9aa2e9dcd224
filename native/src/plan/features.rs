//! Reads the vectors of one feature into the memory of an answer, or of a graph.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::inputs::{Dims, Inputs, Tensor};
use super::numbers::{Octets, octets_of};
use super::servable::{FeaturePlan, NeedsIds, Reading, Servable, Signature};
use crate::declined::Declined;
use crate::tables::table::{Ints, OnBadId, Out, Weights};

/// Ids, row splits and weights of one feature. All is checked, except the range of the ids.
pub(super) struct Sent<'r> {
    pub(super) ids: Octets<'r>,
    /// Sizes of the ids input, `[B]` or `[B, K]`.
    pub(super) sizes: Dims,
    splits: Option<Octets<'r>>,
    weights: Option<Octets<'r>>,
}

impl Sent<'_> {
    pub(super) fn ids(&self) -> Ints<'_> {
        Ints::new(&self.ids)
    }

    pub(super) fn splits(&self) -> Option<Ints<'_>> {
        self.splits.as_deref().map(Ints::new)
    }

    pub(super) fn rows(&self) -> usize {
        self.splits().map_or(self.sizes[0], |splits| splits.len() - 1)
    }
}

pub(super) fn sent_features<'r>(
    plan: &Signature,
    mut inputs: Inputs<'r>,
) -> Result<SmallVec<[Option<Sent<'r>>; 8]>, Declined> {
    // Several features may read one input: the last feature takes the tensor, the others clone it.
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
        // An empty weights tensor is the signature's default, and means weight 1 for every id.
        let weights = feature.weights.and_then(&mut take).map(|(_, weights)| weights).filter(|w| !w.is_empty());
        let one = Sent { ids, sizes, splits, weights };
        if !has_needed_ids(feature, &one) || plan.max_rows.is_some_and(|most| one.rows() > most) {
            return Err(Declined::Unfit);
        }
        sent.push(Some(one));
    }
    Ok(sent)
}

pub(super) fn uses(feature: &FeaturePlan, input: usize) -> bool {
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

pub(super) fn vector_dims(
    servable: &Servable,
    feature: &FeaturePlan,
    sent: &Sent<'_>,
    is_flat: bool,
) -> Result<Dims, Declined> {
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

/// Returns how many numbers of an output's innermost dimension the feature fills.
pub(super) fn vector_width(servable: &Servable, feature: &FeaturePlan, sent: &Sent<'_>, is_flat: bool) -> usize {
    vector_dims(servable, feature, sent, is_flat).map_or(0, |dims| dims[dims.len() - 1])
}

/// Where the vectors of one feature lie in an output: the offset of the first byte, the bytes from one row to the next,
/// and whether the vectors of a row stand side by side.
pub(super) struct Place {
    pub(super) skip: usize,
    pub(super) stride: usize,
    pub(super) is_flat: bool,
}

/// Reads the vectors of one feature into an output; returns how many ids have no row.
pub(super) fn read(
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
            // Joined sequences are flat (see Servable::compile), so a sequence that is not flat fills an output alone.
            let stride = if place.is_flat { place.stride } else { width };
            table.sequence(ids, splits, length, policy, Out::new(to, place.skip, stride, width, splits.len() - 1))
        }
    };
    let missing = looked.map_err(|_| Declined::Unfit)?;
    let drops = matches!(policy.on_bad_id, OnBadId::Drop | OnBadId::DropNegative);
    if missing > 0 && feature.needs_ids != NeedsIds::None && drops {
        // A policy may have dropped all ids of a row; only the reference handles such a row.
        return Err(Declined::Unfit);
    }
    Ok(missing)
}

/// The features of a predict as they were sent, from which a graph reads rows into its own memory.
pub struct Features<'s, 'r> {
    servable: &'s Servable,
    plan: &'s Signature,
    sent: SmallVec<[Option<Sent<'r>>; 8]>,
}

impl<'s, 'r> Features<'s, 'r> {
    /// Takes the features from inputs that [`Work::prepare`] has checked, and from ids that the graph has computed.
    ///
    /// # Errors
    /// Only the reference handles some of the rows, or the graph computed other tensors than the signature names.
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

    /// Returns the shape of a feature's vectors; with `is_flat`, the vectors of a row count as one long vector.
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

    /// Writes one vector for each row: the first at byte `skip` of the memory, each further one `stride` bytes later.
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
            // The ids were sent in another dtype, so the lookup would read fewer rows than the memory has room for.
            return Err(Declined::NotNative);
        }
        read(self.servable, &self.plan.features[feature], sent, to, place).map(drop)
    }
}
