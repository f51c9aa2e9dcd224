//! Reads tokens of strict JSON one after the other from the bytes of a body.
//!
//! Bodies are mostly lists of ids, which this reader reads faster than a library: 1,580 ids take 16 us, and 39 us as a
//! `Value` of `serde_json`; visitors over `serde_json` and over `sonic-rs` were slower too, and longer. Texts with
//! escapes go to `serde_json`, numbers with a point to the standard library.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::base64;
use super::nested::Nested;
use crate::declined::Declined;

/// A result of reading; the reference reads a body that this reader declines.
pub type Read<T> = Result<T, Declined>;

/// The reference refuses a document of more colons than this, or of more brackets and braces that open. It counts those
/// in strings too. Source: `service/wire/json_document.py`.
const MAX_DOCUMENT_KEYS: usize = 1 << 18;
const MAX_DOCUMENT_LISTS: usize = 1 << 19;
/// A whole number of this many digits fits an i64.
const SAFE_DIGITS: usize = 18;
/// Most keys of an object, because each key is compared with all others.
const MAX_KEYS: usize = 32;
/// Most levels of a nested list; the reference reads a list with more levels.
const MAX_LEVELS: usize = 16;

/// Says whether the reference refuses a document for its number of keys or of lists.
fn has_too_many_tokens(body: &[u8]) -> bool {
    let count = |byte| memchr::memchr_iter(byte, body).count();
    // A shorter body has not enough bytes.
    body.len() > MAX_DOCUMENT_KEYS
        && (count(b':') > MAX_DOCUMENT_KEYS || count(b'[') + count(b'{') > MAX_DOCUMENT_LISTS)
}

