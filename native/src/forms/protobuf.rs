//! Reads and writes protobuf's wire format. Readers borrow fields from the message; writers compute a message's size
//! before they write it.
//!
//! Readers refuse groups, and each message that Google's parser refuses. They allocate memory only for the integers of
//! a packed field.
//!
//! Source: protobuf's encoding guide, "Base 128 Varints", "Length-Delimited Records" and "Message Structure".

use crate::plan::{Declined, faults, has_room};

const CONTINUATION_BITS: u64 = 0x8080_8080_8080_8080;
/// Number of bytes of a packed field in which the decoder looks for the ends of varints at once.
const BLOCK: usize = 64;
const WORD: usize = 8;
/// Maximal sizes in bytes of varints: of 64 bits, and of 32 bits as tags and lengths are.
const MAX_VARINT_BYTES: usize = 10;
const MAX_VARINT32_BYTES: usize = 5;

/// The error for bytes that the readers refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes are no protobuf message: Google's parsers refuse them, too.
    Malformed,
    /// The message has a group, which Google's parsers skip.
    Group,
    /// There is no memory for the integers of a packed field.
    NoMemory,
}

use WireError::Malformed;

impl From<WireError> for Declined {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Malformed => Declined::Malformed,
            WireError::Group => Declined::Unusual,
            WireError::NoMemory => faults::no_memory("The packed integers of a tensor take eight bytes each").into(),
        }
    }
}

/// The value of one field of a protobuf message, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value of a varint field: an integer, a bool or an enum.
    Varint(u64),
    /// The little-endian bytes of a field of type fixed64, sfixed64 or double.
    Fixed64(&'a [u8; 8]),
    /// The bytes of a length-delimited field: a string, bytes, a message or packed numbers.
    Delimited(&'a [u8]),
    /// The little-endian bytes of a field of type fixed32, sfixed32 or float.
    Fixed32(&'a [u8; 4]),
}

/// An iterator over the fields of one message: field number and value. It ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns an iterator over the fields of an encoded protobuf message.
    #[must_use]
    #[inline]
    pub fn of(message: &'a [u8]) -> Self {
        Fields { rest: message }
    }

    /// Returns how many bytes of the message are not read yet.
    #[must_use]
    #[inline]
    pub fn num_left(&self) -> usize {
        self.rest.len()
    }

    // A call would return its result through memory, which takes twice the instructions.
    #[inline(always)]
    fn read_field(&mut self) -> Result<(u32, Value<'a>), WireError> {
        let tag = read_varint32(&mut self.rest)?;
        let value = match tag & 7 {
            0 => Value::Varint(read_varint(&mut self.rest)?),
            1 => Value::Fixed64(read_fixed(&mut self.rest)?),
            2 => Value::Delimited(read_delimited(&mut self.rest)?),
            5 => Value::Fixed32(read_fixed(&mut self.rest)?),
            3 | 4 => return Err(WireError::Group),
            _ => return Err(Malformed),
        };
        if tag < 8 {
            return Err(Malformed);
        }
        Ok((tag >> 3, value))
    }

    /// Reads the next fields while they have field number `number`, at most 15, and a string shorter than 128 bytes;
    /// calls `each` with every string. Stops before any other field.
    #[inline]
    pub fn for_each_short_string(&mut self, number: u32, mut each: impl FnMut(&'a [u8])) {
        let tag = number << 3 | 2;
        while let [first, length @ 0..0x80, rest @ ..] = self.rest
            && u32::from(*first) == tag
            && let Some((string, rest)) = rest.split_at_checked((*length).into())
        {
            each(string);
            self.rest = rest;
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), WireError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read_field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Stores the value of a protobuf field that may come only once in a message.
///
/// # Errors
/// The message has the field twice.
#[inline]
pub fn set_once<T>(field: &mut Option<T>, value: T) -> Result<(), Declined> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Declined::Unusual),
    }
}

/// Returns the key and the value of an entry in a protobuf map.
///
/// # Errors
/// The entry has another field, or one twice.
pub fn map_entry(entry: &[u8]) -> Result<(&[u8], &[u8]), Declined> {
    let (mut key, mut value) = (None, None);
    for field in Fields::of(entry) {
        match field? {
            (1, Value::Delimited(bytes)) => set_once(&mut key, bytes)?,
            (2, Value::Delimited(bytes)) => set_once(&mut value, bytes)?,
            _ => return Err(Declined::Unusual),
        }
    }
    Ok((key.unwrap_or_default(), value.unwrap_or_default()))
}

/// Returns a string field as UTF-8.
///
/// # Errors
/// The bytes are not UTF-8; Google's parsers refuse such a message, too.
#[inline]
pub fn text(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

/// Reads a varint of up to 64 bits from the start of `rest`, and removes its bytes from `rest`.
///
/// # Errors
/// The bytes end within the varint, or the varint has more than 64 bits.
#[inline]
pub fn read_varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    // Fast path: outside packed fields, nearly every varint has one byte.
    match rest.split_first() {
        Some((&byte, after)) if byte < 0x80 => {
            *rest = after;
            Ok(byte.into())
        }
        _ => read_long_varint(rest, MAX_VARINT_BYTES),
    }
}

/// Reads a varint of up to 32 bits and five bytes, as tags and lengths are.
///
/// # Errors
/// The bytes end within the varint, or the varint has more than 32 bits or more than five bytes.
#[inline]
pub fn read_varint32(rest: &mut &[u8]) -> Result<u32, WireError> {
    match rest.split_first() {
        Some((&byte, after)) if byte < 0x80 => {
            *rest = after;
            Ok(byte.into())
        }
        _ => read_long_varint(rest, MAX_VARINT32_BYTES).and_then(|value| u32::try_from(value).map_err(|_| Malformed)),
    }
}

fn read_long_varint(rest: &mut &[u8], max_bytes: usize) -> Result<u64, WireError> {
    let mut value = 0;
    for (position, &byte) in rest.iter().take(max_bytes).enumerate() {
        if position == MAX_VARINT_BYTES - 1 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7F) << (7 * position);
        if byte < 0x80 {
            *rest = rest.get(position + 1..).unwrap_or_default();
            return Ok(value);
        }
    }
    Err(Malformed)
}

