//! Fuzz target: random bytes are an Open Inference request over HTTP: two bytes for the JSON length in the header, then
//! the body.
#![no_main]

use _native::forms::{Version, oip_json};
use embedding_server_native_fuzz::ask;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((length, body)) = bytes.split_first_chunk() else {
        return;
    };
    // The length 0 stands for a request without the header that gives the length of the JSON.
    let length = Some(usize::from(u16::from_le_bytes(*length))).filter(|&length| length > 0);
    ask(|call| oip_json::answer(call, "m", Version::Latest, length, body));
});
