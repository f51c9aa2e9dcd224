//! Removes from a gRPC call the metadata that the control server can not parse. For such metadata, grpcio would fail
//! the call with INTERNAL and log an error, although the fault is the client's.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::grpc_message::{self, Code, Status};

/// Deadlines further away than this are shortened to this time: grpcio fails calls whose deadline is centuries away.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Checks the metadata of a call before it is forwarded, and removes metadata that no handler of the control server
/// reads and that grpcio may fail to parse.
///
/// # Errors
/// The call's deadline is malformed, or gRPC does not define the call's compression.
pub fn sanitize(headers: &mut HeaderMap) -> Result<(), Status> {
    if let Some(value) = headers.get("grpc-timeout") {
        let Some(timeout) = grpc_message::timeout(value.as_bytes()) else {
            return Err(refused(Code::InvalidArgument, "The metadata 'grpc-timeout' is malformed."));
        };
        if timeout > LONGEST {
            headers.insert("grpc-timeout", HeaderValue::from_str(&format!("{}S", LONGEST.as_secs())).expect("digits"));
        }
    }
    if let Some(value) = headers.get("grpc-encoding")
        && !matches!(value.as_bytes(), b"identity" | b"gzip" | b"deflate")
    {
        return Err(refused(Code::Unimplemented, "The server inflates only messages in gzip and deflate."));
    }
    let removed: Vec<HeaderName> = headers
        .iter()
        .filter(|(name, value)| is_of_no_use(name.as_str()) || !is_text(value.as_bytes()))
        .map(|(name, _)| name.clone())
        .collect();
    for name in removed {
        headers.remove(name);
    }
    Ok(())
}

fn refused(code: Code, text: &str) -> Status {
    Status { code, text: text.into(), may_retry: false }
}

/// Returns true if the control server does not need the metadata with this name: gRPC reserves the name, the metadata
/// is binary, which no handler reads, or it asks for a compressed answer, which only the core compresses.
fn is_of_no_use(name: &str) -> bool {
    let is_needed = ["grpc-timeout", "grpc-encoding", "grpc-accept-encoding"].contains(&name);
    name.starts_with("grpc-") && !is_needed
        || name.ends_with("-bin")
        || name.starts_with("lb-")
        || name == "x-response-encoding"
}

/// Says whether a value is visible ASCII and spaces, as gRPC's metadata must be.
fn is_text(value: &[u8]) -> bool {
    value.iter().all(|byte| (b' '..=b'~').contains(byte))
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn of(pairs: &[(&'static str, &'static [u8])]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value")))
            .collect()
    }

    #[test]
    fn a_malformed_deadline_and_an_unknown_compression_are_refused() {
        for value in [&b""[..], b"1", b"1x", b"-1S", b"123456789S", b"1 S"] {
            let refused = sanitize(&mut of(&[("grpc-timeout", value)])).expect_err("malformed");
            assert_eq!(refused.code, Code::InvalidArgument, "{value:?}");
        }
        let refused = sanitize(&mut of(&[("grpc-encoding", b"zstd")])).expect_err("unknown");
        assert_eq!(refused.code, Code::Unimplemented);
        assert!(sanitize(&mut of(&[("grpc-encoding", b"gzip"), ("grpc-timeout", b"20m")])).is_ok());
    }

    #[test]
    fn what_grpcio_can_not_parse_is_removed() {
        let mut headers = of(&[
            ("grpc-timeout", b"99999999H"),
            ("grpc-previous-rpc-attempts", b"abc"),
            ("grpc-status", b"abc"),
            ("grpc-accept-encoding", b"gzip"),
            ("x-bin", b"***"),
            ("lb-cost", b"x"),
            ("x-name", b"\xff"),
            ("authorization", b"Bearer a"),
        ]);
        assert!(sanitize(&mut headers).is_ok());
        let expected =
            of(&[("grpc-timeout", b"2592000S"), ("grpc-accept-encoding", b"gzip"), ("authorization", b"Bearer a")]);
        assert_eq!(headers, expected);
    }
}
