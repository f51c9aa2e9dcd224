//! Writes numbers, strings and nested lists as JSON text, byte for byte as orjson writes numpy arrays.
//!
//! A float is written with the shortest digits that read back as the same float, always with a point or an exponent.
//! NaN and infinity are written as the words `NaN`, `Infinity` and `-Infinity`, or as `null` if JSON is strict. The
//! crate zmij writes the same digits as orjson.

use super::float32_text;
pub use super::float32_text::{MAX_BYTES, NonFinite};
use crate::plan::DataType;

/// Bytes of JSON text that `write_each` reserves for an element and the comma behind it.
const MAX_CHARS: usize = 17;

/// A dtype of numbers or booleans whose elements `write_row` writes as JSON text.
trait Element {
    /// Size of one element of this dtype in bytes.
    const SIZE: usize;

    /// Appends the JSON text of each element of `bytes`, which are little-endian, with commas between the texts.
    fn write_row(bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>);
}

/// The dtype IEEE float16, whose elements are written as the float32 of the same value.
struct Float16;
struct Bfloat16;
struct Bool;

/// Calls `write` to append the text of each element of `bytes`, and appends commas between the texts.
#[inline]
fn write_each<const SIZE: usize>(bytes: &[u8], out: &mut Vec<u8>, write: impl Fn([u8; SIZE], &mut Vec<u8>)) {
    let (elements, _) = bytes.as_chunks::<SIZE>();
    out.reserve(elements.len() * MAX_CHARS);
    for &element in elements {
        write(element, out);
        out.push(b',');
    }
    if !elements.is_empty() {
        out.pop();
    }
}

macro_rules! whole_number {
    ($($number:ty),*) => {$(
        impl Element for $number {
            const SIZE: usize = size_of::<$number>();

            fn write_row(bytes: &[u8], _: NonFinite, out: &mut Vec<u8>) {
                write_each(bytes, out, |element, out| {
                    let number = <$number>::from_le_bytes(element);
                    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
                });
            }
        }
    )*};
}

whole_number!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Element for f32 {
    const SIZE: usize = 4;

    fn write_row(bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
        float32_text::write_row(bytes, f32::from_le_bytes, non_finite, out);
    }
}

impl Element for f64 {
    const SIZE: usize = 8;

    fn write_row(bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
        write_each(bytes, out, |element, out| {
            write_f64(f64::from_le_bytes(element), non_finite, out);
        });
    }
}

impl Element for Float16 {
    const SIZE: usize = 2;

    fn write_row(bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
        let value = |element| of_half(u16::from_le_bytes(element));
        float32_text::write_row(bytes, value, non_finite, out);
    }
}

impl Element for Bfloat16 {
    const SIZE: usize = 2;

    fn write_row(bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
        let value = |element| f32::from_bits(u32::from(u16::from_le_bytes(element)) << 16);
        float32_text::write_row(bytes, value, non_finite, out);
    }
}

impl Element for Bool {
    const SIZE: usize = 1;

    fn write_row(bytes: &[u8], _: NonFinite, out: &mut Vec<u8>) {
        write_each(bytes, out, |[byte], out| {
            out.extend_from_slice(if byte == 0 { b"false" } else { b"true" });
        });
    }
}

/// Converts the bits of a float16 to the float32 of the same value.
fn of_half(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 31;
    let fraction = u32::from(half) & 0x3FF;
    match exponent {
        // A subnormal float16 is a multiple of 2^-24, so the division is exact.
        #[allow(clippy::cast_precision_loss)]
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Appends a short text by copies of fixed sizes, because calls of memmove took a quarter of the time of writing
/// floats.
#[inline(always)]
fn append_short(text: &[u8], out: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) else {
        let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) else {
            return out.extend_from_slice(text);
        };
        // For a text of four to seven bytes, the two four-byte copies overlap.
        let end = out.len() + text.len() - 4;
        out.extend_from_slice(first);
        out.truncate(end);
        return out.extend_from_slice(last);
    };
    if text.len() > 16 {
        return out.extend_from_slice(text);
    }
    let end = out.len() + text.len() - 8;
    out.extend_from_slice(first);
    out.truncate(end);
    out.extend_from_slice(last);
}

/// Appends a float64 as JSON text; `non_finite` chooses the text of NaN and infinity.
#[inline]
fn write_f64(number: f64, non_finite: NonFinite, out: &mut Vec<u8>) {
    if number.is_finite() {
        append_short(zmij::Buffer::new().format_finite(number).as_bytes(), out);
    } else {
        out.extend_from_slice(non_finite.text(number));
    }
}

