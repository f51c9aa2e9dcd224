//! A small model in memory, with which tests call the handlers of the Open Inference Protocol.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "all numbers are small")]

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::Call;
use super::oip_binary::datatype_of;
use crate::plan::{
    Data, DataType, Effort, Graph, GraphOutput, GraphRequest, GraphResult, ModelRoutes, Notes, OutputData, Routes,
    Servable, Tensor, VersionMemory,
};
use crate::tables::memory::Memory;

/// All dtypes of the Open Inference Protocol, in the order of the inputs and outputs of the test signature "echo".
pub const DTYPES: [DataType; 14] = [
    DataType::Float32,
    DataType::Float64,
    DataType::Int32,
    DataType::Uint8,
    DataType::Int16,
    DataType::Int8,
    DataType::String,
    DataType::Int64,
    DataType::Bool,
    DataType::Bfloat16,
    DataType::Uint16,
    DataType::Float16,
    DataType::Uint32,
    DataType::Uint64,
];
pub const USERS: usize = 50;
pub const ITEMS: usize = 40;
/// D, the number of columns, of the test model's table of users.
pub const USER_DIM: usize = 3;
/// D, the number of columns, of the test model's table of items.
pub const ITEM_DIM: usize = 2;

/// Returns the number in row `id` and column `column` of the test model's table of users.
pub fn user_number(id: i64, column: usize) -> f32 {
    id as f32 / 8.0 + column as f32
}

/// Returns the number in row `id` and column `column` of the test model's table of items.
pub fn item_number(id: i64, column: usize) -> f32 {
    id as f32 * -1.5 + column as f32 * 0.1
}

/// Returns routes to version 3, labelled "stable", of the test model "m"; its tables have the given numbers of columns.
///
/// Its signature "lookup" has the features `user`, `item`, and `tags`: ragged, weighted, a sum over the table of items.
/// Its signature "echo" has one input for each datatype, named after it, and returns each input as an output of the
/// same name.
pub fn routes_of(user_dim: usize, item_dim: usize) -> Routes {
    let users: Vec<f32> = (0..USERS * user_dim).map(|i| user_number((i / user_dim) as i64, i % user_dim)).collect();
    let items: Vec<f32> = (0..ITEMS * item_dim).map(|i| item_number((i / item_dim) as i64, i % item_dim)).collect();
    let input = |name: &str, dtype: &str, shape: serde_json::Value| {
        json!({
            "name": name, "dtype": dtype, "shape": shape, "is_optional": true, "vocabulary_size": null,
            "bounds": "none", "vocabulary": null, "takes_keys": false, "takes_strings": dtype == "string",
        })
    };
    let feature = |name: &str, ids: usize, table: usize, combined: Option<(usize, usize)>| {
        json!({
            "name": name, "ids": ids, "row_splits": combined.map(|c| c.0), "weights": combined.map(|c| c.1),
            "table": table, "combiner": combined.map(|_| "sum"), "summation": "in_order", "on_bad_id": "error",
            "default_row": 0, "at_least_one": false, "positive_only": false, "max_ids": 0, "truncates": false,
            "length": 0,
        })
    };
    let output = |name: &str, dtype: &str, parts: &[usize]| json!({"name": name, "dtype": dtype, "parts": parts, "is_flat": false});
    let table = |name: &str, rows: usize, dim: usize, buffer: usize| {
        json!({
            "name": name, "dtype": "float32", "vocabulary_size": rows, "embedding_dim": dim,
            "rows": buffer,
        })
    };
    let names = DTYPES.map(|dtype| (datatype_of(dtype), format!("{dtype:?}").to_lowercase()));
    let description = json!({
        "model": "m",
        "version": 3,
        "tables": [table("users", USERS, user_dim, 0), table("items", ITEMS, item_dim, 1)],
        "vocabularies": [],
        "signatures": [
            {
                "name": "lookup", "kind": "lookup", "max_rows": null,
                "graph": null,
                "inputs": [
                    input("user", "int64", json!([null])),
                    input("item", "int64", json!([null])),
                    input("tags__values", "int64", json!([null])),
                    input("tags__row_splits", "int64", json!([null])),
                    input("tags__weights", "float32", json!([null])),
                ],
                "features": [
                    feature("user", 0, 0, None),
                    feature("item", 1, 1, None),
                    feature("tags", 2, 1, Some((3, 4))),
                ],
                "outputs": [
                    output("user", "float32", &[0]),
                    output("item", "float32", &[1]),
                    output("tags", "float32", &[2]),
                ],
            },
            {
                "name": "echo", "kind": "predict", "max_rows": null, "graph": {}, "features": [],
                "inputs": names.iter().map(|(name, dtype)| input(name, dtype, json!(null))).collect::<Vec<_>>(),
                "outputs": names.iter().map(|(name, dtype)| output(name, dtype, &[])).collect::<Vec<_>>(),
            },
        ],
    });
    let description = serde_json::from_value(description).expect("a description");
    let buffers = vec![Memory::of_numbers(users), Memory::of_numbers(items)];
    let memory = VersionMemory { buffers, ..VersionMemory::default() };
    let servable = Servable::compile(description, memory, &|_| Ok(Box::new(Echo))).expect("a servable");
    let model = ModelRoutes {
        versions: vec![(3, Some(Arc::new(servable)))],
        labels: vec![("stable".to_owned(), 3)],
        problem: String::new(),
        log_rate: 0.0,
    };
    Routes::default().with(HashMap::from([("m".to_owned(), model)]), &[])
}

