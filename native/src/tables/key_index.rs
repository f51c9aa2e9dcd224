//! Hash indexes over the keys of a vocabulary. An index takes some 15 bytes for each key, beside the mapped file.
//!
//! An index is an int32 array of slots, open addressing with linear probing; the number of slots is a power of two. A
//! slot is [`EMPTY`], or its low bits are the number of a key and its high bits are a tag: as many bits of the key's
//! hash as fit. A search compares tags before it compares keys, because the bytes of a wrong key are rarely in the CPU
//! cache. The index holds no keys: strings stay in the lines of the vocabulary file, integers in one array.
//!
//! Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
//! `FastHashSpec`, over the bytes of a string or the decimal digits of an integer.

use super::fingerprint::fingerprint64;
use super::rows::prefetch_line;

/// The rules by which a vocabulary maps keys to table rows. The key in line `i` has row `first_id + i`.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowMapping {
    /// Table row of the key in line 0 of the vocabulary file.
    pub first_id: i64,
    /// Table row of the first OOV bucket; buckets hold the keys that the vocabulary lacks.
    pub first_bucket: i64,
    /// Number of OOV buckets, each of which is one table row.
    pub num_oov_buckets: u64,
    /// Table row of all keys that the vocabulary lacks, if there are no OOV buckets; with -1 such a key is dropped or
    /// refused.
    pub oov_id: i64,
    /// Whether a request with a key that the vocabulary lacks is refused.
    pub refuses_unknown_keys: bool,
    /// Table row of the empty string; None if the empty string is a key like any other.
    pub empty_id: Option<i64>,
    /// Whether the vocabulary has no list of keys: each key is hashed to an OOV bucket, and none counts as unknown.
    pub is_hashed: bool,
}

pub const EMPTY: i32 = -1;

/// Number of keys that one round of a search looks up together. A search makes three dependent reads: the slot, the
/// offset of the key, the key's bytes. The search prefetches each of the three for the whole batch before it compares
/// the first key.
const BATCH_KEYS: usize = 64;

/// The reason why a hash index can not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexError {
    /// The vocabulary has a key twice; the value is the line number, from 0 on, of the second occurrence.
    Twice(usize),
    /// The number of slots is no power of two, or is not larger than the number of keys; or the vocabulary has more
    /// keys than an int32 can count.
    Slots,
    /// The offset of a line lies outside the vocabulary file, or not behind the offset of the line before it.
    Starts,
}

/// The number of unknown keys in one search, and the position of the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnknownKeys {
    pub count: usize,
    /// Position of the first unknown key among the searched keys; 0 if there is none.
    pub first: usize,
}

/// The keys of one vocabulary, with functions that hash, compare and prefetch them.
pub(crate) trait Keys {
    /// Type of a key that a client sends.
    type Key: Copy;
    /// Returns a key's hash, whose low bits are the number of the first slot to search.
    fn hash(key: Self::Key) -> u64;
    /// Returns the hash that chooses the key's OOV bucket; `hash` is the result of [`Keys::hash`].
    fn bucket_hash(key: Self::Key, hash: u64) -> u64;
    /// Returns the table row of a key that is never searched in the hash index: the empty string, if `rows` has a row
    /// for it. None for any other key.
    fn row_without_search(key: Self::Key, rows: &RowMapping) -> Option<i64>;
    /// Says whether the key in line `number` of the vocabulary equals `key`.
    fn equals(&self, number: usize, key: Self::Key) -> bool;
    /// Whether a search prefetches. Measured on 4096 keys of a million: strings take 738 us without prefetches and 187
    /// us with them; integers 25 us without and 31 us with them.
    const PREFETCHES: bool;
    /// Prefetches the offset, in the vocabulary file, of the key in the line with this number.
    fn prefetch_start(&self, _number: usize) {}
    /// Prefetches the bytes of the key in the line with this number of the vocabulary file.
    fn prefetch_key(&self, _number: usize) {}
}

/// The lines of a vocabulary file.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    pub data: &'a [u8],
    /// Offset in the vocabulary file where each line starts, and the offset where one more line would start.
    pub starts: &'a [i64],
}

impl<'a> Lines<'a> {
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a line of the file without its ending: newline or CR LF, as in TensorFlow's file initializer.
    ///
    /// # Panics
    /// The file has no such line, or `starts` has offsets outside the file.
    #[must_use]
    #[inline]
    pub fn get(&self, line: usize) -> &'a [u8] {
        let (start, next) = (self.starts[line] as usize, self.starts[line + 1] as usize);
        let text = &self.data[start..next - 1];
        text.strip_suffix(b"\r").unwrap_or(text)
    }

    pub(super) fn lie_within_data(&self) -> bool {
        let bound = self.data.len() as u64 + 1;
        let ends = self.starts.windows(2);
        ends.into_iter().all(|pair| pair[0] >= 0 && pair[0] < pair[1] && pair[1] as u64 <= bound)
    }
}

