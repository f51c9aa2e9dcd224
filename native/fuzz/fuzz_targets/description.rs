//! Fuzz target: random bytes are the description of a version; a version that compiles is sent a lookup of each feature.
#![no_main]

use std::sync::LazyLock;

use _native::forms::{Version, lookup_json};
use _native::plan::{Declined, Description, Servable, VersionMemory};
use _native::tables::memory::Memory;
use embedding_server_native_fuzz::ask_of;
use serde_json::json;

/// Buffers that a description may name: rows, scales, the lines of a vocabulary, their offsets, and slots.
static BUFFERS: LazyLock<Vec<Memory>> = LazyLock::new(|| {
    vec![
        Memory::of_numbers(vec![0.5_f32; 150]),
        Memory::of_numbers(vec![1.0_f32; 50]),
        Memory::of(b"red\ngreen\n".to_vec()),
        Memory::of_numbers(vec![0_i64, 4, 10]),
        Memory::of_numbers(vec![-1_i32, 0, 1, -1]),
        Memory::default(),
    ]
});

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(description) = serde_json::from_slice::<Description>(text) else { return };
    let signatures = description.signatures.iter();
    let bodies: Vec<String> = signatures
        .flat_map(|signature| signature.features.iter().map(|feature| (&signature.name, &feature.name)))
        .flat_map(|(signature, feature)| {
            let inputs = [json!([0, -1, 49]), json!([["red"], ["blue", "green"]])];
            inputs.map(|ids| json!({"signature_name": signature, "features": {feature: ids}}).to_string())
        })
        .collect();
    let memory = VersionMemory { buffers: BUFFERS.clone(), ..VersionMemory::default() };
    let Ok(servable) = Servable::compile(description, memory, &|_| Err("no graph".to_owned())) else { return };
    ask_of(servable, |call| {
        bodies
            .iter()
            .try_for_each(|body| lookup_json::answer(call, "m", Version::Latest, body.as_bytes()).map(drop))
            .map_err(|_: Declined| Declined::Search)
    });
});