pub fn routes() -> Routes {
    routes_of(USER_DIM, ITEM_DIM)
}

pub fn call(routes: &Routes) -> Call<'_> {
    Call {
        routes,
        effort: Effort::Any,
        max_response_bytes: 1 << 24,
        encoding: crate::forms::TensorEncoding::Values,
        strict_json: false,
        grant: None,
        log: None,
    }
}

/// A test graph whose outputs are its inputs; an input that the request lacks becomes a tensor without elements.
#[derive(Debug)]
struct Echo;

impl Graph for Echo {
    fn run(&self, request: GraphRequest<'_, '_>, _: Effort<'_>) -> GraphResult {
        let signature = request.plan();
        let echo = |&number: &usize| match request.inputs.get(number) {
            Some(tensor) => GraphOutput {
                dtype: tensor.dtype,
                dims: tensor.dims.clone(),
                data: match elements(tensor) {
                    Elements::Numbers(bytes) => OutputData::Numbers(Box::new(bytes)),
                    Elements::Strings(strings) => OutputData::Strings(strings),
                },
            },
            None => GraphOutput {
                dtype: signature.inputs[number].dtype,
                dims: [0].into_iter().collect(),
                data: match signature.inputs[number].dtype {
                    DataType::String => OutputData::Strings(vec![]),
                    _ => OutputData::Numbers(Box::new([])),
                },
            },
        };
        Ok((request.wanted.iter().map(echo).collect(), Notes::default()))
    }
}

/// The elements of a test tensor: the bytes of its numbers, or its strings.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    Numbers(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

impl Elements {
    /// Encodes the elements of a test tensor as binary data of the Open Inference Protocol.
    pub fn binary(&self) -> Vec<u8> {
        match self {
            Elements::Numbers(bytes) => bytes.clone(),
            Elements::Strings(strings) => {
                let length = |string: &Vec<u8>| u32::try_from(string.len()).expect("a short string").to_le_bytes();
                let pieces = strings.iter().map(|string| [&length(string)[..], string].concat());
                pieces.collect::<Vec<_>>().concat()
            }
        }
    }
}

/// Returns the elements of a tensor that the handler of a wire format (form) parsed.
pub fn elements(tensor: &Tensor<'_>) -> Elements {
    Elements::Numbers(match (&tensor.data, tensor.dtype) {
        (Data::Raw(bytes), _) => bytes.to_vec(),
        (Data::Bytes(bytes), _) => bytes.clone(),
        (Data::Ints(numbers), DataType::Int32) => {
            let narrow = |&number: &i64| i32::try_from(number).expect("an int32").to_le_bytes();
            numbers.iter().flat_map(narrow).collect()
        }
        (Data::Ints(numbers), _) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        (Data::Floats(numbers), _) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        (Data::Strings(strings), _) => {
            return Elements::Strings(strings.parts.iter().cloned().map(Cow::into_owned).collect());
        }
    })
}

/// One input tensor of a test request.
#[derive(Clone, Debug)]
pub struct SentTensor {
    pub dtype: DataType,
    pub dims: Vec<usize>,
    pub elements: Elements,
}

/// Generates inputs for the signature "echo": at least one of them, none twice. Floats may be NaN; booleans are 0 or 1;
/// strings are any bytes.
pub fn tensors() -> impl Strategy<Value = Vec<SentTensor>> {
    let sent = |dtype: DataType| {
        vec(0_usize..4, 0..4).prop_flat_map(move |dims| {
            let count: usize = dims.iter().product();
            let element = vec(any::<u8>(), 0..6);
            (Just(dims), vec(any::<u8>(), count * dtype.size()), vec(element, count)).prop_map(
                move |(dims, mut bytes, strings)| {
                    if dtype == DataType::Bool {
                        for byte in &mut bytes {
                            *byte &= 1;
                        }
                    }
                    let elements = match dtype {
                        DataType::String => Elements::Strings(strings),
                        _ => Elements::Numbers(bytes),
                    };
                    SentTensor { dtype, dims, elements }
                },
            )
        })
    };
    let some = proptest::sample::subsequence(DTYPES.to_vec(), 1..=DTYPES.len()).prop_shuffle();
    some.prop_flat_map(move |dtypes| dtypes.into_iter().map(sent).collect::<Vec<_>>())
}

