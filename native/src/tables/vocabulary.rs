//! Maps keys to table rows by the hash index that service/tables/vocabulary.py builds.

use super::key_index::{self, Integers, Lines, RowMapping, UnknownKeys, find};
use super::memory::{Memory, Number};

/// The error that the vocabulary lacks keys of the request, and refuses such keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// Position of the first unknown key among the request's keys.
    pub position: usize,
    /// Number of unknown keys of the request.
    pub count: usize,
}

/// One vocabulary.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Whether the vocabulary's keys are strings; else they are int64.
    pub has_strings: bool,
    data: Memory,
    keys: Memory,
    slots: Memory,
    rows: RowMapping,
}

impl Vocabulary {
    /// Returns a vocabulary on the arrays that service/tables/vocabulary.py makes from one file. `data` has the bytes of
    /// the file, `keys` the int64 offsets of its lines or its int64 keys, `slots` the int32 slots of the hash index.
    ///
    /// # Errors
    /// The name of the array that does not fit the others: a search would not end, or not find memory.
    pub fn new(
        has_strings: bool,
        data: Memory,
        keys: Memory,
        slots: Memory,
        rows: RowMapping,
    ) -> Result<Self, &'static str> {
        let known = keys.numbers::<i64>().ok_or("keys")?;
        let lines = Lines { data: data.as_bytes(), starts: known };
        if has_strings && !lines.lie_within_data() {
            return Err("keys");
        }
        let num_keys = if has_strings { lines.len() } else { known.len() };
        if !key_index::is_index(slots.numbers().ok_or("slots")?, num_keys) {
            return Err("slots");
        }
        let last_bucket = i64::try_from(rows.num_oov_buckets).ok().and_then(|num| rows.first_bucket.checked_add(num));
        let last_row = i64::try_from(num_keys).ok().and_then(|num| rows.first_id.checked_add(num));
        if last_bucket.is_none() || last_row.is_none() {
            return Err("rows");
        }
        Ok(Vocabulary { has_strings, data, keys, slots, rows })
    }

    /// Returns the number of keys that the vocabulary has; 0 if keys are hashed.
    #[must_use]
    pub fn num_keys(&self) -> usize {
        // The vocabulary of strings has the offset of each line and that of the end.
        let known = array::<i64>(&self.keys).len();
        if self.has_strings { known.saturating_sub(1) } else { known }
    }

    /// Returns the table row of each string, -1 for a dropped string; and how many strings the vocabulary lacks, 0 if
    /// keys are hashed.
    ///
    /// # Errors
    /// [`UnknownKey`]: the vocabulary lacks a key, and refuses such keys.
    pub fn rows_of_strings<'k>(
        &'k self,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
    ) -> Result<(Vec<i64>, usize), UnknownKey> {
        let lines = Lines { data: self.data.as_bytes(), starts: array(&self.keys) };
        self.kept(find(&lines, array(&self.slots), &self.rows, keys))
    }

    /// Returns the table row of each int64 key, -1 for a dropped key; and how many keys the vocabulary lacks, 0 if keys
    /// are hashed.
    ///
    /// # Errors
    /// As `rows_of_strings`.
    pub fn rows_of_integers(&self, keys: impl ExactSizeIterator<Item = i64>) -> Result<(Vec<i64>, usize), UnknownKey> {
        self.kept(find(&Integers(array(&self.keys)), array(&self.slots), &self.rows, keys))
    }

    fn kept(&self, (rows, unknown): (Vec<i64>, UnknownKeys)) -> Result<(Vec<i64>, usize), UnknownKey> {
        if self.rows.is_hashed {
            return Ok((rows, 0));
        }
        if self.rows.refuses_unknown_keys && unknown.count > 0 {
            return Err(UnknownKey { position: unknown.first, count: unknown.count });
        }
        Ok((rows, unknown.count))
    }
}

