//! Reads and writes the parts of HTTP/2 that gRPC defines: message prefixes, deadlines and statuses.

use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::connection::Debt;
use super::encoding::{self, Coding, Encoded};
pub use crate::plan::faults::Code;

/// Number of bytes in the prefix of each gRPC message: one byte for compression, four for the length.
pub const PREFIX_BYTES: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ENCODINGS: HeaderValue = HeaderValue::from_static("identity, deflate, gzip");
/// Milliseconds that a refused client should wait before it tries again. Source: gRPC A6, "Pushback".
const PUSHBACK: (HeaderName, HeaderValue) =
    (HeaderName::from_static("grpc-retry-pushback-ms"), HeaderValue::from_static("1000"));
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The bytes that must be percent-encoded in a `grpc-message` header. Source: gRPC's PROTOCOL-HTTP2, "Percent-Encoded".
const UNSAFE: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the message in `data`; None unless `data` is exactly one uncompressed message with its prefix.
#[must_use]
#[inline]
pub fn whole(data: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = data.split_first_chunk::<PREFIX_BYTES>()?;
    (prefix[0] == 0 && length(*prefix) == message.len()).then_some(message)
}

/// Returns the length of a gRPC message, from its five-byte prefix.
#[must_use]
pub fn length(prefix: [u8; PREFIX_BYTES]) -> usize {
    u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize
}

/// Parses the value of a `grpc-timeout` header; returns None if it is malformed.
#[must_use]
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A gRPC status that refuses a request.
#[derive(Clone, Debug)]
pub struct Status {
    /// The gRPC status code of the refusal.
    pub code: Code,
    /// The error text that tells the client why its gRPC call is refused.
    pub text: String,
    /// Whether the refused request may succeed if the client sends it again later.
    pub may_retry: bool,
}

/// Returns the HTTP/2 headers of a successful gRPC answer; a message must follow. `coding`: its compression.
#[must_use]
pub fn head(request_id: Option<&HeaderValue>, coding: Option<Coding>) -> Response<()> {
    let mut head = Response::new(());
    let headers = head.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(ACCEPT_ENCODING, ENCODINGS);
    encoding::mark_message(headers, coding);
    if let Some(id) = request_id {
        headers.insert(super::request_id::REQUEST_ID, id.clone());
    }
    head
}

/// Returns the trailers of a successful answer: gRPC status 0.
#[must_use]
pub fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

impl Status {
    /// Returns the HTTP/2 trailers with this gRPC status: code, message and request id.
    #[must_use]
    pub fn trailers(&self, request_id: Option<&str>) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        trailers.insert(STATUS, HeaderValue::from(self.code as u16));
        let text = utf8_percent_encode(&self.text, UNSAFE).to_string();
        if let Ok(text) = HeaderValue::from_str(&text) {
            trailers.insert(MESSAGE, text);
        }
        if let Some(id) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            trailers.insert(super::request_id::REQUEST_ID, id);
        }
        if self.may_retry {
            trailers.insert(PUSHBACK.0, PUSHBACK.1);
        }
        trailers
    }

    /// Returns the headers of an answer without a body; the headers have this gRPC status.
    #[must_use]
    pub fn head(&self, request_id: Option<&str>) -> Response<()> {
        let mut head = Response::new(());
        *head.headers_mut() = self.trailers(request_id);
        head.headers_mut().insert(CONTENT_TYPE, GRPC);
        head
    }
}

/// The data of a gRPC answer: a message, before which its five-byte prefix is sent, or other bytes, such as forwarded
/// ones, before which no prefix is sent.
#[derive(Debug)]
pub struct Payload {
    prefix: [u8; PREFIX_BYTES],
    start: usize,
    body: Bytes,
    debt: Option<Debt>,
}

impl Payload {
    /// Puts a gRPC prefix before an answer's message; returns None if the message is too long for the four-byte length.
    #[must_use]
    pub fn message(body: Encoded, debt: Debt) -> Option<Self> {
        let (body, flag) = body.into_grpc();
        let [a, b, c, d] = u32::try_from(body.len()).ok()?.to_be_bytes();
        Some(Payload { prefix: [flag, a, b, c, d], start: 0, body, debt: Some(debt) })
    }
}

impl From<Bytes> for Payload {
    fn from(body: Bytes) -> Self {
        Payload { prefix: [0; PREFIX_BYTES], start: PREFIX_BYTES, body, debt: None }
    }
}

impl Buf for Payload {
    #[inline]
    fn remaining(&self) -> usize {
        PREFIX_BYTES - self.start + self.body.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        if self.start < PREFIX_BYTES { &self.prefix[self.start..] } else { &self.body }
    }

    #[inline]
    fn advance(&mut self, size: usize) {
        let of_prefix = size.min(PREFIX_BYTES - self.start);
        self.start += of_prefix;
        self.body.advance(size - of_prefix);
        if let Some(debt) = &mut self.debt {
            debt.pay(size - of_prefix);
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::super::connection::Connection;
    use super::*;
    use crate::admission::account::Account;
    use crate::admission::limits::Limits;

    #[test]
    fn only_one_plain_message_is_whole() {
        assert_eq!(whole(&[0, 0, 0, 0, 2, 7, 8]), Some(&[7, 8][..]));
        assert_eq!(whole(&[0, 0, 0, 0, 0]), Some(&[][..]));
        for data in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 1, 7, 8]] {
            assert_eq!(whole(data), None);
        }
    }

    #[test]
    fn timeouts_have_at_most_eight_digits_and_a_unit() {
        assert_eq!(timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout(b"20m"), Some(Duration::from_millis(20)));
        assert_eq!(timeout(b"7u"), Some(Duration::from_micros(7)));
        for value in [&b""[..], b"S", b"1", b"1s", b"-1S", b"123456789S", b"1.5S"] {
            assert_eq!(timeout(value), None);
        }
    }

    #[test]
    fn a_payload_is_prefix_and_body_and_pays_its_debt() {
        let (connection, account) = (Connection::new(String::new(), &Limits::default()), Account::new(100));
        let debt = Debt::new(&connection, &account, "m", 3);
        let mut payload = Payload::message(Encoded::plain(Bytes::from_static(b"abc")), debt).unwrap();
        assert_eq!((payload.remaining(), connection.owed()), (8, 3));
        payload.advance(6);
        assert_eq!((payload.chunk(), connection.owed()), (&b"bc"[..], 2));
        drop(payload);
        assert_eq!(connection.owed(), 0);
        let mut plain = Payload::from(Bytes::from_static(b"xy"));
        assert_eq!(plain.copy_to_bytes(2), Bytes::from_static(b"xy"));
    }

    #[test]
    fn a_status_is_percent_encoded() {
        let status = Status { code: Code::Unavailable, text: "100 % \n".into(), may_retry: true };
        let head = status.head(Some("id-1"));
        assert_eq!(head.headers()["grpc-status"], "14");
        assert_eq!(head.headers()["grpc-message"], "100 %25 %0A");
        assert_eq!(head.headers()["grpc-retry-pushback-ms"], "1000");
        assert_eq!(head.headers()["x-request-id"], "id-1");
    }
}
