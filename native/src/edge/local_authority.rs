//! Replaces the `:authority` of requests on a Unix socket, before the HTTP/2 library reads it.
//!
//! gRPC's clients send the percent-encoded path of the socket, such as `%2Frun%2Fgrpc.sock`. That is no valid authority
//! (RFC 3986, section 3.2), so the HTTP/2 library would refuse each request. The server has no use for the name. The
//! bytes are replaced by as many others, so that no length changes: neither of a frame, nor of an entry in HPACK's table.
//!
//! Source: RFC 9113, sections 4.1, 6.2 and 6.10; RFC 7541, sections 5 and 6, and appendix B.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::wrapped_stream::write_to_stream;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const NAME: &[u8] = b":authority";
/// `:authority` in HPACK's Huffman code.
const CODED_NAME: &[u8] = &[184, 59, 83, 57, 236, 50, 125, 127];
/// Index of `:authority` in HPACK's static table.
const INDEX: u8 = 1;

/// A connection on a Unix socket whose requests all have a valid `:authority`.
#[derive(Debug)]
pub struct LocalAuthority<S> {
    stream: S,
    rewriter: Rewriter,
}

impl<S> LocalAuthority<S> {
    /// Wraps a connection of which no byte has been read.
    pub fn new(stream: S) -> Self {
        LocalAuthority { stream, rewriter: Rewriter::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LocalAuthority<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.rewriter.rewrite(&mut buf.filled_mut()[before..]);
        Poll::Ready(read)
    }
}

write_to_stream!(LocalAuthority);

/// Which part of a header field comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Field,
    /// The rest of an integer of the field's first byte; then a new field, or the value of this one.
    Tail {
        has_value: bool,
    },
    Size {
        is_value: bool,
    },
    /// The rest of the length of a name or value; `shift` is the number of bits that have come.
    SizeTail {
        is_value: bool,
        shift: u32,
    },
    Text {
        is_value: bool,
    },
}

/// Reads the bytes of a connection, however they are cut, and changes those of authorities.
#[derive(Debug)]
struct Rewriter {
    preface_left: usize,
    head: [u8; HEAD_BYTES],
    head_filled: usize,
    // Numbers of bytes of the current frame's payload that have not come: before its part of a header block, of this
    // part, and after it. A frame without such a part has only bytes after it.
    before_left: usize,
    block_left: usize,
    after_left: usize,
    // Whether the first byte of the payload, which is the length of the padding, has not come.
    is_pad_due: bool,
    next: Next,
    is_authority: bool,
    is_coded: bool,
    // Length of the current name or value, and the number of its bytes that have not come.
    size: usize,
    left: usize,
    // Start of the current name.
    name: [u8; NAME.len()],
}

impl Default for Rewriter {
    fn default() -> Self {
        Rewriter {
            preface_left: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_filled: 0,
            before_left: 0,
            block_left: 0,
            after_left: 0,
            is_pad_due: false,
            next: Next::Field,
            is_authority: false,
            is_coded: false,
            size: 0,
            left: 0,
            name: [0; NAME.len()],
        }
    }
}

impl Rewriter {
    fn rewrite(&mut self, mut data: &mut [u8]) {
        while !data.is_empty() {
            let due = [&mut self.preface_left, &mut self.before_left].into_iter().find(|left| **left > 0);
            if let Some(left) = due {
                let skipped = data.len().min(*left);
                *left -= skipped;
                if self.is_pad_due {
                    self.is_pad_due = false;
                    let padding = self.block_left.min(usize::from(data[0]));
                    self.block_left -= padding;
                    self.after_left = padding;
                }
                data = &mut data[skipped..];
            } else if self.block_left > 0 {
                let size = data.len().min(self.block_left);
                self.block_left -= size;
                let (block, rest) = data.split_at_mut(size);
                for byte in block {
                    self.header_byte(byte);
                }
                data = rest;
            } else if self.after_left > 0 {
                let skipped = data.len().min(self.after_left);
                self.after_left -= skipped;
                data = &mut data[skipped..];
            } else {
                self.head[self.head_filled] = data[0];
                self.head_filled += 1;
                data = &mut data[1..];
                if self.head_filled == HEAD_BYTES {
                    self.head_filled = 0;
                    self.frame();
                }
            }
        }
    }

