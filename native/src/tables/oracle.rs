//! Slow lookups, which process one number after the other; tests compare the fast kernels with them.

use super::table::{CombineOptions, Combiner, Dtype, LookupError, OnBadId, Policy, Summation};

/// A table in the test's memory: its stored bytes, and the scales of its rows.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    pub(super) dtype: Dtype,
    pub(super) size: usize,
    pub(super) dim: usize,
    pub(super) raw: Vec<u8>,
    pub(super) scales: Vec<f32>,
}

impl Numbers {
    /// Returns the table's number in a row and a column as float32.
    pub(super) fn get(&self, row: usize, column: usize) -> f32 {
        let place = row * self.dim + column;
        match self.dtype {
            Dtype::Float32 => f32::from_le_bytes(self.raw[place * 4..][..4].try_into().unwrap()),
            Dtype::Float16 => half(u16::from_le_bytes(self.raw[place * 2..][..2].try_into().unwrap())),
            Dtype::Bfloat16 => f32::from_le_bytes([0, 0, self.raw[place * 2], self.raw[place * 2 + 1]]),
            Dtype::Int8 => f32::from(self.raw[place] as i8) * self.scales[row],
            Dtype::Int4 => {
                let byte = self.raw[row * self.dim.div_ceil(2) + column / 2];
                let bits = if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
                let number = if bits < 8 { bits as i8 } else { bits as i8 - 16 };
                f32::from(number) * self.scales[row]
            }
            Dtype::Float64 => unreachable!(),
        }
    }

    fn row_of(&self, id: i64, at: usize, policy: Policy) -> Result<Option<usize>, LookupError> {
        let size = self.size as i64;
        if (0..size).contains(&id) {
            return Ok(Some(id as usize));
        }
        match policy.on_bad_id {
            OnBadId::Drop => Ok(None),
            OnBadId::DropNegative if id < 0 => Ok(None),
            OnBadId::DefaultRow => Ok(Some(policy.default_row)),
            OnBadId::Clamp => Ok(Some(id.clamp(0, size - 1) as usize)),
            OnBadId::Wrap if (-size..0).contains(&id) => Ok(Some((id + size) as usize)),
            _ => Err(LookupError::BadId(at)),
        }
    }
}

/// Converts a float16 to float32 by the definition of the format.
pub(super) fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// The result of a lookup: its float32 vectors, end to end, with the number of ids outside the table, or the reason why
/// it stopped.
pub(super) type Found = Result<(Vec<f32>, usize), LookupError>;

pub(super) fn gather(table: &Numbers, ids: &[i64], rows: usize, policy: Policy) -> Found {
    let splits: Vec<i64> = (0..=rows as i64).collect();
    sequence(table, ids, &splits, 1, policy)
}

pub(super) fn sequence(table: &Numbers, ids: &[i64], splits: &[i64], length: usize, policy: Policy) -> Found {
    let (mut out, mut missing) = (Vec::new(), 0);
    for ends in splits.windows(2) {
        for k in 0..length {
            let at = ends[0] as usize + k;
            let row = if at < ends[1] as usize {
                missing += usize::from(!(0..table.size as i64).contains(&ids[at]));
                table.row_of(ids[at], at, policy)?
            } else {
                None
            };
            out.extend((0..table.dim).map(|column| row.map_or(0.0, |row| table.get(row, column))));
        }
    }
    Ok((out, missing))
}

pub(super) fn combine(
    table: &Numbers,
    ids: &[i64],
    splits: &[i64],
    weights: Option<&[f32]>,
    options: &CombineOptions,
    policy: Policy,
) -> Found {
    let (mut out, mut missing) = (Vec::new(), 0);
    for (r, ends) in splits.windows(2).enumerate() {
        let (start, mut end) = (ends[0] as usize, ends[1] as usize);
        if options.max_ids > 0 && end - start > options.max_ids {
            if !options.truncates {
                return Err(LookupError::TooMany(r));
            }
            end = start + options.max_ids;
        }
        let mut terms: Vec<(usize, f32)> = Vec::new();
        for at in start..end {
            missing += usize::from(!(0..table.size as i64).contains(&ids[at]));
            let weight = weights.map_or(1.0, |weights| weights[at]);
            if options.positive_only && (weight <= 0.0 || weight.is_nan()) {
                continue;
            }
            if let Some(row) = table.row_of(ids[at], at, policy)? {
                terms.push((row, weight));
            }
        }
        let total = terms.iter().fold(0.0_f32, |sum, term| sum + term.1);
        let squares = terms.iter().fold(0.0_f32, |sum, term| sum + term.1 * term.1);
        for column in 0..table.dim {
            if let ([(row, _)], None, true) = (&terms[..], weights, options.summation != Summation::InOrder) {
                out.push(table.get(*row, column));
                continue;
            }
            let weighted = |&(row, weight)| table.get(row, column) * if weights.is_some() { weight } else { 1.0 };
            let products: Vec<f32> = terms.iter().map(weighted).collect();
            let sum = sum(&products, options.summation, column < table.dim / 8 * 8);
            let divisor = match options.combiner {
                Combiner::Sum => {
                    out.push(sum);
                    continue;
                }
                Combiner::Mean if options.at_least_one && total < 1.0 => 1.0,
                Combiner::Mean => total,
                Combiner::Sqrtn => squares.sqrt(),
            };
            out.push(if divisor == 0.0 {
                0.0
            } else if options.summation == Summation::BlocksOf8 && total < 10.0 {
                sum * (1.0 / divisor)
            } else {
                sum / divisor
            });
        }
    }
    Ok((out, missing))
}

fn sum(products: &[f32], order: Summation, is_packed: bool) -> f32 {
    let in_order = |batch: &[f32]| batch.iter().fold(0.0_f32, |sum, product| sum + product);
    let from_first = |batch: &[f32]| batch.iter().copied().reduce(|sum, product| sum + product).unwrap_or(0.0);
    match order {
        Summation::FourLanes | Summation::SegmentMean if products.len() == 1 => products[0],
        Summation::BlocksOf8 => {
            let rest = products.len() % 8;
            let first = products.len().min(if rest < 2 { rest + 8 } else { rest });
            let blocks = products[first..].chunks(8);
            blocks.fold(from_first(&products[..first]), |sum, block| sum + from_first(block))
        }
        Summation::FourLanes if is_packed && products.len() >= 16 => {
            let length = products.len() / 4 * 4;
            let lane = |n: usize| in_order(&products[..length].iter().copied().skip(n).step_by(4).collect::<Vec<_>>());
            let lanes = (1..4).fold(lane(0), |sum, n| sum + lane(n));
            products[length..].iter().fold(lanes, |sum, product| sum + product)
        }
        _ => in_order(products),
    }
}