/// Appends a string in quotes; only characters that JSON does not allow in strings are escaped.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[copied..i]);
        copied = i + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            0x09 => out.extend_from_slice(b"\\t"),
            0x0A => out.extend_from_slice(b"\\n"),
            0x0C => out.extend_from_slice(b"\\f"),
            0x0D => out.extend_from_slice(b"\\r"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}

/// Appends a tensor's numbers as nested JSON lists without white space, one level for each size in `dims`; a scalar is
/// written without a list.
///
/// `bytes` has the tensor's numbers, little-endian. Returns false and appends nothing for dtype string, which
/// [`write_strings`] writes, and for complex numbers.
///
/// # Panics
/// `bytes` has fewer numbers than `dims` says.
pub fn write_numbers(dtype: DataType, dims: &[usize], bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) -> bool {
    match dtype {
        DataType::String | DataType::Complex64 | DataType::Complex128 => return false,
        DataType::Float32 => write_elements::<f32>(dims, bytes, non_finite, out),
        DataType::Float64 => write_elements::<f64>(dims, bytes, non_finite, out),
        DataType::Float16 => write_elements::<Float16>(dims, bytes, non_finite, out),
        DataType::Bfloat16 => write_elements::<Bfloat16>(dims, bytes, non_finite, out),
        DataType::Bool => write_elements::<Bool>(dims, bytes, non_finite, out),
        DataType::Int8 => write_elements::<i8>(dims, bytes, non_finite, out),
        DataType::Int16 => write_elements::<i16>(dims, bytes, non_finite, out),
        DataType::Int32 => write_elements::<i32>(dims, bytes, non_finite, out),
        DataType::Int64 => write_elements::<i64>(dims, bytes, non_finite, out),
        DataType::Uint8 => write_elements::<u8>(dims, bytes, non_finite, out),
        DataType::Uint16 => write_elements::<u16>(dims, bytes, non_finite, out),
        DataType::Uint32 => write_elements::<u32>(dims, bytes, non_finite, out),
        DataType::Uint64 => write_elements::<u64>(dims, bytes, non_finite, out),
    }
    true
}

fn write_elements<E: Element>(dims: &[usize], bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
    let count: usize = dims.iter().product();
    let bytes = &bytes[..count * E::SIZE];
    write_level::<E>(dims, bytes, non_finite, out);
}

/// Appends one level of a tensor's nested JSON lists, with all deeper levels.
fn write_level<E: Element>(dims: &[usize], bytes: &[u8], non_finite: NonFinite, out: &mut Vec<u8>) {
    let Some((&length, inner)) = dims.split_first() else {
        E::write_row(bytes, non_finite, out);
        return;
    };
    out.push(b'[');
    if inner.is_empty() {
        E::write_row(bytes, non_finite, out);
    } else {
        let step = bytes.len().checked_div(length).unwrap_or(0);
        for i in 0..length {
            write_level::<E>(inner, &bytes[i * step..(i + 1) * step], non_finite, out);
            out.push(b',');
        }
        if length > 0 {
            out.pop();
        }
    }
    out.push(b']');
}

/// Appends strings as nested JSON lists, one level for each size in `dims`. With `as_bytes`, each string is written as
/// `{"b64":"..."}`; without it, only those that are not UTF-8.
///
/// # Panics
/// There are fewer strings than `dims` says.
pub fn write_strings(dims: &[usize], strings: &[impl AsRef<[u8]>], as_bytes: bool, out: &mut Vec<u8>) {
    let Some((&length, inner)) = dims.split_first() else {
        write_bytes(strings[0].as_ref(), as_bytes, out);
        return;
    };
    let step: usize = inner.iter().product();
    out.push(b'[');
    for i in 0..length {
        write_strings(inner, &strings[i * step..(i + 1) * step], as_bytes, out);
        out.push(b',');
    }
    if length > 0 {
        out.pop();
    }
    out.push(b']');
}

