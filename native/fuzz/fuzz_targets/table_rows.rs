//! Fuzz target: random bytes are the body of a `:rows` request.
#![no_main]

use _native::forms::{Version, table_rows};
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|body: &[u8]| ask(|call| table_rows::answer(call, "m", Version::Latest, "t", 100, body)));
