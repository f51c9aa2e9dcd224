//! A small model in memory; most fuzz targets send random bytes to it as a request.
//!
//! Model "m", version 3, label "stable": signature "serving_default" is a lookup of single, ragged and padded ids,
//! "predict" a graph whose inputs and outputs have every dtype.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use _native::forms::{Call, TensorEncoding};
use _native::plan::{
    Declined, Effort, Graph, GraphOutput, GraphRequest, GraphResult, ModelRoutes, Notes, OutputData, Routes, Servable,
    VersionMemory,
};
use _native::tables::memory::Memory;
use serde_json::{Value, json};

const ROWS: usize = 50;
const DIM: usize = 3;
const DTYPES: [&str; 14] = [
    "float32", "float64", "int32", "uint8", "int16", "int8", "string", "int64", "bool", "bfloat16", "uint16",
    "float16", "uint32", "uint64",
];
/// Maximal size of an answer, so that no request of the fuzzer can allocate much memory.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

static ROUTES: LazyLock<Routes> = LazyLock::new(|| routes(servable()));

fn routes(servable: Servable) -> Routes {
    let versions = vec![(3, Some(Arc::new(servable)))];
    let model = ModelRoutes { versions, labels: vec![("stable".to_owned(), 3)], problem: String::new(), log_rate: 0.0 };
    Routes::default().with(HashMap::from([("m".to_owned(), model)]), &[])
}

/// Sends a request to a form twice: as a connection's thread does, then with unlimited effort and with the other value
/// of every setting.
pub fn ask<T>(answer: impl Fn(&Call<'_>) -> Result<T, Declined>) {
    ask_routes(&ROUTES, answer);
}

/// Sends a request as `ask` does, to another servable.
pub fn ask_of<T>(servable: Servable, answer: impl Fn(&Call<'_>) -> Result<T, Declined>) {
    ask_routes(&routes(servable), answer);
}

fn ask_routes<T>(routes: &Routes, answer: impl Fn(&Call<'_>) -> Result<T, Declined>) {
    for (effort, is_plain) in [(Effort::Small, true), (Effort::Any, false)] {
        let _ = answer(&Call {
            routes,
            effort,
            max_response_bytes: MAX_RESPONSE_BYTES,
            encoding: TensorEncoding::of_server(!is_plain),
            strict_json: !is_plain,
            grant: None,
            log: None,
        });
    }
}

/// A graph that returns one element for each output: the number 0 or the string "zero".
#[derive(Debug)]
struct Zeros;

impl Graph for Zeros {
    fn run(&self, request: GraphRequest<'_, '_>, _: Effort<'_>) -> GraphResult {
        let zero = |&number: &usize| {
            let dtype = request.plan().outputs[number].dtype;
            let data = match DTYPES[number] {
                "string" => OutputData::Strings(vec![b"zero".to_vec()]),
                _ => OutputData::Numbers(Box::new(vec![0_u8; dtype.size()])),
            };
            GraphOutput { dtype, dims: [1].into_iter().collect(), data }
        };
        Ok((request.wanted.iter().map(zero).collect(), Notes::default()))
    }
}

fn input(name: &str, dtype: &str, shape: Value, is_optional: bool) -> Value {
    json!({"name": name, "dtype": dtype, "shape": shape, "is_optional": is_optional, "vocabulary_size": null,
        "bounds": "none", "vocabulary": null, "takes_keys": false, "takes_strings": dtype == "string"})
}

fn feature(name: &str, ids: usize, more: &Value) -> Value {
    let mut one = json!({"name": name, "ids": ids, "row_splits": null, "weights": null, "table": 0, "combiner": null,
        "summation": "in_order", "on_bad_id": "error", "default_row": 0, "at_least_one": false, "positive_only": false,
        "max_ids": 0, "truncates": false, "length": 0});
    for (key, value) in more.as_object().expect("an object") {
        one[key] = value.clone();
    }
    one
}

fn output(name: &str, dtype: &str, parts: &[usize]) -> Value {
    json!({"name": name, "dtype": dtype, "parts": parts, "is_flat": false})
}

fn servable() -> Servable {
    let rows = vec![0.5_f32; ROWS * DIM];
    let one_size = json!([null]);
    let lookup = json!({
        "name": "serving_default", "kind": "lookup", "max_rows": 1000, "graph": null,
        "inputs": [
            input("user", "int64", one_size.clone(), true),
            input("tags__values", "int64", one_size.clone(), true),
            input("tags__row_splits", "int64", one_size.clone(), true),
            input("tags__weights", "float32", one_size.clone(), true),
            input("path__values", "int32", one_size.clone(), true),
            input("path__row_splits", "int64", one_size, true),
            input("pair", "int64", json!([null, 2]), true),
        ],
        "features": [
            feature("user", 0, &json!({})),
            feature("tags", 1, &json!({"row_splits": 2, "weights": 3, "combiner": "mean", "on_bad_id": "drop"})),
            feature("path", 4, &json!({"row_splits": 5, "length": 2})),
            feature("pair", 6, &json!({})),
        ],
        "outputs": [
            output("user", "float32", &[0]), output("tags", "float32", &[1]), output("path", "float32", &[2]),
            output("pair", "float32", &[3]), output("both", "float32", &[0, 1]),
        ],
    });
    let predict = json!({
        "name": "predict", "kind": "predict", "max_rows": null, "graph": {}, "features": [],
        "inputs": DTYPES.map(|dtype| input(dtype, dtype, Value::Null, true)),
        "outputs": DTYPES.map(|dtype| output(dtype, dtype, &[])),
    });
    let description = json!({
        "model": "m", "version": 3, "vocabularies": [], "signatures": [lookup, predict],
        "tables": [{"name": "t", "dtype": "float32", "vocabulary_size": ROWS, "embedding_dim": DIM, "rows": 0}],
    });
    let description = serde_json::from_value(description).expect("a description");
    let memory = VersionMemory { buffers: vec![Memory::of_numbers(rows)], ..VersionMemory::default() };
    Servable::compile(description, memory, &|_| Ok(Box::new(Zeros))).expect("a servable")
}
