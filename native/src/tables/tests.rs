//! Compares the lookup kernels with the oracle, bit for bit, over every dtype, combiner, order of additions and policy.

mod guard;
mod neighbors;
mod paged;

use std::mem::MaybeUninit;

use proptest::prelude::*;

use super::combine::Combine;
use super::gather::Gather;
use super::halves::Half;
use super::lanes::widened;
use super::memory::Memory;
use super::oracle::{self, Found, Numbers, half};
use super::processor::Processor;
use super::rows::TableView;
use super::sequence::Sequence;
use super::table::{
    CombineOptions, Combiner, Dtype, Ints, LookupError, LookupResult, OnBadId, OutputRows, Policy, Summation, Table,
    Weights,
};
use crate::denormals::FlushDenormals;

const DTYPES: [Dtype; 5] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int8, Dtype::Int4];
const ALL_POLICIES: [OnBadId; 6] =
    [OnBadId::Error, OnBadId::Drop, OnBadId::DropNegative, OnBadId::DefaultRow, OnBadId::Clamp, OnBadId::Wrap];
const COMBINERS: [Combiner; 3] = [Combiner::Sum, Combiner::Mean, Combiner::Sqrtn];
const ORDERS: [Summation; 4] = [Summation::InOrder, Summation::BlocksOf8, Summation::FourLanes, Summation::SegmentMean];

/// A copy of bytes at an odd address, so that tests read unaligned memory.
struct Unaligned(Vec<u8>);

impl Unaligned {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = vec![0; bytes.len() + 17];
        let skip = Self::skip(&memory);
        memory[skip..skip + bytes.len()].copy_from_slice(bytes);
        Unaligned(memory)
    }

    fn skip(memory: &[u8]) -> usize {
        memory.as_ptr().align_offset(16) + 1
    }

    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

impl AsRef<[u8]> for Unaligned {
    fn as_ref(&self) -> &[u8] {
        let skip = Self::skip(&self.0);
        &self.0[skip..self.0.len() - 17 + skip]
    }
}

#[derive(Clone, Debug)]
struct Case {
    numbers: Numbers,
    rows: Vec<Vec<i64>>,
    weights: Option<Vec<f32>>,
    options: CombineOptions,
    policy: Policy,
    length: usize,
}

impl Case {
    fn ids(&self) -> Vec<i64> {
        self.rows.concat()
    }

    fn splits(&self) -> Vec<i64> {
        let mut splits = vec![0];
        for row in &self.rows {
            splits.push(splits[splits.len() - 1] + row.len() as i64);
        }
        splits
    }
}

