//! Inflates compressed gRPC messages.
//!
//! The reference server inflates messages whole, so one that is too large must be refused before.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

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

/// The reason why a compressed message must not be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// The compressed message inflates to more bytes than the limit, which the variant holds.
    Bytes(usize),
    /// The compressed message inflates to too many times its size.
    Ratio,
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
        }
    }
}

/// Inflates a message. If the compressed data is invalid, only the part before the error is returned, because the
/// reference server refuses such a message.
///
/// # Errors
/// [`TooLarge`], as soon as a limit is passed.
pub fn message(coding: Coding, data: &[u8], limit: usize) -> Result<Vec<u8>, TooLarge> {
    match coding {
        Coding::Gzip => inflate(MultiGzDecoder::new(data), data.len(), limit),
        Coding::Deflate => inflate(ZlibDecoder::new(data), data.len(), limit),
    }
}

fn inflate(mut decoder: impl Read, sent: usize, limit: usize) -> Result<Vec<u8>, TooLarge> {
    let mut slice = vec![0; SLICE_BYTES];
    let mut message = Vec::new();
    while let Ok(more @ 1..) = decoder.read(&mut slice) {
        message.extend_from_slice(&slice[..more]);
        let size = message.len();
        if size > limit {
            return Err(TooLarge::Bytes(limit));
        }
        if size > UNJUDGED_BYTES && size / RATIO > sent {
            return Err(TooLarge::Ratio);
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn size(coding: Coding, data: &[u8], limit: usize) -> Result<usize, TooLarge> {
        message(coding, data, limit).map(|message| message.len())
    }

    #[test]
    fn ordinary_messages_have_their_size() {
        let data: Vec<u8> = (0..100_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        assert_eq!(size(Coding::Gzip, &gzip(&data), 1 << 20), Ok(400_000));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&data).unwrap();
        assert_eq!(size(Coding::Deflate, &encoder.finish().unwrap(), 1 << 20), Ok(400_000));
        assert_eq!(size(Coding::Gzip, &gzip(&data), 399_999), Err(TooLarge::Bytes(399_999)));
    }

    #[test]
    fn what_inflates_too_far_is_refused_and_small_messages_may() {
        assert_eq!(size(Coding::Gzip, &gzip(&vec![0; 60 << 20]), 64 << 20), Err(TooLarge::Ratio));
        assert_eq!(size(Coding::Gzip, &gzip(&vec![0; 4 << 20]), 64 << 20), Ok(4 << 20));
    }

    #[test]
    fn broken_data_counts_as_far_as_it_goes() {
        assert_eq!(size(Coding::Gzip, b"no gzip", 100), Ok(0));
        let data = gzip(&[7; 1000]);
        assert!(size(Coding::Gzip, &data[..data.len() - 9], 1 << 20).is_ok());
    }
}
