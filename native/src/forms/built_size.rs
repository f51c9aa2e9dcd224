//! Counts the messages, strings and integers of a forwarded request before Python's parser builds them: a field of two
//! bytes may take hundreds of bytes then.
//!
//! Source: `tensorflow_serving/apis/*.proto` (9d981c5), `tensorflow/core/framework/tensor.proto` (2.21).

use super::protobuf::{Fields, Value, count_varints};
use crate::plan::Declined;
use crate::plan::faults::{self, BoxedFault};

/// Maximal number of repeated messages in a request; entries of maps are such messages.
pub const MAX_MESSAGES: usize = 1 << 19;
/// Maximal number of strings of a request.
pub const MAX_STRINGS: usize = 1 << 22;
/// Bytes that Python takes for a message in a request, with its place in a map, and for a string.
const MESSAGE_BYTES: usize = 256;
const STRING_BYTES: usize = 64;
const INTEGER_BYTES: usize = 8;
/// Messages nested deeper are refused by Google's parsers.
const MAX_DEPTH: usize = 100;
/// The number of the dtype of strings in a `TensorProto`.
const DT_STRING: u64 = 7;

/// The reason why a request must not be parsed: it has too many values of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// The request has more than [`MAX_MESSAGES`] messages.
    Messages,
    /// The request has more than [`MAX_STRINGS`] strings.
    Strings,
}

impl TooMany {
    /// Returns the error for the request's client.
    #[must_use]
    pub fn fault(self) -> BoxedFault {
        match self {
            TooMany::Messages => faults::too_many_parts(MAX_MESSAGES, "repeated messages and entries of maps"),
            TooMany::Strings => faults::too_many_parts(MAX_STRINGS, "strings"),
        }
    }
}

/// Declines a request with more than [`MAX_STRINGS`] strings, before they are read.
///
/// # Errors
/// [`Declined::Fault`].
pub fn check_num_strings(count: usize) -> Result<(), Declined> {
    if count > MAX_STRINGS { Err(TooMany::Strings.fault().into()) } else { Ok(()) }
}

/// Declines a request with more than [`MAX_MESSAGES`] messages of one kind, before more are read.
///
/// # Errors
/// [`Declined::Fault`].
pub fn check_num_messages(count: usize) -> Result<(), Declined> {
    if count > MAX_MESSAGES { Err(TooMany::Messages.fault().into()) } else { Ok(()) }
}