impl<'a> Keys for Lines<'a> {
    type Key = &'a [u8];
    const PREFETCHES: bool = true;

    #[inline]
    fn hash(key: &'a [u8]) -> u64 {
        fingerprint64(key)
    }

    #[inline]
    fn bucket_hash(_key: &'a [u8], hash: u64) -> u64 {
        hash
    }

    #[inline]
    fn row_without_search(key: &'a [u8], rows: &RowMapping) -> Option<i64> {
        if key.is_empty() { rows.empty_id } else { None }
    }

    #[inline]
    fn equals(&self, number: usize, key: &'a [u8]) -> bool {
        are_equal(self.get(number), key)
    }

    #[inline]
    fn prefetch_start(&self, number: usize) {
        prefetch_line(self.starts.as_ptr().wrapping_add(number).cast());
    }

    #[inline]
    fn prefetch_key(&self, number: usize) {
        prefetch_line(self.data.as_ptr().wrapping_add(self.starts[number] as usize));
    }
}

/// Says whether two keys are equal. Most keys have 8 to 16 bytes: for them two comparisons of 8 bytes are faster than a
/// call of memcmp.
#[inline]
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match (one.split_first_chunk::<8>(), other.split_first_chunk::<8>()) {
        (Some((first, rest)), Some((other_first, other_rest))) => {
            first == other_first
                && one.last_chunk::<8>() == other.last_chunk::<8>()
                && (one.len() <= 16 || rest == other_rest)
        }
        _ => one == other,
    }
}

/// The keys of an int64 vocabulary; key `i` is that of line `i`.
#[derive(Clone, Copy, Debug)]
pub struct Integers<'a>(pub &'a [i64]);

impl Keys for Integers<'_> {
    type Key = i64;
    const PREFETCHES: bool = false;

    #[inline]
    fn hash(key: i64) -> u64 {
        // The multiplication spreads low bits of the key to high bits; the shift copies these to the low bits, which
        // choose the slot.
        let word = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word ^ (word >> 32)
    }

    #[inline]
    fn bucket_hash(key: i64, _hash: u64) -> u64 {
        fingerprint_of_digits(key)
    }

    #[inline]
    fn row_without_search(_key: i64, _rows: &RowMapping) -> Option<i64> {
        None
    }

    #[inline]
    fn equals(&self, number: usize, key: i64) -> bool {
        self.0[number] == key
    }
}

/// Returns the Fingerprint64 of an integer's decimal digits, a minus sign included.
#[must_use]
pub fn fingerprint_of_digits(key: i64) -> u64 {
    fingerprint64(itoa::Buffer::new().format(key).as_bytes())
}

/// Ok holds a slot whose tag equals that of the searched key, and the number of the slot's key. Err holds the empty
/// slot that ends the search.
type Candidate = Result<(usize, usize), usize>;

/// The slots of one hash index; there is at least one slot.
#[derive(Clone, Copy)]
struct Index<'a> {
    slots: &'a [i32],
    /// Number of low bits of a slot that hold the key's number. The bits above them hold the tag, except the sign bit.
    number_bits: u32,
}

impl<'a> Index<'a> {
    /// Returns the hash index whose slots are in this array; None if the array is empty.
    fn new(slots: &'a [i32]) -> Option<Self> {
        Some(Index { slots, number_bits: slots.len().checked_ilog2()? })
    }

