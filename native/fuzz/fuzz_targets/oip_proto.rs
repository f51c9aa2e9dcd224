//! Fuzz target: random bytes are a ModelInfer message of the Open Inference Protocol.
#![no_main]

use _native::forms::oip_proto;
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|message: &[u8]| ask(|call| oip_proto::answer(call, message)));
