//! Finds the rows of one table that lookups read most, from a sample of the ids, and estimates how many distinct rows
//! the sample has. The first [`EXACT_IDS`] ids of a table are all drawn, so that little traffic is counted exactly.
//!
//! A thread draws one id of [`SAMPLE_EVERY`] on average, or [`DRAWS`] ids of a larger lookup, and puts them into a buffer
//! that few other threads share. A drawn id counts for the ids that were passed over. A full buffer is counted into the
//! table's sketch. So a lookup whose ids are not drawn costs a subtraction, and a large one a few draws.
//!
//! Source: the counters are those of Anderson et al., A High-Performance Algorithm for Identifying Frequent Items in Data
//! Streams (2017), which keeps the error bound of Misra-Gries and space-saving; the distinct rows those of Flajolet et
//! al., HyperLogLog (2007).

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::table::Ints;

/// Number of ids of a table that are all drawn, before some are.
const EXACT_IDS: u64 = 1 << 16;
/// In lookups of few ids, one of this many ids is drawn, on average, for the sample that finds the hot rows.
const SAMPLE_EVERY: u32 = 32;
/// Approximate number of ids that are drawn of a lookup with more than `SAMPLE_EVERY * DRAWS` ids.
const DRAWS: u32 = 4;
/// Number of rows to which a sketch reduces its counts when it counts more than twice as many rows.
const KEPT_COUNTERS: usize = 2048;
/// A HyperLogLog has `2^REGISTER_BITS` registers of one byte; the standard error of its estimate is 1.04 / 64.
const REGISTER_BITS: u32 = 12;
/// Number of drawn ids that a buffer collects before the sketch counts them.
const BUFFERED_IDS: usize = 256;
/// Number of buffers for the sampled ids of one table: each thread adds its ids to one buffer, which threads may share.
const NUM_BUFFERS: usize = 16;

thread_local! {
    /// Number of ids that this thread still passes over before it draws the next id for the sample.
    static PASSED_OVER: Cell<u32> = const { Cell::new(0) };
    static BUFFER: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % NUM_BUFFERS
    };
}

/// A sampler that finds the rows of one table that lookups read most. Concurrency: any thread.
#[derive(Debug)]
pub struct HotRows {
    /// V, the number of rows of the table; ids outside the table are not counted.
    vocabulary_size: u64,
    /// Number of looked-up ids so far; it stops some ids above `EXACT_IDS`.
    seen: AtomicU64,
    buffers: [Mutex<Vec<Drawn>>; NUM_BUFFERS],
    sketch: Mutex<Sketch>,
}

/// An id that was drawn for the sample, and the number of looked-up ids for which it counts.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    id: i64,
    weight: u32,
}

/// Counts of the ids that were drawn from a table's lookups, and estimates from these counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotSnapshot {
    /// Number of drawn ids that are row numbers of the table.
    pub samples: u64,
    /// Estimated number of looked-up ids that are row numbers of the table.
    pub lookups: u64,
    /// Estimated number of distinct rows among the drawn ids.
    pub distinct: u64,
    /// The largest amount by which the count of a row may be too high, apart from the error of the sampling.
    pub overcount: u64,
    /// Pairs of a row and its estimated number of lookups, the hottest row first; of rows with equal numbers the
    /// smaller id first.
    pub rows: Vec<(i64, u64)>,
}

impl HotRows {
    /// Creates the counts of the ids that are sampled from the lookups in a table of V rows; all counts are 0.
    #[must_use]
    pub fn new(vocabulary_size: usize) -> Self {
        HotRows {
            vocabulary_size: vocabulary_size as u64,
            seen: AtomicU64::new(0),
            buffers: std::array::from_fn(|_| Mutex::new(Vec::new())),
            sketch: Mutex::new(Sketch::default()),
        }
    }

    /// Samples the ids of one lookup: draws some of them and adds these to a buffer.
    #[inline]
    pub fn see(&self, ids: Ints<'_>) {
        // The number of ids fits a u32, because 2^32 ids would take 32 GiB.
        let num_ids = ids.len() as u32;
        if self.seen.load(Ordering::Relaxed) < EXACT_IDS {
            self.seen.fetch_add(u64::from(num_ids), Ordering::Relaxed);
            self.draw(ids, 0, 1, || 1);
            return;
        }
        if num_ids > SAMPLE_EVERY * DRAWS {
            // In a lookup of many ids, the first drawn id is random and the distances are equal, so each id is drawn
            // with the same probability.
            let distance = num_ids / DRAWS;
            self.draw(ids, fastrand::u32(..distance), distance, || distance);
            return;
        }
        PASSED_OVER.with(|passed_over| {
            let next = passed_over.get();
            let left = next.checked_sub(num_ids).unwrap_or_else(|| {
                // In lookups of few ids, the distances between drawn ids are random: with equal distances, identical
                // requests in a row could have the id at the same position drawn each time, and other positions never.
                self.draw(ids, next, SAMPLE_EVERY, || 1 + fastrand::u32(..2 * SAMPLE_EVERY - 1))
            });
            passed_over.set(left);
        });
    }

