//! A parser of strict JSON, which reads the tokens of a request's body one after the other.
//!
//! Bodies are mostly lists of ids, for which this parser is faster than a library: 1,580 ids take 16 us here, and 39 us
//! as a `serde_json::Value`; visitors over `serde_json` and over `sonic-rs` were slower, too, and longer. Strings with
//! escapes are parsed by `serde_json`, numbers with a point or an exponent by the standard library.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::base64;
use super::document::token_fault;
use super::nested::{Nested, Parsed};
use crate::plan::Declined;

/// Maximal number of decimal digits with which every integer fits an i64.
const SAFE_DIGITS: usize = 18;
/// Maximal number of keys in a JSON object that `Cursor::object` reads, because each key is compared with all others.
const MAX_KEYS: usize = 32;
/// Maximal number of levels of a nested JSON list; a deeper list is declined, and json/explain.rs refuses it.
const MAX_LEVELS: usize = 16;

/// Returns the number of bytes before the first quote, backslash or control character, which it finds eight bytes at a
/// time: byte by byte, the keys of a small request took a tenth of its instructions.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // Sets the high bit of each byte that is below `limit`. Bytes behind such a byte may have it set, too, so only the
    // first one counts.
    let below = |word: u64, limit: u64| word.wrapping_sub(limit * ONES) & !word & (0x80 * ONES);
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*word);
        let is = |byte: u8| below(word ^ (u64::from(byte) * ONES), 1);
        let ends = is(b'"') | is(b'\\') | below(word, 0x20);
        if ends != 0 {
            return at + ends.trailing_zeros() as usize / 8;
        }
        at += size_of::<u64>();
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    at + bytes[at..].iter().position(is_end).unwrap_or(bytes.len() - at)
}