/// A position in a JSON body. Reading a token also skips the white space behind it.
#[derive(Clone)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first token of a body.
    ///
    /// # Errors
    /// The body is not UTF-8, or has more keys or lists than the reference reads.
    pub fn new(body: &'a [u8]) -> Read<Self> {
        if has_too_many_tokens(body) {
            return Err(Declined::OverLimit);
        }
        let text = std::str::from_utf8(body).map_err(|_| Declined::Unusual)?;
        let mut cursor = Cursor { text, at: 0 };
        cursor.skip_space();
        Ok(cursor)
    }

    /// Returns the next byte, or 0 at the end.
    #[inline]
    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Says whether the next token is `byte`.
    #[inline]
    pub fn is_at(&self, byte: u8) -> bool {
        self.peek() == byte
    }

    /// Passes `byte` and white space behind it, if `byte` comes next; says whether it did.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == byte;
        if is_there {
            self.at += 1;
            self.skip_space();
        }
        is_there
    }

    /// Passes `byte` and white space behind it.
    ///
    /// # Errors
    /// Another byte comes next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Read<()> {
        if self.take(byte) { Ok(()) } else { Err(Declined::Unusual) }
    }

    /// Passes the comma in front of another element, or the byte that ends a list or an object; says whether another
    /// element follows.
    ///
    /// # Errors
    /// The next byte is neither a comma nor `end`.
    #[inline]
    pub fn has_next(&mut self, end: u8) -> Read<bool> {
        if self.take(b',') {
            return Ok(true);
        }
        self.expect(end)?;
        Ok(false)
    }

    /// Checks that the body ends at this position.
    ///
    /// # Errors
    /// The body goes on.
    pub fn end(&self) -> Read<()> {
        if self.at == self.text.len() { Ok(()) } else { Err(Declined::Unusual) }
    }

    /// Reads a string, borrowed where it has no escapes.
    ///
    /// # Errors
    /// The next token is no string, or the string is not valid JSON.
    pub fn string(&mut self) -> Read<Cow<'a, str>> {
        if self.peek() != b'"' {
            return Err(Declined::Unusual);
        }
        let begin = self.at;
        let mut has_escapes = false;
        loop {
            self.at += 1;
            match self.peek() {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    self.at += 1;
                }
                // The next byte is a control character, or 0 for the end of the body.
                0..0x20 => return Err(Declined::Unusual),
                _ => {}
            }
        }
        self.at += 1;
        let quoted = self.text.get(begin..self.at).ok_or(Declined::Unusual)?;
        self.skip_space();
        if has_escapes {
            return serde_json::from_str(quoted).map(Cow::Owned).map_err(|_| Declined::Unusual);
        }
        Ok(Cow::Borrowed(&quoted[1..quoted.len() - 1]))
    }

    /// Reads the key of a member and the colon behind it.
    ///
    /// # Errors
    /// The next token is no key.
    pub fn key(&mut self) -> Read<Cow<'a, str>> {
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Passes digits.
    #[inline]
    fn digits(&mut self) -> Read<()> {
        let begin = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == begin { Err(Declined::Unusual) } else { Ok(()) }
    }

    /// Adds the next number to `nested`, at the depth `depth`.
    #[inline]
    fn number(&mut self, nested: &mut Nested<'a>, depth: usize) -> Read<()> {
        let begin = self.at;
        let is_negative = self.peek() == b'-';
        self.at += usize::from(is_negative);
        let (first, mut number) = self.whole_part()?;
        if matches!(self.peek(), b'.' | b'e' | b'E') {
            let number = self.rest_of_float(begin)?;
            return nested.float(depth, number);
        }
        if self.at - first > SAFE_DIGITS {
            // The reference reads an integer beyond 64 bits as a float.
            number = self.text[begin..self.at].parse().map_err(|_| Declined::Unusual)?;
        } else if is_negative {
            number = -number;
        }
        self.skip_space();
        nested.int(depth, number)
    }

    /// Reads what follows the whole part of a number that began at `begin`, and rounds the number once.
    fn rest_of_float(&mut self, begin: usize) -> Read<f64> {
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        let number: f64 = self.text[begin..self.at].parse().map_err(|_| Declined::Unusual)?;
        if number.is_infinite() {
            return Err(Declined::Unusual);
        }
        self.skip_space();
        Ok(number)
    }

    /// Reads a number as a float64, rounded once.
    ///
    /// # Errors
    /// The next token is no number, or the number is beyond float64.
    pub fn float(&mut self) -> Read<f64> {
        let begin = self.at;
        self.at += usize::from(self.peek() == b'-');
        let first = self.at;
        self.digits()?;
        if self.at - first > 1 && self.text.as_bytes()[first] == b'0' {
            return Err(Declined::Unusual);
        }
        let is_whole = !matches!(self.peek(), b'.' | b'e' | b'E');
        let number = self.rest_of_float(begin)?;
        // The integer -0 becomes 0.
        Ok(if is_whole { number + 0.0 } else { number })
    }

    /// Reads a whole number.
    ///
    /// # Errors
    /// The next token is no whole number, or the number does not fit into N.
    #[inline]
    pub fn whole<N: TryFrom<i128>>(&mut self) -> Read<N> {
        let is_negative = self.peek() == b'-';
        self.at += usize::from(is_negative);
        let (first, number) = self.whole_part()?;
        let number = if self.at - first > SAFE_DIGITS {
            self.text[first..self.at].parse().map_err(|_| Declined::Unusual)?
        } else {
            i128::from(number)
        };
        self.skip_space();
        N::try_from(if is_negative { -number } else { number }).map_err(|_| Declined::Unusual)
    }

    /// Passes the digits of a whole number; returns where they begin, and the number if it has at most
    /// `SAFE_DIGITS` of them.
    #[inline]
    fn whole_part(&mut self) -> Read<(usize, i64)> {
        let first = self.at;
        let mut number = 0_i64;
        loop {
            let digit = self.peek().wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            number = number.wrapping_mul(10).wrapping_add(i64::from(digit));
            self.at += 1;
        }
        let length = self.at - first;
        let has_zero_in_front = length > 1 && self.text.as_bytes()[first] == b'0';
        if length == 0 || has_zero_in_front { Err(Declined::Unusual) } else { Ok((first, number)) }
    }

    /// Passes the word `word`.
    fn word(&mut self, word: &str) -> Read<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Declined::Unusual);
        }
        self.at += word.len();
        self.skip_space();
        Ok(())
    }

    /// Reads true or false.
    ///
    /// # Errors
    /// The next token is neither true nor false.
    pub fn boolean(&mut self) -> Read<bool> {
        let is_true = self.peek() == b't';
        self.word(if is_true { "true" } else { "false" })?;
        Ok(is_true)
    }

    /// Passes `null` if `null` comes next; says whether it did.
    ///
    /// # Errors
    /// The next token begins with n and is not `null`.
    pub fn is_null(&mut self) -> Read<bool> {
        let is_null = self.peek() == b'n';
        if is_null {
            self.word("null")?;
        }
        Ok(is_null)
    }

    /// Reads a value, or null.
    ///
    /// # Errors
    /// As `read`.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.is_null()? { Ok(None) } else { read(self).map(Some) }
    }

    /// Returns how many bytes of the body are left.
    pub fn num_left(&self) -> usize {
        self.text.len() - self.at
    }

    /// Adds the next element of a tensor to `nested`; `depth` lists are around the element.
    ///
    /// # Errors
    /// The element is not JSON, or differs in kind or depth from the elements before it.
    pub fn element(&mut self, nested: &mut Nested<'a>, depth: usize) -> Read<()> {
        match self.peek() {
            b'-' | b'0'..=b'9' => self.number(nested, depth),
            b'[' => self.list(nested, depth),
            b'"' => {
                let bytes = match self.string()? {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                };
                nested.string(depth, bytes)
            }
            b'{' => self.base64(nested, depth),
            b't' | b'f' => {
                let value = self.boolean()?;
                nested.bool(depth, value)
            }
            _ => Err(Declined::Unusual),
        }
    }

    fn list(&mut self, nested: &mut Nested<'a>, depth: usize) -> Read<()> {
        self.expect(b'[')?;
        nested.open(depth)?;
        let mut length = 0;
        if !self.take(b']') {
            loop {
                self.element(nested, depth + 1)?;
                length += 1;
                if !self.has_next(b']')? {
                    break;
                }
            }
        }
        nested.close(depth, length);
        Ok(())
    }

    /// Reads a byte string in base64: `{"b64": "..."}`.
    fn base64(&mut self, nested: &mut Nested<'a>, depth: usize) -> Read<()> {
        self.expect(b'{')?;
        if self.key()? != "b64" {
            return Err(Declined::Unusual);
        }
        let text = self.string()?;
        self.expect(b'}')?;
        let bytes = base64::decode(&text).ok_or(Declined::Unusual)?;
        nested.string(depth, Cow::Owned(bytes))
    }

    /// Says whether a byte string in base64, and not an object of tensors, comes next.
    pub fn is_at_base64(&mut self) -> bool {
        let begin = self.at;
        let is_there = self.take(b'{') && self.string().is_ok_and(|key| key == "b64");
        self.at = begin;
        is_there
    }

    /// Reads a list whose lists of each level are equally long, and calls `leaf` at the begin of each element.
    ///
    /// # Errors
    /// The lists are uneven or too deep, or `leaf` fails.
    #[inline]
    pub fn even_list(&mut self, mut leaf: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        self.expect(b'[')?;
        // `lengths` has for each level the length of its lists, None before the first list has ended. `counts` has the
        // number of elements so far in each open list.
        let mut lengths: SmallVec<[Option<usize>; MAX_LEVELS]> = SmallVec::from_elem(None, 1);
        let mut counts: SmallVec<[usize; MAX_LEVELS]> = SmallVec::new();
        let mut count = 0;
        let mut has_leaf = false;
        let mut may_end = true;
        loop {
            if self.take(b'[') {
                counts.push(count + 1);
                count = 0;
                if counts.len() == lengths.len() {
                    if has_leaf || lengths.len() == MAX_LEVELS {
                        return Err(Declined::Unusual);
                    }
                    lengths.push(None);
                }
                may_end = true;
                continue;
            }
            if !(may_end && self.is_at(b']')) {
                if counts.len() + 1 != lengths.len() {
                    return Err(Declined::Unusual);
                }
                has_leaf = true;
                leaf(self)?;
                count += 1;
            }
            while !self.has_next(b']')? {
                if *lengths[counts.len()].get_or_insert(count) != count {
                    return Err(Declined::Unusual);
                }
                let Some(outer) = counts.pop() else { return Ok(()) };
                count = outer;
            }
            may_end = false;
        }
    }

    /// Reads an object whose keys all differ, and calls `each` at the begin of each value.
    ///
    /// # Errors
    /// The next token begins no object, the object has too many keys or one key twice, or `each` fails.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, &str) -> Read<()>) -> Read<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        let mut keys: SmallVec<[Cow<'a, str>; 8]> = SmallVec::new();
        loop {
            let key = self.key()?;
            if keys.len() == MAX_KEYS || keys.contains(&key) {
                return Err(Declined::Unusual);
            }
            each(self, &key)?;
            keys.push(key);
            if !self.has_next(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads a list, and calls `each` at the begin of each element.
    ///
    /// # Errors
    /// The next token begins no list, or `each` fails.
    pub fn each(&mut self, mut each: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if !self.has_next(b']')? {
                return Ok(());
            }
        }
    }

    /// Passes a list, whose elements are read later; brackets in strings do not count.
    ///
    /// # Errors
    /// The next token begins no list, or the list has no end.
    pub fn skip_list(&mut self) -> Read<()> {
        self.expect(b'[')?;
        let mut depth = 1_usize;
        while depth > 0 {
            match self.peek() {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'[' => depth += 1,
                b']' => depth -= 1,
                0 => return Err(Declined::Unusual),
                _ => {}
            }
            self.at += 1;
        }
        self.skip_space();
        Ok(())
    }

    /// Passes a string, a number, a boolean or `null`.
    ///
    /// # Errors
    /// The next token begins no such value.
    pub fn skip_scalar(&mut self) -> Read<()> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b't' | b'f' => self.boolean().map(drop),
            b'n' if self.is_null()? => Ok(()),
            _ => self.float().map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an object with so many keys, and under one of them so many lists.
    fn document(keys: usize, lists: usize) -> String {
        let members = (1..keys).map(|_| "\"\":1,").collect::<String>();
        format!("{{{members}\"\":[{}1]}}", "[],".repeat(lists))
    }

    #[test]
    fn keys_and_lists_of_a_document_are_bounded_as_in_the_reference() {
        let is_read = |keys, lists| match Cursor::new(document(keys, lists).as_bytes()) {
            Ok(_) => true,
            Err(declined) => {
                assert_eq!(declined, Declined::OverLimit);
                false
            }
        };
        let read = |text: String| Cursor::new(text.as_bytes()).is_ok();
        let keys = [-1, 0, 1].map(|more| is_read(MAX_DOCUMENT_KEYS.saturating_add_signed(more), 0));
        // The object and the list around the lists count too.
        let lists = [-1, 0, 1].map(|more| is_read(1, (MAX_DOCUMENT_LISTS - 2).saturating_add_signed(more)));
        assert_eq!((keys, lists), ([true, true, false], [true, true, false]));
        // Colons within strings count too.
        let texts = [0, 1].map(|more| format!("\"{}\"", ":".repeat(MAX_DOCUMENT_KEYS + more)));
        assert_eq!(texts.map(read), [true, false]);
        let texts = [0, 1].map(|more| format!("\"{}\"", "{".repeat(MAX_DOCUMENT_LISTS + more)));
        assert_eq!(texts.map(read), [true, false]);
    }
}
