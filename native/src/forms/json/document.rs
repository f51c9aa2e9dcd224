//! Parses a whole JSON document into a tree, by TensorFlow Serving's rules, and names the first fault in rapidjson's
//! words. Only bodies that the fast reader (`reader`) does not accept come here.
//!
//! NaN, Infinity, Inf and their negatives are bare words. Text behind the document is ignored, a byte order mark before
//! the document is skipped. A key that comes twice in an object is refused.
//!
//! Source: `tensorflow_serving/util/json_tensor.cc` (9d981c5), `ParseJson`; rapidjson's reader.h (iterative parsing) and
//! error/en.h.

use std::borrow::Cow;
use std::collections::HashSet;

use super::values::{Json, List};
use crate::forms::built_size::MAX_STRINGS;
use crate::plan::faults::{self, BoxedFault};
use crate::plan::foreign::body_hint;

/// A JSON document with more colons is refused; those within strings count, too.
pub const MAX_DOCUMENT_KEYS: usize = 1 << 18;
/// A JSON document with more opening brackets and braces is refused; those within strings count, too.
pub const MAX_DOCUMENT_LISTS: usize = 1 << 19;
/// Lists and objects that are nested deeper are left out: no value that is used may have so many levels.
const MAX_NESTING: usize = 1024;
/// Objects with more keys are searched for repeated keys by a hash set.
const FEW_KEYS: usize = 16;

/// Parses a request's body, which must be a JSON object; returns its members.
///
/// `is_strict`: NaN and infinity are refused.
///
/// # Errors
/// The body is empty, not JSON or not an object, has a key twice, or has too many keys, lists or
/// strings.
pub fn parse_object(body: &[u8], is_strict: bool) -> Result<Vec<(Cow<'_, str>, Json<'_>)>, BoxedFault> {
    match parse(body, is_strict)? {
        Json::Object(members) => Ok(members),
        other => {
            let is_json = |text: &str| text.trim_start().starts_with(['{', '[']);
            let hint = match &other {
                Json::Text(text) if is_json(text) => ", and is a string that contains JSON: encode it once",
                _ => "",
            };
            Err(faults::json_not_object(&super::shown::shown(&other), hint))
        }
    }
}

/// Returns the error for a document that would take far more memory than its text; None if it is within the limits.
#[must_use]
pub fn token_fault(body: &[u8]) -> Option<BoxedFault> {
    // A body of up to MAX_DOCUMENT_KEYS bytes can not have more tokens than bytes.
    if body.len() <= MAX_DOCUMENT_KEYS {
        return None;
    }
    let count = |byte| memchr::memchr_iter(byte, body).count();
    if count(b':') > MAX_DOCUMENT_KEYS {
        return Some(faults::json_keys(MAX_DOCUMENT_KEYS));
    }
    if count(b'[') + count(b'{') > MAX_DOCUMENT_LISTS {
        return Some(faults::json_lists(MAX_DOCUMENT_LISTS));
    }
    (count(b'"') > 2 * MAX_STRINGS).then(|| faults::json_strings(MAX_STRINGS))
}

fn parse(body: &[u8], is_strict: bool) -> Result<Json<'_>, BoxedFault> {
    if body.is_empty() {
        return Err(faults::json_syntax("The document is empty"));
    }
    if let Some(fault) = token_fault(body) {
        return Err(fault);
    }
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            Scanner::new(body).check()?;
            return Err(faults::json_syntax(&not_utf8(body, error)));
        }
    };
    let mut scanner = Scanner::new(body);
    let mut builder = Builder { text, open: Vec::new(), names: Vec::new(), left_out: 0, root: None };
    match scanner.scan(&mut builder) {
        Ok(()) => {}
        Err(Stop::Fault(problem, at)) => return Err(scanner.fault(problem, at)),
        Err(Stop::Refused(fault)) => return Err(fault),
    }
    if is_strict && let Some(word) = scanner.not_finite {
        return Err(faults::json_syntax(&format!("{word} is no JSON, and this server was told to be strict")));
    }
    Ok(builder.root.unwrap_or(Json::Null))
}