/// The fields of a message that take more memory than their bytes, by field number.
struct Kind(&'static [(u32, Field)]);

enum Field {
    One(&'static Kind),
    Many(&'static Kind),
    Strings,
    Integers,
    /// The bytes of a tensor, which may be of strings.
    Content,
}

use Field::{Content, Integers, Many, One, Strings};

static NONE: Kind = Kind(&[]);
static ENTRY_OF_TENSORS: Kind = Kind(&[(2, One(&TENSOR))]);
static TENSOR: Kind = Kind(&[
    (2, One(&SHAPE)),
    (4, Content),
    (7, Integers),
    (8, Strings),
    (10, Integers),
    (11, Integers),
    (13, Integers),
    (14, Many(&RESOURCE)),
    (15, Many(&VARIANT)),
    (16, Integers),
    (17, Integers),
]);
static SHAPE: Kind = Kind(&[(2, Many(&NONE))]);
static RESOURCE: Kind = Kind(&[(6, Many(&RESOURCE_SHAPE))]);
static RESOURCE_SHAPE: Kind = Kind(&[(2, One(&SHAPE))]);
static VARIANT: Kind = Kind(&[(3, Many(&TENSOR))]);
static PREDICT: Kind = Kind(&[(2, Many(&ENTRY_OF_TENSORS)), (3, Strings)]);

static METADATA: Kind = Kind(&[(2, Strings)]);

static RELOAD: Kind = Kind(&[(1, One(&SERVER_CONFIG)), (2, Strings)]);
static SERVER_CONFIG: Kind = Kind(&[(1, One(&MODEL_LIST))]);
static MODEL_LIST: Kind = Kind(&[(1, Many(&MODEL_CONFIG))]);
static MODEL_CONFIG: Kind = Kind(&[(7, One(&VERSION_POLICY)), (8, Many(&NONE)), (1000, Strings)]);
static VERSION_POLICY: Kind = Kind(&[(102, One(&VERSIONS))]);
static VERSIONS: Kind = Kind(&[(1, Integers)]);

#[derive(Default)]
struct Count {
    messages: usize,
    strings: usize,
    integers: usize,
}

/// Returns how many bytes Python takes to parse the message of a call, beside the message's own bytes. `path` is the
/// call's path, such as `/tensorflow.serving.PredictionService/Predict`.
///
/// # Errors
/// [`TooMany`], as soon as a limit is passed.
pub fn built_size(path: &str, message: &[u8]) -> Result<usize, TooMany> {
    let kind = match path.rsplit_once('/').map_or(path, |(_, method)| method) {
        "Predict" => &PREDICT,
        "GetModelMetadata" => &METADATA,
        "HandleReloadConfigRequest" => &RELOAD,
        _ => &NONE,
    };
    let mut count = Count::default();
    count.add(message, kind, 0)?;
    Ok(count.messages * MESSAGE_BYTES + count.strings * STRING_BYTES + count.integers * INTEGER_BYTES)
}

impl Count {
    fn add(&mut self, message: &[u8], kind: &Kind, depth: usize) -> Result<(), TooMany> {
        let mut fields = Fields::of(message);
        loop {
            let left = fields.num_left();
            let Some(read) = fields.next() else { return Ok(()) };
            let Ok((number, value)) = read else {
                // Google's parsers skip groups, which this reader refuses: what follows may be messages of two bytes.
                return self.add_messages(left / 2);
            };
            let Some((_, field)) = kind.0.iter().find(|(known, _)| *known == number) else { continue };
            match (field, value) {
                (One(_) | Many(_), Value::Delimited(_)) if depth == MAX_DEPTH => return Ok(()),
                (One(kind), Value::Delimited(inner)) => self.add(inner, kind, depth + 1)?,
                (Many(kind), Value::Delimited(inner)) => {
                    self.add_messages(1)?;
                    self.add(inner, kind, depth + 1)?;
                }
                (Strings, Value::Delimited(_)) => self.add_strings(1)?,
                (Integers, Value::Delimited(packed)) => self.integers += count_varints(packed),
                (Integers, _) => self.integers += 1,
                (Content, Value::Delimited(content)) => self.add_strings(content_strings(message, content))?,
                _ => {}
            }
        }
    }

    fn add_messages(&mut self, more: usize) -> Result<(), TooMany> {
        self.messages += more;
        if self.messages > MAX_MESSAGES { Err(TooMany::Messages) } else { Ok(()) }
    }

    fn add_strings(&mut self, more: usize) -> Result<(), TooMany> {
        self.strings += more;
        if self.strings > MAX_STRINGS { Err(TooMany::Strings) } else { Ok(()) }
    }
}

/// Returns the fields of a message up to the first that is malformed.
fn readable(message: &[u8]) -> impl Iterator<Item = (u32, Value<'_>)> {
    Fields::of(message).map_while(Result::ok)
}

/// Returns an upper limit of the number of strings in a tensor's `tensor_content`: each takes a byte or more.
fn content_strings(tensor: &[u8], content: &[u8]) -> usize {
    let (mut is_string, mut elements) = (false, 1_usize);
    for field in readable(tensor) {
        match field {
            (1, Value::Varint(dtype)) => is_string = dtype == DT_STRING,
            (2, Value::Delimited(shape)) => {
                for dim in readable(shape) {
                    let (2, Value::Delimited(dim)) = dim else { continue };
                    let size = readable(dim).find_map(|field| match field {
                        (1, Value::Varint(size)) => usize::try_from(size).ok(),
                        _ => None,
                    });
                    elements = elements.saturating_mul(size.unwrap_or(0));
                }
            }
            _ => {}
        }
    }
    if is_string { elements.min(content.len()) } else { 0 }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::super::protobuf::{write_delimited, write_varint_field};
    use super::*;

    const PREDICT_PATH: &str = "/tensorflow.serving.PredictionService/Predict";

    fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_delimited(&mut out, number, bytes);
        out
    }

    fn varint(number: u32, value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write_varint_field(&mut out, number, value);
        out
    }

    #[test]
    fn messages_of_two_bytes_are_counted_wherever_they_are() {
        let many = |number: u32| field(number, b"").repeat(MAX_MESSAGES + 1);
        let tensor = |inner: &[u8]| field(2, &field(2, inner));
        for (path, message) in [
            (PREDICT_PATH, many(2)),
            (PREDICT_PATH, tensor(&field(2, &many(2)))),
            (PREDICT_PATH, tensor(&many(15))),
            (PREDICT_PATH, tensor(&field(15, &field(3, &many(15))))),
            (PREDICT_PATH, [&b"\x0b\x0c"[..], &many(2)].concat()),
            ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", field(1, &field(1, &many(1)))),
        ] {
            assert_eq!(built_size(path, &message), Err(TooMany::Messages), "{path} {:?}", &message[..8]);
        }
    }

    #[test]
    fn strings_are_counted_also_within_the_bytes_of_tensors() {
        let most = MAX_STRINGS as u64;
        let shape = |size: u64| field(2, &field(2, &varint(1, size)));
        let content = |dtype: u64, size: u64| {
            field(2, &field(2, &[varint(1, dtype), shape(size), field(4, &vec![0; MAX_STRINGS + 1])].concat()))
        };
        for (path, message, is_refused) in [
            (PREDICT_PATH, field(3, b"").repeat(MAX_STRINGS + 1), true),
            (PREDICT_PATH, content(DT_STRING, most + 1), true),
            (PREDICT_PATH, content(DT_STRING, most), false),
            (PREDICT_PATH, content(3, most + 1), false),
        ] {
            let refused = built_size(path, &message).err();
            assert_eq!(refused, is_refused.then_some(TooMany::Strings), "{path} {}", message.len());
        }
    }

    #[test]
    fn what_parsers_build_is_added_up() {
        let ids = [varint(1, 9), field(10, &[1; 1000])].concat();
        let message = [field(1, b"m"), field(2, &field(2, &ids)), field(3, b"out")].concat();
        assert_eq!(built_size(PREDICT_PATH, &message), Ok(MESSAGE_BYTES + STRING_BYTES + 1000 * INTEGER_BYTES));
        assert_eq!(built_size("/tensorflow.serving.ModelService/GetModelStatus", &field(2, b"").repeat(1000)), Ok(0));
    }
}