    /// Prepares for the payload of a frame whose head has come.
    fn frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        let size = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == CONTINUATION {
            self.block_left = size;
        } else if kind == HEADERS {
            self.next = Next::Field;
            self.is_pad_due = flags & PADDED != 0 && size > 0;
            let before = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
            self.before_left = before.min(size);
            self.block_left = size - self.before_left;
        } else {
            self.after_left = size;
        }
    }

    fn header_byte(&mut self, byte: &mut u8) {
        match self.next {
            Next::Field => self.field(*byte),
            Next::Tail { has_value } => {
                if *byte & 0x80 == 0 {
                    self.next = if has_value { Next::Size { is_value: true } } else { Next::Field };
                }
            }
            Next::Size { is_value } => {
                self.is_coded = *byte & 0x80 != 0;
                self.size = usize::from(*byte & 0x7f);
                if self.size == 0x7f {
                    self.next = Next::SizeTail { is_value, shift: 0 };
                } else {
                    self.text(is_value);
                }
            }
            Next::SizeTail { is_value, shift } => {
                // The HTTP/2 library refuses a length that is so large.
                let more = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or(0);
                self.size = self.size.saturating_add(more);
                if *byte & 0x80 == 0 {
                    self.text(is_value);
                } else {
                    self.next = Next::SizeTail { is_value, shift: shift + 7 };
                }
            }
            Next::Text { is_value } => {
                let at = self.size - self.left;
                self.left -= 1;
                if !is_value {
                    if let Some(place) = self.name.get_mut(at) {
                        *place = *byte;
                    }
                } else if self.is_authority {
                    *byte = self.replacement();
                }
                if self.left == 0 {
                    self.end_text(is_value);
                }
            }
        }
    }

    /// Reads the first byte of a field.
    fn field(&mut self, byte: u8) {
        let (mask, has_value) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let index = byte & mask;
        self.is_authority = has_value && index == INDEX;
        self.next = if index == mask {
            Next::Tail { has_value }
        } else if has_value {
            Next::Size { is_value: index != 0 }
        } else {
            Next::Field
        };
    }

    fn text(&mut self, is_value: bool) {
        self.left = self.size;
        self.next = Next::Text { is_value };
        if self.size == 0 {
            self.end_text(is_value);
        }
    }

    fn end_text(&mut self, is_value: bool) {
        if is_value {
            self.next = Next::Field;
        } else {
            let name = if self.is_coded { CODED_NAME } else { NAME };
            self.is_authority = self.name.get(..self.size) == Some(name);
            self.next = Next::Size { is_value: true };
        }
    }

    /// Returns the byte of the new authority at the place of the one that has come: an authority of zeros.
    fn replacement(&self) -> u8 {
        if !self.is_coded {
            return b'0';
        }
        // In HPACK's Huffman code, a zero is five bits 0; bits 1 follow the last one.
        if self.left > 0 { 0 } else { (1 << (8 * self.size % 5)) - 1 }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut out = vec![size[1], size[2], size[3], kind, flags, 0, 0, 0, 1];
        out.extend_from_slice(payload);
        out
    }

    fn rewritten(frames: &[Vec<u8>], cut: usize) -> Vec<u8> {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frames.concat());
        let mut rewriter = Rewriter::default();
        for part in sent.chunks_mut(cut) {
            rewriter.rewrite(part);
        }
        sent.split_off(PREFACE_BYTES)
    }

    /// Fields before and after the authority: indexed, literal with a name of its own, and a change of the table's size.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x3f, 0xe1, 0x1f, 0x04, 5];
        block.extend(b"/%2Fa");
        block.extend(authority);
        block.extend(b"\x40\x02te\x08trailers\xbe");
        block
    }

    #[test]
    fn authorities_are_replaced_in_every_form_and_nothing_else_is() {
        let mut by_name = vec![0x40, 10];
        by_name.extend(NAME);
        let mut by_coded_name = vec![0x00, 0x88];
        by_coded_name.extend(CODED_NAME);
        for start in [vec![0x41], vec![0x01], vec![0x11], by_name, by_coded_name] {
            let with = |value: &[u8]| block(&[start.as_slice(), value].concat());
            let wanted = frame(HEADERS, 4, &with(b"\x0a0000000000"));
            let sent = frame(HEADERS, 4, &with(b"\x0a%2Ftmp%2Fs"));
            for cut in [1, 2, 7, 1000] {
                assert_eq!(rewritten(std::slice::from_ref(&sent), cut), wanted);
            }
            // Eight bytes of Huffman code are twelve zeros of five bits, and four bits 1.
            let sent = frame(HEADERS, 4, &with(b"\x88\x99\x99\x99\x99\x99\x99\x99\x99"));
            assert_eq!(rewritten(&[sent], 5), frame(HEADERS, 4, &with(b"\x88\0\0\0\0\0\0\0\x0f")));
        }
    }

    #[test]
    fn long_names_padding_priorities_and_several_frames_are_understood() {
        let mut value = vec![0x41, 0x7f, 0x81, 0x01];
        value.extend([b'%'; 0x7f + 1 + 0x80]);
        let zeros: Vec<u8> = value.iter().map(|byte| if *byte == b'%' { b'0' } else { *byte }).collect();
        let split = |value: &[u8]| {
            let block = block(value);
            let mut first = vec![3, 0, 0, 0, 0, 16];
            first.extend(&block[..100]);
            first.extend([b'%'; 3]);
            [
                frame(4, 0, &[0, 3, 0, 0, 0, 100]),
                frame(HEADERS, PADDED | PRIORITY, &first),
                frame(CONTINUATION, 0, &block[100..200]),
                frame(CONTINUATION, 4, &block[200..]),
                frame(0, 1, b"\x41\x01%"),
                frame(HEADERS, 4, &[0xbf, 0x41, 1, value[4]]),
            ]
        };
        for cut in [1, 9, 64, 1000] {
            assert_eq!(rewritten(&split(&value), cut), split(&zeros).concat());
        }
    }

    #[test]
    fn bytes_that_are_no_frames_end_nothing() {
        for seed in 0..200_u8 {
            let mut rewriter = Rewriter::default();
            let mut noise: Vec<u8> =
                (0..5000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect();
            for part in noise.chunks_mut(77) {
                rewriter.rewrite(part);
            }
        }
    }
}
