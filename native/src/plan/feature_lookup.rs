//! Looks up the vectors of one feature of a request in one table.

use std::mem::MaybeUninit;

use super::description::OnEmptyRow;
use super::feature_inputs::FeatureInputs;
use super::inputs::DataType;
use super::servable::{FeaturePlan, LookupKind};
use super::small_table::Reading;
use crate::tables::halves::Half;
use crate::tables::memory::copy;
use crate::tables::table::{
    CombineOptions, Ints, LookupError, LookupResult, OnBadId, OutputRows, Policy, Table, Weights,
};

/// The position of one feature's vectors in an output's memory: `skip` is the offset of the first vector, `stride` the
/// distance from one row of a flat output to the next, or from one vector of another output to the next; in bytes.
pub(super) struct Placement {
    pub(super) skip: usize,
    pub(super) stride: usize,
    pub(super) is_flat: bool,
    pub(super) form: VectorForm,
}

/// The form in which a feature's vectors are written.
#[derive(Clone, Copy)]
pub(super) enum VectorForm {
    Float32,
    /// Rows as the table stores them.
    Stored,
    /// Float32 numbers rounded to 16 bits.
    Rounded(Half),
}

impl VectorForm {
    /// Returns the form in which an answer has the feature's vectors if it rounds float32 numbers to `half`.
    #[inline]
    pub(super) fn of(plan: &FeaturePlan, half: Option<Half>) -> VectorForm {
        let is_copied = !matches!(plan.lookup, LookupKind::Combine(_)) && !plan.copies_rows;
        match half {
            _ if plan.dtype != DataType::Float32 => VectorForm::Stored,
            None => VectorForm::Float32,
            Some(half) if is_copied && plan.table_dtype == half.of_tables() => VectorForm::Stored,
            Some(half) => VectorForm::Rounded(half),
        }
    }

    /// Returns how many bytes a vector takes.
    fn vector_bytes(self, table: &Table) -> usize {
        match self {
            VectorForm::Float32 => table.embedding_dim * 4,
            VectorForm::Stored => table.stored_bytes(),
            VectorForm::Rounded(_) => table.embedding_dim * 2,
        }
    }
}

/// Checks the ids of a feature as [`look_up`] does, without its table.
///
/// # Errors
/// As `look_up`.
pub(super) fn check_ids(feature: &FeaturePlan, sent: &FeatureInputs<'_>) -> Result<(), LookupError> {
    let table = &Table::without_columns(feature.vocabulary_size);
    let reading = Reading { table, ids: sent.ids(), policy: feature.policy, num_read_instead: 0 };
    let placement = Placement { skip: 0, stride: 0, is_flat: false, form: VectorForm::Float32 };
    look_up(feature, sent, reading, &mut [], &placement).map(drop)
}

/// Writes the vectors of one feature to an output's memory; returns how many ids lie outside the table.
///
/// # Errors
/// The feature's policy refuses an id, or a row has too many ids.
pub(super) fn look_up(
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    reading: Reading<'_>,
    to: &mut [MaybeUninit<u8>],
    placement: &Placement,
) -> LookupResult {
    let Reading { table, ids, policy, num_read_instead } = reading;
    let &Placement { skip, stride, is_flat, form } = placement;
    let row_bytes = form.vector_bytes(table);
    let gather = |ids: Ints<'_>, out: OutputRows<'_>| match form {
        VectorForm::Float32 => table.gather(ids, policy, out),
        VectorForm::Stored => table.gather_stored(ids, policy, out),
        VectorForm::Rounded(half) => half.round_computed(table.embedding_dim, out, |first, part| {
            table.gather(ids.slice(first, ids.len()), policy, part).map_err(|error| later(error, first))
        }),
    };
    let missing = match (feature.lookup, sent.splits()) {
        (LookupKind::Combine(how), Some(splits)) => combine(feature, sent, reading, splits, &how, to, placement)?,
        (LookupKind::Sequence { length }, Some(splits)) => {
            let width = length * row_bytes;
            let rows = splits.len() - 1;
            if matches!(form, VectorForm::Stored) || !(is_flat || stride == row_bytes) {
                let (row_stride, stride) = if is_flat { (stride, row_bytes) } else { (length * stride, stride) };
                let mut missing = 0;
                for row in 0..rows {
                    let (start, end) = (position(splits, row), position(splits, row + 1));
                    let (skip, count) = (skip + row * row_stride, length.min(end - start));
                    let out = OutputRows::new(to, skip, stride, row_bytes, count);
                    missing += gather(ids.slice(start, start + count), out).map_err(|error| later(error, start))?;
                    for place in count..length {
                        to[skip + place * stride..][..row_bytes].fill(MaybeUninit::new(0));
                    }
                }
                missing
            } else {
                // Rows of vectors that are not flattened lie end to end.
                let stride = if is_flat { stride } else { width };
                let out = OutputRows::new(to, skip, stride, width, rows);
                if let VectorForm::Rounded(half) = form {
                    half.round_computed(length * table.embedding_dim, out, |first, part| {
                        let splits = splits.slice(first, first + part.rows() + 1);
                        table.sequence(ids, splits, length, policy, part)
                    })?
                } else {
                    table.sequence(ids, splits, length, policy, out)?
                }
            }
        }
        (LookupKind::Combine(_) | LookupKind::Sequence { .. }, None) => {
            unreachable!("Work::prepare refuses ids without their row splits")
        }
        _ if is_flat && sent.sizes.len() >= 2 => {
            let (rows, per_row) = (sent.sizes[0], sent.sizes[1..].iter().product());
            let mut missing = 0;
            for row in 0..rows {
                let out = OutputRows::new(to, skip + row * stride, row_bytes, row_bytes, per_row);
                let first = row * per_row;
                missing += gather(ids.slice(first, first + per_row), out).map_err(|error| later(error, first))?;
            }
            missing
        }
        _ => gather(ids, OutputRows::new(to, skip, stride, row_bytes, ids.len()))?,
    };
    Ok(missing + num_read_instead)
}