    fn first_slot(self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// Returns the value of a slot that holds key `number`. The tag is taken from the high bits of the hash, because
    /// the low bits choose the slot.
    fn content(self, number: i32, hash: u64) -> i32 {
        number | (((hash >> 33) as i32) >> self.number_bits) << self.number_bits
    }

    /// Returns the first slot from `slot` on whose tag is that of `hash`, with the key's number; or Err with the first
    /// empty slot.
    #[inline]
    fn next_candidate(self, mut slot: usize, hash: u64) -> Candidate {
        let tag = self.content(0, hash);
        loop {
            let content = self.slots[slot];
            if content == EMPTY {
                return Err(slot);
            }
            let number = content ^ tag;
            if number >> self.number_bits == 0 {
                return Ok((slot, number as usize));
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }
}

/// Says whether slots are a hash index over `num_keys` keys, in which each search ends: none has the number of a key
/// that is not there, and one is empty. No slots are the index over hashed keys.
pub(super) fn is_index(slots: &[i32], num_keys: usize) -> bool {
    let Some(index) = Index::new(slots) else { return true };
    let number_of = |content: i32| (content & !(-1 << index.number_bits)) as usize;
    slots.len().is_power_of_two()
        && index.number_bits < 32
        && slots.contains(&EMPTY)
        && slots.iter().all(|&slot| slot == EMPTY || (slot >= 0 && number_of(slot) < num_keys))
}

/// Returns the row of each searched key, with the number of unknown keys and the position of the first one. A known key
/// has row `first_id` plus its number; an unknown key has the row of its OOV bucket, or `oov_id` if there are no
/// buckets. The empty string has the row `empty_id`, if that is set.
pub(crate) fn find<K: Keys>(
    keys: &K,
    slots: &[i32],
    rows: &RowMapping,
    sent: impl ExactSizeIterator<Item = K::Key>,
) -> (Vec<i64>, UnknownKeys) {
    let index = Index::new(slots);
    let mut found = Vec::with_capacity(sent.len());
    let mut unknown = UnknownKeys::default();
    let mut sent = sent.map(|key| (key, K::hash(key)));
    let mut add = |(key, hash): (K::Key, u64), first: Option<Candidate>| {
        let row = K::row_without_search(key, rows).or_else(|| {
            let number = search(keys, index?, key, hash, first?).ok()?;
            Some(rows.first_id + number as i64)
        });
        let row = row.unwrap_or_else(|| {
            if unknown.count == 0 {
                unknown.first = found.len();
            }
            unknown.count += 1;
            if rows.num_oov_buckets > 0 {
                rows.first_bucket + (K::bucket_hash(key, hash) % rows.num_oov_buckets) as i64
            } else {
                rows.oov_id
            }
        });
        found.push(row);
    };
    let first = |index: Index<'_>, hash| index.next_candidate(index.first_slot(hash), hash);
    if let Some(index) = index.filter(|_| K::PREFETCHES) {
        let mut batch: smallvec::SmallVec<[(K::Key, u64); BATCH_KEYS]> = smallvec::SmallVec::new();
        let mut candidates: smallvec::SmallVec<[Candidate; BATCH_KEYS]> = smallvec::SmallVec::new();
        loop {
            batch.extend(sent.by_ref().take(BATCH_KEYS));
            if batch.is_empty() {
                break;
            }
            for (_, hash) in &batch {
                prefetch_line(slots.as_ptr().wrapping_add(index.first_slot(*hash)).cast());
            }
            candidates.extend(batch.iter().map(|&(_, hash)| first(index, hash)));
            let numbers = candidates.iter().filter_map(|candidate| Some(candidate.ok()?.1));
            numbers.clone().for_each(|number| keys.prefetch_start(number));
            numbers.for_each(|number| keys.prefetch_key(number));
            batch.drain(..).zip(candidates.drain(..)).for_each(|(sent, candidate)| add(sent, Some(candidate)));
        }
    } else {
        sent.for_each(|(key, hash)| add((key, hash), index.map(|index| first(index, hash))));
    }
    (found, unknown)
}

/// Searches the hash index for a key, from `candidate` on, the first slot with the key's tag. Returns the number of the
/// key, or Err with the empty slot that ended the search, where the key can be inserted.
#[inline]
fn search<K: Keys>(
    keys: &K,
    index: Index<'_>,
    key: K::Key,
    hash: u64,
    mut candidate: Candidate,
) -> Result<usize, usize> {
    loop {
        let (slot, number) = candidate?;
        if keys.equals(number, key) {
            return Ok(number);
        }
        candidate = index.next_candidate((slot + 1) & (index.slots.len() - 1), hash);
    }
}

/// Builds the hash index of a vocabulary file's lines in `slots`, which are all [`EMPTY`] before.
///
/// # Errors
/// [`IndexError`].
pub fn index_strings(lines: Lines<'_>, slots: &mut [i32]) -> Result<(), IndexError> {
    if !lines.lie_within_data() {
        return Err(IndexError::Starts);
    }
    index(&lines, (0..lines.len()).map(|line| lines.get(line)), slots)
}

/// Builds the hash index of int64 keys in `slots`, which are all [`EMPTY`] before.
///
/// # Errors
/// [`IndexError`].
pub fn index_integers(keys: &[i64], slots: &mut [i32]) -> Result<(), IndexError> {
    index(&Integers(keys), keys.iter().copied(), slots)
}

fn index<K: Keys>(keys: &K, each: impl ExactSizeIterator<Item = K::Key>, slots: &mut [i32]) -> Result<(), IndexError> {
    // A search ends at an empty slot, so at least one slot of the index must stay empty.
    if !slots.len().is_power_of_two() || each.len() >= slots.len() {
        return Err(IndexError::Slots);
    }
    for (number, key) in each.enumerate() {
        let hash = K::hash(key);
        let index = Index::new(slots).ok_or(IndexError::Slots)?;
        let content = index.content(i32::try_from(number).map_err(|_| IndexError::Slots)?, hash);
        match search(keys, index, key, hash, index.next_candidate(index.first_slot(hash), hash)) {
            Ok(_) => return Err(IndexError::Twice(number)),
            Err(slot) => slots[slot] = content,
        }
    }
    Ok(())
}

/// Returns the number of lines of a vocabulary file; the last line may lack its newline.
#[must_use]
pub fn count_lines(data: &[u8]) -> usize {
    let count = memchr::memchr_iter(b'\n', data).count();
    count + usize::from(data.last().is_some_and(|&byte| byte != b'\n'))
}

/// Writes to `starts` the offset of each line of a vocabulary file, and the offset where one more line would start.
/// Returns false if the length of `starts` is not the number of lines plus one.
pub fn find_lines(data: &[u8], starts: &mut [i64]) -> bool {
    let mut line = 0;
    if let Some(first) = starts.first_mut() {
        *first = 0;
    }
    let past_end = (!data.is_empty() && !data.ends_with(b"\n")).then_some(data.len());
    for newline in memchr::memchr_iter(b'\n', data).chain(past_end) {
        line += 1;
        let Some(start) = starts.get_mut(line) else {
            return false;
        };
        *start = newline as i64 + 1;
    }
    line + 1 == starts.len()
}

/// Parses each line of a vocabulary file as a decimal int64, and writes the number to `keys`.
///
/// # Errors
/// The number of the first line that holds no int64.
///
/// # Panics
/// There are fewer lines than keys.
pub fn parse_integers(lines: Lines<'_>, keys: &mut [i64]) -> Result<(), usize> {
    for (line, key) in keys.iter_mut().enumerate() {
        *key = integer(lines.get(line)).ok_or(line)?;
    }
    Ok(())
}

fn integer(text: &[u8]) -> Option<i64> {
    let (digits, is_negative) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i64, |value, &byte| {
        let digit = i64::from(byte.is_ascii_digit().then(|| byte - b'0')?);
        let value = value.checked_mul(10)?;
        // Negative numbers are built by subtraction, because 2^63 is no int64, but -2^63 is.
        if is_negative { value.checked_sub(digit) } else { value.checked_add(digit) }
    })
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// Test keys that collide: each key has hash slot 0, all even keys share one tag, and all odd keys share another.
    struct Colliding<'a>(&'a [i64]);

    impl Keys for Colliding<'_> {
        type Key = i64;
        const PREFETCHES: bool = true;

        fn hash(key: i64) -> u64 {
            (key as u64 & 1) << 63
        }

        fn bucket_hash(_key: i64, hash: u64) -> u64 {
            hash
        }

        fn row_without_search(_key: i64, _rows: &RowMapping) -> Option<i64> {
            None
        }

        fn equals(&self, number: usize, key: i64) -> bool {
            self.0[number] == key
        }
    }

    #[test]
    fn keys_with_equal_hashes_are_found_and_unknown_keys_are_not() {
        let known = [2, 3, 4, 5, 6, 9, 8];
        let mut slots = vec![EMPTY; 8];
        assert_eq!(index(&Colliding(&known), known.iter().copied(), &mut slots), Ok(()));
        let rows = RowMapping {
            first_id: 10,
            first_bucket: 0,
            num_oov_buckets: 0,
            oov_id: -1,
            refuses_unknown_keys: false,
            empty_id: None,
            is_hashed: false,
        };
        let sent = [8, 9, 7, 2, 12, 6];
        let (found, unknown) = find(&Colliding(&known), &slots, &rows, sent.into_iter());
        assert_eq!(found, [16, 15, -1, 10, -1, 14]);
        assert_eq!(unknown, UnknownKeys { count: 2, first: 2 });
        let mut again = vec![EMPTY; 8];
        assert_eq!(index(&Colliding(&[1, 2, 3, 1]), [1, 2, 3, 1].into_iter(), &mut again), Err(IndexError::Twice(3)));
    }
}
