//! Compares the fast search for neighbours with a slow search, which follows the definition in float64.

#![allow(clippy::cast_precision_loss, reason = "the sizes of these tests are small")]

use proptest::prelude::*;

use super::{Numbers, Unaligned, processors};
use crate::tables::memory::Memory;
use crate::tables::neighbors::{Metric, Neighbor, Search};
use crate::tables::table::{Dtype, Table};

/// Returns the nearest rows of each query, from scores in float64 by the definitions of the metrics, as the oracle.
fn slow_neighbors(numbers: &Numbers, search: &Search<'_>) -> Vec<Vec<(i64, f64)>> {
    let dim = numbers.dim;
    let row = |id: i64| -> Vec<f64> { (0..dim).map(|column| f64::from(numbers.get(id as usize, column))).collect() };
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let ids: Vec<i64> = search.listed.map_or_else(|| (0..numbers.size as i64).collect(), <[i64]>::to_vec);
    let queries = search.queries.chunks_exact(dim).zip(search.own);
    queries
        .map(|(query, &own)| {
            let query: Vec<f64> = query.iter().map(|&number| f64::from(number)).collect();
            let allowed = ids.iter().filter(|&&id| id != own && !search.denied.contains(&id));
            let mut scored: Vec<(i64, f64)> = allowed
                .map(|&id| {
                    let row = row(id);
                    let difference: Vec<f64> = row.iter().zip(&query).map(|(a, b)| a - b).collect();
                    let lengths = (product(&row, &row) * product(&query, &query)).sqrt();
                    let score = match search.metric {
                        Metric::Dot => product(&row, &query),
                        Metric::Cosine if lengths == 0.0 => 0.0,
                        Metric::Cosine => product(&row, &query) / lengths,
                        Metric::L2 => product(&difference, &difference),
                    };
                    (id, score)
                })
                .collect();
            let sign = if search.metric == Metric::L2 { 1.0 } else { -1.0 };
            scored.sort_by(|a, b| (a.1 * sign).total_cmp(&(b.1 * sign)).then(a.0.cmp(&b.0)));
            scored.truncate(search.k);
            scored
        })
        .collect()
}

fn are_close(found: &[Vec<Neighbor>], expected: &[Vec<(i64, f64)>], numbers: &Numbers, search: &Search<'_>) -> bool {
    let all = Search { k: usize::MAX, ..*search };
    let places = (0..numbers.size).flat_map(|row| (0..numbers.dim).map(move |column| (row, column)));
    let largest = 8.0 + places.map(|(row, column)| f64::from(numbers.get(row, column).abs())).fold(0.0, f64::max);
    // The tolerance bounds the rounding error of a sum of D float32 products whose factors are at most `largest`.
    let tolerance =
        if search.metric == Metric::Cosine { 1e-4 } else { 1e-5 + 1e-6 * numbers.dim as f64 * largest * largest };
    found.len() == expected.len()
        && slow_neighbors(numbers, &all).iter().zip(found).zip(expected).all(|((scores, found), expected)| {
            let score_of = |id: i64| scores.iter().find(|scored| scored.0 == id).map_or(f64::NAN, |scored| scored.1);
            let is_close = |a: f64, b: f64| (a - b).abs() <= tolerance;
            // Rows whose scores differ by less than the tolerance may be in either order.
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| {
                    is_close(f64::from(found.score), expected.1) && is_close(score_of(found.id), expected.1)
                })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn neighbors_are_those_of_the_definition(
        numbers in (prop::sample::select(vec![Dtype::Float32, Dtype::Bfloat16, Dtype::Int8, Dtype::Int4]),
            1..90_usize, prop_oneof![1..10_usize, Just(16), Just(33), Just(64)])
            .prop_flat_map(|(dtype, size, dim)| super::numbers(dtype, size, dim, 0)),
        queries in prop::collection::vec(-8.0_f32..8.0, 64 * 3),
        metric in prop::sample::select(vec![Metric::Dot, Metric::Cosine, Metric::L2]),
        k in 1..20_usize,
        own in prop::collection::vec(-1..90_i64, 3),
        listed in prop::option::of(prop::collection::btree_set(0..90_i64, 0..40)),
        denied in prop::collection::btree_set(0..90_i64, 0..20),
    ) {
        let size = numbers.size as i64;
        let listed: Option<Vec<i64>> = listed.map(|ids| ids.into_iter().filter(|&id| id < size).collect());
        let denied: Vec<i64> = denied.into_iter().collect();
        let search = Search {
            queries: &queries[..3 * numbers.dim],
            own: &own,
            k,
            metric,
            listed: listed.as_deref(),
            denied: &denied,
            until: None,
        };
        let expected = slow_neighbors(&numbers, &search);
        let raw = Unaligned::new(&numbers.raw);
        let scales: Vec<u8> = numbers.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales = Unaligned::new(&scales);
        let table =
            Table::new(numbers.dtype, numbers.size, numbers.dim, &Memory::of(raw), &Memory::of(scales)).unwrap();
        for processor in processors() {
            let found = table.neighbors_on(processor, &search, 2).unwrap();
            prop_assert!(are_close(&found, &expected, &numbers, &search), "{processor:?} {found:?} {expected:?}");
        }
    }
}

#[test]
fn equal_scores_are_ordered_by_id_whatever_the_number_of_threads() {
    let size = 100_000;
    // The rows of the test's table hold 0, 1 and 2 in turn, so each score occurs thousands of times.
    let raw: Vec<u8> = (0..size).flat_map(|id| ((id % 3) as f32).to_le_bytes()).collect();
    let table = Table::new(Dtype::Float32, size, 1, &Memory::of(raw), &Memory::default()).unwrap();
    let search = Search {
        queries: &[1.0, -1.0],
        own: &[5, -1],
        k: 4,
        metric: Metric::Dot,
        listed: None,
        denied: &[2, 8],
        until: None,
    };
    for threads in [1, 2, 3] {
        let found = table.neighbors(&search, threads).unwrap();
        let ids: Vec<Vec<i64>> = found.iter().map(|some| some.iter().map(|one| one.id).collect()).collect();
        assert_eq!(ids, [[11, 14, 17, 20], [0, 3, 6, 9]]);
    }
    let late = Search { until: Some(std::time::Instant::now()), ..search };
    assert_eq!(table.neighbors(&late, 2), None);
}

#[test]
fn rows_with_nan_are_no_neighbors_and_rows_of_zeros_have_the_cosine_0() {
    let numbers = [f32::NAN, 1.0, 0.0, 0.0, f32::INFINITY, 1.0, -3.0, 4.0];
    let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let table = Table::new(Dtype::Float32, 4, 2, &Memory::of(raw), &Memory::default()).unwrap();
    let found = |metric| {
        let search = Search { queries: &[3.0, -4.0], own: &[-1], k: 9, metric, listed: None, denied: &[], until: None };
        let found = table.neighbors(&search, 1).unwrap();
        found[0].iter().map(|one| (one.id, one.score)).collect::<Vec<_>>()
    };
    assert_eq!(found(Metric::Dot), [(2, f32::INFINITY), (1, 0.0), (3, -25.0)]);
    assert_eq!(found(Metric::Cosine), [(1, 0.0), (3, -1.0)]);
    assert_eq!(found(Metric::L2), [(1, 25.0), (3, 100.0), (2, f32::INFINITY)]);
}