/// A position in a JSON body, at the start of a token. Each method that reads a token also skips the white space behind
/// it.
#[derive(Clone)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Returns the position of a body's first token.
    ///
    /// # Errors
    /// The body is not UTF-8, or has more keys, lists or strings than a body may have.
    pub fn new(body: &'a [u8]) -> Parsed<Self> {
        if token_fault(body).is_some() {
            return Err(Declined::Unusual);
        }
        let text = std::str::from_utf8(body).map_err(|_| Declined::Unusual)?;
        let mut cursor = Cursor { text, at: 0 };
        cursor.skip_space();
        Ok(cursor)
    }

    /// Returns the byte of the body at the cursor, or 0 at the end of the body; does not move the cursor.
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

    /// Says whether the next token of the JSON body begins with the character `byte`.
    #[inline]
    pub fn is_at(&self, byte: u8) -> bool {
        self.peek() == byte
    }

    /// Skips the character `byte` and the white space behind it if it is next in the JSON body; says whether it was.
    #[inline]
    pub fn accept(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == byte;
        if is_there {
            self.at += 1;
            self.skip_space();
        }
        is_there
    }

    /// Skips the character `byte`, which must be next in the JSON body, and the white space behind it.
    ///
    /// # Errors
    /// Another byte is next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Parsed<()> {
        if self.accept(byte) { Ok(()) } else { Err(Declined::Unusual) }
    }

    /// Skips a comma or `end`, the byte that ends a list or an object; returns true for a comma, after which another
    /// element follows.
    ///
    /// # Errors
    /// The next byte is neither a comma nor `end`.
    #[inline]
    pub fn accept_comma(&mut self, end: u8) -> Parsed<bool> {
        if self.accept(b',') {
            return Ok(true);
        }
        self.expect(end)?;
        Ok(false)
    }

    /// Checks that the JSON body ends at the cursor.
    ///
    /// # Errors
    /// The body has more text.
    pub fn end(&self) -> Parsed<()> {
        if self.at == self.text.len() { Ok(()) } else { Err(Declined::Unusual) }
    }

    /// Reads a string; it is borrowed from the body if it has no escapes.
    ///
    /// # Errors
    /// The next token is no string, or the string is not valid JSON.
    pub fn string(&mut self) -> Parsed<Cow<'a, str>> {
        if self.peek() != b'"' {
            return Err(Declined::Unusual);
        }
        let start = self.at;
        let mut has_escapes = false;
        self.at += 1;
        loop {
            self.at += plain_length(self.text.as_bytes().get(self.at..).unwrap_or_default());
            match self.peek() {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    self.at += 2;
                }
                // The byte is a control character, which a JSON string may not contain, or 0 because the body ends
                // within the string.
                _ => return Err(Declined::Unusual),
            }
        }
        self.at += 1;
        let quoted = self.text.get(start..self.at).ok_or(Declined::Unusual)?;
        self.skip_space();
        if has_escapes {
            return serde_json::from_str(quoted).map(Cow::Owned).map_err(|_| Declined::Unusual);
        }
        Ok(Cow::Borrowed(&quoted[1..quoted.len() - 1]))
    }

    /// Reads the key of a member of a JSON object, and the colon behind the key.
    ///
    /// # Errors
    /// The next token is no key.
    pub fn key(&mut self) -> Parsed<Cow<'a, str>> {
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Skips one or more decimal digits of a JSON number.
    #[inline]
    fn digits(&mut self) -> Parsed<()> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(Declined::Unusual) } else { Ok(()) }
    }

    /// Parses a JSON number and adds it to the tensor value `nested`; `depth` is the number of lists around the number.
    #[inline]
    fn number(&mut self, nested: &mut Nested<'a>, depth: usize) -> Parsed<()> {
        let start = self.at;
        let is_negative = self.peek() == b'-';
        self.at += usize::from(is_negative);
        let (first, mut number) = self.whole_part()?;
        if matches!(self.peek(), b'.' | b'e' | b'E') {
            let number = self.rest_of_float(start)?;
            return nested.float(depth, number);
        }
        if self.at - first > SAFE_DIGITS {
            // Integers beyond i64 are left to the other reader, which reads them as floats.
            number = self.text[start..self.at].parse().map_err(|_| Declined::Unusual)?;
        } else if is_negative {
            number = -number;
        }
        self.skip_space();
        nested.int(depth, number)
    }

    /// Parses the fraction and the exponent of a number whose text begins at `start`; returns the number as a float64,
    /// rounded once.
    fn rest_of_float(&mut self, start: usize) -> Parsed<f64> {
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
        let number: f64 = self.text[start..self.at].parse().map_err(|_| Declined::Unusual)?;
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
    pub fn float(&mut self) -> Parsed<f64> {
        let start = self.at;
        self.at += usize::from(self.peek() == b'-');
        let first = self.at;
        self.digits()?;
        if self.at - first > 1 && self.text.as_bytes()[first] == b'0' {
            return Err(Declined::Unusual);
        }
        let is_whole = !matches!(self.peek(), b'.' | b'e' | b'E');
        let number = self.rest_of_float(start)?;
        // The integer -0 becomes 0.
        Ok(if is_whole { number + 0.0 } else { number })
    }

    /// Reads a JSON integer as the type `N`.
    ///
    /// # Errors
    /// The next token is no integer, or the integer does not fit into N.
    #[inline]
    pub fn whole<N: TryFrom<i128>>(&mut self) -> Parsed<N> {
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

    /// Skips the digits of an integer; returns the position of the first digit, and the integer's value, which is only
    /// valid up to `SAFE_DIGITS` digits.
    #[inline]
    fn whole_part(&mut self) -> Parsed<(usize, i64)> {
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

    /// Skips the given word, such as `null`, and the white space behind it; declines any other text.
    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Declined::Unusual);
        }
        self.at += word.len();
        self.skip_space();
        Ok(())
    }

    /// Reads a JSON boolean, `true` or `false`.
    ///
    /// # Errors
    /// The next token is neither true nor false.
    pub fn boolean(&mut self) -> Parsed<bool> {
        let is_true = self.peek() == b't';
        self.expect_word(if is_true { "true" } else { "false" })?;
        Ok(is_true)
    }

    /// Skips the JSON word `null` if it is next; says whether it was.
    ///
    /// # Errors
    /// The next token starts with n and is not `null`.
    pub fn accept_null(&mut self) -> Parsed<bool> {
        let is_null = self.peek() == b'n';
        if is_null {
            self.expect_word("null")?;
        }
        Ok(is_null)
    }

    /// Reads a JSON value: `null` as None, and any other value with the function `read`.
    ///
    /// # Errors
    /// As `read`.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<Option<T>> {
        if self.accept_null()? { Ok(None) } else { read(self).map(Some) }
    }

    /// Returns how many bytes the JSON body has from the cursor on.
    pub fn num_remaining(&self) -> usize {
        self.text.len() - self.at
    }

    /// Parses one element of a tensor, a list or a single value, and adds it to the tensor value `nested`; `depth` is
    /// the number of lists around it.
    ///
    /// # Errors
    /// The element is not JSON, or differs in kind or depth from the elements before it.
    pub fn element(&mut self, nested: &mut Nested<'a>, depth: usize) -> Parsed<()> {
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

    fn list(&mut self, nested: &mut Nested<'a>, depth: usize) -> Parsed<()> {
        self.expect(b'[')?;
        nested.open(depth)?;
        let mut length = 0;
        if !self.accept(b']') {
            loop {
                self.element(nested, depth + 1)?;
                length += 1;
                if !self.accept_comma(b']')? {
                    break;
                }
            }
        }
        nested.close(depth, length);
        Ok(())
    }

    /// Reads a byte string in base64, `{"b64": "..."}`, and adds it to the tensor value `nested`.
    fn base64(&mut self, nested: &mut Nested<'a>, depth: usize) -> Parsed<()> {
        self.expect(b'{')?;
        if self.key()? != "b64" {
            return Err(Declined::Unusual);
        }
        let text = self.string()?;
        self.expect(b'}')?;
        let bytes = base64::decode(&text).ok_or(Declined::Unusual)?;
        nested.string(depth, Cow::Owned(bytes))
    }

    /// Says whether the next token begins an object `{"b64": ...}`, which stands for a byte string in base64.
    pub fn is_at_base64(&mut self) -> bool {
        let start = self.at;
        let is_there = self.accept(b'{') && self.string().is_ok_and(|key| key == "b64");
        self.at = start;
        is_there
    }

    /// Reads nested lists that have equal lengths on each level, and calls `leaf` to read each element that is no list.
    ///
    /// # Errors
    /// Lists of one level differ in length, lists are nested too deeply, or `leaf` fails.
    #[inline]
    pub fn rectangular_list(&mut self, mut leaf: impl FnMut(&mut Self) -> Parsed<()>) -> Parsed<()> {
        self.expect(b'[')?;
        // `lengths` has the length of the lists at each level of nesting; None until a list of that level has ended.
        let mut lengths: SmallVec<[Option<usize>; MAX_LEVELS]> = SmallVec::from_elem(None, 1);
        let mut counts: SmallVec<[usize; MAX_LEVELS]> = SmallVec::new();
        let mut count = 0;
        let mut has_leaf = false;
        let mut may_end = true;
        loop {
            if self.accept(b'[') {
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
            while !self.accept_comma(b']')? {
                if *lengths[counts.len()].get_or_insert(count) != count {
                    return Err(Declined::Unusual);
                }
                let Some(outer) = counts.pop() else { return Ok(()) };
                count = outer;
            }
            may_end = false;
        }
    }

    /// Reads a JSON object whose keys all differ, and calls `each` to read the value of each key.
    ///
    /// # Errors
    /// The next token is no object, the object has too many keys or one key twice, or `each` fails.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, &str) -> Parsed<()>) -> Parsed<()> {
        self.expect(b'{')?;
        if self.accept(b'}') {
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
            if !self.accept_comma(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads a JSON list, and calls `each` to read each element.
    ///
    /// # Errors
    /// The next token is no list, or `each` fails.
    pub fn each(&mut self, mut each: impl FnMut(&mut Self) -> Parsed<()>) -> Parsed<()> {
        self.expect(b'[')?;
        if self.accept(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if !self.accept_comma(b']')? {
                return Ok(());
            }
        }
    }

    /// Skips a list without parsing its elements; brackets within strings do not count.
    ///
    /// # Errors
    /// The next token is no list, or the list has no end.
    pub fn skip_list(&mut self) -> Parsed<()> {
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

    /// Skips a JSON string, number, boolean or `null`.
    ///
    /// # Errors
    /// The next token is no such value.
    pub fn skip_scalar(&mut self) -> Parsed<()> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b't' | b'f' => self.boolean().map(drop),
            b'n' if self.accept_null()? => Ok(()),
            _ => self.float().map(drop),
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::super::document;
    use super::*;

    /// Returns a JSON object with `keys` keys; the value of one of them has `lists` lists.
    fn document(keys: usize, lists: usize) -> String {
        let members = (1..keys).map(|_| "\"\":1,").collect::<String>();
        format!("{{{members}\"\":[{}1]}}", "[],".repeat(lists))
    }

    #[test]
    fn keys_and_lists_of_a_document_are_bounded() {
        let is_read = |keys, lists| match Cursor::new(document(keys, lists).as_bytes()) {
            Ok(_) => true,
            Err(declined) => {
                assert_eq!(declined, Declined::Unusual);
                false
            }
        };
        let read = |text: String| Cursor::new(text.as_bytes()).is_ok();
        let keys = [-1, 0, 1].map(|more| is_read(document::MAX_DOCUMENT_KEYS.saturating_add_signed(more), 0));
        // The limit on the lists of a JSON body counts opening braces and brackets, so also those of the object and of
        // the list around the test's lists.
        let lists = [-1, 0, 1].map(|more| is_read(1, (document::MAX_DOCUMENT_LISTS - 2).saturating_add_signed(more)));
        assert_eq!((keys, lists), ([true, true, false], [true, true, false]));
        // The limits on the keys and lists of a JSON body also count the colons and braces that stand within strings.
        let texts = [0, 1].map(|more| format!("\"{}\"", ":".repeat(document::MAX_DOCUMENT_KEYS + more)));
        assert_eq!(texts.map(read), [true, false]);
        let texts = [0, 1].map(|more| format!("\"{}\"", "{".repeat(document::MAX_DOCUMENT_LISTS + more)));
        assert_eq!(texts.map(read), [true, false]);
    }

    #[test]
    fn a_string_ends_at_the_first_byte_that_is_not_plain() {
        let ends = [0, 1, 0x1f, b'"', b'\\'];
        for before in 0..20 {
            for behind in 0..20 {
                for plain in [b' ', b'!', b'#', b'[', b']', b'a', 0x7f, 0x80, 0xa2, 0xff] {
                    let bytes = |end: u8| [vec![plain; before], vec![end], vec![b'"'; behind]].concat();
                    assert!(ends.iter().all(|&end| plain_length(&bytes(end)) == before), "{before} {behind} {plain}");
                    assert_eq!(plain_length(&vec![plain; before]), before);
                }
            }
        }
    }
}
