//! Rewrites protobuf messages in rare encodings to the usual one, which the forms read: unknown fields and groups are left
//! out, a singular field that came several times is merged, and of equal keys of a map the last one stays.
//!
//! Source: protobuf.dev/programming-guides/encoding, "Last One Wins", "Groups", "Oneofs", "Maps".

use std::collections::HashMap;

use super::built_size::check_num_messages;
use super::protobuf::{Fields, Value, read_varint32, write_delimited};
use super::tensor_proto::value_field;
use crate::plan::Declined;

/// Messages and groups nested deeper are refused by Google's parsers.
const MAX_DEPTH: usize = 100;

/// The type of a field. A field with another wire type is unknown.
enum Kind {
    Varint,
    Fixed64,
    /// A string or bytes.
    Bytes,
    Message(&'static Schema),
    /// Repeated strings or bytes.
    Strings,
    /// Repeated numbers of this wire type, packed or not.
    Numbers(WireType),
    Messages(&'static Schema),
    /// Entries of a map, whose keys are strings.
    Map(&'static Schema),
}

#[derive(PartialEq)]
enum WireType {
    Varint,
    Fixed32,
    Fixed64,
}

/// The fields of one kind of message.
pub struct Schema {
    fields: &'static [(u32, Kind)],
    /// Fields of which only the last one that came counts.
    one_of: &'static [u32],
    is_tensor: bool,
}

const fn schema(fields: &'static [(u32, Kind)]) -> Schema {
    Schema { fields, one_of: &[], is_tensor: false }
}

static INT64_VALUE: Schema = schema(&[(1, Kind::Varint)]);
static MODEL_SPEC: Schema = Schema {
    one_of: &[2, 4],
    ..schema(&[(1, Kind::Bytes), (2, Kind::Message(&INT64_VALUE)), (3, Kind::Bytes), (4, Kind::Bytes)])
};
static DIM: Schema = schema(&[(1, Kind::Varint), (2, Kind::Bytes)]);
static SHAPE: Schema = schema(&[(2, Kind::Messages(&DIM)), (3, Kind::Varint)]);
static TENSOR: Schema = Schema {
    is_tensor: true,
    ..schema(&[
        (1, Kind::Varint),
        (2, Kind::Message(&SHAPE)),
        (3, Kind::Varint),
        (4, Kind::Bytes),
        (5, Kind::Numbers(WireType::Fixed32)),
        (6, Kind::Numbers(WireType::Fixed64)),
        (7, Kind::Numbers(WireType::Varint)),
        (8, Kind::Strings),
        (9, Kind::Numbers(WireType::Fixed32)),
        (10, Kind::Numbers(WireType::Varint)),
        (11, Kind::Numbers(WireType::Varint)),
        (12, Kind::Numbers(WireType::Fixed64)),
        (13, Kind::Numbers(WireType::Varint)),
        (16, Kind::Numbers(WireType::Varint)),
        (17, Kind::Numbers(WireType::Varint)),
    ])
};
static INPUT_ENTRY: Schema = schema(&[(1, Kind::Bytes), (2, Kind::Message(&TENSOR))]);
/// `tensorflow.serving.PredictRequest`.
pub static PREDICT_REQUEST: Schema =
    schema(&[(1, Kind::Message(&MODEL_SPEC)), (2, Kind::Map(&INPUT_ENTRY)), (3, Kind::Strings)]);

static BYTES_LIST: Schema = schema(&[(1, Kind::Strings)]);
static FLOAT_LIST: Schema = schema(&[(1, Kind::Numbers(WireType::Fixed32))]);
static INT64_LIST: Schema = schema(&[(1, Kind::Numbers(WireType::Varint))]);
static FEATURE: Schema = Schema {
    one_of: &[1, 2, 3],
    ..schema(&[(1, Kind::Message(&BYTES_LIST)), (2, Kind::Message(&FLOAT_LIST)), (3, Kind::Message(&INT64_LIST))])
};
static FEATURE_ENTRY: Schema = schema(&[(1, Kind::Bytes), (2, Kind::Message(&FEATURE))]);
static FEATURES: Schema = schema(&[(1, Kind::Map(&FEATURE_ENTRY))]);
static EXAMPLE: Schema = schema(&[(1, Kind::Message(&FEATURES))]);
static EXAMPLES: Schema = schema(&[(1, Kind::Messages(&EXAMPLE))]);
static EXAMPLES_WITH_CONTEXT: Schema = schema(&[(1, Kind::Messages(&EXAMPLE)), (2, Kind::Message(&EXAMPLE))]);
static INPUT: Schema =
    Schema { one_of: &[1, 2], ..schema(&[(1, Kind::Message(&EXAMPLES)), (2, Kind::Message(&EXAMPLES_WITH_CONTEXT))]) };
/// `tensorflow.serving.ClassificationRequest` and `RegressionRequest`.
pub static EXAMPLES_REQUEST: Schema = schema(&[(1, Kind::Message(&MODEL_SPEC)), (2, Kind::Message(&INPUT))]);
static TASK: Schema = schema(&[(1, Kind::Message(&MODEL_SPEC)), (2, Kind::Bytes)]);
/// `tensorflow.serving.MultiInferenceRequest`.
pub static MULTI_INFERENCE_REQUEST: Schema = schema(&[(1, Kind::Messages(&TASK)), (2, Kind::Message(&INPUT))]);

static PARAMETER: Schema = Schema {
    one_of: &[1, 2, 3, 4, 5],
    ..schema(&[(1, Kind::Varint), (2, Kind::Varint), (3, Kind::Bytes), (4, Kind::Fixed64), (5, Kind::Varint)])
};
static PARAMETER_ENTRY: Schema = schema(&[(1, Kind::Bytes), (2, Kind::Message(&PARAMETER))]);
static CONTENTS: Schema = schema(&[
    (1, Kind::Numbers(WireType::Varint)),
    (2, Kind::Numbers(WireType::Varint)),
    (3, Kind::Numbers(WireType::Varint)),
    (4, Kind::Numbers(WireType::Varint)),
    (5, Kind::Numbers(WireType::Varint)),
    (6, Kind::Numbers(WireType::Fixed32)),
    (7, Kind::Numbers(WireType::Fixed64)),
    (8, Kind::Strings),
]);
static INFER_INPUT: Schema = schema(&[
    (1, Kind::Bytes),
    (2, Kind::Bytes),
    (3, Kind::Numbers(WireType::Varint)),
    (4, Kind::Map(&PARAMETER_ENTRY)),
    (5, Kind::Message(&CONTENTS)),
]);
static INFER_OUTPUT: Schema = schema(&[(1, Kind::Bytes), (2, Kind::Map(&PARAMETER_ENTRY))]);
/// `inference.ModelInferRequest`.
pub static INFER_REQUEST: Schema = schema(&[
    (1, Kind::Bytes),
    (2, Kind::Bytes),
    (3, Kind::Bytes),
    (4, Kind::Map(&PARAMETER_ENTRY)),
    (5, Kind::Messages(&INFER_INPUT)),
    (6, Kind::Messages(&INFER_OUTPUT)),
    (7, Kind::Strings),
]);

/// Answers a message in the usual encoding by `answer`; rewrites a message that `answer` finds unusual.
///
/// # Errors
/// As `answer`; [`Declined::Malformed`]: the bytes are no such message.
pub fn answer_usual<T>(
    schema: &Schema,
    message: &[u8],
    answer: impl Fn(&[u8]) -> Result<T, Declined>,
) -> Result<T, Declined> {
    match answer(message) {
        Err(Declined::Unusual) => {}
        answered => return answered,
    }
    let mut usual = Vec::with_capacity(message.len());
    rewrite(schema, message, &mut usual, 0, &mut 0)?;
    match answer(&usual) {
        Err(Declined::Unusual) => Err(Declined::Malformed),
        answered => answered,
    }
}

/// The part of a singular field that stays: its bytes with the tag, or those of all messages that came.
enum Kept<'m> {
    Raw(&'m [u8]),
    Message(&'static Schema, Vec<u8>),
}

fn rewrite(
    schema: &Schema,
    message: &[u8],
    to: &mut Vec<u8>,
    depth: usize,
    num_messages: &mut usize,
) -> Result<(), Declined> {
    if depth > MAX_DEPTH {
        return Err(Declined::Malformed);
    }
    let mut singular: Vec<(u32, Kept<'_>)> = Vec::new();
    let mut repeated: Vec<(u32, &[u8])> = Vec::new();
    let mut entries: Vec<(u32, &Schema, &[u8])> = Vec::new();
    let mut by_key: HashMap<(u32, &[u8]), usize> = HashMap::new();
    let mut rest = message;
    while let Some((number, value, raw)) = next_field(&mut rest, depth)? {
        let Some((_, kind)) = schema.fields.iter().find(|(known, _)| *known == number) else { continue };
        match (kind, value) {
            (Kind::Varint, Value::Varint(_))
            | (Kind::Fixed64, Value::Fixed64(_))
            | (Kind::Bytes, Value::Delimited(_)) => {
                keep(schema, &mut singular, number, Kept::Raw(raw));
            }
            (Kind::Message(of), Value::Delimited(part)) => {
                let before = singular.iter_mut().find(|(other, _)| *other == number);
                match before {
                    Some((_, Kept::Message(_, parts))) => parts.extend_from_slice(part),
                    _ => keep(schema, &mut singular, number, Kept::Message(of, part.to_vec())),
                }
            }
            (Kind::Strings, Value::Delimited(_)) => repeated.push((number, raw)),
            (Kind::Numbers(of), value) => {
                let is_number = match value {
                    Value::Delimited(_) => true,
                    Value::Varint(_) => *of == WireType::Varint,
                    Value::Fixed32(_) => *of == WireType::Fixed32,
                    Value::Fixed64(_) => *of == WireType::Fixed64,
                };
                if is_number {
                    repeated.push((number, raw));
                }
            }
            (Kind::Messages(of), Value::Delimited(one)) => {
                *num_messages += 1;
                check_num_messages(*num_messages)?;
                entries.push((number, of, one));
            }
            (Kind::Map(of), Value::Delimited(entry)) => {
                *num_messages += 1;
                check_num_messages(*num_messages)?;
                let at = *by_key.entry((number, key(entry, depth)?)).or_insert(entries.len());
                match entries.get_mut(at) {
                    Some(place) => place.2 = entry,
                    None => entries.push((number, of, entry)),
                }
            }
            _ => {}
        }
    }
    if schema.is_tensor {
        let raw = |wanted| {
            singular.iter().find_map(|(number, kept)| match kept {
                Kept::Raw(raw) if *number == wanted => Fields::of(raw).next()?.ok().map(|(_, value)| value),
                _ => None,
            })
        };
        let has_content = matches!(raw(4), Some(Value::Delimited([_, ..])));
        let dtype = if let Some(Value::Varint(dtype)) = raw(1) { dtype } else { 0 };
        // Only the field of the tensor's dtype has its values, and `tensor_content` goes before it.
        repeated.retain(|(number, _)| !has_content && value_field(dtype) == Some(*number));
    }
    for (number, kept) in singular {
        match kept {
            Kept::Raw(raw) => to.extend_from_slice(raw),
            Kept::Message(of, parts) => write_message(of, number, &parts, to, depth, num_messages)?,
        }
    }
    for (_, raw) in repeated {
        to.extend_from_slice(raw);
    }
    for (number, of, one) in entries {
        write_message(of, number, one, to, depth, num_messages)?;
    }
    Ok(())
}

/// Keeps the value of a singular field, in place of an earlier one or of another field of its oneof.
fn keep<'m>(schema: &Schema, singular: &mut Vec<(u32, Kept<'m>)>, number: u32, kept: Kept<'m>) {
    let is_one_of = schema.one_of.contains(&number);
    singular.retain(|(other, _)| *other != number && !(is_one_of && schema.one_of.contains(other)));
    singular.push((number, kept));
}

fn write_message(
    schema: &Schema,
    number: u32,
    message: &[u8],
    to: &mut Vec<u8>,
    depth: usize,
    num_messages: &mut usize,
) -> Result<(), Declined> {
    let mut usual = Vec::with_capacity(message.len());
    rewrite(schema, message, &mut usual, depth + 1, num_messages)?;
    write_delimited(to, number, &usual);
    Ok(())
}

/// Returns the key of an entry of a map.
fn key(entry: &[u8], depth: usize) -> Result<&[u8], Declined> {
    let (mut key, mut rest) = (&[][..], entry);
    while let Some((number, value, _)) = next_field(&mut rest, depth)? {
        if let (1, Value::Delimited(bytes)) = (number, value) {
            key = bytes;
        }
    }
    Ok(key)
}

/// A field: its number, its value, and its bytes with the tag.
type RawField<'m> = (u32, Value<'m>, &'m [u8]);

/// Takes the next field that is no group from `rest`.
fn next_field<'m>(rest: &mut &'m [u8], depth: usize) -> Result<Option<RawField<'m>>, Declined> {
    while !rest.is_empty() {
        let mut after = *rest;
        let tag = read_varint32(&mut after)?;
        match tag & 7 {
            3 => {
                skip_group(&mut after, tag >> 3, depth + 1)?;
                *rest = after;
            }
            4 => return Err(Declined::Malformed),
            _ => {
                let mut fields = Fields::of(rest);
                let Some(field) = fields.next() else { return Ok(None) };
                let (number, value) = field?;
                let (raw, left) = rest.split_at(rest.len() - fields.num_left());
                *rest = left;
                return Ok(Some((number, value, raw)));
            }
        }
    }
    Ok(None)
}

/// Skips the fields of a group, up to the end of the group with this number.
fn skip_group(rest: &mut &[u8], number: u32, depth: usize) -> Result<(), Declined> {
    if depth > MAX_DEPTH || number == 0 {
        return Err(Declined::Malformed);
    }
    loop {
        let mut after = *rest;
        let tag = read_varint32(&mut after)?;
        match tag & 7 {
            3 => skip_group(&mut after, tag >> 3, depth + 1)?,
            4 if tag >> 3 == number => {
                *rest = after;
                return Ok(());
            }
            4 => return Err(Declined::Malformed),
            _ => {
                let mut fields = Fields::of(rest);
                fields.next().ok_or(Declined::Malformed)??;
                after = &rest[rest.len() - fields.num_left()..];
            }
        }
        *rest = after;
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn usual(message: &[u8]) -> Result<Vec<u8>, Declined> {
        let mut to = Vec::new();
        rewrite(&PREDICT_REQUEST, message, &mut to, 0, &mut 0).map(|()| to)
    }

    #[test]
    fn unknown_fields_and_groups_are_left_out() {
        let plain = b"\x0a\x03\x0a\x01m\x1a\x01o";
        // An unknown varint, an unknown string, a group with a field and a group, and a field of another wire type.
        for rare in [&b"\x98\x06\x01"[..], b"\x9a\x06\x01a", b"\x53\x08\x01\x5b\x5c\x54", b"\x08\x01"] {
            assert_eq!(usual(&[plain, rare].concat()).as_deref(), Ok(&plain[..]), "{rare:?}");
            assert_eq!(usual(&[rare, plain].concat()).as_deref(), Ok(&plain[..]), "{rare:?}");
        }
        // A group without its end, an end without its group, and an end of another group.
        for bad in [&b"\x53\x08\x01"[..], b"\x54", b"\x53\x5c", b"\x03\x04"] {
            assert_eq!(usual(&[plain, bad].concat()), Err(Declined::Malformed), "{bad:?}");
        }
        assert_eq!(usual(&b"\x53".repeat(200)), Err(Declined::Malformed));
    }

    #[test]
    fn pieces_are_merged_and_the_last_of_equal_keys_stays() {
        // A spec in two pieces: its last name stays, and its signature.
        assert_eq!(usual(b"\x0a\x06\x0a\x01m\x1a\x01s\x0a\x03\x0a\x01n").unwrap(), b"\x0a\x06\x1a\x01s\x0a\x01n");
        // A version replaces a label.
        assert_eq!(usual(b"\x0a\x07\x22\x01l\x12\x02\x08\x03").unwrap(), b"\x0a\x04\x12\x02\x08\x03");
        let entry = |dtype: u8| [&b"\x12\x07\x0a\x01x\x12\x02\x08"[..], &[dtype]].concat();
        assert_eq!(usual(&[entry(1), entry(9)].concat()).unwrap(), entry(9));
    }

    #[test]
    fn a_tensor_has_the_field_of_each_dtype() {
        for field in (0..64).filter_map(value_field) {
            assert!(TENSOR.fields.iter().any(|(known, _)| *known == field), "{field}");
        }
    }

    #[test]
    fn a_tensor_keeps_the_values_of_its_dtype() {
        let tensor = |fields: &[u8]| {
            let mut to = Vec::new();
            rewrite(&TENSOR, fields, &mut to, 0, &mut 0).map(|()| to)
        };
        assert_eq!(tensor(b"\x08\x09\x52\x01\x05\x3a\x01\x06").unwrap(), b"\x08\x09\x52\x01\x05");
        assert_eq!(tensor(b"\x08\x03\x22\x01c\x3a\x01\x06").unwrap(), b"\x08\x03\x22\x01c");
    }
}
