//! Fuzz target: random bytes are the body of TensorFlow Serving's `:classify` or `:regress`.
#![no_main]

use _native::forms::{InferenceMethod, Version, examples_json};
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    for method in [InferenceMethod::Classify, InferenceMethod::Regress] {
        ask(|call| examples_json::answer(call, method, "m", Version::Latest, body));
    }
});