/// Returns an array of the vocabulary, whose alignment `new` has checked.
fn array<N: Number>(memory: &Memory) -> &[N] {
    memory.numbers().unwrap_or_default()
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::tables::fingerprint::fingerprint64;
    use crate::tables::key_index::{
        EMPTY, IndexError, count_lines, find_lines, index_integers, index_strings, parse_integers,
    };

    /// The arrays of one test vocabulary, as service/tables/vocabulary.py makes them.
    struct Indexed {
        data: Vec<u8>,
        starts: Vec<i64>,
        integers: Vec<i64>,
        slots: Vec<i32>,
    }

    impl Indexed {
        fn of(data: Vec<u8>, has_strings: bool) -> Result<Self, IndexError> {
            let count = count_lines(&data);
            let mut starts = vec![0; count + 1];
            assert!(find_lines(&data, &mut starts));
            let mut slots = vec![EMPTY; (count * 3 / 2 + 1).next_power_of_two()];
            let lines = Lines { data: &data, starts: &starts };
            let mut integers = Vec::new();
            if has_strings {
                index_strings(lines, &mut slots)?;
            } else {
                integers = vec![0; count];
                parse_integers(lines, &mut integers).unwrap();
                index_integers(&integers, &mut slots)?;
            }
            Ok(Indexed { data, starts, integers, slots })
        }

        fn vocabulary(&self, has_strings: bool, rows: RowMapping) -> Vocabulary {
            let keys = if has_strings { &self.starts } else { &self.integers };
            let (data, keys) = (Memory::of(self.data.clone()), Memory::of_numbers(keys.clone()));
            Vocabulary::new(has_strings, data, keys, Memory::of_numbers(self.slots.clone()), rows).unwrap()
        }
    }

    fn expected(
        known: &HashMap<Vec<u8>, i64>,
        sent: &[Vec<u8>],
        has_strings: bool,
        rows: &RowMapping,
    ) -> Result<(Vec<i64>, usize), UnknownKey> {
        let (mut found, mut unknown) = (Vec::new(), 0);
        for (i, key) in sent.iter().enumerate() {
            found.push(match (known.get(key), rows.empty_id) {
                (_, Some(row)) if has_strings && key.is_empty() => row,
                (Some(line), _) => rows.first_id + line,
                (None, _) => {
                    if rows.refuses_unknown_keys {
                        let has_row = |key: &&Vec<u8>| has_strings && key.is_empty() && rows.empty_id.is_some();
                        let rest = sent[i..].iter().filter(|key| !known.contains_key(*key) && !has_row(key));
                        return Err(UnknownKey { position: i, count: rest.count() });
                    }
                    unknown += 1;
                    match rows.num_oov_buckets {
                        0 => rows.oov_id,
                        buckets => rows.first_bucket + (fingerprint64(key) % buckets) as i64,
                    }
                }
            });
        }
        Ok((found, unknown))
    }

    fn rows() -> impl Strategy<Value = RowMapping> {
        (0..5_i64, 0..5_u64, -1..3_i64, any::<bool>(), prop::option::of(0..9_i64)).prop_map(
            |(first_id, num_oov_buckets, oov_id, refuses_unknown_keys, empty_id)| RowMapping {
                first_id,
                first_bucket: 100,
                num_oov_buckets,
                oov_id,
                refuses_unknown_keys,
                empty_id,
                is_hashed: false,
            },
        )
    }

    proptest! {
        #[test]
        fn strings_have_the_rows_of_their_lines(
            known in prop::collection::hash_set("[a-c\\r]{0,3}", 1..40),
            sent in prop::collection::vec("[a-d]{0,3}", 0..50),
            ending in prop::sample::select(vec!["\n", "\r\n"]),
            is_ended in any::<bool>(),
            rows in rows(),
        ) {
            // The test uses no keys that end in CR, because CR LF ends a line, so such a key would lose its CR.
            let known: Vec<String> = known.into_iter().filter(|key| !key.ends_with('\r')).collect();
            prop_assume!(!known.is_empty());
            let mut data = known.join(ending);
            if is_ended || known[known.len() - 1].is_empty() {
                data += ending;
            }
            let indexed = Indexed::of(data.into_bytes(), true).unwrap();
            let lines: HashMap<Vec<u8>, i64> = known.into_iter().map(String::into_bytes).zip(0..).collect();
            let sent: Vec<Vec<u8>> = sent.into_iter().map(String::into_bytes).collect();
            let found = indexed.vocabulary(true, rows).rows_of_strings(sent.iter().map(Vec::as_slice));
            prop_assert_eq!(found, expected(&lines, &sent, true, &rows));
        }

        #[test]
        fn integers_have_the_rows_of_their_lines(
            known in prop::collection::hash_set(prop_oneof![-20..20_i64, any::<i64>()], 1..40),
            sent in prop::collection::vec(prop_oneof![-25..25_i64, any::<i64>()], 0..50),
            rows in rows(),
        ) {
            let known: Vec<Vec<u8>> = known.into_iter().map(|key| key.to_string().into_bytes()).collect();
            let indexed = Indexed::of(known.join(&b'\n'), false).unwrap();
            let lines: HashMap<Vec<u8>, i64> = known.into_iter().zip(0..).collect();
            let texts: Vec<Vec<u8>> = sent.iter().map(|key| key.to_string().into_bytes()).collect();
            let found = indexed.vocabulary(false, rows).rows_of_integers(sent.iter().copied());
            prop_assert_eq!(found, expected(&lines, &texts, false, &rows));
        }
    }

    #[test]
    fn a_key_twice_is_refused() {
        let twice = Indexed::of(b"a\nb\r\na\n".to_vec(), true).err();
        assert_eq!(twice, Some(IndexError::Twice(2)));
        assert_eq!(Indexed::of(b"7\n-0\n0".to_vec(), false).err(), Some(IndexError::Twice(2)));
    }

    #[test]
    fn only_decimal_int64_are_integers() {
        for (text, is_integer) in [
            ("9223372036854775807", true),
            ("-9223372036854775808", true),
            ("007", true),
            ("9223372036854775808", false),
            ("-9223372036854775809", false),
            ("+1", false),
            ("-", false),
            ("", false),
            ("1 ", false),
        ] {
            let data = format!("{text}\n");
            let starts = [0, data.len() as i64];
            let lines = Lines { data: data.as_bytes(), starts: &starts };
            let parsed = parse_integers(lines, &mut [0]);
            assert_eq!(parsed.is_ok(), is_integer, "{text}");
        }
    }

    #[test]
    fn hashed_keys_are_never_unknown() {
        let rows = RowMapping {
            first_id: 0,
            first_bucket: 2,
            num_oov_buckets: 10,
            oov_id: -1,
            refuses_unknown_keys: false,
            empty_id: Some(1),
            is_hashed: true,
        };
        let none = Memory::default();
        let vocabulary = Vocabulary::new(true, none.clone(), none.clone(), none, rows).unwrap();
        let found = vocabulary.rows_of_strings([&b"red"[..], b""].into_iter());
        let bucket = 2 + (fingerprint64(b"red") % 10) as i64;
        assert_eq!(found, Ok((vec![bucket, 1], 0)));
        let found = vocabulary.rows_of_integers([i64::MIN].into_iter());
        assert_eq!(found, Ok((vec![2 + (0x14B9_BC6F_6D28_37E0_u64 % 10) as i64], 0)));
    }
}
