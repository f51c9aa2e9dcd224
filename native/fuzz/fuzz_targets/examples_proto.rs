//! Fuzz target: random bytes are a Classify or a MultiInference message of TensorFlow Serving.
#![no_main]

use _native::forms::examples_proto;
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|message: &[u8]| {
    examples_proto::fuzz(message);
    ask(|call| examples_proto::multi_inference(call, message));
});