/// A test request for the signature "lookup": ids of users and items, and a list of tags for each row, with or without
/// weights.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub users: Vec<i64>,
    pub items: Vec<i64>,
    pub tags: Vec<Vec<i64>>,
    pub weights: Option<Vec<f32>>,
}

impl Lookup {
    /// Returns the input tensors of the test request with their names.
    pub fn tensors(&self) -> Vec<(&'static str, SentTensor)> {
        let ids = |numbers: &[i64]| SentTensor {
            dtype: DataType::Int64,
            dims: vec![numbers.len()],
            elements: Elements::Numbers(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()),
        };
        let splits = self.tags.iter().scan(0, |end, row| {
            *end += row.len() as i64;
            Some(*end)
        });
        let splits: Vec<i64> = [0].into_iter().chain(splits).collect();
        let mut tensors = vec![
            ("user", ids(&self.users)),
            ("tags__values", ids(&self.tags.concat())),
            ("item", ids(&self.items)),
            ("tags__row_splits", ids(&splits)),
        ];
        if let Some(weights) = &self.weights {
            let elements = Elements::Numbers(weights.iter().flat_map(|weight| weight.to_le_bytes()).collect());
            let (dtype, dims) = (DataType::Float32, vec![weights.len()]);
            tensors.push(("tags__weights", SentTensor { dtype, dims, elements }));
        }
        tensors
    }

    /// Computes the three outputs that the test signature must have.
    pub fn answer(&self) -> Vec<(&'static str, SentTensor)> {
        let row = |id: &i64, dim: usize, number: fn(i64, usize) -> f32| {
            (0..dim).map(|column| number(*id, column)).collect::<Vec<_>>()
        };
        let mut weights = self.weights.iter().flatten();
        let mut tags = vec![];
        for ids in &self.tags {
            let mut sum = vec![0.0_f32; ITEM_DIM];
            for id in ids {
                let weight = weights.next().copied().unwrap_or(1.0);
                for (sum, number) in sum.iter_mut().zip(row(id, ITEM_DIM, item_number)) {
                    *sum += if self.weights.is_some() { weight * number } else { number };
                }
            }
            tags.extend(sum);
        }
        let of = |ids: &[i64], dim, number| ids.iter().flat_map(|id| row(id, dim, number)).collect();
        let outputs: [(_, _, Vec<f32>); 3] = [
            ("user", USER_DIM, of(&self.users, USER_DIM, user_number)),
            ("item", ITEM_DIM, of(&self.items, ITEM_DIM, item_number)),
            ("tags", ITEM_DIM, tags),
        ];
        let sent = |(name, dim, numbers): (_, _, Vec<f32>)| {
            let elements = Elements::Numbers(numbers.iter().flat_map(|number| number.to_le_bytes()).collect());
            (name, SentTensor { dtype: DataType::Float32, dims: vec![self.users.len(), dim], elements })
        };
        outputs.map(sent).into()
    }
}

/// Generates lookup requests that the core answers itself.
pub fn lookups() -> impl Strategy<Value = Lookup> {
    (0_usize..20).prop_flat_map(|rows| {
        let ids = |size: usize, rows: usize| vec(0..size as i64, rows);
        let tags = vec(vec(0..ITEMS as i64, 0..5), rows);
        (ids(USERS, rows), ids(ITEMS, rows), tags, any::<bool>()).prop_flat_map(|(users, items, tags, has_weights)| {
            let count = tags.concat().len();
            // The weights are multiples of 1/8, whose sums do not depend on the order of additions.
            let weights = vec((-16_i8..16).prop_map(|eighths| f32::from(eighths) / 8.0), count);
            weights.prop_map(move |weights| Lookup {
                users: users.clone(),
                items: items.clone(),
                tags: tags.clone(),
                weights: has_weights.then_some(weights),
            })
        })
    })
}

/// Generates variants of a message with a few bytes changed, or its end cut off.
pub fn mutated(message: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<proptest::sample::Index>(), any::<u8>(), 0..3_u8), 1..4);
    changes.prop_map(move |changes| {
        let mut message = message.clone();
        for (index, byte, kind) in changes {
            if message.is_empty() {
                break;
            }
            let at = index.index(message.len());
            match kind {
                0 => message[at] = byte,
                1 => message.insert(at, byte),
                _ => drop(message.remove(at)),
            }
        }
        message
    })
}

/// Returns a lookup of 128 rows with ten tags each.
pub fn large_lookup() -> Lookup {
    Lookup {
        users: (0..128).map(|row| (row * 7 % USERS) as i64).collect(),
        items: (0..128).map(|row| (row * 11 % ITEMS) as i64).collect(),
        tags: (0..128).map(|row| (0..10).map(|i| ((row + i * 3) % ITEMS) as i64).collect()).collect(),
        weights: None,
    }
}
