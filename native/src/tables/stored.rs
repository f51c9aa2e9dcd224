//! Copies rows bit for bit as a table stores them, and converts rows of float64 to float32.

use std::mem::MaybeUninit;

use super::memory::copy;
use super::rows::ZERO;
use super::table::{Dtype, Ints, LookupError, LookupResult, OutputRows, Policy, Table};

impl Table {
    /// Returns a table of `vocabulary_size` rows without columns: a lookup in it only checks and counts ids.
    #[must_use]
    pub fn without_columns(vocabulary_size: usize) -> Self {
        let (rows, scales) = Default::default();
        Table { dtype: Dtype::Float32, vocabulary_size, embedding_dim: 0, rows, scales }
    }

    /// Copies the stored bytes of row `ids[i]` of the table to row `i` of `out`, without the row's scale, for each row
    /// of `out`; writes zeros for a dropped id.
    ///
    /// # Errors
    /// [`LookupError::BadId`].
    ///
    /// # Panics
    /// There are fewer ids than rows, or a row of `out` is too short.
    pub fn gather_stored(&self, ids: Ints<'_>, policy: Policy, mut out: OutputRows<'_>) -> LookupResult {
        let (size, row_bytes) = (self.vocabulary_size as u64, self.stored_bytes());
        assert!(out.rows() <= ids.len() && (out.rows() == 0 || row_bytes <= out.width()));
        let mut missing = 0;
        for i in 0..out.rows() {
            let id = ids.get(i);
            let row = if (id as u64) < size {
                Some(id)
            } else {
                missing += 1;
                policy.replacement(id, size).map_err(|_| LookupError::BadId(i))?
            };
            let to = out.row(i);
            let to = &mut to[..row_bytes];
            match row {
                Some(row) => {
                    copy(&self.rows.as_bytes()[row as usize * row_bytes..][..row_bytes], to);
                }
                None => to.fill(ZERO),
            }
        }
        Ok(missing)
    }

    /// Writes row `ids[i]` of the table as float32 to row `i` of `out`, as `gather` does, for a table of any dtype.
    ///
    /// Numbers of float64 are rounded to the nearest float32; one that is too large becomes infinity.
    ///
    /// # Errors
    /// [`LookupError::BadId`].
    ///
    /// # Panics
    /// As `gather`.
    pub fn gather_float32(&self, ids: Ints<'_>, policy: Policy, mut out: OutputRows<'_>) -> LookupResult {
        if self.dtype != Dtype::Float64 {
            return self.gather(ids, policy, out);
        }
        let (dim, num_rows) = (self.embedding_dim, out.rows());
        assert!(num_rows == 0 || dim * 4 <= out.width());
        let mut stored = Vec::with_capacity(num_rows * dim * 8);
        let all = OutputRows::new(stored.spare_capacity_mut(), 0, dim * 8, dim * 8, num_rows);
        let missing = self.gather_stored(ids, policy, all)?;
        // SAFETY: gather_stored() has written all rows, which have eight bytes a number.
        unsafe { stored.set_len(num_rows * dim * 8) };
        for r in 0..num_rows {
            let numbers = stored[r * dim * 8..][..dim * 8].as_chunks::<8>().0;
            for (to, &number) in out.row(r).as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *to = (f64::from_le_bytes(number) as f32).to_le_bytes().map(MaybeUninit::new);
            }
        }
        Ok(missing)
    }
}
