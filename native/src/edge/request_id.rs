//! Chooses the id of a request: the client's id, its trace id, or a new id.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderName, HeaderValue};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Number of ids that a thread takes at once, because threads that write to the same counter wait for each other.
const BLOCK: u64 = 1 << 12;

/// Makes request ids that are unique: a prefix for each server, followed by a number.
pub struct RequestIds {
    prefix: String,
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds { prefix: format!("{:012x}-", fastrand::u64(..) >> 16) }
    }
}

/// Returns a number that no other call returns.
fn next_number() -> u64 {
    static BLOCKS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    let next = NEXT.get();
    let number = if next.is_multiple_of(BLOCK) { BLOCKS.fetch_add(1, Relaxed) * BLOCK } else { next };
    NEXT.set(number + 1);
    number
}

impl RequestIds {
    #[must_use]
    pub fn make(&self) -> String {
        let number = next_number();
        let num_digits = (u64::BITS - number.leading_zeros()).div_ceil(4);
        // A string of exactly its size becomes a header's value without a copy.
        let mut id = String::with_capacity(self.prefix.len() + num_digits as usize);
        id.push_str(&self.prefix);
        for place in (0..num_digits).rev() {
            let [byte, ..] = (number >> (4 * place)).to_le_bytes();
            id.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
        }
        id
    }

    /// Returns the id of an HTTP request, chosen by the same rules as in `service/http/middleware.py`.
    #[must_use]
    pub fn of_http(&self, headers: &HeaderMap) -> HeaderValue {
        own(headers)
            .cloned()
            .or_else(|| traced(headers))
            .or_else(|| HeaderValue::try_from(self.make()).ok())
            .unwrap_or_else(|| HeaderValue::from_static("-"))
    }
}

/// Returns the first request id in the headers that is safe to use, because logs and the answer's headers repeat it.
#[must_use]
pub fn own(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get_all(REQUEST_ID).iter().find(|value| is_sane(value.as_bytes()))
}

/// Returns true if a client's request id has 1 to 64 characters, all of them letters, digits or `._:-`.
#[must_use]
pub fn is_sane(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=64).contains(&id.len()) && id.iter().all(is_plain)
}

/// Returns the trace id in the last `traceparent` header; None if there is none, or it is malformed.
#[must_use]
pub fn traced(headers: &HeaderMap) -> Option<HeaderValue> {
    let parent = headers.get_all(TRACEPARENT).iter().next_back()?;
    HeaderValue::from_bytes(trace_id(parent.as_bytes())?).ok()
}

/// Returns the trace id in a W3C `traceparent` header; None if the header is malformed.
#[must_use]
pub fn trace_id(parent: &[u8]) -> Option<&[u8]> {
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    if parent.len() < 55 || (parent.len() > 55 && parent[55] != b'-') {
        return None;
    }
    let (version, trace, span, flags) = (&parent[..2], &parent[3..35], &parent[36..52], &parent[53..55]);
    let has_dashes = parent[2] == b'-' && parent[35] == b'-' && parent[52] == b'-';
    let are_hex = [version, trace, span, flags].into_iter().all(is_hex);
    (has_dashes && are_hex && version != b"ff" && !is_zero(trace) && !is_zero(span)).then_some(trace)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_clients_or_the_traces_or_new() {
        let ids = RequestIds::default();
        let mut headers = HeaderMap::new();
        let one = ids.of_http(&headers);
        assert!(one != ids.of_http(&headers) && is_sane(one.as_bytes()));
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", HeaderValue::from_static(parent));
        assert_eq!(ids.of_http(&headers), "0af7651916cd43dd8448eb211c80319c");
        headers.append("x-request-id", HeaderValue::from_static("not sane"));
        headers.append("x-request-id", HeaderValue::from_static("a.b:c_d-1"));
        assert_eq!(ids.of_http(&headers), "a.b:c_d-1");
    }

    #[test]
    fn other_traceparents_are_none() {
        for parent in [
            "",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
        ] {
            assert_eq!(trace_id(parent.as_bytes()), None, "{parent}");
        }
    }
}
