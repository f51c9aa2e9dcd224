//! Fuzz target: random bytes are a Predict message of TensorFlow Serving.
#![no_main]

use _native::forms::predict_proto;
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|message: &[u8]| ask(|call| predict_proto::answer(call, message)));