/// `small`: the share, in sevenths, of numbers that are denormal, or have a denormal sum, or are zeros of both signs.
fn numbers(dtype: Dtype, size: usize, dim: usize, small: u32) -> impl Strategy<Value = Numbers> {
    let row_bytes = match dtype {
        Dtype::Float32 | Dtype::Float64 => dim * 4,
        Dtype::Float16 | Dtype::Bfloat16 => dim * 2,
        Dtype::Int8 => dim,
        Dtype::Int4 => dim.div_ceil(2),
    };
    // The numbers are float32 of both signs and similar sizes, so that another order of additions changes the last bits
    // of the sum.
    let tiny = prop::sample::select(vec![0.0_f32, -0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38]);
    let float32 = prop::collection::vec(prop_oneof![7 - small => -8.0_f32..8.0, small => tiny], size * dim);
    let bytes = prop::collection::vec(any::<u8>(), size * row_bytes);
    let scales = prop::collection::vec(prop_oneof![Just(0.0_f32), 0.001_f32..2.0], size);
    (float32, bytes, scales).prop_map(move |(floats, mut raw, scales)| {
        if dtype == Dtype::Float32 {
            raw = floats.iter().flat_map(|number| number.to_le_bytes()).collect();
        }
        if dtype == Dtype::Bfloat16 {
            raw = floats.iter().flat_map(|number| number.to_le_bytes()[2..].to_vec()).collect();
        }
        Numbers { dtype, size, dim, raw, scales }
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let dims = prop_oneof![1..10_usize, prop::sample::select(vec![16, 31, 32, 40, 41, 64, 73, 105, 135])];
    let shape = (prop::sample::select(&DTYPES[..]), 1..6_usize, dims);
    shape.prop_flat_map(|(dtype, size, dim)| {
        let good = 0..size as i64;
        let bad = prop::sample::select(vec![-1, -(size as i64), size as i64, i64::MIN, i64::MAX]);
        let id = prop_oneof![30 => good, 1 => bad];
        let short = prop::collection::vec(id.clone(), 0..6);
        let row = prop_oneof![4 => short, 1 => prop::collection::vec(id, 6..40)];
        let rows = prop::collection::vec(row, 0..6);
        let options = (
            prop::sample::select(&COMBINERS[..]),
            prop::sample::select(&ORDERS[..]),
            any::<bool>(),
            any::<bool>(),
            prop_oneof![2 => Just(0), 1 => 1..20_usize],
            any::<bool>(),
        );
        let weight = prop_oneof![8 => -1.0_f32..3.0, 1 => Just(0.0), 1 => Just(f32::NAN)];
        let weights = prop::option::of(prop::collection::vec(weight, 200));
        let policy = (prop::sample::select(&ALL_POLICIES[..]), 0..size);
        (numbers(dtype, size, dim, 2), rows, options, weights, policy, 1..5_usize).prop_map(
            |(numbers, rows, options, weights, policy, length)| {
                let count: usize = rows.iter().map(Vec::len).sum();
                let (combiner, summation, at_least_one, positive_only, max_ids, truncates) = options;
                Case {
                    numbers,
                    rows,
                    weights: weights.map(|weights| weights.into_iter().cycle().take(count).collect()),
                    options: CombineOptions { combiner, summation, at_least_one, positive_only, max_ids, truncates },
                    policy: Policy { on_bad_id: policy.0, default_row: policy.1 },
                    length,
                }
            },
        )
    })
}

/// Runs a kernel on output rows that are unaligned and have gaps between them; checks that it writes nothing to the
/// gaps.
fn found(
    table: &Numbers,
    rows: usize,
    width: usize,
    look_up: impl Fn(&Table, OutputRows<'_>) -> LookupResult,
) -> Found {
    let raw = Unaligned::new(&table.raw);
    let scale_bytes: Vec<u8> = table.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let scales = Unaligned::new(&scale_bytes);
    let mapped = Table::new(table.dtype, table.size, table.dim, &Memory::of(raw), &Memory::of(scales)).unwrap();
    let (skip, gap) = (3, 5);
    let stride = width * 4 + gap;
    let mut memory = vec![MaybeUninit::new(0xA5_u8); skip + rows * stride];
    let missing = look_up(&mapped, OutputRows::new(&mut memory, skip, stride, width * 4, rows))?;
    let memory = written(&memory);
    assert!(memory[..skip].iter().all(|&byte| byte == 0xA5));
    let mut out = Vec::new();
    for row in memory[skip..].chunks(stride) {
        assert!(row[width * 4..].iter().all(|&byte| byte == 0xA5));
        let numbers = row[..width * 4].chunks(4);
        out.extend(numbers.map(|number| f32::from_le_bytes(number.try_into().unwrap())));
    }
    Ok((out, missing))
}

/// Returns the bytes of memory that a test has filled before the lookup.
fn written(memory: &[MaybeUninit<u8>]) -> &[u8] {
    // SAFETY: all bytes are initialised, because the test has filled them.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len()) }
}

fn assert_same(found: &Found, expected: &Found) {
    match (found, expected) {
        (Ok(found), Ok(expected)) => {
            assert_eq!(found.1, expected.1, "ids without rows");
            assert_eq!(found.0.len(), expected.0.len());
            for (i, (a, b)) in found.0.iter().zip(&expected.0).enumerate() {
                let is_same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(is_same, "number {i} is {a:?}, not {b:?}");
            }
        }
        _ => assert_eq!(found.as_ref().err(), expected.as_ref().err()),
    }
}

fn processors() -> Vec<Processor> {
    let mut all = vec![Processor::Any, Processor::best()];
    all.dedup();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn combine_gives_what_the_oracle_gives(case in cases()) {
        let (ids, splits) = (case.ids(), case.splits());
        let ids_at = Unaligned::new(Ints::of(&ids).as_bytes());
        let weights: Option<Vec<u8>> = case.weights.as_ref().map(|all| all.iter().flat_map(|w| w.to_le_bytes()).collect());
        let weights_at = weights.map(|bytes| Unaligned::new(&bytes));
        let expected = {
            let _flushes = FlushDenormals::new();
            oracle::combine(&case.numbers, &ids, &splits, case.weights.as_deref(), &case.options, case.policy)
        };
        for processor in processors() {
            let got = found(&case.numbers, case.rows.len(), case.numbers.dim, |table, out| {
                let weights = weights_at.as_ref().map(|weights| Weights::new(weights.bytes()));
                let ids = Ints::new(ids_at.bytes());
                table.run_on(processor, Combine { table: TableView::new(table, case.policy), ids, splits: Ints::of(&splits), weights, options: &case.options, out })
            });
            assert_same(&got, &expected);
        }
    }

    #[test]
    fn sequence_gives_what_the_oracle_gives(case in cases()) {
        let (ids, splits) = (case.ids(), case.splits());
        let ids_at = Unaligned::new(Ints::of(&ids).as_bytes());
        let expected = oracle::sequence(&case.numbers, &ids, &splits, case.length, case.policy);
        for processor in processors() {
            let got = found(&case.numbers, case.rows.len(), case.length * case.numbers.dim, |table, out| {
                let ids = Ints::new(ids_at.bytes());
                table.run_on(processor, Sequence { table: TableView::new(table, case.policy), ids, splits: Ints::of(&splits), length: case.length, out })
            });
            assert_same(&got, &expected);
        }
    }

    #[test]
    fn gather_gives_what_the_oracle_gives(case in cases(), behind in 0..3_usize) {
        let ids = case.ids();
        let rows = ids.len().saturating_sub(behind);
        let ids_at = Unaligned::new(Ints::of(&ids).as_bytes());
        let expected = oracle::gather(&case.numbers, &ids, rows, case.policy);
        for processor in processors() {
            let got = found(&case.numbers, rows, case.numbers.dim, |table, out| {
                table.run_on(processor, Gather { table: TableView::new(table, case.policy), ids: Ints::new(ids_at.bytes()), out })
            });
            assert_same(&got, &expected);
        }
    }
}

#[test]
fn every_half_is_widened_as_ieee_says() {
    for bits in 0..=u16::MAX {
        let (got, expected) = (widened(bits), half(bits));
        assert!(got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()), "{bits:x}");
    }
}

/// Returns the halves around a float32 by the definition of rounding: the last that is not larger in size, the next, and
/// which of both is nearest; ties go to the even one. `value` gives the size of a half without sign, and counts on beyond
/// the largest finite half.
fn nearest(number: f32, infinity: u16, value: impl Fn(u16) -> f64) -> u16 {
    let size = f64::from(number.abs());
    let (mut low, mut high) = (0, infinity + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *(if value(middle) <= size { &mut low } else { &mut high }) = middle;
    }
    let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
    let (below, above) = (size - value(low), value(high) - size);
    let is_up = if low % 2 == 0 { above < below } else { above <= below };
    sign | (low + u16::from(is_up)).min(infinity)
}

#[test]
fn float32_is_rounded_to_the_nearest_half() {
    // Float32 numbers of every sign and exponent, with every mantissa that a half keeps, ties between two halves, the
    // numbers beside each tie, and quiet and signalling NaNs.
    let lower = [0_u32, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF];
    let all: Vec<f32> =
        (0..1 << 16).flat_map(|upper: u32| lower.map(|lower| f32::from_bits(upper << 16 | lower))).collect();
    let numbers: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
    let ieee = |bits: u16| if bits == 0x7C00 { 65536.0 } else { f64::from(half(bits)) };
    let brain = |bits: u16| match bits {
        0x7F80 => 2.0_f64.powi(128),
        bits => f64::from(f32::from_bits(u32::from(bits) << 16)),
    };
    for (name, expected) in [
        (Half::Float16, all.iter().map(|&number| nearest(number, 0x7C00, ieee)).collect::<Vec<_>>()),
        (Half::Bfloat16, all.iter().map(|&number| nearest(number, 0x7F80, brain)).collect()),
    ] {
        for processor in processors() {
            let mut to = vec![MaybeUninit::new(0); numbers.len() / 2];
            let width = to.len();
            name.round_on(processor, &numbers, OutputRows::new(&mut to, 0, width, width, 1));
            for ((number, &got), expected) in all.iter().zip(written(&to).as_chunks().0).zip(&expected) {
                let (bits, got) = (number.to_bits(), u16::from_le_bytes(got));
                let sign = (bits >> 16) as u16 & 0x8000;
                let expected = match name {
                    _ if !number.is_nan() => *expected,
                    Half::Float16 => sign | 0x7E00 | (bits >> 13) as u16 & 0x3FF,
                    Half::Bfloat16 => sign | 0x7FC0,
                };
                assert_eq!(got, expected, "{bits:x} as {name:?} on {processor:?}");
            }
        }
    }
}

#[test]
fn rows_of_any_width_are_rounded_in_place() {
    let rows = 3;
    for width in (0..=40).chain([2000, 5000]) {
        let number = |i: usize| f32::from((i % 128) as u8);
        let mut to = vec![MaybeUninit::new(0xA5); 1 + rows * (2 * width + 1)];
        let out = OutputRows::new(&mut to, 1, 2 * width + 1, 2 * width, rows);
        // Of the last width, a block has fewer rows than there are.
        let missing = Half::Bfloat16.round_computed(width, out, |first, mut part| {
            for r in 0..part.rows() {
                for (i, to) in part.row(r).as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *to = number((first + r) * width + i).to_le_bytes().map(MaybeUninit::new);
                }
            }
            Ok(part.rows())
        });
        assert_eq!(missing, Ok(rows));
        for (r, row) in written(&to)[1..].chunks(2 * width + 1).enumerate() {
            let expected: Vec<u8> =
                (0..width).flat_map(|i| number(r * width + i).to_le_bytes()[2..].to_vec()).collect();
            assert_eq!(row, [&*expected, &[0xA5]].concat());
        }
    }
}

#[test]
fn every_half_is_the_same_to_all_processors() {
    let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let table = Numbers { dtype: Dtype::Float16, size: 1 << 13, dim: 8, raw, scales: Vec::new() };
    let ids: Vec<i64> = (0..1 << 13).collect();
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    for processor in processors() {
        let got = found(&table, 1 << 13, 8, |table, out| {
            table.run_on(processor, Gather { table: TableView::new(table, policy), ids: Ints::of(&ids), out })
        });
        for (bits, number) in (0..=u16::MAX).zip(got.unwrap().0) {
            // The test also compares the bits of NaN, because each implementation turns a signalling NaN into the same
            // quiet NaN.
            assert_eq!(number.to_bits(), widened(bits).to_bits());
        }
    }
}

#[test]
fn sums_of_small_numbers_are_those_of_tensorflow() {
    // What TensorFlow 2.21 answers for rows of -0.0, of 1e-39 and of -1e-39: SparseSegmentSum and SegmentSum copy a
    // single row, and UnsortedSegmentSum adds it to zero.
    let rows = [-0.0_f32, 1e-39, -1e-39];
    let raw = rows.iter().flat_map(|&number| [number; 11]).flat_map(f32::to_le_bytes).collect();
    let table = Numbers { dtype: Dtype::Float32, size: 3, dim: 11, raw, scales: Vec::new() };
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    let copied = rows.map(f32::to_bits);
    let (plus, minus) = (0.0_f32.to_bits(), (-0.0_f32).to_bits());
    for (summation, count, expected) in [
        (Summation::InOrder, 1, [plus, plus, plus]),
        (Summation::InOrder, 3, [plus, plus, plus]),
        (Summation::BlocksOf8, 0, [plus, plus, plus]),
        (Summation::BlocksOf8, 1, copied),
        (Summation::BlocksOf8, 2, [minus, plus, minus]),
        (Summation::BlocksOf8, 18, [minus, plus, minus]),
        (Summation::FourLanes, 0, [plus, plus, plus]),
        (Summation::FourLanes, 1, copied),
        (Summation::FourLanes, 2, [plus, plus, plus]),
        (Summation::FourLanes, 18, [plus, plus, plus]),
        (Summation::SegmentMean, 1, copied),
        (Summation::SegmentMean, 18, [plus, plus, plus]),
    ] {
        let ids: Vec<i64> = (0..3).flat_map(|row| vec![row; count]).collect();
        let splits: Vec<i64> = (0..4).map(|row| row * count as i64).collect();
        for (combiner, processor) in COMBINERS.into_iter().flat_map(|c| processors().into_iter().map(move |p| (c, p))) {
            let options = CombineOptions {
                combiner,
                summation,
                at_least_one: false,
                positive_only: false,
                max_ids: 0,
                truncates: false,
            };
            let got = found(&table, 3, 11, |table, out| {
                let (ids, splits) = (Ints::of(&ids), Ints::of(&splits));
                table.run_on(
                    processor,
                    Combine {
                        table: TableView::new(table, policy),
                        ids,
                        splits,
                        weights: None,
                        options: &options,
                        out,
                    },
                )
            });
            let (numbers, _) = got.unwrap();
            for (row, bits) in expected.into_iter().enumerate() {
                let got: Vec<u32> = numbers[row * 11..][..11].iter().map(|number| number.to_bits()).collect();
                assert_eq!(got, [bits; 11], "{summation:?} {combiner:?} of {count} rows {row}");
            }
        }
    }
}

#[test]
fn a_row_behind_the_lanes_is_added_as_it_is() {
    // The lanes' sum is flushed to -0.0, and the last row is -0.0. Expected: what TensorFlow 2.21's SegmentSum gives.
    let rows = [0x00A3_55E6_u32, 0x8082_AB1E, 0x8000_0000];
    let raw = rows.iter().flat_map(|&bits| [bits; 8]).flat_map(u32::to_le_bytes).collect();
    let table = Numbers { dtype: Dtype::Float32, size: 3, dim: 8, raw, scales: Vec::new() };
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    let ids = [0_i64, 1, 0, 0, 2, 1, 1, 0, 1, 1, 2, 1, 2, 0, 2, 2, 2];
    let options = CombineOptions {
        combiner: Combiner::Sum,
        summation: Summation::FourLanes,
        at_least_one: false,
        positive_only: false,
        max_ids: 0,
        truncates: false,
    };
    for processor in processors() {
        let (numbers, _) = found(&table, 1, 8, |table, out| {
            let (ids, splits) = (Ints::of(&ids), Ints::of(&[0, 17]));
            let view = TableView::new(table, policy);
            table.run_on(processor, Combine { table: view, ids, splits, weights: None, options: &options, out })
        })
        .unwrap();
        let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
        assert_eq!(bits, [0x8000_0000; 8]);
    }
}

#[test]
fn a_float64_table_has_no_rows() {
    let rows = Memory::of(vec![0; 64]);
    let table = Table::new(Dtype::Float64, 4, 2, &rows, &Memory::default()).unwrap();
    for on_bad_id in [OnBadId::Error, OnBadId::Clamp, OnBadId::DefaultRow, OnBadId::Wrap] {
        let policy = Policy { on_bad_id, default_row: 0 };
        let mut memory = [MaybeUninit::uninit(); 8];
        let result = table.gather(Ints::of(&[-1]), policy, OutputRows::new(&mut memory, 0, 8, 8, 1));
        assert_eq!(result, Err(LookupError::BadId(0)));
    }
}

#[test]
fn stored_rows_keep_their_bits() {
    let raw: Vec<u8> = (0..96).map(|byte| byte ^ 0xF5).collect();
    for (dtype, dim) in [(Dtype::Float64, 3), (Dtype::Float32, 6), (Dtype::Float16, 12), (Dtype::Bfloat16, 12)] {
        let table = Table::new(dtype, 4, dim, &Memory::of(raw.clone()), &Memory::default()).unwrap();
        let policy = Policy { on_bad_id: OnBadId::Drop, default_row: 0 };
        let mut memory = [MaybeUninit::new(0); 72];
        let out = OutputRows::new(&mut memory, 0, 24, 24, 3);
        assert_eq!(table.gather_stored(Ints::of(&[2, 4, 1]), policy, out), Ok(1));
        let written = written(&memory);
        assert_eq!(written[..24], raw[48..72]);
        assert_eq!(written[24..48], [0; 24]);
        assert_eq!(written[48..], raw[24..48]);
    }
    let table = Table::new(Dtype::Float16, 4, 3, &Memory::of(raw.clone()), &Memory::default()).unwrap();
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    let mut memory = [MaybeUninit::new(0); 12];
    assert_eq!(
        table.gather_stored(Ints::of(&[3, 4]), policy, OutputRows::new(&mut memory, 0, 6, 6, 2)),
        Err(LookupError::BadId(1))
    );
    assert_eq!(written(&memory)[..6], raw[18..24]);
}

#[test]
fn rows_of_float64_become_the_nearest_float32() {
    let numbers = [1.0 + f64::EPSILON, -1e300, f64::NAN, 1e-40];
    let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let table = Table::new(Dtype::Float64, 2, 2, &Memory::of(raw), &Memory::default()).unwrap();
    let policy = Policy { on_bad_id: OnBadId::Drop, default_row: 0 };
    let mut memory = [MaybeUninit::new(0xFF); 24];
    let out = OutputRows::new(&mut memory, 0, 8, 8, 3);
    assert_eq!(table.gather_float32(Ints::of(&[1, 2, 0]), policy, out), Ok(1));
    let written = written(&memory);
    let found: Vec<f32> = written.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
    assert!(found[0].is_nan() && found[1].to_bits() == 1e-40_f32.to_bits() && found[1] > 0.0);
    assert_eq!(found[2..], [0.0, 0.0, 1.0, f32::NEG_INFINITY]);
}

#[test]
fn a_table_has_memory_for_all_its_rows_and_scales() {
    let made = |dtype, size, dim, rows, scales| {
        Table::new(dtype, size, dim, &Memory::of(vec![0; rows]), &Memory::of(vec![0; scales])).is_ok()
    };
    for (dtype, row, scale) in
        [(Dtype::Float32, 20, 0), (Dtype::Float16, 10, 0), (Dtype::Int8, 5, 4), (Dtype::Int4, 3, 4)]
    {
        assert!(made(dtype, 7, 5, 7 * row, 7 * scale));
        assert!(!made(dtype, 7, 5, 7 * row - 1, 7 * scale));
        assert!(scale == 0 || !made(dtype, 7, 5, 7 * row, 7 * scale - 1));
        assert!(!made(dtype, usize::MAX, 5, 7 * row, 7 * scale) && !made(dtype, 0, usize::MAX, 0, 0));
    }
}
