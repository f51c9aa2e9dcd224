//! Compares lookups with rows worked out by hand: row `i` of every table is `[10 i, 10 i + 1]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::declined::Declined;
use super::*;
use crate::tables::halves::Half;
use crate::tables::memory::Memory;

#[allow(clippy::cast_precision_loss, reason = "the tables of tests hold numbers below 2^24")]
fn small(number: usize) -> f32 {
    number as f32
}

/// Returns a servable for tests that owns its tables; `tables` has V and D of each table.
pub(crate) fn servable(signatures: Value, tables: &[(usize, usize)]) -> Servable {
    servable_with(signatures, tables, json!([]), None)
}

/// Returns a servable as `servable` does; `more` is the buffer behind those of the tables.
fn servable_with(signatures: Value, tables: &[(usize, usize)], vocabularies: Value, more: Option<Memory>) -> Servable {
    let buffers = tables.iter().map(|&(size, dim)| {
        Memory::of_numbers((0..size).flat_map(|row| (0..dim).map(move |d| small(10 * row + d))).collect())
    });
    let described: Vec<Value> = tables
        .iter()
        .enumerate()
        .map(|(number, (size, dim))| {
            json!({"name": format!("t{number}"), "dtype": "float32", "vocabulary_size": size, "embedding_dim": dim,
                "rows": number})
        })
        .collect();
    let mut description = json!({"model": "m", "version": 3, "tables": described});
    description["signatures"] = signatures;
    description["vocabularies"] = vocabularies;
    let description: Description = serde_json::from_value(description).expect("a description");
    let memory = VersionMemory { buffers: buffers.chain(more).collect(), ..VersionMemory::default() };
    Servable::compile(description, memory, &|_| Err("no graph".to_owned())).expect("fits")
}

/// Says whether a request is refused for a fault of its own.
#[allow(clippy::needless_pass_by_value, reason = "tests hand over what they have asked for")]
pub(crate) fn is_fault<T>(result: Result<T, Declined>) -> bool {
    matches!(result, Err(Declined::Fault(_)))
}

pub(crate) fn input(name: &str, dtype: &str, shape: Value, is_optional: bool) -> Value {
    let mut one = json!({"name": name, "dtype": dtype, "is_optional": is_optional, "vocabulary_size": null,
        "bounds": "both", "vocabulary": null, "takes_keys": false, "takes_strings": false});
    one["shape"] = shape;
    one
}

pub(crate) fn feature(name: &str, ids: usize, more: Value) -> Value {
    let mut one = json!({"name": name, "ids": ids, "row_splits": null, "weights": null, "table": 0, "combiner": null,
        "summation": "in_order", "on_bad_id": "error", "default_row": 0, "at_least_one": false, "positive_only": false,
        "max_ids": 0, "truncates": false, "length": 0});
    let Value::Object(more) = more else { panic!("an object is needed") };
    for (key, value) in more {
        one[key] = value;
    }
    one
}

pub(crate) fn output(name: &str, parts: &[usize], is_flat: bool) -> Value {
    json!({"name": name, "dtype": "float32", "parts": parts, "is_flat": is_flat})
}

/// Returns a servable whose signature "lookup" has the features `one` (single ids), `bag` (ragged, mean, weights),
/// `path` (sequence of 2) and `pair` (ids [B, 2]), an output for each, and `both`: the vectors of `one` and `bag` side
/// by side.
pub(crate) fn toy() -> Servable {
    let signature = json!({
        "name": "lookup", "kind": "lookup", "max_rows": 100, "graph": null,
        "inputs": [
            input("one", "int64", json!([null]), true),
            input("bag__values", "int64", json!([null]), true),
            input("bag__row_splits", "int64", json!([null]), true),
            input("bag__weights", "float32", json!([null]), true),
            input("path__values", "int32", json!([null]), true),
            input("path__row_splits", "int64", json!([null]), true),
            input("pair", "int64", json!([null, 2]), true),
        ],
        "ragged_names": [
            {"feature": "bag", "values": 1, "row_splits": 2, "weights": "bag__weights"},
            {"feature": "path", "values": 4, "row_splits": 5, "weights": "path__weights"},
        ],
        "features": [
            feature("one", 0, json!({})),
            feature("bag", 1, json!({"row_splits": 2, "weights": 3, "combiner": "mean", "on_bad_id": "drop"})),
            feature("path", 4, json!({"row_splits": 5, "length": 2})),
            feature("pair", 6, json!({})),
        ],
        "outputs": [
            output("one", &[0], false), output("bag", &[1], false), output("path", &[2], false),
            output("pair", &[3], false), output("both", &[0, 1], false), output("flat", &[2, 3], true),
        ],
    });
    servable(json!([signature]), &[(5, 2)])
}

