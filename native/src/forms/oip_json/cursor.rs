//! JSON text read in one pass, in place.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::Result;
use crate::declined::Declined;

/// Keys of an object are compared with each other, so their number is limited; the protocol's objects have five.
const MAX_KEYS: usize = 32;
/// Nested lists of more levels are left to the reference.
const MAX_LEVELS: usize = 16;

/// A place in JSON text. Whatever the reference may refuse, or reads otherwise than plain JSON, is declined.
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Begins at the front of the text.
    pub fn of(text: &'a [u8]) -> Self {
        Cursor { text, at: 0 }
    }

    /// Returns the place that was reached; `at` goes there.
    pub fn place(&self) -> usize {
        self.at
    }

    /// Returns another cursor, at a place of the same text.
    pub fn at(&self, place: usize) -> Self {
        Cursor { text: self.text, at: place }
    }

    /// Returns how many bytes are left.
    pub fn num_left(&self) -> usize {
        self.text.len() - self.at
    }

    /// Reads a list whose lists of each level are equally long, and calls `leaf` where an element begins.
    #[inline]
    pub fn nested(&mut self, mut leaf: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.take(b'[')?;
        // Of each level: how long its lists are, once one has ended. Of the open lists: how many elements they have.
        let mut lengths: SmallVec<[Option<usize>; MAX_LEVELS]> = SmallVec::from_elem(None, 1);
        let mut counts: SmallVec<[usize; MAX_LEVELS]> = SmallVec::new();
        let mut count = 0;
        let mut has_leaf = false;
        let mut may_end = true;
        loop {
            match self.peek() {
                b'[' => {
                    self.at += 1;
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
                b']' if may_end => {}
                _ => {
                    if counts.len() + 1 != lengths.len() {
                        return Err(Declined::Unusual);
                    }
                    has_leaf = true;
                    leaf(self)?;
                    count += 1;
                }
            }
            loop {
                match self.next() {
                    b',' => {
                        may_end = false;
                        break;
                    }
                    b']' => {
                        if *lengths[counts.len()].get_or_insert(count) != count {
                            return Err(Declined::Unusual);
                        }
                        let Some(outer) = counts.pop() else { return Ok(()) };
                        count = outer;
                    }
                    _ => return Err(Declined::Unusual),
                }
            }
        }
    }

    /// Reads an object without a key that comes twice, and calls `each` where a value begins.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.take(b'{')?;
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(());
        }
        let mut keys: SmallVec<[Cow<'a, str>; 8]> = SmallVec::new();
        loop {
            let key = self.string()?;
            if keys.len() == MAX_KEYS || keys.contains(&key) {
                return Err(Declined::Unusual);
            }
            self.take(b':')?;
            each(self, &key)?;
            keys.push(key);
            match self.next() {
                b',' => {}
                b'}' => return Ok(()),
                _ => return Err(Declined::Unusual),
            }
        }
    }

    /// Reads a list, and calls `each` where an element begins.
    pub fn list(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.take(b'[')?;
        if self.peek() == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            each(self)?;
            match self.next() {
                b',' => {}
                b']' => return Ok(()),
                _ => return Err(Declined::Unusual),
            }
        }
    }

    /// Passes over a list whose elements are read later; brackets in strings do not count.
    pub fn skip_list(&mut self) -> Result<()> {
        self.take(b'[')?;
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
        Ok(())
    }

    /// Passes over a value under a key that means nothing here.
    pub fn skip_scalar(&mut self) -> Result<()> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b't' | b'f' => self.boolean().map(drop),
            b'n' if self.is_null()? => Ok(()),
            _ => self.float().map(drop),
        }
    }

    /// Reads a string of well-formed UTF-8.
    pub fn string(&mut self) -> Result<Cow<'a, str>> {
        self.take(b'"')?;
        let rest = &self.text[self.at..];
        let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
        let length = rest.iter().position(special).ok_or(Declined::Unusual)?;
        let plain = std::str::from_utf8(&rest[..length]).map_err(|_| Declined::Unusual)?;
        self.at += length;
        if rest[length] == b'"' {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        let mut text = plain.to_owned();
        loop {
            match self.byte() {
                b'"' => return Ok(Cow::Owned(text)),
                b'\\' => text.push(self.escape()?),
                _ => return Err(Declined::Unusual),
            }
            let rest = &self.text[self.at..];
            let length = rest.iter().position(special).ok_or(Declined::Unusual)?;
            text.push_str(std::str::from_utf8(&rest[..length]).map_err(|_| Declined::Unusual)?);
            self.at += length;
        }
    }

    /// Reads what follows a backslash.
    fn escape(&mut self) -> Result<char> {
        Ok(match self.byte() {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.hex()?;
                let code = match unit {
                    0xD800..0xDC00 => {
                        if self.byte() != b'\\' || self.byte() != b'u' {
                            return Err(Declined::Unusual);
                        }
                        let low = self.hex()?;
                        if !(0xDC00..0xE000).contains(&low) {
                            return Err(Declined::Unusual);
                        }
                        0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
                    }
                    _ => unit,
                };
                char::from_u32(code).ok_or(Declined::Unusual)?
            }
            _ => return Err(Declined::Unusual),
        })
    }

    fn hex(&mut self) -> Result<u32> {
        let mut code = 0;
        for _ in 0..4 {
            code = code * 16 + char::from(self.byte()).to_digit(16).ok_or(Declined::Unusual)?;
        }
        Ok(code)
    }

    /// Reads an integer; the byte behind it says whether the number goes on as a float.
    #[inline]
    pub fn whole<N: TryFrom<i128>>(&mut self) -> Result<N> {
        let is_negative = self.peek() == b'-';
        let start = self.at + usize::from(is_negative);
        let mut end = start;
        let mut number = 0_u64;
        while let Some(digit) = self.text.get(end).map(|byte| byte.wrapping_sub(b'0'))
            && digit < 10
        {
            // Nineteen digits fit; the result of more is not used.
            number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
            end += 1;
        }
        let length = end - start;
        if length == 0 || length > 20 || (length > 1 && self.text[start] == b'0') {
            return Err(Declined::Unusual);
        }
        if length == 20 {
            let digits = std::str::from_utf8(&self.text[start..end]).map_err(|_| Declined::Unusual)?;
            number = digits.parse().map_err(|_| Declined::Unusual)?;
        }
        self.at = end;
        let number = i128::from(number);
        N::try_from(if is_negative { -number } else { number }).map_err(|_| Declined::Unusual)
    }

    /// Reads a number as a float64, rounded once.
    pub fn float(&mut self) -> Result<f64> {
        self.peek();
        let start = self.at;
        let digits = |cursor: &mut Self| {
            let rest = &cursor.text[cursor.at..];
            let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            cursor.at += count;
            count
        };
        if self.text.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        let first = self.at;
        let num_digits = digits(self);
        if num_digits == 0 || (num_digits > 1 && self.text[first] == b'0') {
            return Err(Declined::Unusual);
        }
        let mut is_whole = true;
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            is_whole = false;
            if digits(self) == 0 {
                return Err(Declined::Unusual);
            }
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            is_whole = false;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if digits(self) == 0 {
                return Err(Declined::Unusual);
            }
        }
        let token = std::str::from_utf8(&self.text[start..self.at]).map_err(|_| Declined::Unusual)?;
        let number: f64 = token.parse().map_err(|_| Declined::Unusual)?;
        if !number.is_finite() {
            return Err(Declined::Unusual);
        }
        // The integer -0 is 0.
        Ok(if is_whole { number + 0.0 } else { number })
    }

    /// Reads true or false.
    pub fn boolean(&mut self) -> Result<bool> {
        let is_true = self.peek() == b't';
        self.literal(if is_true { b"true" } else { b"false" })?;
        Ok(is_true)
    }

    /// Reads a value, or null.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.is_null()? { Ok(None) } else { read(self).map(Some) }
    }

    /// Passes over `null`, if it stands here.
    pub fn is_null(&mut self) -> Result<bool> {
        let is_null = self.peek() == b'n';
        if is_null {
            self.literal(b"null")?;
        }
        Ok(is_null)
    }

    fn literal(&mut self, word: &[u8]) -> Result<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Declined::Unusual);
        }
        self.at += word.len();
        Ok(())
    }

    /// Makes sure that nothing but white space is left.
    pub fn end(&mut self) -> Result<()> {
        self.peek();
        if self.at == self.text.len() { Ok(()) } else { Err(Declined::Unusual) }
    }

    fn take(&mut self, byte: u8) -> Result<()> {
        if self.next() == byte { Ok(()) } else { Err(Declined::Unusual) }
    }

    /// Passes over white space; returns the byte behind it, 0 at the end of the text.
    #[inline]
    fn peek(&mut self) -> u8 {
        loop {
            match self.text.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(&byte) => return byte,
                None => return 0,
            }
        }
    }

    /// Passes over white space and one byte more, which it returns; 0 at the end of the text.
    #[inline]
    fn next(&mut self) -> u8 {
        let byte = self.peek();
        self.at = (self.at + 1).min(self.text.len());
        byte
    }

    /// Passes over one byte, which it returns; 0 at the end of the text.
    fn byte(&mut self) -> u8 {
        let byte = self.text.get(self.at).copied().unwrap_or(0);
        self.at = (self.at + 1).min(self.text.len());
        byte
    }
}