/// Returns Python's text for bytes that are not UTF-8.
fn not_utf8(body: &[u8], error: std::str::Utf8Error) -> String {
    let start = error.valid_up_to();
    let mark = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let (length, why) = match error.error_len() {
        None => (body.len() - start, "unexpected end of data"),
        Some(1) if !matches!(body[start], 0xC2..=0xF4) => (1, "invalid start byte"),
        Some(length) => (length, "invalid continuation byte"),
    };
    let first = start - mark;
    if length == 1 {
        return format!("'utf-8' codec can't decode byte {:#04x} in position {first}: {why}", body[start]);
    }
    format!("'utf-8' codec can't decode bytes in position {first}-{}: {why}", first + length - 1)
}

/// Why a scan ended before the document did.
enum Stop {
    /// rapidjson's text for the fault, and its offset in the body.
    Fault(&'static str, usize),
    /// The document is JSON, and refused.
    Refused(BoxedFault),
}

type Scanned<T> = Result<T, Stop>;

/// The receiver of a scan: it gets the values of the document in their order.
trait Sink {
    fn value(&mut self, value: Token<'_>) -> Scanned<()>;
    fn open(&mut self, is_object: bool) -> Scanned<()>;
    fn close(&mut self) -> Scanned<()>;
    fn name(&mut self, start: usize, end: usize);
}

/// A scalar of the document; a string by the place of its characters in the text.
enum Token<'t> {
    Null,
    Bool(bool),
    Number(&'t str),
    NotFinite(f64),
    Text(usize, usize),
}

/// The sink of a scan that only looks for faults.
struct Nowhere;

impl Sink for Nowhere {
    fn value(&mut self, _: Token<'_>) -> Scanned<()> {
        Ok(())
    }

    fn open(&mut self, _: bool) -> Scanned<()> {
        Ok(())
    }

    fn close(&mut self) -> Scanned<()> {
        Ok(())
    }

    fn name(&mut self, _: usize, _: usize) {}
}

/// The sink that builds the tree.
struct Builder<'a> {
    text: &'a str,
    /// The lists and objects that are open, innermost last.
    open: Vec<Json<'a>>,
    /// For each open object, the name of the member whose value comes next.
    names: Vec<Cow<'a, str>>,
    /// Number of open lists and objects that are left out.
    left_out: usize,
    root: Option<Json<'a>>,
}

impl<'a> Builder<'a> {
    fn string(&self, start: usize, end: usize) -> Cow<'a, str> {
        let text = self.text.get(start..end).unwrap_or_default();
        if text.contains('\\') { Cow::Owned(unescaped(text)) } else { Cow::Borrowed(text) }
    }

    fn add(&mut self, value: Json<'a>) {
        match self.open.last_mut() {
            Some(Json::List(list)) => list.push(value),
            Some(Json::Object(members)) => members.push((self.names.pop().unwrap_or_default(), value)),
            _ => self.root = Some(value),
        }
    }
}

impl Sink for Builder<'_> {
    fn value(&mut self, value: Token<'_>) -> Scanned<()> {
        if self.left_out > 0 {
            return Ok(());
        }
        let value = match value {
            Token::Null => Json::Null,
            Token::Bool(value) => Json::Bool(value),
            Token::Number(text) => number(text),
            Token::NotFinite(number) => Json::Float(number),
            Token::Text(start, end) => Json::Text(self.string(start, end)),
        };
        self.add(value);
        Ok(())
    }

    fn open(&mut self, is_object: bool) -> Scanned<()> {
        if self.left_out > 0 || self.open.len() >= MAX_NESTING {
            if self.left_out == 0 && matches!(self.open.last(), Some(Json::Object(_))) {
                self.names.pop();
            }
            self.left_out += 1;
            return Ok(());
        }
        self.open.push(if is_object { Json::Object(Vec::new()) } else { Json::List(List::Ints(Vec::new())) });
        Ok(())
    }

    fn close(&mut self) -> Scanned<()> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return Ok(());
        }
        let Some(value) = self.open.pop() else { return Ok(()) };
        if let Json::Object(members) = &value
            && let Some(name) = repeated(members)
        {
            return Err(Stop::Refused(faults::json_key_twice(name)));
        }
        self.add(value);
        Ok(())
    }

    fn name(&mut self, start: usize, end: usize) {
        if self.left_out > 0 {
            return;
        }
        let name = self.string(start, end);
        self.names.push(name);
    }
}

