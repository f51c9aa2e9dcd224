//! Keys to rows: the index that service/lookup/key_index.py builds, read without a Python object for each key.

/// What keys become. Line `i` of a vocabulary is row `first_id + i`.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// Row of the key in line 0.
    pub first_id: i64,
    /// Row of the first bucket for other keys.
    pub first_bucket: i64,
    /// How many buckets there are.
    pub num_oov_buckets: u64,
    /// Row of any other key where there are no buckets; -1: it is dropped, or refused.
    pub oov_id: i64,
    /// Whether any other key is refused.
    pub refuses_strangers: bool,
    /// Row of the empty string, where it has one of its own.
    pub empty_id: Option<i64>,
    /// Whether there is no list of keys: each goes to its bucket and none is a stranger.
    pub is_hashed: bool,
}

/// The key at this position is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub usize);

/// One vocabulary in memory. The publisher keeps its memory for as long as the vocabulary lives.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Whether keys are strings; else they are int64.
    pub has_strings: bool,
    data: (*const u8, usize),
    keys: (*const i64, usize),
    slots: (*const i32, usize),
    rows: Rows,
}

// SAFETY: the memory is only read, and its publisher keeps it.
unsafe impl Send for Vocabulary {}
// SAFETY: as above.
unsafe impl Sync for Vocabulary {}

impl Vocabulary {
    /// Takes the arrays of service/lookup/vocabulary.py by their addresses and lengths.
    ///
    /// # Safety
    /// They are what `service/lookup/key_index.py` made of one file, and stay readable as long as any copy lives: the
    /// bytes of the file, the starts of its lines or its int64 keys, and the slots, a power of two of them.
    #[must_use]
    pub unsafe fn new(
        has_strings: bool,
        data: (*const u8, usize),
        keys: (*const i64, usize),
        slots: (*const i32, usize),
        rows: Rows,
    ) -> Self {
        Vocabulary {
            has_strings,
            data,
            keys,
            slots,
            rows,
        }
    }

    /// Returns the row of each string, -1 for one that is dropped, and how many strings the vocabulary lacks (0 where
    /// keys are hashed).
    ///
    /// # Errors
    /// [`Refused`]: the first key without a row, where the vocabulary refuses such.
    pub fn rows_of_strings<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
    ) -> Result<(Vec<i64>, usize), Refused> {
        let _ = (keys.len(), self.data, self.keys, self.slots, self.rows);
        todo!("tables")
    }

    /// Returns what `rows_of_strings` does, of int64 keys.
    ///
    /// # Errors
    /// As `rows_of_strings`.
    pub fn rows_of_integers(&self, keys: impl ExactSizeIterator<Item = i64>) -> Result<(Vec<i64>, usize), Refused> {
        let _ = keys.len();
        todo!("tables")
    }
}