fn ints(numbers: &[i64]) -> Tensor<'static> {
    let dims = [numbers.len()].into_iter().collect();
    Tensor { dtype: DataType::Int64, dims, data: Data::Ints(numbers.to_vec()) }
}

fn weights(numbers: &[f32]) -> Tensor<'static> {
    let dims = [numbers.len()].into_iter().collect();
    Tensor { dtype: DataType::Float32, dims, data: Data::Floats(numbers.to_vec()) }
}

fn nothing<'a>() -> Inputs<'a> {
    Inputs::new(7)
}

/// One output of an answer: its name, its shape and its numbers.
type Found = (String, Vec<usize>, Vec<f32>);

fn ask(servable: &Arc<Servable>, inputs: Inputs<'_>, wanted: &[&str]) -> Result<Vec<Found>, Declined> {
    let plan = &servable.signatures()[0];
    let wanted: Vec<usize> = wanted.iter().map(|name| plan.output(name.as_bytes()).expect("an output")).collect();
    let mut work = Work::prepare(servable, 0, inputs, &wanted, Effort::Any, 1 << 20)?;
    let mut found = Vec::new();
    for number in 0..work.outputs().len() {
        let shape = work.outputs()[number].clone();
        let mut bytes = vec![];
        work.append(number, &mut bytes)?;
        let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect();
        found.push((plan.outputs[shape.output].name.clone(), shape.dims.to_vec(), numbers));
    }
    work.finish()?;
    Ok(found)
}

