//! Tests of TensorFlow sessions and tensors. Tests that need TensorFlow only run if the variable `TENSORFLOW_LIBRARY`
//! has the path of its library.

use std::path::Path;

use super::c_api::Api;
use super::session::{GraphError, Session, op_definition};
use super::tensor::{AlignedBuffer, Tensor, num_elements};

const FLOAT: u32 = 1;
const STRING: u32 = 7;

/// Loads TensorFlow; prints a message and returns None if the variable `TENSORFLOW_LIBRARY` is not set.
fn tensorflow() -> Option<&'static Api> {
    let Some(path) = std::env::var_os("TENSORFLOW_LIBRARY") else {
        eprintln!("skipped: TENSORFLOW_LIBRARY names no libtensorflow_cc");
        return None;
    };
    Some(Api::open(Path::new(&path)).unwrap())
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).unwrap();
    assert!(len < 128);
    [&[number << 3 | 2, len], bytes].concat()
}

/// Encodes a node of a `GraphDef`, with one attribute: a dtype.
fn node(name: &str, op: &str, inputs: &[&str], attribute: &str, dtype: u8) -> Vec<u8> {
    let value = field(2, &[6 << 3, dtype]);
    let attribute = field(5, &[field(1, attribute.as_bytes()), value].concat());
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(3, input.as_bytes())).collect();
    field(1, &[field(1, name.as_bytes()), field(2, op.as_bytes()), inputs, attribute].concat())
}

fn doubling(dtype: u8) -> Vec<u8> {
    [node("x", "Placeholder", &[], "dtype", dtype), node("y", "Add", &["x", "x"], "T", dtype)].concat()
}

fn floats(api: &'static Api, numbers: &[f32]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(api, FLOAT, &[numbers.len().try_into().unwrap()], AlignedBuffer::copy_of(&bytes).unwrap()).unwrap()
}

#[test]
fn shapes_over_which_tensorflow_would_abort_are_refused() {
    assert_eq!(num_elements(&[]), Some(1));
    assert_eq!(num_elements(&[3, 0, 5]), Some(0));
    assert_eq!(num_elements(&[2, 3]), Some(6));
    for dims in [&[-1][..], &[1 << 40, 1 << 40], &[0, 1 << 40, 1 << 40], &[1; 255]] {
        assert_eq!(num_elements(dims), None, "{dims:?}");
    }
}

#[test]
fn buffers_are_aligned() {
    for len in [0, 1, 63, 64, 1000] {
        let mut buffer = AlignedBuffer::new(len);
        assert_eq!(buffer.memory().len(), len);
        assert_eq!(buffer.memory().as_ptr().addr() % 64, 0);
    }
    assert!(AlignedBuffer::try_new(1 << 60).is_none() && AlignedBuffer::try_new(1 << 26).is_some());
}

#[test]
fn a_graph_runs_from_tensors_to_tensors() {
    let Some(api) = tensorflow() else { return };
    let session = Session::open(api, &doubling(1), &[], 1).unwrap();
    let callable = session.callable(&["x:0"], &["y:0"], &[]).unwrap();
    let found = session.run(&callable, &[floats(api, &[1.5, -2.0, 0.0])]).unwrap();
    assert_eq!((found[0].dtype(), found[0].dims()), (FLOAT, vec![3]));
    let numbers: Vec<f32> = found[0].bytes().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(numbers, [3.0, -4.0, 0.0]);
    let empty = session.run(&callable, &[floats(api, &[])]).unwrap();
    assert_eq!((empty[0].dims(), empty[0].bytes()), (vec![0], &[][..]));
}

#[test]
fn a_long_run_opens_the_second_session() {
    let Some(api) = tensorflow() else { return };
    for (num_weights, step, is_opened) in [(1 << 26, "y", true), ((1 << 26) - 1, "y", false), (1 << 26, "none", false)]
    {
        let session = Session::open(api, &doubling(u8::try_from(STRING).unwrap()), &[], 1).unwrap();
        let texts = vec![("x:0".to_owned(), b"a".to_vec())];
        session.open_for_long_runs(vec![], vec![(step.to_owned(), texts)], num_weights);
        let callable = session.callable(&["x:0"], &["y:0"], &[]).unwrap();
        for rows in [1, 2] {
            assert!(!session.is_open_for_long_runs());
            let texts = vec![b"ab".as_slice(); rows];
            let fed = Tensor::of_strings(api, &[i64::try_from(rows).unwrap()], texts.into_iter()).unwrap();
            let found = session.run(&callable, &[fed]).unwrap();
            assert_eq!(found[0].strings(), vec![b"abab"; rows]);
        }
        assert_eq!(session.is_open_for_long_runs(), is_opened, "{num_weights} {step}");
    }
}