#[inline]
fn read_delimited<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let length = read_varint32(rest)? as usize;
    let (bytes, after) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = after;
    Ok(bytes)
}

#[inline]
fn read_fixed<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], WireError> {
    let (chunk, after) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = after;
    Ok(chunk)
}

/// Returns the number of varints in a packed field.
#[must_use]
pub fn count_varints(packed: &[u8]) -> usize {
    // Varints are counted in eight counters, one in each byte of a 64-bit word, so that the compiler can use vector
    // instructions. A count byte by byte took 1 ns for a varint of three bytes, half the time of decoding it.
    let parts = packed.chunks(WORD * u8::MAX as usize).map(|part| {
        let words = part.chunks_exact(WORD);
        let tail = words.remainder().iter().filter(|&&byte| byte < 0x80).count();
        let counters = words.fold(0_u64, |counters, word| counters + ((!load_u64(word) & CONTINUATION_BITS) >> 7));
        let pairs = (counters & 0x00FF_00FF_00FF_00FF) + (counters >> 8 & 0x00FF_00FF_00FF_00FF);
        (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize + tail
    });
    parts.sum()
}

/// Returns the first eight bytes of a slice as a little-endian integer; an integer of 64 ones if the slice is shorter.
#[inline]
fn load_u64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |word| u64::from_le_bytes(*word))
}

