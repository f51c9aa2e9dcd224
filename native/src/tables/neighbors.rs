//! Finds the rows of a table that are nearest to given vectors. Every row, or every row of a given list, is compared,
//! so the result is exact.
//!
//! Rows are read in blocks that fit the first cache of a processor. All queries are compared with one block before the
//! next block is read, so several queries share one pass over the table.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Instant;

use super::lanes::{LANES, Lanes};
use super::numbers::Stored;
use super::processor::{Kernel, Processor};
use super::rows::{PREFETCH_DISTANCE, Rows, TableView, ZERO};
use super::table::{Dtype, LookupResult, OnBadId, Policy, Table, Weights};
use crate::priority;

/// A search compares the rows of a table block by block; the rows of one block take about this many bytes as float32.
const BLOCK_BYTES: usize = 16 << 10;
/// Largest number of rows in one of the blocks in which a search compares the table's rows; a multiple of eight.
const MAX_BLOCK_ROWS: usize = 512;
/// Number of blocks that a search compares between two checks of its time limit.
const CLOCK_BLOCKS: usize = 64;
/// Minimal number of rows for each thread. The calling thread scans a smaller table by itself, because starting a
/// thread takes some 50 us.
const LEAST_ROWS: usize = 32 << 10;
/// The value that is added to the nice value of threads that scan, so that the system prefers lookups.
const SCAN_NICE: libc::c_int = 10;

/// How the nearness of two vectors is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The scalar product of a query and a row; larger is nearer.
    Dot,
    /// The cosine of the angle between a query and a row, 0 if either has the length 0; larger is nearer.
    Cosine,
    /// The squared Euclidean distance between a query and a row; smaller is nearer.
    L2,
}

/// The arguments of a search for the rows of a table that are nearest to some query vectors.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The query vectors of the search, D float32 each, end to end.
    pub queries: &'a [f32],
    /// For each query, the id of one row that is left out of its neighbours, such as the row of the query itself; -1
    /// for none.
    pub own: &'a [i64],
    /// The maximal number of neighbours of a query that are returned.
    pub k: usize,
    pub metric: Metric,
    /// The ids of the only rows that may be neighbours, ascending and in the table; None: all rows may be.
    pub listed: Option<&'a [i64]>,
    /// The ids of rows that may not be neighbours, ascending.
    pub denied: &'a [i64],
    /// The time at which a search that is not finished stops without a result; None for no limit.
    pub until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbor {
    pub id: i64,
    /// The value of the search's metric, such as the scalar product, for the row and the query.
    pub score: f32,
}

/// A row that may be among the nearest rows of a query; in a heap of candidates, the farthest row is the greatest.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The row's score, or its negative distance for the metric L2: larger is nearer; never NaN.
    nearness: f32,
    id: i64,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        // If two rows have the same score, the row with the larger id is farther.
        other.nearness.partial_cmp(&self.nearness).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The nearest rows of one query among the rows that a scan has compared so far.
#[derive(Clone, Debug)]
struct Nearest {
    heap: BinaryHeap<Candidate>,
    k: usize,
    /// The nearness of the farthest row in a full heap. A further row with a larger id must be nearer than this to
    /// replace a row.
    bar: f32,
}

impl Nearest {
    fn new(k: usize) -> Self {
        Nearest { heap: BinaryHeap::new(), k, bar: f32::NEG_INFINITY }
    }

    fn is_full(&self) -> bool {
        self.heap.len() == self.k
    }

    fn add(&mut self, candidate: Candidate) {
        if !self.is_full() {
            self.heap.push(candidate);
        } else if let Some(mut farthest) = self.heap.peek_mut()
            && candidate < *farthest
        {
            *farthest = candidate;
        }
        if self.is_full() {
            self.bar = self.heap.peek().map_or(f32::INFINITY, |farthest| farthest.nearness);
        }
    }
}

/// The query vectors of a search, in the form that the kernel reads.
struct Queries {
    /// The numbers of all queries, each query padded with zeros to `width` numbers. Queries are scaled to length 1 for
    /// the cosine, and negated for the distance.
    numbers: Vec<f32>,
    /// Number of float32 in a padded query: D, rounded up to a multiple of eight.
    width: usize,
}