/// Returns the first key that an object has for a second time.
fn repeated<'m>(members: &'m [(Cow<'_, str>, Json<'_>)]) -> Option<&'m str> {
    if members.len() <= FEW_KEYS {
        let is_repeated = |at: usize| members[..at].iter().any(|(name, _)| *name == members[at].0);
        return (1..members.len()).find(|&at| is_repeated(at)).map(|at| &*members[at].0);
    }
    let mut seen = HashSet::with_capacity(members.len());
    members.iter().map(|(name, _)| &**name).find(|name| !seen.insert(*name))
}

/// Returns the value of a valid number: integers beyond 64 bits become floats, as in rapidjson.
fn number(text: &str) -> Json<'static> {
    let is_whole = !text.contains(['.', 'e', 'E']);
    match text.parse::<i128>() {
        Ok(number) if is_whole && number >= i64::MIN.into() && number <= u64::MAX.into() => Json::Int(number),
        _ => Json::Float(text.parse().unwrap_or(f64::NAN)),
    }
}

/// Replaces the escapes of a valid JSON string by their characters.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let hex = |from: usize| u32::from_str_radix(rest.get(from..from + 4).unwrap_or("0"), 16).unwrap_or(0);
        let (character, length) = match rest.as_bytes().get(at + 1) {
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(b'u') => match hex(at + 2) {
                high @ 0xD800..=0xDBFF => {
                    let code = 0x1_0000 + ((high - 0xD800) << 10) + (hex(at + 8) & 0x3FF);
                    (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
                }
                code => (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
            },
            Some(&other) => (char::from(other), 2),
            None => break,
        };
        out.push(character);
        rest = rest.get(at + length..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// A scanner of JSON text, which finds the first fault. It does not recurse, so that deep nesting is safe.
struct Scanner<'t> {
    body: &'t [u8],
    /// The part of the body that is read.
    text: &'t [u8],
    at: usize,
    /// For each list or object that is open at the scanner's position, innermost last: whether it is an object.
    open: Vec<bool>,
    /// The first NaN or infinity of the document.
    not_finite: Option<&'static str>,
}

impl<'t> Scanner<'t> {
    fn new(body: &'t [u8]) -> Self {
        // rapidjson reads only up to a zero byte.
        let text = memchr::memchr(0, body).map_or(body, |end| &body[..end]);
        let at = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Scanner { body, text, at, open: Vec::new(), not_finite: None }
    }

    /// Returns the error for the first fault of the document.
    fn check(mut self) -> Result<(), BoxedFault> {
        match self.scan(&mut Nowhere) {
            Err(Stop::Fault(problem, at)) => Err(self.fault(problem, at)),
            _ => Ok(()),
        }
    }

    /// Returns the error for a fault at an offset: rapidjson's text, and what to change if the mistake is a usual one.
    fn fault(&self, problem: &str, at: usize) -> BoxedFault {
        let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let (before, rest) = self.text.split_at(at.min(self.text.len()));
        let comes_after_comma = || before.iter().rev().find(|byte| !is_space(byte)) == Some(&b',');
        let foreign = body_hint(self.body);
        let hint = match rest.first() {
            _ if !foreign.is_empty() => foreign.to_owned(),
            Some(b'\'') => "; names and strings stand in double quotes".to_owned(),
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') if problem.starts_with("Missing a name") => {
                "; names and strings stand in double quotes".to_owned()
            }
            _ if [&b"True"[..], b"False", b"None"].iter().any(|word| rest.starts_with(word)) => {
                "; JSON has true, false and null".to_owned()
            }
            Some(&close @ (b']' | b'}')) if comes_after_comma() => {
                format!("; remove the comma before the {}", char::from(close))
            }
            // The document begins with neither a brace nor a bracket.
            Some(_) if !matches!(self.text.iter().find(|byte| !is_space(byte)), Some(b'{' | b'[')) => {
                "; the body must be a JSON object: {...}".to_owned()
            }
            _ => String::new(),
        };
        faults::json_syntax(&format!("{problem} at offset: {at}{hint}"))
    }

    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn peek(&mut self) -> u8 {
        while matches!(self.byte(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
        self.byte()
    }

    fn fail<T>(&self, problem: &'static str) -> Scanned<T> {
        Err(Stop::Fault(problem, self.at))
    }

    fn scan(&mut self, sink: &mut impl Sink) -> Scanned<()> {
        if matches!(self.peek(), 0 | b',' | b':' | b']' | b'}') {
            return self.fail("The document is empty.");
        }
        loop {
            if self.value(sink)? && self.close(sink)? {
                return Ok(());
            }
        }
    }

    /// Scans one value, or the opening bracket of a list or object; returns whether the value is complete.
    fn value(&mut self, sink: &mut impl Sink) -> Scanned<bool> {
        let token = self.peek();
        let closing = match token {
            b'[' => b']',
            b'{' => b'}',
            _ => {
                self.scalar(token, sink)?;
                return Ok(true);
            }
        };
        self.at += 1;
        sink.open(token == b'{')?;
        if self.peek() == closing {
            self.at += 1;
            sink.close()?;
            return Ok(true);
        }
        self.open.push(token == b'{');
        if token == b'{' {
            self.name(sink)?;
        }
        Ok(false)
    }

    /// Scans commas and closing brackets up to the next value; returns whether the document has ended.
    fn close(&mut self, sink: &mut impl Sink) -> Scanned<bool> {
        while let Some(&is_object) = self.open.last() {
            let token = self.peek();
            if token == if is_object { b'}' } else { b']' } {
                self.at += 1;
                self.open.pop();
                sink.close()?;
                continue;
            }
            if token != b',' {
                return self.fail(if is_object {
                    "Missing a comma or } after an object member."
                } else {
                    "Missing a comma or ] after an array element."
                });
            }
            self.at += 1;
            if is_object {
                self.name(sink)?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn name(&mut self, sink: &mut impl Sink) -> Scanned<()> {
        if self.peek() != b'"' {
            return self.fail("Missing a name for object member.");
        }
        let (start, end) = self.string()?;
        sink.name(start, end);
        if self.peek() != b':' {
            return self.fail("Missing a colon after a name of object member.");
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self, token: u8, sink: &mut impl Sink) -> Scanned<()> {
        let (word, value): (&[u8], _) = match token {
            b'"' => {
                let (start, end) = self.string()?;
                return sink.value(Token::Text(start, end));
            }
            b't' => (b"true", Token::Bool(true)),
            b'f' => (b"false", Token::Bool(false)),
            b'n' => (b"null", Token::Null),
            _ => return self.number(sink),
        };
        for &byte in word {
            if self.byte() != byte {
                return self.fail("Invalid value.");
            }
            self.at += 1;
        }
        sink.value(value)
    }

    fn number(&mut self, sink: &mut impl Sink) -> Scanned<()> {
        let start = self.at;
        let is_negative = self.byte() == b'-';
        let sign = usize::from(is_negative);
        for (word, positive, negative) in
            [("NaN", "NaN", "-NaN"), ("Infinity", "Infinity", "-Infinity"), ("Inf", "Infinity", "-Infinity")]
        {
            if self.text[start + sign..].starts_with(word.as_bytes()) {
                self.at += sign + word.len();
                self.not_finite.get_or_insert(if is_negative { negative } else { positive });
                let value = if word == "NaN" { f64::NAN } else { f64::INFINITY };
                return sink.value(Token::NotFinite(if is_negative { -value } else { value }));
            }
        }
        self.at += sign;
        match self.byte() {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            // For an invalid number that begins with "-", rapidjson reports the offset behind the "-".
            _ => return self.fail("Invalid value."),
        }
        if self.byte() == b'.' {
            self.at += 1;
            let first = self.at;
            self.digits();
            if self.at == first {
                return self.fail("Miss fraction part in number.");
            }
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), b'+' | b'-'));
            let first = self.at;
            self.digits();
            if self.at == first {
                return self.fail("Miss exponent in number.");
            }
        }
        // The text is ASCII: a sign, digits, a point and an exponent.
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        if self.at - start > 300 || text.contains(['e', 'E']) {
            let is_finite = text.parse::<f64>().is_ok_and(f64::is_finite);
            if !is_finite {
                self.at = start;
                return self.fail("Number too big to be stored in double.");
            }
        }
        sink.value(Token::Number(text))
    }

    fn digits(&mut self) {
        while self.byte().is_ascii_digit() {
            self.at += 1;
        }
    }

    /// Scans a string; returns the place of its characters, without the quotation marks.
    fn string(&mut self) -> Scanned<(usize, usize)> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.byte() {
                b'"' => {
                    self.at += 1;
                    return Ok((start, self.at - 1));
                }
                _ if self.at >= self.text.len() => return self.fail("Missing a closing quotation mark in string."),
                b'\\' => self.escape()?,
                0..0x20 => return self.fail("Invalid encoding in string."),
                _ => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Scanned<()> {
        let start = self.at;
        match self.text.get(start + 1) {
            Some(b'u') => {}
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                return Ok(());
            }
            _ => return self.fail("Invalid escape character in string."),
        }
        let code = self.hex(start + 2)?;
        self.at += 6;
        if (0xD800..=0xDFFF).contains(&code) {
            // An escaped high surrogate must be followed by an escaped low one; both together are one character.
            let is_pair = code <= 0xDBFF && self.text.get(start + 6..start + 8) == Some(b"\\u");
            self.at = start;
            if !is_pair || !(0xDC00..=0xDFFF).contains(&self.hex(start + 8)?) {
                return self.fail("The surrogate pair in string is invalid.");
            }
            self.at += 12;
        }
        Ok(())
    }

    fn hex(&self, at: usize) -> Scanned<u32> {
        let digits = self.text.get(at..at + 4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match text.and_then(|text| u32::from_str_radix(text, 16).ok()) {
            Some(code) => Ok(code),
            None => self.fail("Incorrect hex digit after \\u escape in string."),
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn text(body: &[u8], is_strict: bool) -> String {
        parse_object(body, is_strict).expect_err("a fault").text
    }

    #[test]
    fn faults_have_the_words_and_offsets_of_rapidjson() {
        // The expected texts are those of service.wire.json_body.parse_object.
        for (body, expected) in [
            (&b""[..], "JSON Parse error: The document is empty"),
            (b" ", "JSON Parse error: The document is empty. at offset: 1"),
            (b"{\"a\": x}", "JSON Parse error: Invalid value. at offset: 6"),
            (b"{1", "JSON Parse error: Missing a name for object member. at offset: 1"),
            (b"{\"a\" 1}", "JSON Parse error: Missing a colon after a name of object member. at offset: 5"),
            (b"{\"a\": 1", "JSON Parse error: Missing a comma or } after an object member. at offset: 7"),
            (b"{\"a\": [1 2]}", "JSON Parse error: Missing a comma or ] after an array element. at offset: 9"),
            (b"{\"a\": 1.}", "JSON Parse error: Miss fraction part in number. at offset: 8"),
            (b"{\"a\": 1e}", "JSON Parse error: Miss exponent in number. at offset: 8"),
            (b"{\"a\": 1e999}", "JSON Parse error: Number too big to be stored in double. at offset: 6"),
            (b"{\"a\": -}", "JSON Parse error: Invalid value. at offset: 7"),
            (b"{\"a\": tru}", "JSON Parse error: Invalid value. at offset: 9"),
            (b"{\"a", "JSON Parse error: Missing a closing quotation mark in string. at offset: 3"),
            (b"{\"a\n\": 1}", "JSON Parse error: Invalid encoding in string. at offset: 3"),
            (b"{\"\\x\": 1}", "JSON Parse error: Invalid escape character in string. at offset: 2"),
            (b"{\"\\u12g4\": 1}", "JSON Parse error: Incorrect hex digit after \\u escape in string. at offset: 2"),
            (b"{\"\\ud800\": 1}", "JSON Parse error: The surrogate pair in string is invalid. at offset: 2"),
            (b"{\"a\": 1, \"a\": 2}", "JSON object has the key \"a\" twice"),
            (b"[1, 2]", "JSON Value: [1, 2] Is not object; the request's body must be a JSON object"),
            (
                b"{\"a\": \"\xff\"}",
                "JSON Parse error: 'utf-8' codec can't decode byte 0xff in position 7: invalid start byte",
            ),
        ] {
            assert_eq!(text(body, false), expected, "{}", String::from_utf8_lossy(body));
        }
        let expected = "JSON Parse error: NaN is no JSON, and this server was told to be strict";
        assert_eq!(text(b"{\"a\": NaN}", true), expected);
        let deep = "[".repeat(500_000);
        assert_eq!(text(deep.as_bytes(), false), "JSON Parse error: Invalid value. at offset: 500000");
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(text(deep.as_bytes(), false).ends_with("the request's body must be a JSON object"));
        let deep = format!("{{\"a\": {}1{}, \"b\": 1}}", "{\"c\": ".repeat(100_000), "}".repeat(100_000));
        let members = parse_object(deep.as_bytes(), false).expect("valid");
        assert_eq!(members[1], ("b".into(), Json::Int(1)));
        for (body, hint) in [
            (&b"\x1f\x8b\x08\0"[..], "send it with the header Content-Encoding: gzip"),
            (b"{\0\"\0a\0\"\0", "encode it as UTF-8"),
            (b"\"{\\\"a\\\": 1}\"", "encode it once"),
            (b"\"a\"", "must be a JSON object"),
            (b"features=1", "the body must be a JSON object: {...}"),
            (b"{features: 1}", "names and strings stand in double quotes"),
            (b"{\"a\": [None]}", "JSON has true, false and null"),
        ] {
            assert!(text(body, false).ends_with(hint), "{body:?}");
        }
    }

    #[test]
    fn values_are_those_of_tensorflow_serving() {
        let body = "\u{feff} {\"a\": [1, -2], \"b\": [1, 2.5, -Inf], \"c\": 18446744073709551616, \"\\ud83d\\ude00\\n\": null} x";
        let members = parse_object(body.as_bytes(), false).expect("valid");
        let values: Vec<_> = members.iter().map(|(name, value)| (&**name, value)).collect();
        assert_eq!(values[0], ("a", &Json::List(List::Ints(vec![1, -2]))));
        let mixed = vec![Json::Int(1), Json::Float(2.5), Json::Float(f64::NEG_INFINITY)];
        assert_eq!(values[1], ("b", &Json::List(List::Mixed(mixed))));
        assert_eq!(values[2], ("c", &Json::Float(18_446_744_073_709_551_616.0)));
        assert_eq!(values[3], ("\u{1f600}\n", &Json::Null));
    }

    #[test]
    fn values_are_shown_as_rapidjson_writes_them() {
        // The expected texts are those of service.wire.json_body.shown.
        let text =
            |body: &str| super::super::shown::shown_object(&parse_object(body.as_bytes(), false).expect("valid"));
        assert_eq!(text(r#"{"a": [1, "x"], "b": 2.0}"#), "{\n    \"a\": [1, \"x\"],\n    \"b\": 2.0\n}");
        assert_eq!(text("{}"), "{}");
        for (number, expected) in [
            ("1e21", "1e21"),
            ("1e20", "100000000000000000000.0"),
            ("1.5e-6", "0.0000015"),
            ("1.5e-7", "1.5e-7"),
            ("-0.0", "-0.0"),
            ("123.456", "123.456"),
            ("1e-7", "1e-7"),
            ("12345678901234567890123", "1.2345678901234568e22"),
        ] {
            assert_eq!(text(&format!("{{\"a\": {number}}}")), format!("{{\n    \"a\": {expected}\n}}"), "{number}");
        }
        assert_eq!(text(r#"{"a": [1, NaN, 2]}"#), "{\n    \"a\": [1");
        let long = text(&format!("{{\"a\": [{}]}}", vec!["1234567"; 100].join(", ")));
        assert!((256..266).contains(&long.len()), "{long}");
    }
}