/// Returns the error of a lookup that began at position `first` of the request's ids.
fn later(error: LookupError, first: usize) -> LookupError {
    match error {
        LookupError::BadId(at) => LookupError::BadId(first + at),
        LookupError::TooMany(row) => LookupError::TooMany(row),
    }
}

/// Returns row split `row`, which `Work::prepare` has validated.
fn position(splits: Ints<'_>, row: usize) -> usize {
    usize::try_from(splits.get(row)).unwrap_or(0)
}

/// Combines the ids of each row; applies the feature's policies for empty rows.
fn combine(
    feature: &FeaturePlan,
    sent: &FeatureInputs<'_>,
    reading: Reading<'_>,
    splits: Ints<'_>,
    how: &CombineOptions,
    to: &mut [MaybeUninit<u8>],
    placement: &Placement,
) -> LookupResult {
    let Reading { table, ids, policy, .. } = reading;
    let weights = sent.weights.as_deref().map(Weights::new);
    let (rows, kept) = (splits.len() - 1, sent.kept_rows());
    let row_bytes = placement.form.vector_bytes(table);
    let out = OutputRows::new(to, placement.skip, placement.stride, row_bytes, kept);
    let in_rows = |table: &Table, first: usize, out: OutputRows<'_>| {
        let splits = splits.slice(first, first + out.rows() + 1);
        table.combine(ids, splits, weights, how, policy, out).map_err(|error| match error {
            LookupError::TooMany(row) => LookupError::TooMany(first + row),
            LookupError::BadId(at) => LookupError::BadId(at),
        })
    };
    let mut missing = match placement.form {
        VectorForm::Rounded(half) => {
            half.round_computed(table.embedding_dim, out, |first, part| in_rows(table, first, part))?
        }
        _ => in_rows(table, 0, out)?,
    };
    if kept < rows {
        // The ids of rows that are cut are checked and counted as all others.
        let table = Table::without_columns(table.vocabulary_size);
        let of_cut = OutputRows::new(&mut [], 0, 0, 0, rows - kept);
        missing += in_rows(&table, kept, of_cut)?;
    }
    if feature.on_empty_row != OnEmptyRow::Zeros {
        let vector = vector_of_empty_rows(feature, reading, weights.is_some(), how)?;
        for row in (0..kept).filter(|&row| !sent.has_ids(feature, row)) {
            let at = placement.skip + row * placement.stride;
            match placement.form {
                VectorForm::Rounded(half) => half.round(&vector, OutputRows::new(to, at, row_bytes, row_bytes, 1)),
                _ => copy(&vector, &mut to[at..][..row_bytes]),
            }
        }
    }
    Ok(missing)
}

/// Returns the bytes of the float32 vector that stands for a row without ids.
fn vector_of_empty_rows(
    feature: &FeaturePlan,
    reading: Reading<'_>,
    is_weighted: bool,
    how: &CombineOptions,
) -> Result<Vec<u8>, LookupError> {
    let Reading { table, policy, .. } = reading;
    if feature.on_empty_row == OnEmptyRow::Nan {
        return Ok(f32::NAN.to_le_bytes().repeat(table.embedding_dim));
    }
    // The row has the default row as its only id, with weight 1, as in `safe_embedding_lookup_sparse` of TensorFlow
    // 2.21's python/ops/embedding_ops.py.
    let (ids, weight) = ([i64::try_from(policy.default_row).unwrap_or(-1)], 1.0_f32.to_le_bytes());
    let weights = is_weighted.then(|| Weights::new(&weight));
    let num_bytes = table.embedding_dim * 4;
    let mut vector = Vec::with_capacity(num_bytes);
    let out = OutputRows::new(vector.spare_capacity_mut(), 0, num_bytes, num_bytes, 1);
    let policy = Policy { on_bad_id: OnBadId::Error, ..policy };
    table.combine(Ints::of(&ids), Ints::of(&[0, 1]), weights, how, policy, out)?;
    // SAFETY: combine() has written the only row, which has `num_bytes` bytes.
    unsafe { vector.set_len(num_bytes) };
    Ok(vector)
}