impl Queries {
    fn new(search: &Search<'_>, dim: usize) -> Self {
        let width = dim.next_multiple_of(LANES);
        let mut numbers = vec![0.0; search.own.len() * width];
        for (query, padded) in search.queries.chunks_exact(dim).zip(numbers.chunks_exact_mut(width)) {
            let squares: f64 = query.iter().map(|&number| f64::from(number) * f64::from(number)).sum();
            let factor = match search.metric {
                Metric::Dot => 1.0,
                Metric::Cosine if squares > 0.0 => 1.0 / squares.sqrt(),
                Metric::Cosine => 0.0,
                Metric::L2 => -1.0,
            };
            for (to, &number) in padded.iter_mut().zip(query) {
                *to = (f64::from(number) * factor) as f32;
            }
        }
        Queries { numbers, width }
    }
}

impl Table {
    /// Returns the nearest rows of each query, the nearest first; of rows with the same score, the one with the smaller
    /// id first. A row whose score is NaN is no neighbour. Returns None if the time is over.
    ///
    /// Up to `threads` threads of low priority share the rows of a large table, and end with the call; the calling thread
    /// scans a small table by itself.
    ///
    /// # Panics
    /// `queries` is not D numbers for each element of `own`, or an id of `listed` is not in the table.
    #[must_use]
    pub fn neighbors(&self, search: &Search<'_>, threads: usize) -> Option<Vec<Vec<Neighbor>>> {
        self.neighbors_on(Processor::best(), search, threads)
    }

    pub(super) fn neighbors_on(
        &self,
        processor: Processor,
        search: &Search<'_>,
        threads: usize,
    ) -> Option<Vec<Vec<Neighbor>>> {
        let view = || TableView::new(self, Policy { on_bad_id: OnBadId::Error, default_row: 0 });
        let table = view();
        assert!(search.queries.len() == search.own.len() * self.embedding_dim);
        assert!(search.listed.is_none_or(|ids| ids.iter().all(|&id| table.has_row(id))));
        if search.k == 0 || search.own.is_empty() || self.embedding_dim == 0 {
            return Some(vec![Vec::new(); search.own.len()]);
        }
        let queries = Queries::new(search, self.embedding_dim);
        let num_rows = search.listed.map_or(table.num_rows(), <[i64]>::len);
        let parts = threads.min(num_rows / LEAST_ROWS).max(1);
        // Each thread's part of the table begins at a multiple of eight rows, so only the last part has a group of
        // fewer than eight rows.
        let bound = |part: usize| if part == parts { num_rows } else { num_rows * part / parts / LANES * LANES };
        let scan_here = |part: usize| {
            let mut found = vec![Nearest::new(search.k); search.own.len()];
            let mut is_late = false;
            let places = bound(part)..bound(part + 1);
            let (table, found_here, is_late_here) = (view(), &mut found, &mut is_late);
            let kernel = Scan { table, search, queries: &queries, places, found: found_here, is_late: is_late_here };
            let _ = self.run_on(processor, kernel);
            (!is_late).then_some(found)
        };
        let scan_behind_lookups = |part: usize| {
            priority::lower(SCAN_NICE);
            scan_here(part)
        };
        let all = if num_rows < LEAST_ROWS {
            vec![scan_here(0)]
        } else {
            std::thread::scope(|scope| {
                let scan = &scan_behind_lookups;
                let begin =
                    |part| std::thread::Builder::new().spawn_scoped(scope, move || scan(part)).map_err(|_| part);
                let started: Vec<_> = (0..parts).map(begin).collect();
                let end = |one: Result<std::thread::ScopedJoinHandle<'_, _>, usize>| match one {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    // The system starts no further thread.
                    Err(part) => scan_here(part),
                };
                started.into_iter().map(end).collect()
            })
        };
        let mut all = all.into_iter();
        let mut found = all.next()??;
        for part in all {
            for (nearest, more) in found.iter_mut().zip(part?) {
                more.heap.into_iter().for_each(|candidate| nearest.add(candidate));
            }
        }
        Some(found.into_iter().map(|nearest| ordered(nearest, search.metric)).collect())
    }
}

