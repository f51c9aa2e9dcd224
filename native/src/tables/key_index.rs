//! Hash indexes over the keys of a vocabulary: some 15 bytes a key beside the mapped file.
//!
//! An index is an int32 array of slots, a power of two in number. Each slot holds the number of a key below a tag, or
//! [`EMPTY`]; a key lies in the first free slot at or behind its hash. The tag is as many bits of the key's hash as the
//! slot has left: a search compares tags before keys, because another key's bytes are rarely in a cache. The keys stay
//! where they are: strings in the lines of the file, integers in one array.
//!
//! Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
//! `FastHashSpec`, over the bytes of a string or the decimal digits of an integer.

use super::fingerprint::fingerprint64;
use super::rows::prefetch_line;
use super::vocabulary::Rows;

/// A slot without a key.
pub const EMPTY: i32 = -1;

/// Number of keys whose slots are prefetched before the first key is searched. A search for a key reads memory three
/// times, one after the other: the slot, the start of the key, and its bytes.
const AT_A_TIME: usize = 64;

/// The reason why an index can not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIndexed {
    /// The key with this number equals an earlier key.
    Twice(usize),
    /// The number of slots is no power of two or too small for the keys, or the keys are too many for int32.
    Slots,
    /// The start of a line lies outside the file, or before the start of the line before.
    Starts,
}

/// Counts the keys of one search that a vocabulary lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Number of missing keys.
    pub count: usize,
    /// Position of the first missing key; 0 where no key is missing.
    pub first: usize,
}

/// Keys of a vocabulary, with the functions that hash and find them.
pub(super) trait Keys {
    /// A key as the client sends it.
    type Key: Copy;
    /// Returns the hash whose low bits are the key's first slot.
    fn hash(key: Self::Key) -> u64;
    /// Returns the hash that chooses the key's OOV bucket; `hash` is the result of [`Keys::hash`].
    fn bucket_hash(key: Self::Key, hash: u64) -> u64;
    /// Returns the row of a key that needs no search, else None.
    fn row_without_search(key: Self::Key, rows: &Rows) -> Option<i64>;
    /// Says whether the vocabulary's key `number` equals `key`.
    fn is(&self, number: usize, key: Self::Key) -> bool;
    /// Whether prefetching makes a search quicker. Measured on 4096 keys of a million: strings 738 us
    /// without, 187 us with it; integers 25 us without, 31 us with it.
    const ASKS_AHEAD: bool;
    /// Prefetches the start of key `number`.
    fn ask_for_place(&self, _number: usize) {}
    /// Prefetches key `number`.
    fn ask_for_key(&self, _number: usize) {}
}

/// The lines of a file.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// Bytes of the file.
    pub data: &'a [u8],
    /// Offset where each line starts, and the offset where one more line would start.
    pub starts: &'a [i64],
}

impl<'a> Lines<'a> {
    /// Returns the number of lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Says whether the file has no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a line without its ending: newline or CR LF, as in TensorFlow's file initializer.
    ///
    /// # Panics
    /// The file has no such line, or the line does not lie within the file.
    #[must_use]
    #[inline]
    pub fn get(&self, line: usize) -> &'a [u8] {
        let (begin, next) = (self.starts[line] as usize, self.starts[line + 1] as usize);
        let text = &self.data[begin..next - 1];
        text.strip_suffix(b"\r").unwrap_or(text)
    }

    fn are_within(&self) -> bool {
        let bound = self.data.len() as u64 + 1;
        let ends = self.starts.windows(2);
        ends.into_iter().all(|pair| pair[0] >= 0 && pair[0] < pair[1] && pair[1] as u64 <= bound)
    }
}

impl<'a> Keys for Lines<'a> {
    type Key = &'a [u8];
    const ASKS_AHEAD: bool = true;

    #[inline]
    fn hash(key: &'a [u8]) -> u64 {
        fingerprint64(key)
    }

    #[inline]
    fn bucket_hash(_key: &'a [u8], hash: u64) -> u64 {
        hash
    }

    #[inline]
    fn row_without_search(key: &'a [u8], rows: &Rows) -> Option<i64> {
        if key.is_empty() { rows.empty_id } else { None }
    }

    #[inline]
    fn is(&self, number: usize, key: &'a [u8]) -> bool {
        are_equal(self.get(number), key)
    }

    #[inline]
    fn ask_for_place(&self, number: usize) {
        prefetch_line(self.starts.as_ptr().wrapping_add(number).cast());
    }

