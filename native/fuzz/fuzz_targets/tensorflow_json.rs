//! Fuzz target: random bytes are the body of TensorFlow Serving's `:predict`.
#![no_main]

use _native::forms::{Version, tensorflow_json};
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|body: &[u8]| ask(|call| tensorflow_json::answer(call, "m", Version::Latest, body)));