fn ordered(nearest: Nearest, metric: Metric) -> Vec<Neighbor> {
    let candidates = nearest.heap.into_sorted_vec().into_iter();
    candidates
        .map(|Candidate { nearness, id }| Neighbor {
            id,
            // Adding 0.0 turns a score of -0.0, such as a negated distance, into 0.0.
            score: if metric == Metric::L2 { -nearness } else { nearness } + 0.0,
        })
        .collect()
}

/// A kernel that scans a part of a table: compares the rows of the part with all queries of a search.
struct Scan<'a> {
    table: TableView<'a>,
    search: &'a Search<'a>,
    queries: &'a Queries,
    /// Numbers of the rows that the scan compares, or their positions in `Search::listed` if the search has that list.
    places: Range<usize>,
    /// The nearest rows that the scan has found so far: one element for each query.
    found: &'a mut [Nearest],
    is_late: &'a mut bool,
}

impl Kernel for Scan<'_> {
    #[inline(always)]
    fn run<L: Lanes, S: Stored>(self, has: L::Processor) -> LookupResult {
        let Scan { table, search, queries, places, found, is_late } = self;
        let table = table.of::<S>();
        let width = queries.width;
        let row_bytes = width * size_of::<f32>();
        let group_bytes = LANES * row_bytes;
        let block_rows = (BLOCK_BYTES / row_bytes / LANES * LANES).clamp(LANES, MAX_BLOCK_ROWS);
        // Blocks of float32 rows are read without a copy if D is a multiple of eight, no rows are listed, and the
        // block's number of rows is a multiple of eight.
        let is_direct = S::DTYPE == Dtype::Float32 && table.dim == width && search.listed.is_none();
        let mut copies = vec![ZERO; block_rows * row_bytes];
        let mut factors = [1.0_f32; MAX_BLOCK_ROWS];
        for (number, start) in places.clone().step_by(block_rows).enumerate() {
            if number.is_multiple_of(CLOCK_BLOCKS) && search.until.is_some_and(|until| Instant::now() >= until) {
                *is_late = true;
                return Ok(0);
            }
            let count = block_rows.min(places.end - start);
            let rows = if is_direct && count.is_multiple_of(LANES) {
                table.stored(start..start + count)
            } else {
                copy_rows::<L, S>(has, &table, search, start..start + count, &mut copies, row_bytes);
                // SAFETY: the copies were zeros before rows were written to them.
                unsafe { std::slice::from_raw_parts(copies.as_ptr().cast(), copies.len()) }
            };
            // A last group of fewer than eight rows is filled up with rows of an earlier block, or with zeros; their
            // scores are ignored.
            let groups = count.div_ceil(LANES);
            if search.metric == Metric::Cosine {
                for group in 0..groups {
                    let group_rows = &rows[group * group_bytes..][..group_bytes];
                    let squares = sums::<L, Square>(has, group_rows, &group_rows[..row_bytes]);
                    for (factor, square) in factors[group * LANES..].iter_mut().zip(squares) {
                        // The cosine of a row of zeros is 0, because 0 takes the place of its factor 1/length; the
                        // cosine of a row with a NaN stays NaN.
                        *factor = if square > 0.0 { 1.0 / square.sqrt() } else { 0.0 };
                    }
                }
            }
            for (query, nearest) in found.iter_mut().enumerate() {
                let numbers = Weights::of(&queries.numbers[query * width..][..width]).as_bytes();
                for group in 0..groups {
                    let first = group * LANES;
                    let rows = &rows[group * group_bytes..][..group_bytes];
                    let mut scores = match search.metric {
                        Metric::Dot | Metric::Cosine => sums::<L, Product>(has, rows, numbers),
                        Metric::L2 => sums::<L, Distance>(has, rows, numbers),
                    };
                    match search.metric {
                        Metric::Dot => {}
                        Metric::Cosine => {
                            scores.iter_mut().zip(&factors[first..]).for_each(|(score, factor)| *score *= factor);
                        }
                        Metric::L2 => scores.iter_mut().for_each(|score| *score = -*score),
                    }
                    let bar = nearest.bar;
                    // The loop compares all scores and does not stop early, so that the compiler turns it into vector
                    // instructions. A row with the same score as the farthest row of a full heap does not enter the
                    // heap, because its id is larger.
                    #[allow(clippy::needless_bitwise_bool)]
                    let has_nearer = scores.iter().fold(false, |any, &score| any | (score > bar));
                    if has_nearer || !nearest.is_full() {
                        let in_group = (count - first).min(LANES);
                        add_group(&scores[..in_group], start + first, search, search.own[query], nearest);
                    }
                }
            }
        }
        Ok(0)
    }
}