#[test]
fn a_lookup_answers_the_features_that_were_sent() {
    let servable = Arc::new(toy());
    let mut inputs = nothing();
    inputs.insert(0, ints(&[4, 0]));
    let found = ask(&servable, inputs, &[]).expect("an answer");
    assert_eq!(found, [("one".to_owned(), vec![2, 2], vec![40.0, 41.0, 0.0, 1.0])]);
    assert_eq!(servable.counts()[0][0].ids.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[test]
fn joined_outputs_stand_side_by_side() {
    let servable = Arc::new(toy());
    let mut inputs = nothing();
    inputs.insert(0, ints(&[1, 2]));
    inputs.insert(1, ints(&[0, 2, 7]));
    inputs.insert(2, ints(&[0, 2, 3]));
    inputs.insert(3, weights(&[1.0, 3.0, 1.0]));
    let found = ask(&servable, inputs, &["both"]).expect("an answer");
    assert_eq!(found, [("both".to_owned(), vec![2, 4], vec![10.0, 11.0, 15.0, 16.0, 20.0, 21.0, 0.0, 0.0])]);
    assert_eq!(servable.counts()[0][1].missing.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn sequences_and_blocks_are_flat_where_the_output_is() {
    let servable = Arc::new(toy());
    let pair: Vec<u8> = [1_i64, 2, 3, 4].into_iter().flat_map(i64::to_le_bytes).collect();
    let mut inputs = nothing();
    let values = [3_i32, 1, 4, 2].into_iter().flat_map(i32::to_le_bytes).collect();
    inputs.insert(4, Tensor { dtype: DataType::Int32, dims: [4].into_iter().collect(), data: Data::Bytes(values) });
    inputs.insert(5, ints(&[0, 3, 4]));
    inputs.insert(6, Tensor { dtype: DataType::Int64, dims: [2, 2].into_iter().collect(), data: Data::Raw(&pair) });
    let found = ask(&servable, inputs, &[]).expect("an answer");
    assert_eq!(
        found,
        [
            ("path".to_owned(), vec![2, 2, 2], vec![30.0, 31.0, 10.0, 11.0, 20.0, 21.0, 0.0, 0.0]),
            ("pair".to_owned(), vec![2, 2, 2], vec![10.0, 11.0, 20.0, 21.0, 30.0, 31.0, 40.0, 41.0]),
            (
                "flat".to_owned(),
                vec![2, 8],
                vec![30.0, 31.0, 10.0, 11.0, 10.0, 11.0, 20.0, 21.0, 20.0, 21.0, 0.0, 0.0, 30.0, 31.0, 40.0, 41.0]
            ),
        ]
    );
}

#[test]
fn inputs_that_do_not_fit_are_declined() {
    let servable = Arc::new(toy());
    let one = |slot: usize, tensor: Tensor<'static>| -> Inputs<'static> {
        let mut inputs = nothing();
        inputs.insert(slot, tensor);
        inputs
    };
    assert!(is_fault(ask(&servable, nothing(), &[])));
    assert!(is_fault(ask(&servable, one(0, ints(&[5])), &[])), "an id without a row");
    assert!(is_fault(ask(&servable, one(1, ints(&[1])), &[])), "values without row splits");
    assert!(is_fault(ask(&servable, one(0, ints(&[1])), &["both"])), "half of a joined output");
    for splits in [&[1, 1][..], &[0, 2, 1], &[0, 2], &[0, -1, 1], &[]] {
        let mut inputs = one(1, ints(&[1]));
        inputs.insert(2, ints(splits));
        assert!(is_fault(ask(&servable, inputs, &[])), "row splits {splits:?}");
    }
    let mut inputs = one(1, ints(&[1]));
    inputs.insert(2, ints(&[0, 1]));
    inputs.insert(3, weights(&[1.0; 2]));
    assert!(is_fault(ask(&servable, inputs, &[])), "two weights for one id");
    assert!(is_fault(ask(&servable, one(0, weights(&[1.0])), &[])), "floats as ids");
    assert!(is_fault(ask(&servable, one(0, ints(&[1; 101])), &[])), "more than max_rows");
    assert!(is_fault(ask(&servable, one(6, ints(&[1, 2])), &[])), "ids of another rank");
    let large = 1 << 29;
    let mut inputs = one(4, ints(&[large]));
    inputs.insert(5, ints(&[0, 1]));
    assert!(is_fault(ask(&servable, inputs, &[])), "an id of no row, that fits int32");
    let mut inputs = one(4, ints(&[1 << 40]));
    inputs.insert(5, ints(&[0, 1]));
    assert!(is_fault(ask(&servable, inputs, &[])), "an id that does not fit int32");
}

#[test]
fn numbers_are_rounded_and_stored_halves_keep_their_bits() {
    // A signalling NaN of either dtype, which becomes quiet where it is computed with, then a number.
    let rows = [0x7C01_u16, 0x3C01, 0x7F81, 0x4000].map(u16::to_le_bytes).concat();
    for (dtype, half) in [("float16", Half::Float16), ("bfloat16", Half::Bfloat16)] {
        let splits = json!({"row_splits": 1, "combiner": "sum"});
        let description = json!({"model": "m", "version": 3, "vocabularies": [],
            "tables": [{"name": "t", "dtype": dtype, "vocabulary_size": 2, "embedding_dim": 2, "rows": 0}],
            "signatures": [{"name": "lookup", "kind": "lookup", "max_rows": null, "graph": null, "ragged_names": [],
                "inputs": [input("ids", "int64", json!([null]), true), input("splits", "int64", json!([null]), true)],
                "features": [feature("row", 0, json!({})), feature("sum", 0, splits),
                    feature("path", 0, json!({"row_splits": 1, "length": 3}))],
                "outputs": [output("row", &[0], false), output("sum", &[1], false), output("path", &[2], true),
                    output("both", &[0, 1], false)]}]});
        let description: Description = serde_json::from_value(description).expect("a description");
        let memory = VersionMemory { buffers: vec![Memory::of(rows.clone())], ..VersionMemory::default() };
        let servable = Arc::new(Servable::compile(description, memory, &|_| Err("no graph".to_owned())).expect("fits"));
        let mut inputs: Inputs<'_> = [Some(ints(&[1, 0])), Some(ints(&[0, 1, 2]))].into_iter().collect();
        let mut answers = Vec::new();
        for half in [Some(half), None] {
            // The limit counts numbers as float32.
            let mut work = Work::prepare(&servable, 0, inputs.clone(), &[], Effort::Any, 112).expect("work");
            work.round_to(half);
            let wanted = half.map_or(DataType::Float32, DataType::from);
            assert!(work.outputs().iter().all(|shape| shape.dtype == wanted));
            let mut all = Vec::new();
            (0..4).for_each(|index| work.append(index, &mut all).expect("numbers"));
            answers.push(all);
        }
        let quiet = half.rounded(&answers[1]);
        let zeros = [0_u8; 8];
        let path = [&rows[4..], &zeros, &rows[..4], &zeros].concat();
        let sums = &quiet[8..16];
        let both = [&rows[4..], &sums[..4], &rows[..4], &sums[4..]].concat();
        let expected = [&rows[4..], &rows[..4], sums, &path, &both].concat();
        assert_eq!(answers[0], expected, "{dtype}");
        assert_ne!(answers[0], quiet, "{dtype}");
        inputs.insert(0, ints(&[1, 2]));
        let mut work = Work::prepare(&servable, 0, inputs, &[2], Effort::Any, 112).expect("work");
        work.round_to(Some(half));
        assert!(is_fault(work.append(0, &mut Vec::new())), "an id of no row");
    }
}

#[test]
fn limits_and_effort_are_checked_before_rows_are_read() {
    let servable = Arc::new(toy());
    let mut inputs = nothing();
    inputs.insert(0, ints(&[1, 2]));
    assert!(is_fault(Work::prepare(&servable, 0, inputs.clone(), &[], Effort::Any, 15).map(drop)));
    assert!(Work::prepare(&servable, 0, inputs.clone(), &[], Effort::Small, 16).is_ok());
    // Two more features add the outputs "bag" and "both" (16 and 32 bytes) to the answer, but not to a filtered one.
    inputs.insert(1, ints(&[1, 2]));
    inputs.insert(2, ints(&[0, 1, 2]));
    let is_refused = |wanted: &[usize], limit| {
        is_fault(Work::prepare(&servable, 0, inputs.clone(), wanted, Effort::Any, limit).map(drop))
    };
    assert_eq!((is_refused(&[], 63), is_refused(&[], 64)), (true, false));
    assert_eq!((is_refused(&[0], 15), is_refused(&[0], 16)), (true, false));
    let servable = Arc::new(super::tests::servable(
        json!([{"name": "lookup", "kind": "lookup", "max_rows": null, "graph": null,
            "inputs": [input("one", "int64", json!([null]), true)], "features": [feature("one", 0, json!({}))],
            "outputs": [output("one", &[0], false)]}]),
        &[(5, 1000)],
    ));
    let many: Inputs<'_> = [Some(ints(&[1; 1000]))].into_iter().collect();
    assert_eq!(Work::prepare(&servable, 0, many, &[], Effort::Small, 1 << 30).err(), Some(Declined::TooLarge));
}

#[test]
fn keys_that_a_vocabulary_lacks_are_counted_once_for_an_input() {
    let slots = Memory::of_numbers(vec![crate::tables::key_index::EMPTY]);
    let rows = json!({"first_id": 0, "first_bucket": 0, "num_oov_buckets": 0, "oov_id": 1, "refuses_unknown_keys": false,
        "empty_id": null, "is_hashed": false});
    let vocabulary = json!({"has_strings": false, "slots": 2, "rows": rows});
    let mut keyed = input("keyed", "int64", json!([null]), true);
    (keyed["vocabulary"], keyed["takes_keys"]) = (json!(0), json!(true));
    let signature = json!({"name": "lookup", "kind": "lookup", "max_rows": null, "graph": null,
        "inputs": [keyed],
        "features": [feature("one", 0, json!({})), feature("other", 0, json!({"table": 1}))],
        "outputs": [output("one", &[0], false), output("other", &[1], false)]});
    let servable = servable_with(json!([signature]), &[(5, 2), (5, 2)], json!([vocabulary]), Some(slots));
    let servable = Arc::new(servable);
    let keys: Inputs<'_> = [Some(ints(&[70, 71, 72]))].into_iter().collect();
    let found = ask(&servable, keys, &[]).expect("an answer");
    assert!(found.iter().all(|(_, _, numbers)| numbers[..2] == [10.0, 11.0]));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    assert_eq!(servable.unknown_keys()[0].load(relaxed), 3);
    assert_eq!(servable.counts()[0][1].ids.load(relaxed), 3);
}

#[test]
fn a_request_that_waited_past_its_deadline_is_late() {
    let late = Waiting { deadline: Some(Instant::now()), ..Waiting::default() };
    let fault = Effort::Wait(&late).check_deadline().expect_err("late");
    assert_eq!(fault.code, faults::Code::DeadlineExceeded);
    let in_time = Waiting { deadline: Some(Instant::now() + Duration::from_secs(3600)), ..Waiting::default() };
    for effort in [Effort::Any, Effort::Wait(&Waiting::default()), Effort::Wait(&in_time)] {
        assert_eq!(effort.check_deadline(), Ok(()));
    }
}

#[test]
fn what_a_request_moves_from_step_to_step_is_small() {
    assert!(size_of::<Inputs<'_>>() <= 64, "{}", size_of::<Inputs<'_>>());
    assert!(size_of::<Work<'_, '_>>() <= 400, "{}", size_of::<Work<'_, '_>>());
}