    /// Draws ids into this thread's buffer: the id at position `next`, and further ids at the given distances. Returns
    /// how many ids of later lookups to pass over before the next draw.
    #[cold]
    fn draw(&self, ids: Ints<'_>, mut next: u32, weight: u32, distance: impl Fn() -> u32) -> u32 {
        let num_ids = ids.len() as u32;
        let mut full = None;
        {
            let mut buffer = lock(&self.buffers[BUFFER.with(|number| *number)]);
            while next < num_ids {
                buffer.push(Drawn { id: ids.get(next as usize), weight });
                next = next.saturating_add(distance());
            }
            if buffer.len() >= BUFFERED_IDS {
                full = Some(std::mem::replace(&mut *buffer, Vec::with_capacity(BUFFERED_IDS)));
            }
        }
        if let Some(full) = full {
            lock(&self.sketch).count(&full, self.vocabulary_size);
        }
        next - num_ids
    }

    pub fn clear(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.buffers.iter().for_each(|buffer| lock(buffer).clear());
        *lock(&self.sketch) = Sketch::default();
    }

    /// Counts the drawn ids of all buffers; returns the counts, with the `most` rows of the highest counts.
    #[must_use]
    pub fn snapshot(&self, most: usize) -> HotSnapshot {
        let mut sketch = lock(&self.sketch);
        for buffer in &self.buffers {
            let drawn = std::mem::take(&mut *lock(buffer));
            sketch.count(&drawn, self.vocabulary_size);
        }
        sketch.snapshot(most)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // If another thread panicked while it held the lock of a buffer or of the sketch, this thread still uses them: only
    // some drawn ids are not counted.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Sketch {
    samples: u64,
    lookups: u64,
    /// For each row, a lower bound of its count; the count is higher by at most `taken_off`, the sum of all
    /// subtractions so far.
    counts: HashMap<i64, u64, BuildHasherDefault<IdHasher>>,
    taken_off: u64,
    /// The registers of the HyperLogLog; empty until the first id is counted.
    registers: Vec<u8>,
}

impl Sketch {
    fn count(&mut self, drawn: &[Drawn], vocabulary_size: u64) {
        if self.registers.is_empty() && !drawn.is_empty() {
            self.registers = vec![0; 1 << REGISTER_BITS];
        }
        for &Drawn { id, weight } in drawn {
            if (id as u64) >= vocabulary_size {
                continue;
            }
            self.samples += 1;
            self.lookups += u64::from(weight);
            let hash = mixed(id as u64);
            let register = &mut self.registers[(hash >> (64 - REGISTER_BITS)) as usize];
            // A HyperLogLog register keeps the maximum of 1 plus the number of leading zeros in the hash bits that do
            // not choose the register.
            *register = (*register).max(((hash << REGISTER_BITS) | 1 << (REGISTER_BITS - 1)).leading_zeros() as u8 + 1);
            *self.counts.entry(id).or_insert(0) += u64::from(weight);
            if self.counts.len() > 2 * KEPT_COUNTERS {
                self.take_off();
            }
        }
    }

    /// Reduces the sketch to at most `KEPT_COUNTERS` rows: subtracts the largest count that is not kept from all
    /// counts, and removes rows whose count becomes 0.
    fn take_off(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let (_, &mut least, _) = counts.select_nth_unstable_by(KEPT_COUNTERS, |a, b| b.cmp(a));
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(least);
            *count > 0
        });
        self.taken_off += least;
    }

    fn snapshot(&self, most: usize) -> HotSnapshot {
        let mut rows: Vec<(i64, u64)> = self.counts.iter().map(|(&id, &count)| (id, count)).collect();
        rows.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        rows.truncate(most);
        for (_, count) in &mut rows {
            *count += self.taken_off;
        }
        HotSnapshot {
            samples: self.samples,
            lookups: self.lookups,
            distinct: self.distinct(),
            overcount: self.taken_off,
            rows,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "an estimate with an error of a per cent")]
    #[allow(clippy::naive_bytecount, reason = "4096 bytes, for a reader of metrics")]
    fn distinct(&self) -> u64 {
        if self.registers.is_empty() {
            return 0;
        }
        let size = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&register| 2_f64.powi(-i32::from(register))).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / size) * size * size / sum;
        let empty = self.registers.iter().filter(|&&register| register == 0).count();
        // With few rows, the number of empty registers gives the better estimate (linear counting).
        let is_small = estimate <= 2.5 * size && empty > 0;
        (if is_small { size * (size / empty as f64).ln() } else { estimate }).round() as u64
    }
}

/// The finalizer of splitmix64, which mixes all bits of an id into all bits of the hash.
fn mixed(id: u64) -> u64 {
    let mut hash = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Hashes ids of rows without a secret: clients choose the ids, but a sketch has few counters, so that collisions cost
/// little.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mixed(self.0 ^ u64::from(byte));
        }
    }

    fn write_i64(&mut self, id: i64) {
        self.0 = mixed(id as u64);
    }
}

