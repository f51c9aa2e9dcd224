//! Says what the bytes of a request are that are not in the form which they should have, by the first of them.

/// Returns the end of the error text for a body that is not JSON; "" if its first bytes do not say what it is.
#[must_use]
pub fn body_hint(body: &[u8]) -> &'static str {
    match body {
        [0x1f, 0x8b, ..] => "; the body is compressed by gzip: send it with the header Content-Encoding: gzip",
        // The first bytes of a zlib stream, by its level of compression.
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => {
            "; the body is compressed by zlib: send it with the header Content-Encoding: deflate"
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "; the body is compressed by zstd, which is not supported: use gzip",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{' | b'[', 0, ..] | [0, b'{' | b'[', ..] => {
            "; the body is UTF-16 text: encode it as UTF-8"
        }
        _ => "",
    }
}

/// Returns the end of the error text for a gRPC message that is no message of its type; "" if its first bytes do not say
/// what it is.
#[must_use]
pub fn message_hint(message: &[u8]) -> &'static str {
    match message {
        [0x1f, 0x8b, ..] => {
            ": it is compressed by gzip, but its compressed flag is not set; let the gRPC library compress it"
        }
        [b'{', ..] => ": it is JSON text; send the serialized protobuf message",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_by_their_beginning() {
        for (body, hint) in [
            (&b"\x1f\x8b\x08"[..], "Content-Encoding: gzip"),
            (b"\x78\x9c\xab", "Content-Encoding: deflate"),
            (b"\x28\xb5\x2f\xfd\x04", "use gzip"),
            (b"\xff\xfe{\0", "UTF-8"),
            (b"\xfe\xff\0{", "UTF-8"),
            (b"{\0\"\0", "UTF-8"),
            (b"\0{\0\"", "UTF-8"),
        ] {
            assert!(body_hint(body).ends_with(hint), "{body:?}");
        }
        for body in [&b""[..], b"{", b"{\"a\": x}", b"\x1f", b"x = 1"] {
            assert_eq!(body_hint(body), "", "{body:?}");
        }
        assert!(message_hint(b"\x1f\x8b\x08").starts_with(": it is compressed by gzip"));
        assert!(message_hint(b"{\"inputs\": {}}").starts_with(": it is JSON text"));
        assert_eq!(message_hint(b"\x0a\x04"), "");
    }
}