/// Appends one byte string: as a JSON string, or in base64 if it is not UTF-8 or the output's name ends with `_bytes`.
fn write_bytes(bytes: &[u8], as_bytes: bool, out: &mut Vec<u8>) {
    match std::str::from_utf8(bytes) {
        Ok(text) if !as_bytes => write_string(text, out),
        _ => {
            out.extend_from_slice(b"{\"b64\":\"");
            super::base64::encode(bytes, out);
            out.extend_from_slice(b"\"}");
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn numbers(dtype: DataType, dims: &[usize], bytes: &[u8]) -> String {
        let mut out = Vec::new();
        assert!(write_numbers(dtype, dims, bytes, NonFinite::Tokens, &mut out));
        String::from_utf8(out).unwrap()
    }

    fn floats(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn floats_have_the_shortest_digits_in_the_layout_of_orjson() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5e-3, "-0.0025"),
            (1e12, "1000000000000.0"),
            (9.999_999e12, "9999999000000.0"),
            (1e13, "1e+13"),
            (1.234_567_8e14, "1.2345678e+14"),
            (1e30, "1e+30"),
            (1e-6, "0.000001"),
            (9.5e-7, "9.5e-7"),
            (1e-45, "1e-45"),
            (f32::MAX, "3.4028235e+38"),
            (16_777_216.0, "16777216.0"),
        ];
        for (number, text) in cases {
            assert_eq!(numbers(DataType::Float32, &[], &floats(&[number])), text);
        }
        let doubles = [
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (9.5e-6, "9.5e-6"),
            (1.2345e-5, "0.000012345"),
            (5e-324, "5e-324"),
        ];
        for (number, text) in doubles {
            assert_eq!(numbers(DataType::Float64, &[], &f64::to_le_bytes(number)), text);
        }
    }

    #[test]
    fn numbers_that_json_lacks_are_tokens_or_null() {
        let bytes = floats(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(numbers(DataType::Float32, &[3], &bytes), "[NaN,Infinity,-Infinity]");
        let mut out = Vec::new();
        assert!(write_numbers(DataType::Float32, &[3], &bytes, NonFinite::of(true), &mut out));
        assert_eq!(out, b"[null,null,null]");
    }

    #[test]
    fn lists_nest_by_dims() {
        let bytes = floats(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(numbers(DataType::Float32, &[2, 2], &bytes), "[[1.0,2.0],[3.0,4.0]]");
        assert_eq!(numbers(DataType::Float32, &[2, 1, 2], &bytes), "[[[1.0,2.0]],[[3.0,4.0]]]");
        assert_eq!(numbers(DataType::Float32, &[0, 3], &[]), "[]");
        assert_eq!(numbers(DataType::Float32, &[2, 0], &[]), "[[],[]]");
        assert_eq!(numbers(DataType::Float32, &[0], &[]), "[]");
        assert_eq!(numbers(DataType::Int64, &[2], &[255; 16]), "[-1,-1]");
        assert_eq!(numbers(DataType::Uint8, &[2], &[255, 0]), "[255,0]");
        assert_eq!(numbers(DataType::Bool, &[2], &[1, 0]), "[true,false]");
    }

    #[test]
    fn halves_are_written_as_float32() {
        let half = |bits: u16| numbers(DataType::Float16, &[], &bits.to_le_bytes());
        assert_eq!(half(0x3C00), "1.0");
        assert_eq!(half(0x8000), "-0.0");
        assert_eq!(half(0x0001), "5.9604645e-8");
        assert_eq!(half(0x068E), "0.000100016594");
        assert_eq!(half(0x7BFF), "65504.0");
        assert_eq!(half(0xFC00), "-Infinity");
        assert_eq!(half(0x7E01), "NaN");
        assert_eq!(numbers(DataType::Bfloat16, &[], &0x3FC0_u16.to_le_bytes()), "1.5");
    }

    #[test]
    fn strings_are_escaped_or_sent_in_base64() {
        let mut out = Vec::new();
        let strings: [&[u8]; 4] = ["a\"\\\u{8}\t\n\u{c}\r\u{1f}\u{7f}é".as_bytes(), b"\xff", b"", b"ab"];
        write_strings(&[2, 2], &strings, false, &mut out);
        let text = "[[\"a\\\"\\\\\\b\\t\\n\\f\\r\\u001f\u{7f}é\",{\"b64\":\"/w==\"}],[\"\",\"ab\"]]";
        assert_eq!(String::from_utf8(out).unwrap(), text);
        let mut out = Vec::new();
        write_strings(&[3], &["abc", "ab", ""], true, &mut out);
        assert_eq!(out, b"[{\"b64\":\"YWJj\"},{\"b64\":\"YWI=\"},{\"b64\":\"\"}]");
    }
}
