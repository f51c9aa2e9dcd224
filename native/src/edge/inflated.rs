//! Inflates the compressed messages of gRPC requests, and compresses those of answers. No other code of the server does:
//! forwarded requests and answers are not compressed.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::GzEncoder;

use super::grpc_message::PREFIX_BYTES;

/// Maximal ratio of a message's inflated size to its compressed size, for messages that inflate to more than
/// `UNJUDGED_BYTES`. The reference server has the same limit for HTTP bodies.
const RATIO: usize = 100;
const UNJUDGED_BYTES: usize = 4 << 20;
const SLICE_BYTES: usize = 64 << 10;

/// A compression method of gRPC messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The gzip format of RFC 1952.
    Gzip,
    /// The zlib format of RFC 1950.
    Deflate,
}

/// The reason why a compressed message is not inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// The compressed message inflates to more bytes than the limit, which the variant holds.
    Bytes(usize),
    /// The compressed message inflates to too many times its size.
    Ratio,
    /// The inflated bytes exceed the limit on bytes in flight.
    InFlight,
}

impl TooLarge {
    /// Returns the error text that tells the client why its compressed message is refused.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            TooLarge::Bytes(limit) => format!("The decompressed message is over the limit of {limit} bytes."),
            TooLarge::Ratio => format!(
                "The message decompresses to more than {RATIO} times its size; send it less compressed, or plain."
            ),
            TooLarge::InFlight => "The decompressed message is over the limit on bytes in flight.".into(),
        }
    }
}

/// Inflates the compressed message `data`; returns the message in plain, behind its five-byte prefix. None: the data is
/// invalid, and the reference server refuses it.
///
/// `limit`: the largest size of the inflated message. `has_room`: counts the bytes that the result holds so far, and
/// says whether more may be added.
///
/// # Errors
/// [`TooLarge`], as soon as a limit is passed.
pub fn inflate(
    coding: Coding,
    data: &[u8],
    limit: usize,
    has_room: impl FnMut(usize) -> bool,
) -> Result<Option<Bytes>, TooLarge> {
    match coding {
        Coding::Gzip => read(MultiGzDecoder::new(data), data.len(), limit, has_room),
        Coding::Deflate => read(ZlibDecoder::new(data), data.len(), limit, has_room),
    }
}

fn read(
    mut decoder: impl Read,
    sent: usize,
    limit: usize,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Option<Bytes>, TooLarge> {
    let mut slice = vec![0; SLICE_BYTES];
    let mut message = vec![0; PREFIX_BYTES];
    loop {
        let more = match decoder.read(&mut slice) {
            Ok(0) => break,
            Ok(more) => more,
            Err(_) => return Ok(None),
        };
        message.extend_from_slice(&slice[..more]);
        let size = message.len() - PREFIX_BYTES;
        if size > limit {
            return Err(TooLarge::Bytes(limit));
        }
        if size > UNJUDGED_BYTES && size / RATIO > sent {
            return Err(TooLarge::Ratio);
        }
        if !has_room(message.capacity()) {
            return Err(TooLarge::InFlight);
        }
    }
    let Ok(size) = u32::try_from(message.len() - PREFIX_BYTES) else {
        return Err(TooLarge::Bytes(limit));
    };
    message[1..PREFIX_BYTES].copy_from_slice(&size.to_be_bytes());
    Ok(Some(message.into()))
}

/// Compresses the message of an answer with gzip.
#[must_use]
pub fn gzip(message: &[u8]) -> Bytes {
    // The fastest level, because numbers compress badly at every level.
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 2), Compression::fast());
    // Writing to a Vec does not fail.
    let _ = encoder.write_all(message);
    encoder.finish().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use flate2::write::ZlibEncoder;

    use super::super::grpc_message::whole;
    use super::*;

    fn size(coding: Coding, data: &[u8], limit: usize) -> Result<Option<usize>, TooLarge> {
        let message = inflate(coding, data, limit, |_| true)?;
        Ok(message.map(|message| whole(&message).expect("one plain message").len()))
    }

    #[test]
    fn ordinary_messages_are_inflated_and_come_back_from_gzip() {
        let data: Vec<u8> = (0..100_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        for data in [&data[..], b"x", b""] {
            let message = inflate(Coding::Gzip, &gzip(data), 1 << 20, |_| true).unwrap().unwrap();
            assert_eq!(whole(&message), Some(data));
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&data).unwrap();
        assert_eq!(size(Coding::Deflate, &encoder.finish().unwrap(), 1 << 20), Ok(Some(400_000)));
        assert_eq!(size(Coding::Gzip, &gzip(&data), 399_999), Err(TooLarge::Bytes(399_999)));
        let mut held = 0;
        let stopped = inflate(Coding::Gzip, &gzip(&data), 1 << 20, |size| {
            held = size;
            size < 200_000
        });
        assert_eq!((stopped, held < 600_000), (Err(TooLarge::InFlight), true));
    }

    #[test]
    fn what_inflates_too_far_is_refused_and_small_messages_may() {
        assert_eq!(size(Coding::Gzip, &gzip(&vec![0; 60 << 20]), 64 << 20), Err(TooLarge::Ratio));
        assert_eq!(size(Coding::Gzip, &gzip(&vec![0; 4 << 20]), 64 << 20), Ok(Some(4 << 20)));
    }

    #[test]
    fn broken_data_is_left_to_the_reference_server() {
        assert_eq!(size(Coding::Gzip, b"no gzip", 100), Ok(None));
        let data = gzip(&[7; 1000]);
        assert_eq!(size(Coding::Gzip, &data[..data.len() - 9], 1 << 20), Ok(None));
    }
}
