//! Handles `POST /v2/models/{model}[/versions/{version}]/infer` of the Open Inference Protocol. A body is JSON,
//! followed by the data of binary tensors.
//!
//! The fast reader (`request`) declines rare bodies, such as those with `NaN`, or with lists or objects under unknown
//! keys; `explain` reads those.

mod explain;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;

use self::explain::InferDocument;
use self::request::{Request, Result};
use super::json::floats::{self, NonFinite};
use super::oip_binary::{
    SIGNATURE_PARAMETER, append_binary, binary_size, check_datatypes, datatype_of, find, inputs_and_outputs,
};
use super::record::Recording;
use super::{Answered, Call, Version};
use crate::plan::{DataType, Declined, Effort, OutputShape, Servable, Signature, Work, faults};

/// A request with a longer JSON text is parsed on the thread pool for large work; the parser reads some 500 MB/s.
const SMALL_JSON_BYTES: usize = 32 << 10;
/// An answer with more JSON numbers is written on the thread pool for large work; writing a number takes some 15 ns.
const SMALL_JSON_NUMBERS: usize = 4096;

/// Answers an Open Inference `infer` request whose body is JSON, perhaps with binary tensors behind the JSON.
///
/// `header_length` is the value of the request header Inference-Header-Content-Length: the length of the JSON.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(
    call: &Call<'_>,
    model: &str,
    version: Version<'_>,
    header_length: Option<usize>,
    body: &[u8],
) -> Result<Answered> {
    let length = header_length.unwrap_or(body.len());
    let Some((json, binary)) = body.split_at_checked(length) else {
        return Err(faults::header_too_long(&length.to_string(), body.len()).into());
    };
    if call.effort == Effort::Small && json.len() > SMALL_JSON_BYTES {
        return Err(Declined::TooLarge);
    }
    let has_header = header_length.is_some();
    let parsed = match Request::read(json, binary, has_header) {
        Ok(request) => Parsed::Plain(request),
        Err(_) => Parsed::Whole(InferDocument::parse(json, binary, has_header, call.strict_json)?),
    };
    let name = match &parsed {
        Parsed::Plain(request) => &*request.signature,
        Parsed::Whole(document) => document.signature(),
    };
    let (servable, signature_index) = find(call, model, version, name)?;
    let run = || {
        let request = match parsed {
            Parsed::Plain(request) => request,
            Parsed::Whole(document) => document.request()?,
        };
        run(call, request, servable, signature_index)
    };
    run().map_err(|declined| declined.at(|| servable.subject(signature_index)))
}

