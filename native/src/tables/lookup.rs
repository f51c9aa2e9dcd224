//! The lookups of a table: each runs its kernel on the best instructions that the processor has.

use super::combine::Combine;
use super::gather::Gather;
use super::processor::{Kernel, Processor};
use super::rows::TableView;
use super::sequence::Sequence;
use super::table::{CombineOptions, Ints, LookupResult, OutputRows, Policy, Table, Weights};

impl Table {
    /// Writes row `ids[i]` of the table as float32 to row `i` of `out`, for each row of `out`; zeros for a dropped id.
    ///
    /// If there are more ids than rows of `out`, the rows of the other ids are only prefetched.
    ///
    /// # Errors
    /// [`LookupError::BadId`].
    ///
    /// # Panics
    /// There are fewer ids than rows, a row of `out` is too short, or the default row is not in the table.
    pub fn gather(&self, ids: Ints<'_>, policy: Policy, out: OutputRows<'_>) -> LookupResult {
        let table = TableView::new(self, policy);
        self.run(Gather { table, ids, out })
    }

    /// Combines the table rows of each row of ids into one float32 vector of `out`; an empty row gives zeros.
    ///
    /// Row `r` has the ids from `splits[r]` to `splits[r + 1]`: `splits` has one number more than `out` has rows, never
    /// decreases, and does not exceed the number of ids. `weights` is as long as `ids`.
    ///
    /// # Errors
    /// [`LookupError`].
    ///
    /// # Panics
    /// As `gather`, or the row splits or weights are not as above.
    pub fn combine(
        &self,
        ids: Ints<'_>,
        splits: Ints<'_>,
        weights: Option<Weights<'_>>,
        options: &CombineOptions,
        policy: Policy,
        out: OutputRows<'_>,
    ) -> LookupResult {
        let table = TableView::new(self, policy);
        self.run(Combine { table, ids, splits, weights, options, out })
    }

    /// Writes the table rows of the first `length` ids of each row of ids, as float32 and end to end, to one row of
    /// `out`. Zeros fill up a shorter row, and stand for a dropped id.
    ///
    /// # Errors
    /// [`LookupError::BadId`].
    ///
    /// # Panics
    /// As `combine`.
    pub fn sequence(
        &self,
        ids: Ints<'_>,
        splits: Ints<'_>,
        length: usize,
        policy: Policy,
        out: OutputRows<'_>,
    ) -> LookupResult {
        let table = TableView::new(self, policy);
        self.run(Sequence { table, ids, splits, length, out })
    }

    fn run(&self, kernel: impl Kernel) -> LookupResult {
        self.run_on(Processor::best(), kernel)
    }

    /// Runs a kernel on this table; `processor` is [`Processor::Any`] or the result of [`Processor::best`].
    pub(super) fn run_on(&self, processor: Processor, kernel: impl Kernel) -> LookupResult {
        processor.run(self.dtype, kernel)
    }
}