/// Decodes the varints of a packed field and appends them to `numbers`: at most one number for each byte.
///
/// A branch on the length of a varint would often be mispredicted, because ids are random; one misprediction costs more
/// than decoding a varint. So the loop first finds the last bytes of all varints in 64 bytes, then decodes each varint
/// from one load of its bytes, without a branch.
///
/// # Errors
/// The bytes end within a varint, or a varint has more than 64 bits, or there is no memory for the numbers.
#[allow(clippy::cast_possible_wrap)] // Negative numbers are encoded in two's complement.
pub fn extend_varints(numbers: &mut Vec<i64>, packed: &[u8]) -> Result<(), WireError> {
    let (before, count) = (numbers.len(), count_varints(packed));
    if !has_room(count.saturating_mul(size_of::<i64>())) {
        return Err(WireError::NoMemory);
    }
    numbers.resize(before + count, 0);
    let mut slots = numbers.get_mut(before..).unwrap_or_default().iter_mut();
    let (mut start, mut block_at) = (0, 0);
    while let Some(block) = packed.get(block_at..).and_then(<[u8]>::first_chunk::<BLOCK>) {
        if packed.len() - block_at < BLOCK + WORD {
            break;
        }
        let mut ends = varint_ends(block);
        if ends == u64::MAX && start == block_at {
            for (byte, slot) in block.iter().zip(slots.by_ref()) {
                *slot = i64::from(*byte);
            }
            (ends, start) = (0, block_at + BLOCK);
        }
        while ends != 0 {
            let end = block_at + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            let value = decode_varint(packed, start, end)?;
            *slots.next().ok_or(Malformed)? = value as i64;
            start = end + 1;
        }
        block_at += BLOCK;
    }
    let mut rest = packed.get(start..).ok_or(Malformed)?;
    for slot in slots {
        *slot = read_varint(&mut rest)? as i64;
    }
    if rest.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// Returns one bit for each byte of a block of a packed field, set if the byte is the last of a varint.
#[inline]
fn varint_ends(block: &[u8; BLOCK]) -> u64 {
    block.chunks_exact(WORD).rev().fold(0, |ends, word| {
        let last = (!load_u64(word) & CONTINUATION_BITS) >> 7;
        // The multiplication moves the lowest bits of the eight bytes to the eight bits of the highest byte, where its
        // partial products do not overlap.
        ends << WORD | last.wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}

/// Decodes the varint in bytes `start` to `end`, inclusive; `packed` has at least eight bytes from `start` on.
#[inline]
fn decode_varint(packed: &[u8], start: usize, end: usize) -> Result<u64, WireError> {
    let from = packed.get(start..).ok_or(Malformed)?;
    let more = end - start;
    if more < 4 {
        let word = from.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let word = word & 0x7F7F_7F7F >> (24 - 8 * more);
        let word = word & 0x007F_007F | (word & 0x7F00_7F00) >> 1;
        return Ok(u64::from(word & 0x3FFF | (word & 0x3FFF_0000) >> 2));
    }
    let word = load_u64(from) & !CONTINUATION_BITS >> (56 - 8 * more.min(WORD - 1));
    let word = word & 0x007F_007F_007F_007F | (word & 0x7F00_7F00_7F00_7F00) >> 1;
    let word = word & 0x0000_3FFF_0000_3FFF | (word & 0x3FFF_0000_3FFF_0000) >> 2;
    let word = word & 0x0FFF_FFFF | (word & 0x0FFF_FFFF_0000_0000) >> 4;
    // The first eight bytes of a varint have 56 bits of the value, the ninth byte 7, the tenth only one.
    match *from.get(WORD..=more).unwrap_or_default() {
        [] => Ok(word),
        [ninth] => Ok(word | u64::from(ninth) << 56),
        [ninth, tenth @ 0..=1] => Ok(word | u64::from(ninth & 0x7F) << 56 | u64::from(tenth) << 63),
        _ => Err(Malformed),
    }
}

/// Returns the number of bytes that an integer takes as a varint.
#[must_use]
#[inline]
pub fn varint_len(value: u64) -> usize {
    // A varint has one byte for each seven bits of the value, and one byte for the value 0.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Returns the size of a protobuf field's tag in bytes.
#[must_use]
#[inline]
pub fn tag_len(field: u32) -> usize {
    varint_len(u64::from(field) << 3)
}

/// Returns the size of a length-delimited field in bytes, with its tag and length.
#[must_use]
#[inline]
pub fn delimited_len(field: u32, length: usize) -> usize {
    tag_len(field) + varint_len(length as u64) + length
}

/// Returns the size of a varint field in bytes, with its tag.
#[must_use]
#[inline]
pub fn varint_field_len(field: u32, value: u64) -> usize {
    tag_len(field) + varint_len(value)
}

/// Appends a varint.
#[inline]
#[allow(clippy::cast_possible_truncation)] // Seven bits at a time.
pub fn write_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Appends the tag and the length of a length-delimited field; the caller then appends the field's bytes.
#[inline]
pub fn write_delimited_header(to: &mut Vec<u8>, field: u32, length: usize) {
    write_varint(to, u64::from(field) << 3 | 2);
    write_varint(to, length as u64);
}

/// Appends a length-delimited protobuf field: its tag, its length and its bytes.
#[inline]
pub fn write_delimited(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    write_delimited_header(to, field, bytes.len());
    to.extend_from_slice(bytes);
}

/// Appends a varint field.
#[inline]
pub fn write_varint_field(to: &mut Vec<u8>, field: u32, value: u64) {
    write_varint(to, u64::from(field) << 3);
    write_varint(to, value);
}

#[cfg(all(test, not(feature = "model")))]
#[allow(clippy::cast_possible_wrap)] // As above.
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn packed(numbers: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &number in numbers {
            write_varint(&mut bytes, number);
        }
        bytes
    }

    /// Decodes the varints of a packed field one after the other, as the oracle of the tests.
    fn decode_one_by_one(packed: &[u8]) -> Result<Vec<i64>, WireError> {
        let (mut rest, mut numbers) = (packed, Vec::new());
        while !rest.is_empty() {
            numbers.push(read_long_varint(&mut rest, MAX_VARINT_BYTES)? as i64);
        }
        Ok(numbers)
    }

    /// Generates integers whose varints have all lengths, and runs of short ones, as ids often are.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let any_length = (any::<u64>(), 0..64_u32).prop_map(|(bits, shift)| bits >> shift);
        prop_oneof![vec(any_length, 0..200), vec(0..1_u64 << 20, 0..400), vec(0..128_u64, 0..300)]
    }

    proptest! {
        #[test]
        fn packed_integers_come_back(numbers in numbers(), before in vec(any::<i64>(), 0..3)) {
            let bytes = packed(&numbers);
            prop_assert_eq!(count_varints(&bytes), numbers.len());
            prop_assert_eq!(bytes.len(), numbers.iter().map(|&number| varint_len(number)).sum::<usize>());
            let mut found = before.clone();
            prop_assert_eq!(extend_varints(&mut found, &bytes), Ok(()));
            let sent = numbers.iter().map(|&number| number as i64);
            prop_assert_eq!(found, before.into_iter().chain(sent).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_as_one_integer_after_the_other(
            bytes in prop_oneof![
                vec(any::<u8>(), 0..300),
                vec(prop_oneof![Just(0xFF_u8), Just(0x80), 0..3_u8], 0..300),
            ],
        ) {
            let mut found = Vec::new();
            let result = extend_varints(&mut found, &bytes);
            prop_assert!(found.len() <= bytes.len());
            prop_assert_eq!(result.map(|()| found), decode_one_by_one(&bytes));
        }

        #[test]
        fn fields_of_any_bytes_end(bytes in vec(any::<u8>(), 0..200)) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }

        #[test]
        fn fields_come_back(numbers in vec((1..1_u32 << 29, any::<u64>(), vec(any::<u8>(), 0..20)), 0..20)) {
            let mut bytes = Vec::new();
            let mut length = 0;
            for (field, number, text) in &numbers {
                write_varint_field(&mut bytes, *field, *number);
                write_delimited(&mut bytes, *field, text);
                length += varint_field_len(*field, *number) + delimited_len(*field, text.len());
            }
            prop_assert_eq!(bytes.len(), length);
            let sent: Vec<_> = numbers
                .iter()
                .flat_map(|(field, number, text)| {
                    [Ok((*field, Value::Varint(*number))), Ok((*field, Value::Delimited(text)))]
                })
                .collect();
            prop_assert_eq!(Fields::of(&bytes).collect::<Vec<_>>(), sent);
        }
    }

    #[test]
    fn prost_refuses_the_same_messages() {
        let read = |bytes: &[u8]| Fields::of(bytes).collect::<Result<Vec<_>, _>>().is_ok();
        let six_bytes = b"\x22\x81\x80\x80\x80\x80\x00a";
        let five_bytes = b"\x22\x81\x80\x80\x80\x00a";
        assert!(read(five_bytes) && !read(six_bytes), "a length");
        assert!(read(b"\x88\x80\x80\x80\x00\x01") && !read(b"\x88\x80\x80\x80\x80\x00\x01"), "a tag");
        assert!(read(b"\x50\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "-1");
        assert!(!read(b"\x50\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "eleven bytes");
        assert!(!read(b"\x00\x01"), "field 0");
        assert!(!read(b"\x0b\x0c"), "a group");
        assert!(!read(b"\x0a\x02a") && !read(b"\x09\0\0\0\0\0\0\0") && !read(b"\x0d\0\0\0") && !read(b"\x08"), "cut");
        assert!(read(b"\x09\0\0\0\0\0\0\0\0\x0d\0\0\0\0"), "fixed numbers");
    }
}
