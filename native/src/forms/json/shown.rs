//! Writes JSON values as TensorFlow Serving's error texts show them.
//!
//! Source: `tensorflow_serving/util/json_tensor.cc` (9d981c5), `JsonValueToDebugString`; rapidjson's prettywriter.h.

use std::fmt::Write;

use super::values::Json;

/// The text of a value ends at the first token after this number of bytes.
const MAX_BYTES: usize = 256;
/// Range of the decimal point's position in which rapidjson writes a number without an exponent.
const MAX_POINT: i32 = 21;
const MIN_POINT: i32 = -6;

/// Returns a JSON value as indented text, lists on one line.
#[must_use]
pub fn shown(value: &Json<'_>) -> String {
    let mut writer = Writer { text: String::new(), separator: "" };
    writer.write(value, 0);
    writer.text
}

/// Returns a JSON value as indented text, and its type, for error texts.
#[must_use]
pub fn described(value: &Json<'_>) -> String {
    format!("{} Type: {}", shown(value), type_name(value))
}

/// Returns the text of an object as [`shown`] does.
#[must_use]
pub fn shown_object(members: &[(std::borrow::Cow<'_, str>, Json<'_>)]) -> String {
    let mut writer = Writer { text: String::new(), separator: "" };
    writer.object(members, 0);
    writer.text
}

/// Returns rapidjson's name for the type of a JSON value.
#[must_use]
pub fn type_name(value: &Json<'_>) -> &'static str {
    match value {
        Json::Null => "Null",
        Json::Bool(true) => "True",
        Json::Bool(false) => "False",
        Json::Int(_) | Json::Float(_) => "Number",
        Json::Text(_) => "String",
        Json::List(_) => "Array",
        Json::Object(_) => "Object",
    }
}

struct Writer {
    text: String,
    /// The text between two tokens, such as ", ", which is written only if another token follows.
    separator: &'static str,
}

impl Writer {
    /// Writes a value; returns None as soon as the text is full.
    fn write(&mut self, value: &Json<'_>, depth: usize) -> Option<()> {
        match value {
            Json::Null => self.token("null"),
            Json::Bool(value) => self.token(if *value { "true" } else { "false" }),
            Json::Int(number) => self.token(&number.to_string()),
            Json::Float(number) => self.token(&float(*number)?),
            Json::Text(text) => self.token(&quoted(text)),
            Json::List(list) => {
                self.token("[")?;
                for (i, item) in list.iter().enumerate() {
                    self.separator = if i > 0 { ", " } else { "" };
                    self.write(&item, depth + 1)?;
                }
                self.token("]")
            }
            Json::Object(members) => self.object(members, depth),
        }
    }

    fn object(&mut self, members: &[(std::borrow::Cow<'_, str>, Json<'_>)], depth: usize) -> Option<()> {
        self.token("{")?;
        for (i, (name, item)) in members.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            self.token(&format!("{comma}\n{}{}", "    ".repeat(depth + 1), quoted(name)))?;
            self.separator = ": ";
            self.write(item, depth + 1)?;
        }
        self.token(&if members.is_empty() { "}".to_owned() } else { format!("\n{}}}", "    ".repeat(depth)) })
    }

    fn token(&mut self, token: &str) -> Option<()> {
        if self.text.len() >= MAX_BYTES {
            return None;
        }
        self.text.push_str(self.separator);
        self.text.push_str(token);
        self.separator = "";
        Some(())
    }
}

/// Returns a number as rapidjson writes it; None for NaN and infinity, at which its writer stops.
fn float(number: f64) -> Option<String> {
    if !number.is_finite() {
        return None;
    }
    let minus = if number.is_sign_negative() { "-" } else { "" };
    if number == 0.0 {
        return Some(format!("{minus}0.0"));
    }
    // Rust writes the fewest digits that name the number, as rapidjson does.
    let scientific = format!("{:e}", number.abs());
    let (mantissa, exponent) = scientific.split_once('e')?;
    let digits = mantissa.replace('.', "");
    let count = i32::try_from(digits.len()).ok()?;
    let point = exponent.parse::<i32>().ok()? + 1;
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    Some(if point >= count && point <= MAX_POINT {
        format!("{minus}{digits}{}.0", zeros(point - count))
    } else if 0 < point && point <= MAX_POINT {
        let (whole, fraction) = digits.split_at(usize::try_from(point).ok()?);
        format!("{minus}{whole}.{fraction}")
    } else if MIN_POINT < point && point <= 0 {
        format!("{minus}0.{}{digits}", zeros(-point))
    } else {
        format!("{minus}{mantissa}e{}", point - 1)
    })
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..'\u{20}' => drop(write!(out, "\\u{:04X}", u32::from(character))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