/// A body as the fast reader gives it, or as a whole document.
enum Parsed<'a> {
    Plain(Request<'a>),
    Whole(InferDocument<'a>),
}

fn run(
    call: &Call<'_>,
    mut request: Request<'_>,
    servable: &Arc<Servable>,
    signature_index: usize,
) -> Result<Answered> {
    let signature = &servable.signatures()[signature_index];
    signature.check_effort(call.effort)?;
    let names: SmallVec<[&str; 4]> = request.outputs.iter().map(|output| &*output.name).collect();
    let tensors = std::mem::take(&mut request.inputs).into_iter().map(|input| (input.name, input.tensor));
    let (inputs, wanted) = inputs_and_outputs(signature, tensors, &names)?;
    let formats = OutputFormats::of(&request, &wanted);
    let began = Instant::now();
    let recording = Recording::begin(call, servable, signature_index, &inputs, &wanted);
    let mut work = Work::prepare(servable, signature_index, inputs, &wanted, call.effort, call.max_response_bytes)?;
    check_datatypes(signature, work.outputs())?;
    work.round_to(request.half);
    // The time of writing numbers as text, which does not count for the run.
    let mut texts = Duration::ZERO;
    if call.effort == Effort::Small && json_numbers(&work, &formats) > SMALL_JSON_NUMBERS {
        return Err(Declined::TooLarge);
    }

    let mut out = Vec::with_capacity(answer_capacity(&work, &formats));
    write_head(servable, request.id.as_deref(), signature, &mut out);
    let mut numbers = Vec::new();
    let mut has_binary = false;
    for i in 0..work.outputs().len() {
        let shape = work.outputs()[i].clone();
        out.extend_from_slice(if i == 0 { b"{\"name\":" } else { b",{\"name\":" });
        floats::write_string(&signature.outputs[shape.output].name, &mut out);
        write_shape(&shape, &mut out);
        if formats.is_binary(shape.output) {
            let num_bytes = binary_size(&work, i);
            // If an answer's only binary outputs are of datatype BYTES without elements, it has no header for the JSON
            // length.
            has_binary |= shape.dtype != DataType::String || num_bytes > 0;
            out.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            write_size(num_bytes, &mut out);
            out.extend_from_slice(b"}}");
            continue;
        }
        out.extend_from_slice(b",\"data\":");
        if shape.dtype == DataType::String {
            write_strings(&signature.outputs[shape.output].name, work.strings(i), &mut out)?;
        } else {
            numbers.clear();
            work.append(i, &mut numbers)?;
            let count = numbers.len() / shape.dtype.size();
            let started = Instant::now();
            floats::write_numbers(shape.dtype, &[count], &numbers, NonFinite::of(call.strict_json), &mut out);
            texts += started.elapsed();
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    let json_length = has_binary.then_some(out.len());
    for i in 0..work.outputs().len() {
        if formats.is_binary(work.outputs()[i].output) {
            append_binary(&mut work, i, &mut out)?;
        }
    }
    let answered = Answered::end(work, recording, servable, signature_index, began)?;
    let ran = answered.ran.saturating_sub(texts);
    Ok(Answered { body: Bytes::from(out), ran, json_length, ..answered })
}

/// The choice between JSON and binary data for each output of an answer.
struct OutputFormats {
    /// Whether an output is binary if the request does not set `binary_data` for the output.
    is_binary: bool,
    /// Indexes of the outputs that the request names, each with its `binary_data` parameter.
    of_output: SmallVec<[(usize, Option<bool>); 8]>,
}

impl OutputFormats {
    /// Reads from a request which outputs are binary; `wanted` has the indexes of the outputs that the request names.
    fn of(request: &Request<'_>, wanted: &[usize]) -> Self {
        let own = request.outputs.iter().map(|output| output.is_binary);
        OutputFormats { is_binary: request.is_binary, of_output: wanted.iter().copied().zip(own).collect() }
    }

    fn is_binary(&self, output: usize) -> bool {
        let named = self.of_output.iter().find(|(index, _)| *index == output);
        named.and_then(|(_, form)| *form).unwrap_or(self.is_binary)
    }
}

fn json_numbers(work: &Work<'_, '_>, formats: &OutputFormats) -> usize {
    let shapes = work.outputs().iter().filter(|shape| !formats.is_binary(shape.output));
    shapes.map(|shape| shape.dims.iter().product::<usize>()).sum()
}

fn answer_capacity(work: &Work<'_, '_>, formats: &OutputFormats) -> usize {
    let binary = (0..work.outputs().len()).filter(|&i| formats.is_binary(work.outputs()[i].output));
    let binary: usize = binary.map(|i| binary_size(work, i)).sum();
    256 + 128 * work.outputs().len() + floats::MAX_BYTES * json_numbers(work, formats) + binary
}

/// Appends the beginning of an Open Inference answer's JSON, up to the answer's first output.
fn write_head(servable: &Servable, id: Option<&str>, signature: &Signature, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"model_name\":");
    floats::write_string(servable.model(), out);
    out.extend_from_slice(b",\"model_version\":\"");
    out.extend_from_slice(itoa::Buffer::new().format(servable.version()).as_bytes());
    out.push(b'"');
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        floats::write_string(id, out);
    }
    out.extend_from_slice(b",\"parameters\":{\"");
    out.extend_from_slice(SIGNATURE_PARAMETER.as_bytes());
    out.extend_from_slice(b"\":");
    floats::write_string(&signature.name, out);
    out.extend_from_slice(b"},\"outputs\":[");
}

/// Appends the datatype and the shape of an output to the JSON of an Open Inference answer.
fn write_shape(shape: &OutputShape, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"datatype\":\"");
    out.extend_from_slice(datatype_of(shape.dtype).as_bytes());
    out.extend_from_slice(b"\",\"shape\":[");
    for (i, &size) in shape.dims.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_size(size, out);
    }
    out.push(b']');
}

