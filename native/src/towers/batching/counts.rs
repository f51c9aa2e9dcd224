//! Counts batches, their rows and padding, and the time that requests waited for their batch.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::faults::Code;

/// The limits of the histograms' buckets, ascending, from `service/observe/metric_text.py`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Limits {
    /// Limits of waits, in seconds; a wait of a limit belongs to the limit's own bucket.
    pub wait_s: Vec<f64>,
    /// Limits of numbers of rows; a number of rows that equals a limit belongs to the next bucket.
    pub rows: Vec<usize>,
}

/// A histogram: the number of values in each bucket, the last of which is above all limits, and the sum of all values.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Histogram<T> {
    pub counts: Vec<u64>,
    pub sum: T,
}

impl<T: Copy + Default + PartialOrd + std::ops::AddAssign> Histogram<T> {
    fn add(&mut self, value: T, bucket: usize, num_limits: usize) {
        self.counts.resize(num_limits + 1, 0);
        self.counts[bucket] += 1;
        self.sum += value;
    }
}

/// The counts of batches since the start of the server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    #[serde(skip)]
    limits: Limits,
    pub num_runs: u64,
    /// Number of requests in these batches; a request that is split counts in each of its batches.
    pub num_requests: u64,
    /// Seconds that requests waited for their batch.
    pub waits: Histogram<f64>,
    /// Rows of padding, by the rows of the padded batch.
    pub padding: BTreeMap<usize, Histogram<usize>>,
    /// Rows of the requests that came to be batched.
    pub arrived: Histogram<usize>,
    /// Rows of the batches, with padding.
    pub run: Histogram<usize>,
    /// Number of refused requests, by canonical code.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Returns counts of 0 with these limits of buckets.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Counts { limits, ..Counts::default() }
    }

    /// Counts a request of `rows` rows that comes to be batched.
    pub fn arrived(&mut self, rows: usize) {
        add_rows(&mut self.arrived, &self.limits, rows);
    }

    /// Counts a batch that begins to run: its rows, its rows of padding, and the wait of each of its requests.
    pub fn processed(&mut self, rows: usize, padding: usize, waits: impl Iterator<Item = Duration>) {
        self.num_runs += 1;
        for wait in waits {
            self.num_requests += 1;
            let seconds = wait.as_secs_f64();
            let bucket = self.limits.wait_s.partition_point(|limit| *limit < seconds);
            self.waits.add(seconds, bucket, self.limits.wait_s.len());
        }
        let size = rows + padding;
        add_rows(&mut self.run, &self.limits, size);
        add_rows(self.padding.entry(size).or_default(), &self.limits, padding);
    }

    /// Counts a request that was refused: it is too large or too late, or the queue is full.
    pub fn rejected(&mut self, code: Code) {
        *self.rejected.entry(code.name()).or_default() += 1;
    }
}

fn add_rows(histogram: &mut Histogram<usize>, limits: &Limits, rows: usize) {
    let bucket = limits.rows.partition_point(|limit| *limit <= rows);
    histogram.add(rows, bucket, limits.rows.len());
}