    #[inline]
    fn ask_for_key(&self, number: usize) {
        prefetch_line(self.data.as_ptr().wrapping_add(self.starts[number] as usize));
    }
}

/// Compares two strings; most keys have 8 to 16 bytes, for which two comparisons of words replace a call of memcmp.
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

/// int64 keys.
#[derive(Clone, Copy, Debug)]
pub struct Integers<'a>(pub &'a [i64]);

impl Keys for Integers<'_> {
    type Key = i64;
    const ASKS_AHEAD: bool = false;

    #[inline]
    fn hash(key: i64) -> u64 {
        // Multiplication moves differences up; the shift brings them down to the bits that the mask keeps.
        let word = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word ^ (word >> 32)
    }

    #[inline]
    fn bucket_hash(key: i64, _hash: u64) -> u64 {
        fingerprint_of_digits(key)
    }

    #[inline]
    fn row_without_search(_key: i64, _rows: &Rows) -> Option<i64> {
        None
    }

    #[inline]
    fn is(&self, number: usize, key: i64) -> bool {
        self.0[number] == key
    }
}

/// Returns the fingerprint of an integer's decimal digits.
#[must_use]
pub fn fingerprint_of_digits(key: i64) -> u64 {
    fingerprint64(itoa::Buffer::new().format(key).as_bytes())
}

/// A slot with the tag of a hash and the number of the slot's key; or Err with an empty slot, which ends a search.
type Candidate = Result<(usize, usize), usize>;

/// The slots of one index, not empty.
#[derive(Clone, Copy)]
struct Index<'a> {
    slots: &'a [i32],
    /// Number of low bits of a slot that hold the number of its key; the bits above them, but the sign, hold the tag.
    number_bits: u32,
}

impl<'a> Index<'a> {
    /// Returns None where there are no slots.
    fn new(slots: &'a [i32]) -> Option<Self> {
        Some(Index { slots, number_bits: slots.len().checked_ilog2()? })
    }

    fn first_slot(self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// Returns the content of the slot of key `number`. The tag comes from the high bits of the hash, because the
    /// slot's place comes from its low bits.
    fn content(self, number: i32, hash: u64) -> i32 {
        number | (((hash >> 33) as i32) >> self.number_bits) << self.number_bits
    }

    /// Returns the first slot at or behind `slot` that has the tag of `hash`, with the key's number; or Err with the
    /// first empty slot.
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

/// Returns the row of each key: `first_id` + its number, or that of its OOV bucket, or `oov_id`.
pub(super) fn find<K: Keys>(
    keys: &K,
    slots: &[i32],
    rows: &Rows,
    sent: impl ExactSizeIterator<Item = K::Key>,
) -> (Vec<i64>, Strangers) {
    let index = Index::new(slots);
    let mut found = Vec::with_capacity(sent.len());
    let mut strangers = Strangers::default();
    let mut sent = sent.map(|key| (key, K::hash(key)));
    let mut add = |(key, hash): (K::Key, u64), first: Option<Candidate>| {
        let row = K::row_without_search(key, rows).or_else(|| {
            let number = search(keys, index?, key, hash, first?).ok()?;
            Some(rows.first_id + number as i64)
        });
        let row = row.unwrap_or_else(|| {
            if strangers.count == 0 {
                strangers.first = found.len();
            }
            strangers.count += 1;
            if rows.num_oov_buckets > 0 {
                rows.first_bucket + (K::bucket_hash(key, hash) % rows.num_oov_buckets) as i64
            } else {
                rows.oov_id
            }
        });
        found.push(row);
    };
    let first = |index: Index<'_>, hash| index.next_candidate(index.first_slot(hash), hash);
    if let Some(index) = index.filter(|_| K::ASKS_AHEAD) {
        let mut some: smallvec::SmallVec<[(K::Key, u64); AT_A_TIME]> = smallvec::SmallVec::new();
        let mut candidates: smallvec::SmallVec<[Candidate; AT_A_TIME]> = smallvec::SmallVec::new();
        loop {
            some.extend(sent.by_ref().take(AT_A_TIME));
            if some.is_empty() {
                break;
            }
            for (_, hash) in &some {
                prefetch_line(slots.as_ptr().wrapping_add(index.first_slot(*hash)).cast());
            }
            candidates.extend(some.iter().map(|&(_, hash)| first(index, hash)));
            let numbers = candidates.iter().filter_map(|candidate| Some(candidate.ok()?.1));
            numbers.clone().for_each(|number| keys.ask_for_place(number));
            numbers.for_each(|number| keys.ask_for_key(number));
            some.drain(..).zip(candidates.drain(..)).for_each(|(sent, candidate)| add(sent, Some(candidate)));
        }
    } else {
        sent.for_each(|(key, hash)| add((key, hash), index.map(|index| first(index, hash))));
    }
    (found, strangers)
}

/// Returns the number of a key, beginning with the first candidate for its hash; or Err with the empty slot where the
/// key would lie.
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
        if keys.is(number, key) {
            return Ok(number);
        }
        candidate = index.next_candidate((slot + 1) & (index.slots.len() - 1), hash);
    }
}