fn write_size(size: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
}

fn write_strings(name: &str, strings: &[Vec<u8>], out: &mut Vec<u8>) -> Result<()> {
    out.push(b'[');
    for (i, string) in strings.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        // JSON can not represent a string that is not UTF-8: the error tells the client to ask for binary data.
        floats::write_string(std::str::from_utf8(string).map_err(|_| faults::output_not_utf8(name))?, out);
    }
    out.push(b']');
    Ok(())
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::super::oip_binary::version;
    use super::super::oip_fixture::{self, Elements, Lookup, SentTensor, call, lookups, mutated, routes, tensors};
    use super::*;
    use crate::forms::json::cursor::Cursor;
    use crate::plan::tests::is_fault;
    use crate::tables::halves::Half;

    /// The JSON form in which a test request has one tensor's data: a flat list, nested lists, or binary data after the JSON.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Form {
        Flat,
        Nested,
        Binary,
    }

    fn data_text(sent: &SentTensor, form: Form) -> String {
        let count: usize = sent.dims.iter().product();
        // In a JSON request, the `data` of a scalar tensor is a list with one element.
        let is_nested = form == Form::Nested && !sent.dims.is_empty();
        let dims = if is_nested { sent.dims.clone() } else { vec![count] };
        let mut text = vec![];
        match &sent.elements {
            Elements::Numbers(bytes) => {
                floats::write_numbers(sent.dtype, &dims, bytes, NonFinite::Tokens, &mut text);
            }
            Elements::Strings(strings) => {
                let strings: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
                floats::write_strings(&dims, &strings, false, &mut text);
            }
        }
        String::from_utf8(text).unwrap()
    }

    fn shape_text(sent: &SentTensor) -> String {
        format!("{:?}", sent.dims).replace(' ', "")
    }

    /// Returns the JSON text of a test request, and the data of its binary tensors. With `names_last`, the datatype
    /// follows the data.
    fn request(
        members: &str,
        tensors: &[(&str, SentTensor, Form)],
        names_last: bool,
        space: &str,
    ) -> (Vec<u8>, Vec<u8>) {
        let mut binary = vec![];
        let inputs: Vec<String> = tensors
            .iter()
            .map(|(name, sent, form)| {
                let data = if *form == Form::Binary {
                    let data = sent.elements.binary();
                    binary.extend_from_slice(&data);
                    format!(r#""parameters":{space}{{"binary_data_size":{space}{}}}"#, data.len())
                } else {
                    format!(r#""data":{space}{}"#, data_text(sent, *form).replace(',', &format!("{space},{space}")))
                };
                let data =
                    if sent.dtype == DataType::String { data.replace(&format!("{space},{space}"), ",") } else { data };
                let names = [
                    format!(r#""name":{space}"{name}""#),
                    format!(r#""shape":{space}{}"#, shape_text(sent)),
                    format!(r#""datatype":{space}"{}""#, datatype_of(sent.dtype)),
                ];
                let members = if names_last { [&[data], &names[..]].concat() } else { [&names[..], &[data]].concat() };
                format!("{{{space}{}{space}}}", members.join(&format!("{space},")))
            })
            .collect();
        let json = format!(
            r#"{{{members}{space}"inputs":{space}[{}{space}]{space}}}{space}"#,
            inputs.join(&format!(",{space}"))
        );
        (json.into_bytes(), binary)
    }

    fn response(signature: &str, id: &str, outputs: &[(&str, SentTensor, Form)]) -> Vec<u8> {
        let texts: Vec<String> = outputs
            .iter()
            .map(|(name, sent, form)| {
                let data = if *form == Form::Binary {
                    format!(r#""parameters":{{"binary_data_size":{}}}"#, sent.elements.binary().len())
                } else {
                    format!(r#""data":{}"#, data_text(sent, Form::Flat))
                };
                let datatype = datatype_of(sent.dtype);
                format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{},{data}}}"#, shape_text(sent))
            })
            .collect();
        let head = r#"{"model_name":"m","model_version":"3","#;
        let parameters = format!(r#""parameters":{{"signature_name":"{signature}"}}"#);
        let mut body = format!(r#"{head}{id}{parameters},"outputs":[{}]}}"#, texts.join(",")).into_bytes();
        for (_, sent, form) in outputs {
            if *form == Form::Binary {
                body.extend_from_slice(&sent.elements.binary());
            }
        }
        body
    }

    fn answered((json, binary): (Vec<u8>, Vec<u8>)) -> Result<(Vec<u8>, Option<usize>)> {
        let body = [&json[..], &binary].concat();
        let answered = answer(&call(&routes()), "m", Version::Latest, Some(json.len()), &body)?;
        Ok((answered.body.to_vec(), answered.json_length))
    }

    fn text_buffer(body: &str) -> Result<String> {
        let answered = answer(&call(&routes()), "m", Version::Latest, None, body.as_bytes())?;
        Ok(String::from_utf8(answered.body.to_vec()).unwrap())
    }

    /// Generates tensors, each with an encoding that can represent it: JSON only for finite numbers and for strings of
    /// UTF-8.
    fn formed() -> impl Strategy<Value = Vec<(&'static str, SentTensor, Form)>> {
        let formats = proptest::sample::select(vec![Form::Flat, Form::Nested, Form::Binary]);
        (tensors(), proptest::collection::vec(formats, oip_fixture::DTYPES.len())).prop_map(|(tensors, formats)| {
            let with_form = |(mut sent, mut form): (SentTensor, Form)| {
                match (&mut sent.elements, sent.dtype) {
                    (_, DataType::Float16 | DataType::Bfloat16) => form = Form::Binary,
                    (Elements::Numbers(bytes), DataType::Float32 | DataType::Float64) => {
                        let size = sent.dtype.size();
                        // A float is finite if the highest bit of its exponent is 0, so the test clears this bit.
                        bytes.chunks_exact_mut(size).for_each(|number| number[size - 1] &= 0xBF);
                    }
                    (Elements::Strings(strings), _) => {
                        for string in strings {
                            *string = String::from_utf8_lossy(string).into_owned().into_bytes();
                        }
                    }
                    _ => {}
                }
                (datatype_of(sent.dtype), sent, form)
            };
            tensors.into_iter().zip(formats).map(with_form).collect()
        })
    }

    fn outputs_text(tensors: &[(&str, SentTensor, Form)]) -> String {
        let output = |(name, _, form): &(&str, SentTensor, Form)| {
            format!(r#"{{"name":"{name}","parameters":{{"binary_data":{}}}}}"#, *form == Form::Binary)
        };
        format!(r#""outputs":[{}],"#, tensors.iter().map(output).collect::<Vec<_>>().join(","))
    }

    fn vectors(lookup: &Lookup, form: Form) -> Vec<(&'static str, SentTensor, Form)> {
        lookup.answer().into_iter().map(|(name, sent)| (name, sent, form)).collect()
    }

    fn formed_lookup(lookup: &Lookup, form: Form) -> Vec<(&'static str, SentTensor, Form)> {
        lookup.tensors().into_iter().map(|(name, sent)| (name, sent, form)).collect()
    }

    const ECHO: &str = r#""parameters":{"signature_name":"echo","priority":0},"#;

    proptest! {
        #[test]
        fn tensors_come_back(sent in formed(), names_last: bool, space in "[ \\n\\r\\t]{0,2}") {
            let members = format!("{ECHO}{}", outputs_text(&sent));
            let has_binary = |(_, sent, form): &(&str, SentTensor, Form)| {
                *form == Form::Binary && !matches!(&sent.elements, Elements::Strings(strings) if strings.is_empty())
            };
            let wanted = response("echo", "", &sent);
            let (body, json_length) = answered(request(&members, &sent, names_last, &space)).unwrap();
            prop_assert_eq!(String::from_utf8_lossy(&body), String::from_utf8_lossy(&wanted));
            prop_assert_eq!(&body, &wanted);
            prop_assert_eq!(json_length.is_some(), sent.iter().any(has_binary));
            let binary: usize = sent.iter().filter(|one| has_binary(one)).map(|one| one.1.elements.binary().len()).sum();
            prop_assert_eq!(json_length.unwrap_or(body.len()), body.len() - binary);
        }

        #[test]
        fn lookups_are_answered(lookup in lookups(), is_binary: bool, is_flat: bool) {
            let form = if is_flat { Form::Flat } else { Form::Binary };
            let members = format!(r#""id":"x","parameters":{{"binary_data_output":{is_binary}}},"#);
            let (body, json_length) = answered(request(&members, &formed_lookup(&lookup, form), false, "")).unwrap();
            let form = if is_binary { Form::Binary } else { Form::Flat };
            prop_assert_eq!(body, response("lookup", r#""id":"x","#, &vectors(&lookup, form)));
            prop_assert_eq!(json_length.is_some(), is_binary);
        }

        #[test]
        fn any_bytes_end(body: Vec<u8>, header_length in proptest::option::of(0_usize..40)) {
            let _ = answer(&call(&routes()), "m", Version::Latest, header_length, &body);
        }

        #[test]
        fn any_tokens_end(tokens in proptest::collection::vec("[\\[\\]{},:]|\"data\"|\"inputs\"|1|-|\"\\\\u|nul|1e9|\"", 0..20)) {
            let data = tokens.concat();
            for body in [data.clone(), format!(r#"{{"inputs":[{{"name":"FP32","datatype":"FP32","data":{data}"#)] {
                let _ = text_buffer(&body);
            }
        }

        #[test]
        fn mutated_requests_end(
            message in formed().prop_flat_map(|sent| mutated(request(ECHO, &sent, true, "").0)),
            binary: Vec<u8>,
        ) {
            if let Ok((body, None)) = answered((message.clone(), binary)) {
                let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
                prop_assert!(message.is_object());
                let text = String::from_utf8(body).unwrap().replace("-Infinity", "0").replace("Infinity", "0").replace("NaN", "0");
                prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            }
        }

        #[test]
        fn floats_are_those_of_the_standard_library(number: f64, text in "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?") {
            for text in [text, format!("{number:?}")] {
                let sent = Cursor::new(text.as_bytes()).and_then(|mut cursor| cursor.float());
                let wanted = text.parse::<f64>().unwrap();
                let is_whole = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
                let wanted = if is_whole && wanted == 0.0 { 0.0 } else { wanted };
                prop_assert_eq!(sent.ok().map(f64::to_bits), wanted.is_finite().then_some(wanted.to_bits()));
            }
        }
    }

    /// Compares an answer with the bytes that the former implementation in Python wrote for the same arrays.
    #[test]
    fn equals_the_reference() {
        let lookup = Lookup { users: vec![1, 42], items: vec![3, 4], tags: vec![vec![5, 6], vec![]], weights: None };
        let sent = formed_lookup(&lookup, Form::Flat);
        let head = r#"{"model_name":"m","model_version":"3","#;
        let user = r#"{"name":"user","datatype":"FP32","shape":[2,3],"#;
        let item = r#"{"name":"item","datatype":"FP32","shape":[2,2],"data":[-4.5,-4.4,-6.0,-5.9]}"#;
        let tags = r#"{"name":"tags","datatype":"FP32","shape":[2,2],"data":[-16.5,-16.3,0.0,0.0]}"#;

        let (body, json_length) = answered(request(r#""id":"4\"2\n\u00e9\u0001","#, &sent, false, "")).unwrap();
        let id = r#""id":"4\"2\né\u0001","parameters":{"signature_name":"lookup"},"#;
        let wanted =
            format!(r#"{head}{id}"outputs":[{user}"data":[0.125,1.125,2.125,5.25,6.25,7.25]}},{item},{tags}]}}"#);
        assert_eq!((String::from_utf8(body).unwrap(), json_length), (wanted, None));

        let members = r#""outputs":[{"name":"tags"},{"name":"user","parameters":{"binary_data":true}}],"#;
        let (body, json_length) = answered(request(members, &sent, false, "")).unwrap();
        let parameters = r#""parameters":{"signature_name":"lookup"},"#;
        let json = format!(r#"{head}{parameters}"outputs":[{tags},{user}"parameters":{{"binary_data_size":24}}}}]}}"#);
        let binary = b"\x00\x00\x00>\x00\x00\x90?\x00\x00\x08@\x00\x00\xa8@\x00\x00\xc8@\x00\x00\xe8@";
        assert_eq!((body, json_length), ([json.as_bytes(), binary].concat(), Some(253)));
    }

    #[test]
    fn numbers_without_digits_are_tokens_or_null() {
        let body = |number: f32| {
            let sent = SentTensor {
                dtype: DataType::Float32,
                dims: vec![1],
                elements: Elements::Numbers(number.to_le_bytes().to_vec()),
            };
            let members = format!(r#"{ECHO}"outputs":[{{"name":"FP32"}}],"#);
            let (json, binary) = request(&members, &[("FP32", sent, Form::Binary)], false, "");
            (json.len(), [json, binary].concat())
        };
        let routes = routes();
        for (number, token) in [(f32::NAN, "NaN"), (f32::INFINITY, "Infinity"), (-f32::INFINITY, "-Infinity")] {
            for strict_json in [false, true] {
                let (length, body) = body(number);
                let call = Call { strict_json, ..call(&routes) };
                let answered = answer(&call, "m", Version::Latest, Some(length), &body).unwrap();
                let wanted = format!(r#""data":[{}]}}]}}"#, if strict_json { "null" } else { token });
                assert!(answered.body.ends_with(wanted.as_bytes()), "{:?}", answered.body);
            }
        }
    }

    #[test]
    fn data_of_each_kind_is_read_as_the_reference_reads_it() {
        let echoed = |datatype: &str, count: usize, data: &str| {
            let input = format!(r#"{{"name":"{datatype}","shape":[{count}],"datatype":"{datatype}","data":{data}}}"#);
            let text = text_buffer(&format!(r#"{{{ECHO}"outputs":[{{"name":"{datatype}"}}],"inputs":[{input}]}}"#))?;
            Ok(text.split_once(r#""data":"#).unwrap().1.strip_suffix("}]}").unwrap().to_owned())
        };
        let good = [
            ("FP32", 3, "[1, -0, -0.0]", "[1.0,0.0,-0.0]"),
            ("FP32", 2, "[1e39, 1e-60]", "[Infinity,0.0]"),
            ("FP64", 2, "[18446744073709551616, 0.1]", "[1.8446744073709552e+19,0.1]"),
            ("FP16", 4, "[1, 1.0004882812509095, 65520, -1e-9]", "[1.0,1.0009766,Infinity,-0.0]"),
            ("BF16", 3, "[1, 1.0039062500009095, -1e39]", "[1.0,1.0,-Infinity]"),
            ("INT64", 2, "[-9223372036854775808,9223372036854775807]", "[-9223372036854775808,9223372036854775807]"),
            ("UINT64", 2, "[18446744073709551615,-0]", "[18446744073709551615,0]"),
            ("INT32", 4, "[[[1],[2]],[[3],[4]]]", "[1,2,3,4]"),
            ("INT32", 0, "[[],[]]", "[]"),
            ("BOOL", 2, "[true,false]", "[true,false]"),
            ("BYTES", 3, r#"["", "a\/\ud83d\ude00\u00e9", "\"\\"]"#, "[\"\",\"a/\u{1f600}é\",\"\\\"\\\\\"]"),
        ];
        for (datatype, count, data, wanted) in good {
            assert_eq!(echoed(datatype, count, data).as_deref(), Ok(wanted), "{data}");
        }
        let bad = [
            ("INT32", 1, "[1.0]"),
            ("INT32", 1, "[1e0]"),
            ("INT32", 1, "[2147483648]"),
            ("INT8", 1, "[128]"),
            ("UINT8", 1, "[-1]"),
            ("INT64", 1, "[9223372036854775808]"),
            ("UINT64", 1, "[18446744073709551616]"),
            ("INT64", 1, "[01]"),
            ("INT64", 1, "[+1]"),
            ("INT64", 1, "[-]"),
            ("INT64", 1, "[1,]"),
            ("INT64", 1, "1"),
            ("INT64", 1, "[true]"),
            ("INT64", 1, "[\"1\"]"),
            ("INT64", 1, "[null]"),
            ("INT64", 1, "null"),
            ("INT64", 2, "[1,[2]]"),
            ("INT64", 2, "[[1],2]"),
            ("INT64", 3, "[[1],[2,3]]"),
            ("INT64", 2, "[1]"),
            ("INT64", 1, "[[[]],[1]]"),
            ("INT64", 1, "[[],1]"),
            ("FP32", 1, "[1.]"),
            ("FP32", 1, "[.5]"),
            ("FP32", 1, "[1e400]"),
            ("FP16", 1, "[true]"),
            ("BF16", 1, "[\"1\"]"),
            ("BOOL", 1, "[1]"),
            ("BYTES", 1, r#"["\ud800"]"#),
            ("BYTES", 1, r#"["\ud800\ud800"]"#),
            ("BYTES", 1, "[\"\t\"]"),
            ("BYTES", 1, r#"["\x"]"#),
            ("BYTES", 1, "[1]"),
        ];
        for (datatype, count, data) in bad {
            let refused = echoed(datatype, count, data).expect_err("bad");
            assert!(matches!(refused, Declined::Fault(_)), "{datatype} {data} {refused:?}");
        }
    }

    #[test]
    fn unusual_bodies_are_declined() {
        let user = r#"{"name":"user","shape":[1],"datatype":"INT64","data":[7]}"#;
        for (members, is_good) in [
            (format!(r#""inputs":[{user}]"#), true),
            (format!(r#""id":null,"parameters":null,"outputs":null,"other":1.5,"inputs":[{user}]"#), true),
            (format!(r#""inputs":[{user}],"outputs":[{{"name":"user","parameters":{{"x":null}}}}]"#), true),
            (format!(r#""inputs":[{user},{user}]"#), false),
            (format!(r#""inputs":[{user}],"inputs":[]"#), false),
            (format!(r#""id":1,"inputs":[{user}]"#), false),
            (format!(r#""other":{{}},"inputs":[{user}]"#), true),
            (format!(r#""other":1e999,"inputs":[{user}]"#), false),
            (format!(r#""other":Infinity,"inputs":[{user}]"#), true),
            (format!(r#""parameters":{{"classification":1}},"inputs":[{user}]"#), false),
            (format!(r#""parameters":{{"signature_name":null}},"inputs":[{user}]"#), false),
            (format!(r#""parameters":{{"binary_data_output":1}},"inputs":[{user}]"#), false),
            (format!(r#""inputs":[{user}],"outputs":[{{"name":"user"}},{{"name":"user"}}]"#), false),
            (format!(r#""inputs":[{user}],"outputs":[{{"name":"none"}}]"#), false),
            (format!(r#""inputs":[{user}],"outputs":[{{}}]"#), false),
            (
                r#""inputs":[{"name":"user","shape":[1],"datatype":"INT64","parameters":{"binary_data_size":0}}]"#
                    .into(),
                false,
            ),
            (r#""inputs":[{"name":"user","shape":[-1],"datatype":"INT64","data":[]}]"#.into(), false),
            (r#""inputs":[{"name":"user","shape":[1.0],"datatype":"INT64","data":[7]}]"#.into(), false),
            (r#""inputs":[{"name":"user","datatype":"INT64","data":[7]}]"#.into(), false),
            (r#""inputs":[{"name":"user","shape":[1],"data":[7]}]"#.into(), false),
            (r#""inputs":[{"name":"user","shape":[1],"datatype":"int64","data":[7]}]"#.into(), false),
            (r#""inputs":null"#.into(), false),
            (r#""id":"1""#.into(), false),
        ] {
            assert_eq!(text_buffer(&format!("{{{members}}}")).is_ok(), is_good, "{members}");
        }
        for body in ["", "null", "[]", "{}x", "\u{feff}{}"] {
            assert!(is_fault(text_buffer(body)), "{body}");
        }
        let routes = routes();
        let body = format!(r#"{{"inputs":[{user}]}}"#);
        let of = |model, text, length| {
            answer(&call(&routes), model, version(text).unwrap(), length, body.as_bytes()).map(|one| one.rows)
        };
        assert_eq!(of("m", "stable", None), Ok(1));
        assert_eq!(of("m", "3", Some(body.len())), Ok(1));
        assert_eq!(
            of("m", "4", None),
            Err(faults::unknown_version("m", 4, "; versions served: 3").of_model("m").into())
        );
        assert_eq!(of("n", "", None), Err(faults::unknown_model("n").into()));
        assert!(is_fault(of("m", "", Some(body.len() + 1))));
        assert!(is_fault(of("m", "", Some(body.len() - 1))));
    }

    #[test]
    fn outputs_come_in_the_datatype_that_is_asked_for() {
        let lookup = Lookup { users: vec![1, 42], items: vec![3, 4], tags: vec![vec![5, 6], vec![]], weights: None };
        let sent = formed_lookup(&lookup, Form::Flat);
        for (datatype, half, dtype) in
            [("FP16", Half::Float16, DataType::Float16), ("BF16", Half::Bfloat16, DataType::Bfloat16)]
        {
            // The second body has a key that the fast reader leaves to `explain`.
            for (form, more) in [(Form::Binary, ""), (Form::Flat, r#""other":{},"#)] {
                let is_binary = form == Form::Binary;
                let members = format!(
                    r#"{more}"parameters":{{"output_datatype":"{datatype}","binary_data_output":{is_binary}}},"#
                );
                let outputs = vectors(&lookup, form).into_iter().map(|(name, sent, form)| {
                    let Elements::Numbers(numbers) = sent.elements else { panic!("no numbers") };
                    let halves = half.rounded(&numbers);
                    (name, SentTensor { dtype, elements: Elements::Numbers(halves), ..sent }, form)
                });
                let expected = response("lookup", "", &outputs.collect::<Vec<_>>());
                let (found, _) = answered(request(&members, &sent, false, "")).unwrap();
                assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
            }
        }
        for datatype in [r#""INT8""#, r#""fp16""#, "null", "16"] {
            let members = format!(r#""parameters":{{"output_datatype":{datatype}}},"#);
            assert!(is_fault(answered(request(&members, &sent, false, ""))), "{datatype}");
        }
    }

    #[test]
    fn large_texts_are_large_work() {
        let routes = oip_fixture::routes_of(64, 32);
        let small = Call { effort: Effort::Small, ..call(&routes) };
        let lookup = oip_fixture::large_lookup();
        for (members, is_large) in [("", true), (r#""parameters":{"binary_data_output":true},"#, false)] {
            let (body, _) = request(members, &formed_lookup(&lookup, Form::Flat), false, "");
            let declined = answer(&small, "m", Version::Latest, None, &body).err();
            assert_eq!(declined, is_large.then_some(Declined::TooLarge));
        }
        let body = vec![b' '; SMALL_JSON_BYTES + 1];
        assert!(matches!(answer(&small, "m", Version::Latest, None, &body), Err(Declined::TooLarge)));
    }
}
