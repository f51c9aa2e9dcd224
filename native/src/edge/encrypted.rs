//! Reads and writes the encrypted bytes of a connection with TLS: in short turns, and with a limit on TLS bytes without
//! application data.
//!
//! TLS has records without data, such as a `KeyUpdate`, which costs the server 5 us. rustls allows 32 of them in a row,
//! but an empty record of data begins a new row. Source: RFC 8446, sections 4.6.3, 5.1 and 5.4.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use super::connection::Connection;
use super::frames::Flood;
use super::wrapped_stream::write_to_stream;
use crate::admission::limits::{TLS_BYTES_WITHOUT_DATA, TLS_HANDSHAKE_BYTES};

/// Number of TLS bytes without application data that each byte of application data allows: a record with one byte of
/// data has 23 bytes.
const PER_BYTE_OF_DATA: u64 = 32;
/// Time for which a connection may decrypt before other connections get the thread.
const TURN: Duration = Duration::from_micros(500);

/// The encrypted byte stream of a connection with TLS.
pub struct Encrypted<S> {
    stream: S,
    connection: Arc<Connection>,
    is_handshake: bool,
    // Whether the client has sent too many TLS bytes without application data, so that no more bytes are read.
    is_over: bool,
    // Time when the connection began its current turn of decryption; None between two turns.
    turn: Option<Instant>,
    // Number of encrypted bytes that the client may still send before more application data is read or written.
    left: usize,
    // Number of bytes of application data, read and written, for which the limit `left` has already been raised.
    data: u64,
}

impl<S> Encrypted<S> {
    /// Wraps the byte stream of a connection before its TLS handshake.
    pub fn new(stream: S, connection: Arc<Connection>) -> Self {
        let (turn, left) = (None, TLS_HANDSHAKE_BYTES);
        Encrypted { stream, connection, is_handshake: true, is_over: false, turn, left, data: 0 }
    }

    /// Notes the end of the TLS handshake: from now on the limit on TLS bytes without application data replaces the
    /// handshake's limit.
    pub fn end_handshake(&mut self) {
        self.is_handshake = false;
        self.left = TLS_BYTES_WITHOUT_DATA;
    }

    /// Counts encrypted bytes that have come; returns false if the client has sent too many without application data.
    fn count(&mut self, size: usize) -> bool {
        let data = self.connection.read.load(Relaxed) + self.connection.written.load(Relaxed);
        let gained = (data - self.data).saturating_mul(PER_BYTE_OF_DATA);
        self.data = data;
        let left = self.left.saturating_add(usize::try_from(gained).unwrap_or(usize::MAX)).min(TLS_BYTES_WITHOUT_DATA);
        self.left = left.saturating_sub(size);
        left >= size
    }

    /// Ends a connection whose client has sent too many TLS bytes: in the handshake, or after it without application
    /// data.
    fn end(&mut self) -> Poll<io::Result<()>> {
        if self.is_handshake {
            return Poll::Ready(Err(io::Error::other("the client sent too many bytes in its TLS handshake")));
        }
        // The stream only reports a flood of TLS bytes without application data; the connection's task counts the
        // flood, and ends the connection.
        self.is_over = true;
        self.connection.note_flood(Flood::Tls);
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        if me.is_over {
            return Poll::Pending;
        }
        let now = Instant::now();
        if now.duration_since(*me.turn.get_or_insert(now)) > TURN {
            me.turn = None;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut me.stream).poll_read(cx, buffer);
        if read.is_pending() {
            me.turn = None;
            return read;
        }
        if me.count(buffer.filled().len() - before) { read } else { me.end() }
    }
}

write_to_stream!(Encrypted);