/// Adds the rows of one group that are near enough and allowed to a query's nearest rows; `start` is the number of the
/// group's first row, or its position in the search's list.
#[inline(never)]
fn add_group(scores: &[f32], start: usize, search: &Search<'_>, own: i64, nearest: &mut Nearest) {
    for (place, &nearness) in (start..).zip(scores) {
        if nearness.is_nan() || (nearest.is_full() && nearness <= nearest.bar) {
            continue;
        }
        let id = search.listed.map_or(place as i64, |ids| ids[place]);
        if id != own && search.denied.binary_search(&id).is_err() {
            nearest.add(Candidate { nearness, id });
        }
    }
}

/// Copies rows of the table to `copies` as float32; each row begins `row_bytes` after the row before it.
///
/// `places` are row numbers of the table, or positions in the search's list.
#[inline(always)]
fn copy_rows<L: Lanes, S: Stored>(
    has: L::Processor,
    table: &Rows<'_, S>,
    search: &Search<'_>,
    places: Range<usize>,
    copies: &mut [MaybeUninit<u8>],
    row_bytes: usize,
) {
    for (to, place) in copies.chunks_exact_mut(row_bytes).zip(places) {
        let id = match search.listed {
            None => place as i64,
            Some(ids) => {
                if let Some(&later) = ids.get(place + PREFETCH_DISTANCE) {
                    table.prefetch_row(later);
                }
                ids[place]
            }
        };
        table.copy::<L>(has, id, to);
    }
}

/// A term, such as row times query, that a search sums over the columns of a row.
trait Term {
    /// Adds the terms of eight columns to `sum`; `query` has the query's numbers for these columns.
    fn add<L: Lanes>(row: L, query: L, sum: L) -> L;
}

/// The term of the scalar product: the row's number in a column times the query's number in that column.
struct Product;
/// A term: the square of the difference between row and query in a column; the query's numbers are already negated.
struct Distance;
/// The term of a row's squared length: the square of the row's number in a column.
struct Square;

impl Term for Product {
    #[inline(always)]
    fn add<L: Lanes>(row: L, query: L, sum: L) -> L {
        row.times_plus(query, sum)
    }
}

impl Term for Distance {
    #[inline(always)]
    fn add<L: Lanes>(row: L, query: L, sum: L) -> L {
        let difference = row.plus(query);
        difference.times_plus(difference, sum)
    }
}

impl Term for Square {
    #[inline(always)]
    fn add<L: Lanes>(row: L, _query: L, sum: L) -> L {
        row.times_plus(row, sum)
    }
}

/// Sums a term over the columns of eight rows, which lie end to end; returns one sum for each row. A row and the query
/// have as many float32, a multiple of eight.
#[inline(always)]
fn sums<L: Lanes, T: Term>(has: L::Processor, rows: &[u8], query: &[u8]) -> [f32; LANES] {
    let (rows, query) = (rows.as_chunks::<32>().0, query.as_chunks::<32>().0);
    let mut sums = [L::splat(has, 0.0); LANES];
    let each: [&[[u8; 32]]; LANES] = std::array::from_fn(|number| &rows[number * query.len()..][..query.len()]);
    for (at, query) in query.iter().enumerate() {
        let query = L::float32(has, query);
        for (row, sum) in each.iter().zip(&mut sums) {
            *sum = T::add(L::float32(has, &row[at]), query, *sum);
        }
    }
    L::totals(sums).numbers()
}