/// Fills slots, all [`EMPTY`] before, with the lines of a file.
///
/// # Errors
/// [`NotIndexed`].
pub fn index_strings(lines: Lines<'_>, slots: &mut [i32]) -> Result<(), NotIndexed> {
    if !lines.are_within() {
        return Err(NotIndexed::Starts);
    }
    index(&lines, (0..lines.len()).map(|line| lines.get(line)), slots)
}

/// Fills slots, all [`EMPTY`] before, with integers.
///
/// # Errors
/// [`NotIndexed`].
pub fn index_integers(keys: &[i64], slots: &mut [i32]) -> Result<(), NotIndexed> {
    index(&Integers(keys), keys.iter().copied(), slots)
}

fn index<K: Keys>(keys: &K, each: impl ExactSizeIterator<Item = K::Key>, slots: &mut [i32]) -> Result<(), NotIndexed> {
    // A search ends at an empty slot, so one slot must stay empty.
    if !slots.len().is_power_of_two() || each.len() >= slots.len() {
        return Err(NotIndexed::Slots);
    }
    for (number, key) in each.enumerate() {
        let hash = K::hash(key);
        let index = Index::new(slots).ok_or(NotIndexed::Slots)?;
        let content = index.content(i32::try_from(number).map_err(|_| NotIndexed::Slots)?, hash);
        match search(keys, index, key, hash, index.next_candidate(index.first_slot(hash), hash)) {
            Ok(_) => return Err(NotIndexed::Twice(number)),
            Err(slot) => slots[slot] = content,
        }
    }
    Ok(())
}

/// Returns the number of lines of a file; the last may lack its newline.
#[must_use]
pub fn count_lines(data: &[u8]) -> usize {
    let count = memchr::memchr_iter(b'\n', data).count();
    count + usize::from(data.last().is_some_and(|&byte| byte != b'\n'))
}

/// Writes the offset where each line of a file starts, and the offset where one more line would start. Returns whether
/// `starts` is one longer than the number of lines.
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

/// Writes the int64 that each line holds in decimal.
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
        // The smallest int64 has no positive counterpart, so negative values are built by subtraction.
        if is_negative { value.checked_sub(digit) } else { value.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys whose hashes collide: all have the first slot 0, and keys of equal remainder by 2 have the same tag.
    struct Colliding<'a>(&'a [i64]);

    impl Keys for Colliding<'_> {
        type Key = i64;
        const ASKS_AHEAD: bool = true;

        fn hash(key: i64) -> u64 {
            (key as u64 & 1) << 63
        }

        fn bucket_hash(_key: i64, hash: u64) -> u64 {
            hash
        }

        fn row_without_search(_key: i64, _rows: &Rows) -> Option<i64> {
            None
        }

        fn is(&self, number: usize, key: i64) -> bool {
            self.0[number] == key
        }
    }

    #[test]
    fn keys_with_equal_hashes_are_found_and_strangers_are_not() {
        let known = [2, 3, 4, 5, 6, 9, 8];
        let mut slots = vec![EMPTY; 8];
        assert_eq!(index(&Colliding(&known), known.iter().copied(), &mut slots), Ok(()));
        let rows = Rows {
            first_id: 10,
            first_bucket: 0,
            num_oov_buckets: 0,
            oov_id: -1,
            refuses_strangers: false,
            empty_id: None,
            is_hashed: false,
        };
        let sent = [8, 9, 7, 2, 12, 6];
        let (found, strangers) = find(&Colliding(&known), &slots, &rows, sent.into_iter());
        assert_eq!(found, [16, 15, -1, 10, -1, 14]);
        assert_eq!(strangers, Strangers { count: 2, first: 2 });
        let mut again = vec![EMPTY; 8];
        assert_eq!(index(&Colliding(&[1, 2, 3, 1]), [1, 2, 3, 1].into_iter(), &mut again), Err(NotIndexed::Twice(3)));
    }
}
