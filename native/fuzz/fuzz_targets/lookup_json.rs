//! Fuzz target: random bytes are the body of a `:lookup` request.
#![no_main]

use _native::forms::{Version, lookup_json};
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|body: &[u8]| ask(|call| lookup_json::answer(call, "m", Version::Latest, body)));