#[test]
fn shapes_are_known_as_far_as_the_graph_says_them() {
    let Some(api) = tensorflow() else { return };
    let session = Session::open(api, &[doubling(1), node("n", "Size", &["x"], "T", 1)].concat(), &[], 1).unwrap();
    assert_eq!(session.shape("y:0").unwrap(), None);
    assert_eq!(session.shape("n:0").unwrap(), Some(vec![]));
    assert_eq!(session.shape("z:0").unwrap_err().code, 3);
}

#[test]
fn definitions_of_ops_are_found_by_name() {
    let Some(api) = tensorflow() else { return };
    let found = op_definition(api, "AddV2").unwrap().unwrap();
    // Field 1 of an OpDef is the op's name.
    assert_eq!(found[..7], *b"\n\x05AddV2");
    assert_eq!(op_definition(api, "NoSuchOp").unwrap(), None);
    assert_eq!(op_definition(api, "Add\0V2").unwrap(), None);
}

#[test]
fn a_graph_flushes_denormal_numbers_as_on_threads_of_tensorflow() {
    let Some(api) = tensorflow() else { return };
    // The field `experimental` of the ConfigProto, with its `executor_type`.
    let alone = field(16, &field(3, b"SINGLE_THREADED_EXECUTOR"));
    let tag = u8::try_from((16 << 3 | 2) & 0x7f | 0x80).unwrap();
    let alone = [&[tag, 1], &alone[1..]].concat();
    let denormal = f32::from_bits(1 << 20);
    for config in [&[][..], &alone] {
        let session = Session::open(api, &doubling(1), config, 1).unwrap();
        let callable = session.callable(&["x:0"], &["y:0"], &[]).unwrap();
        let found = session.run(&callable, &[floats(api, &[denormal, -denormal, 1.5])]).unwrap();
        let numbers: Vec<u32> = found[0].bytes().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        assert_eq!(numbers, [0, 1 << 31, 3.0_f32.to_bits()]);
        let after = std::hint::black_box(denormal) + std::hint::black_box(denormal);
        assert_eq!(after.to_bits(), 1 << 21, "this thread computes as before");
    }
}

#[test]
fn strings_go_in_and_out() {
    let Some(api) = tensorflow() else { return };
    let session = Session::open(api, &doubling(7), &[], 1).unwrap();
    let callable = session.callable(&["x:0"], &["y:0"], &[]).unwrap();
    let long = [b'z'; 100];
    let strings: [&[u8]; 3] = [b"a", b"", &long];
    let sent = Tensor::of_strings(api, &[3, 1], strings.into_iter()).unwrap();
    let found = session.run(&callable, &[sent]).unwrap();
    assert_eq!((found[0].dtype(), found[0].dims()), (STRING, vec![3, 1]));
    assert_eq!(found[0].strings(), [&b"aa"[..], b"", &[b'z'; 200]]);
    assert!(Tensor::of_strings(api, &[2], strings.into_iter()).is_none());
}

#[test]
fn errors_have_the_messages_of_tensorflow() {
    let Some(api) = tensorflow() else { return };
    let session = Session::open(api, &doubling(1), &[], 1).unwrap();
    let callable = session.callable(&["x:0"], &["y:0"], &[]).unwrap();
    let sent = Tensor::of_strings(api, &[1], std::iter::once(&b"1"[..])).unwrap();
    let GraphError { code, message } = session.run(&callable, &[sent]).unwrap_err();
    assert_eq!(code, 3);
    assert!(message.contains("float"), "{message}");
    assert_eq!(session.run(&callable, &[]).unwrap_err().code, 3);
    assert_eq!(session.callable(&["x:1"], &[], &[]).unwrap_err().code, 3);
    assert_eq!(session.callable(&[], &["z:0"], &[]).unwrap_err().code, 3);
    assert!(Session::open(api, b"no graph", &[], 1).is_err());
    let other = Session::open(api, &doubling(1), &[], 1).unwrap();
    assert!(other.run(&callable, &[floats(api, &[1.0])]).is_err());
}

#[test]
fn sessions_are_found_until_the_last_reference_is_dropped() {
    let Some(api) = tensorflow() else { return };
    let session = Session::open(api, &doubling(1), &[], 1).unwrap();
    let number = session.number;
    assert!(Session::of_number(number).is_some());
    drop(session);
    assert!(Session::of_number(number).is_none());
}

#[test]
fn a_number_of_the_wrong_size_makes_no_tensor() {
    let Some(api) = tensorflow() else { return };
    assert!(Tensor::new(api, FLOAT, &[2], AlignedBuffer::copy_of(&[0; 4]).unwrap()).is_none());
    assert!(Tensor::new(api, STRING, &[0], AlignedBuffer::new(0)).is_none());
    assert!(Tensor::new(api, 20, &[0], AlignedBuffer::new(0)).is_none());
}
