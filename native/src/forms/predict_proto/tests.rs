//! Compares whole answers with messages that the encoder in Python wrote.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;

use super::*;
use crate::forms::protobuf::write_delimited;
use crate::forms::tensor_proto::tests::ProstTensor;
use crate::plan::tests::{is_fault, output, toy};
use crate::plan::{
    DataType, Description, Graph, GraphOutput, GraphRequest, GraphResult, ModelRoutes, Notes, OutputData, Routes,
    VersionMemory,
};
use crate::tables::halves::Half;

#[derive(Clone, PartialEq, Message)]
struct ProstVersion {
    #[prost(int64, tag = "1")]
    value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ProstSpec {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    version: Option<ProstVersion>,
    #[prost(string, tag = "3")]
    signature_name: String,
    #[prost(string, tag = "4")]
    version_label: String,
}

#[derive(Clone, PartialEq, Message)]
struct ProstRequest {
    #[prost(message, optional, tag = "1")]
    model_spec: Option<ProstSpec>,
    #[prost(map = "string, message", tag = "2")]
    inputs: HashMap<String, ProstTensor>,
    #[prost(string, repeated, tag = "3")]
    output_filter: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ProstResponse {
    #[prost(map = "string, message", tag = "1")]
    outputs: HashMap<String, ProstTensor>,
    #[prost(message, optional, tag = "2")]
    model_spec: Option<ProstSpec>,
}

fn routes_to(servable: Servable) -> Routes {
    let version = servable.version();
    let model = ModelRoutes {
        versions: vec![(version, Some(Arc::new(servable)))],
        labels: vec![("stable".to_owned(), version)],
        problem: String::new(),
        log_rate: 0.0,
    };
    Routes::default().with(HashMap::from([("m".to_owned(), model)]), &[])
}

fn call(routes: &Routes, as_content: bool) -> Call<'_> {
    Call {
        routes,
        effort: Effort::Any,
        max_response_bytes: 1 << 20,
        encoding: TensorEncoding::of_server(as_content),
        strict_json: false,
        grant: None,
        log: None,
    }
}

fn ids(numbers: &[i64]) -> ProstTensor {
    let mut tensor = ProstTensor::new(DataType::Int64, &[numbers.len()]);
    tensor.int64_val = numbers.to_vec();
    tensor
}

fn spec() -> ProstSpec {
    ProstSpec { name: "m".to_owned(), signature_name: "lookup".to_owned(), ..ProstSpec::default() }
}

fn request(inputs: &[(&str, ProstTensor)]) -> ProstRequest {
    ProstRequest {
        model_spec: Some(spec()),
        inputs: inputs.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect(),
        output_filter: vec![],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn a_lookup_answers_as_the_reference_does() {
    let routes = routes_to(toy());
    let message = request(&[("one", ids(&[4, 0]))]).encode_to_vec();
    for (as_content, field) in [(false, "2a"), (true, "22")] {
        let answered = answer(&call(&routes, as_content), &message).expect("an answer");
        let expected = format!(
            "0a250a036f6e65121e080112081202080212020802{field}100000204200002442000000000000803f\
             120f0a016d120208031a066c6f6f6b7570"
        );
        assert_eq!(hex(&answered.body), expected);
        assert_eq!((answered.rows, answered.signature, answered.servable.version()), (2, 0, 3));
    }
}

#[test]
fn a_filter_chooses_outputs_in_its_order() {
    let routes = routes_to(toy());
    let mut one =
        request(&[("bag__row_splits", ids(&[0, 2, 3])), ("bag__values", ids(&[1, 2, 3])), ("one", ids(&[4, 0]))]);
    one.output_filter = vec!["both".to_owned(), "one".to_owned()];
    let body = answer(&call(&routes, false), &one.encode_to_vec()).expect("an answer").body;
    let found = ProstResponse::decode(&body[..]).expect("a response");
    assert_eq!(found.outputs["both"].float_val, [40.0, 41.0, 15.0, 16.0, 0.0, 1.0, 30.0, 31.0]);
    assert_eq!(found.outputs["one"].float_val, [40.0, 41.0, 0.0, 1.0]);
    assert_eq!(found.outputs.len(), 2);
    let place = |name: &[u8]| body.windows(name.len()).position(|part| part == name);
    assert!(place(b"\x0a\x04both") < place(b"\x0a\x03one"));
}

#[test]
fn versions_and_labels_are_found() {
    let routes = routes_to(toy());
    let ask = |spec: ProstSpec| {
        let one = ProstRequest { model_spec: Some(spec), ..request(&[("one", ids(&[1]))]) };
        answer(&call(&routes, false), &one.encode_to_vec()).map(|answered| answered.rows)
    };
    let numbered = |value| ProstSpec { version: Some(ProstVersion { value }), ..spec() };
    let labelled = |label: &str| ProstSpec { version_label: label.to_owned(), ..spec() };
    assert_eq!(ask(numbered(3)), Ok(1));
    assert_eq!(ask(labelled("stable")), Ok(1));
    for unknown in [
        numbered(0),
        numbered(-3),
        labelled("canary"),
        ProstSpec { name: "n".to_owned(), ..spec() },
        ProstSpec { name: String::new(), ..spec() },
        ProstSpec { signature_name: String::new(), ..spec() },
        ProstSpec { signature_name: "none".to_owned(), ..spec() },
    ] {
        assert!(is_fault(ask(unknown.clone())), "{unknown:?}");
    }
    let both = ProstSpec { version_label: "stable".to_owned(), ..numbered(3) };
    // The last one of a version and a label counts.
    assert_eq!(ask(both), ask(labelled("stable")));
}

#[test]
fn the_order_of_fields_does_not_matter() {
    let routes = routes_to(toy());
    let whole = request(&[("one", ids(&[1]))]);
    let spec_only = ProstRequest { inputs: HashMap::new(), ..whole.clone() };
    let inputs_only = ProstRequest { model_spec: None, ..whole };
    let (spec, inputs) = (spec_only.encode_to_vec(), inputs_only.encode_to_vec());
    let answered = |message: &[u8]| answer(&call(&routes, false), message).map(|answered| answered.body);
    assert_eq!(answered(&[&inputs[..], &spec].concat()), answered(&[&spec[..], &inputs].concat()));
    assert!(answered(&[&spec[..], &inputs].concat()).is_ok());

    // The test's map entry has its value before its key, because a message may have its fields in any order.
    let tensor = ids(&[1]).encode_to_vec();
    let mut entry = Vec::new();
    write_delimited(&mut entry, 2, &tensor);
    write_delimited(&mut entry, 1, b"one");
    let mut message = spec.clone();
    write_delimited(&mut message, 2, &entry);
    assert_eq!(answered(&message), answered(&[&spec[..], &inputs].concat()));

    let twice = [&spec[..], &inputs, &inputs].concat();
    let whole = answered(&[&spec[..], &inputs].concat());
    assert_eq!(answered(&twice), whole, "an input twice");
    assert_eq!(answered(&[&spec[..], &inputs, &spec].concat()), whole, "a spec in pieces");
    assert!(is_fault(answered(&inputs)), "no spec");
    assert_eq!(answered(&[&spec[..], &inputs, b"\x2a\x00"].concat()), whole, "a field of newer protos");
    assert_eq!(answered(&[&spec[..], &inputs, b"\x2b\x08\x01\x2c"].concat()), whole, "a group");
    assert!(is_fault(answered(&[&spec[..], b"\x12\x00"].concat())), "an input without a name");
    assert!(is_fault(answered(b"\x0b")), "a group without its end");
}

#[test]
fn bad_requests_are_declined() {
    let routes = routes_to(toy());
    let declined = |one: &ProstRequest| answer(&call(&routes, false), &one.encode_to_vec()).map(|_| ()).err();
    assert!(matches!(declined(&request(&[("two", ids(&[1]))])), Some(Declined::Fault(_))));
    assert!(matches!(declined(&request(&[("one", ids(&[5]))])), Some(Declined::Fault(_))));
    assert!(matches!(declined(&request(&[])), Some(Declined::Fault(_))));
    for filter in [&["one", "one"][..], &["none"], &[""]] {
        let one = ProstRequest {
            output_filter: filter.iter().map(|&name| name.to_owned()).collect(),
            ..request(&[("one", ids(&[1]))])
        };
        assert!(matches!(declined(&one), Some(Declined::Fault(_))), "{filter:?}");
    }
}

#[test]
fn long_requests_are_large_work() {
    let routes = routes_to(toy());
    let small = Call { effort: Effort::Small, ..call(&routes, false) };
    let long = request(&[("one", ids(&vec![1; SMALL_REQUEST]))]).encode_to_vec();
    assert_eq!(answer(&small, &long).map(|_| ()), Err(Declined::TooLarge));
    let short = request(&[("one", ids(&[1]))]).encode_to_vec();
    assert!(answer(&small, &short).is_ok());
}

/// A test graph with one output of each dtype.
#[derive(Debug)]
struct EveryDtype;

impl Graph for EveryDtype {
    fn run(&self, request: GraphRequest<'_, '_>, _: Effort<'_>) -> GraphResult {
        let ran = request.wanted.iter().map(|&number| {
            let (_, dtype, dims, bytes) = EVERY_DTYPE[number];
            let data = if dtype == DataType::String {
                OutputData::Strings(vec![b"a".to_vec(), vec![], vec![0xFF; 3]])
            } else {
                OutputData::Numbers(Box::new(bytes))
            };
            GraphOutput { dtype, dims: dims.iter().copied().collect(), data }
        });
        Ok((ran.collect(), Notes::default()))
    }
}

#[rustfmt::skip]
const EVERY_DTYPE: [(&str, DataType, &[usize], &[u8]); 16] = [
    ("float32", DataType::Float32, &[1, 2], b"\0\0\xc0\x3f\0\0\0\xc0"),
    ("float64", DataType::Float64, &[1], b"\0\0\0\0\0\0\xd0\x3f"),
    ("int32", DataType::Int32, &[2], b"\xff\xff\xff\xff\x2c\x01\0\0"),
    ("uint8", DataType::Uint8, &[2, 1], b"\xff\x01"),
    ("int16", DataType::Int16, &[2], b"\xfe\xff\xf4\x01"),
    ("int8", DataType::Int8, &[2], b"\x80\x7f"),
    ("string", DataType::String, &[3], b""),
    ("int64", DataType::Int64, &[2], b"\xfd\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\x01\0\0"),
    ("bool", DataType::Bool, &[2], b"\x01\0"),
    ("bfloat16", DataType::Bfloat16, &[2], b"\x80\x3f\x80\xbf"),
    ("uint16", DataType::Uint16, &[1], b"\xff\xff"),
    ("float16", DataType::Float16, &[2], b"\0\x3c\0\xbc"),
    ("uint32", DataType::Uint32, &[1], b"\xff\xff\xff\xff"),
    ("uint64", DataType::Uint64, &[1], b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    ("scalar", DataType::Float32, &[], b"\0\0\xe0\x40"),
    ("empty", DataType::Float32, &[0, 200], b""),
];

/// The bytes that `encode_response` of `service/wire/predict_proto.py` writes for the arrays of `EVERY_DTYPE`.
const IN_VALUES: &str = "\
    0a210a07666c6f6174333212160801120812020801120208022a080000c03f000000c00a1d0a07666c6f61743634121208021204120208\
    013208000000000000d03f0a1f0a05696e743332121608031204120208023a0cffffffffffffffffff01ac020a1a0a0575696e74381211\
    0804120812020802120208013a03ff01010a1f0a05696e743136121608051204120208023a0cfeffffffffffffffff01f4030a1d0a0469\
    6e7438121508061204120208023a0b80ffffffffffffffff017f0a1c0a06737472696e671212080712041202080342016142004203ffff\
    ff0a230a05696e743634121a08091204120208025210fdffffffffffffffff018080808080200a140a04626f6f6c120c080a1204120208\
    025a0201000a1b0a0862666c6f61743136120f080e1204120208026a05807f80ff020a170a0675696e743136120d08111204120208013a\
    03ffff030a1a0a07666c6f61743136120f08131204120208026a05807880f8020a1a0a0675696e74333212100816120412020801820105\
    ffffffff0f0a1f0a0675696e743634121508171204120208018a010affffffffffffffffff010a140a067363616c6172120a080112002a\
    040000e0400a160a05656d707479120d0801120912020800120308c80112190a016d120308ac021a0f73657276696e675f64656661756c\
    74";
const IN_CONTENT: &str = "\
    0a210a07666c6f61743332121608011208120208011202080222080000c03f000000c00a1d0a07666c6f61743634121208021204120208\
    012208000000000000d03f0a1b0a05696e743332121208031204120208022208ffffffff2c0100000a190a0575696e7438121008041208\
    12020802120208012202ff010a170a05696e743136120e08051204120208022204fefff4010a140a04696e7438120c0806120412020802\
    2202807f0a1b0a06737472696e6712110807120412020803220701000361ffffff0a230a05696e743634121a08091204120208022210fd\
    ffffffffffffff00000000000100000a140a04626f6f6c120c080a120412020802220201000a1a0a0862666c6f61743136120e080e1204\
    120208022204803f80bf0a160a0675696e743136120c08111204120208012202ffff0a190a07666c6f61743136120e0813120412020802\
    2204003c00bc0a180a0675696e743332120e08161204120208012204ffffffff0a1c0a0675696e743634121208171204120208012208ff\
    ffffffffffffff0a140a067363616c6172120a0801120022040000e0400a160a05656d707479120d0801120912020800120308c8011219\
    0a016d120308ac021a0f73657276696e675f64656661756c74";

#[test]
fn every_dtype_is_encoded_as_by_the_reference() {
    let outputs = EVERY_DTYPE.iter().map(|(name, dtype, _, _)| {
        let mut one = output(name, &[], false);
        one["dtype"] = json!(format!("{dtype:?}").to_lowercase());
        one
    });
    let signature = json!({"name": "serving_default", "kind": "predict", "max_rows": null, "graph": {},
        "inputs": [], "features": [], "outputs": outputs.collect::<Vec<_>>()});
    let description = json!({"model": "m", "version": 300, "tables": [], "vocabularies": [],
        "signatures": [signature]});
    let description: Description = serde_json::from_value(description).expect("a description");
    let servable = Servable::compile(description, VersionMemory::default(), &|_| Ok(Box::new(EveryDtype)));
    let routes = routes_to(servable.expect("fits"));
    let message = ProstRequest {
        model_spec: Some(ProstSpec { signature_name: String::new(), ..spec() }),
        ..ProstRequest::default()
    }
    .encode_to_vec();
    for (as_content, expected) in [(false, IN_VALUES), (true, IN_CONTENT)] {
        let answered = answer(&call(&routes, as_content), &message).expect("an answer");
        assert_eq!(hex(&answered.body), expected);
        assert_eq!(answered.body.len() * 2, expected.len());
    }
}

#[test]
fn float32_outputs_are_rounded_to_halves() {
    let routes = routes_to(toy());
    let message = request(&[("one", ids(&[4, 0]))]).encode_to_vec();
    for (half, dtype, content) in
        [(Half::Float16, "13", "005120510000003c"), (Half::Bfloat16, "0e", "204224420000803f")]
    {
        let call = Call { encoding: TensorEncoding::Half(half), ..call(&routes, false) };
        let answered = answer(&call, &message).expect("an answer");
        let tensor = format!("08{dtype}120812020802120208022208{content}");
        assert_eq!(hex(&answered.body), format!("0a1d0a036f6e651216{tensor}120f0a016d120208031a066c6f6f6b7570"));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_panic(bytes in vec(any::<u8>(), 0..100)) {
        let routes = routes_to(toy());
        let _ = answer(&call(&routes, false), &bytes);
    }

    #[test]
    fn no_change_of_a_request_makes_a_panic(
        changes in vec((any::<u16>(), any::<u8>()), 1..4),
        cut in any::<u16>(),
        is_cut in any::<bool>(),
    ) {
        let routes = routes_to(toy());
        let mut message = request(&[
            ("one", ids(&[4, 0])),
            ("bag__values", ids(&[1, 2, 300])),
            ("bag__row_splits", ids(&[0, 2, 3])),
            ("pair", ProstTensor::new(DataType::Int64, &[2, 2])),
        ])
        .encode_to_vec();
        for (at, byte) in changes {
            let at = usize::from(at) % message.len();
            message[at] = byte;
        }
        if is_cut {
            message.truncate(usize::from(cut) % message.len());
        }
        if let Ok(answered) = answer(&call(&routes, false), &message) {
            prop_assert!(ProstResponse::decode(answered.body).is_ok());
        }
    }
}