#[cfg(all(test, not(feature = "model")))]
#[allow(clippy::cast_precision_loss, reason = "shares and errors of a per cent")]
mod tests {
    use std::cmp::Reverse;
    use std::collections::HashSet;

    use super::*;

    struct Zipf {
        cumulative: Vec<f64>,
        random: fastrand::Rng,
    }

    impl Zipf {
        fn new(size: usize, exponent: f64) -> Self {
            let mut total = 0.0;
            let mut cumulative = Vec::with_capacity(size);
            for rank in 1..=size {
                total += (rank as f64).powf(-exponent);
                cumulative.push(total);
            }
            Zipf { cumulative, random: fastrand::Rng::with_seed(7) }
        }

        fn draw(&mut self) -> i64 {
            let at = self.random.f64() * self.cumulative[self.cumulative.len() - 1];
            self.cumulative.partition_point(|&sum| sum < at) as i64
        }
    }

    fn hottest(counts: &HashMap<i64, u64>, most: usize) -> HashSet<i64> {
        let mut rows: Vec<(i64, u64)> = counts.iter().map(|(&id, &count)| (id, count)).collect();
        rows.sort_unstable_by_key(|&(id, count)| (Reverse(count), id));
        rows[..most].iter().map(|pair| pair.0).collect()
    }

    #[test]
    fn the_hundred_hottest_of_a_million_are_right() {
        const SIZE: usize = 1_000_000;
        let mut zipf = Zipf::new(SIZE, 1.05);
        let mut sketch = Sketch::default();
        let mut exact: HashMap<i64, u64> = HashMap::new();
        for _ in 0..3000 {
            let drawn: Vec<Drawn> = (0..1000).map(|_| Drawn { id: zipf.draw(), weight: 1 }).collect();
            for one in &drawn {
                *exact.entry(one.id).or_insert(0) += 1;
            }
            sketch.count(&drawn, SIZE as u64);
        }
        let found = sketch.snapshot(100);
        assert_eq!((found.samples, found.lookups), (3_000_000, 3_000_000));
        let wanted = hottest(&exact, 100);
        let right = found.rows.iter().filter(|pair| wanted.contains(&pair.0)).count();
        assert!(right >= 99, "{right} of 100");
        for &(id, count) in &found.rows {
            assert!(count >= exact[&id] && count <= exact[&id] + found.overcount, "row {id}");
        }
        let error = found.distinct as f64 / exact.len() as f64 - 1.0;
        assert!(error.abs() < 0.05, "{} of {} distinct rows", found.distinct, exact.len());
    }

    #[test]
    fn a_small_table_is_counted_exactly() {
        let mut sketch = Sketch::default();
        let drawn = [3, 1, 3, -1, 5, 3, 1].map(|id| Drawn { id, weight: 2 });
        sketch.count(&drawn, 5);
        let found = sketch.snapshot(10);
        let wanted = HotSnapshot { samples: 5, lookups: 10, distinct: 2, overcount: 0, rows: vec![(3, 6), (1, 4)] };
        assert_eq!(found, wanted);
        assert_eq!(sketch.snapshot(1).rows, vec![(3, 6)]);
    }

    #[test]
    fn an_empty_sketch_has_no_rows() {
        assert_eq!(HotRows::new(5).snapshot(10), HotSnapshot::default());
    }

    #[test]
    fn little_traffic_is_counted_exactly() {
        let hot = HotRows::new(1000);
        for id in 0..300 {
            hot.see(Ints::of(&[7, id % 3, 1000]));
        }
        let found = hot.snapshot(10);
        assert_eq!((found.samples, found.lookups, found.distinct), (600, 600, 4));
        assert_eq!(found.rows, vec![(7, 300), (0, 100), (1, 100), (2, 100)]);
    }

    #[test]
    fn lookups_of_all_sizes_count_alike() {
        for per_lookup in [1_usize, 3, 16, 100, 1000] {
            let hot = HotRows::new(1000);
            let ids: Vec<i64> = (0..per_lookup as i64).collect();
            let num_lookups = 64_000 * 100 / per_lookup.max(100);
            for _ in 0..num_lookups {
                hot.see(Ints::of(&ids));
            }
            let found = hot.snapshot(1000);
            let wanted = (num_lookups * per_lookup) as u64;
            assert!(found.lookups.abs_diff(wanted) < wanted / 10, "{} of {wanted}", found.lookups);
            // `HotRows` samples the ids at all positions of a lookup equally often.
            assert_eq!(found.rows.len(), per_lookup);
            let (most, least) = (found.rows[0].1, found.rows[per_lookup - 1].1);
            assert!(per_lookup > 16 || most < least * 3 / 2, "{most} and {least}");
        }
    }

    #[test]
    fn threads_count_together() {
        let hot = HotRows::new(10);
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..16_000).for_each(|_| hot.see(Ints::of(&[1, 2]))));
            }
        });
        let found = hot.snapshot(10);
        assert!(found.lookups.abs_diff(640_000) < 64_000, "{}", found.lookups);
        assert_eq!(found.rows.iter().map(|pair| pair.1).sum::<u64>(), found.lookups);
    }
}
