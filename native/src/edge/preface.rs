//! Finds out whether a client of the HTTP port speaks HTTP/2 without asking (prior knowledge): its first bytes say so.
//!
//! Source: RFC 9113, sections 3.3 and 3.4.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::connection::{Connection, Order};
use super::wrapped_stream::write_to_stream;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A byte stream whose first bytes were read already; they are read again.
pub struct Begun<S> {
    first: [u8; PREFACE.len()],
    // The bytes of `first` from `read` to `filled` are not read again yet.
    read: usize,
    filled: usize,
    stream: S,
}

impl<S> Begun<S> {
    fn found(&self) -> Option<bool> {
        let found = &self.first[..self.filled];
        if PREFACE.starts_with(found) { (found.len() == PREFACE.len()).then_some(true) } else { Some(false) }
    }
}

/// Reads a client's first bytes; returns the stream, and whether the client speaks HTTP/2. None if the client closes the
/// connection before, or the server orders to close it.
pub async fn read<S: AsyncRead + Unpin>(stream: S, connection: &Arc<Connection>) -> Option<(Begun<S>, bool)> {
    let mut begun = Begun { first: [0; PREFACE.len()], read: 0, filled: 0, stream };
    let is_http2 = poll_fn(|cx| {
        connection.wake_by(cx.waker());
        loop {
            if connection.order() >= Order::Close {
                return Poll::Ready(None);
            }
            if let Some(is_http2) = begun.found() {
                return Poll::Ready(Some(is_http2));
            }
            let mut space = ReadBuf::new(&mut begun.first[begun.filled..]);
            if ready!(Pin::new(&mut begun.stream).poll_read(cx, &mut space)).is_err() || space.filled().is_empty() {
                return Poll::Ready(None);
            }
            begun.filled += space.filled().len();
        }
    });
    let is_http2 = is_http2.await?;
    Some((begun, is_http2))
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        if me.read == me.filled {
            return Pin::new(&mut me.stream).poll_read(cx, buffer);
        }
        let size = buffer.remaining().min(me.filled - me.read);
        buffer.put_slice(&me.first[me.read..me.read + size]);
        me.read += size;
        Poll::Ready(Ok(()))
    }
}

write_to_stream!(Begun);

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::admission::limits::Limits;

    async fn found(bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
        let connection = Connection::new(String::new(), &Limits::default());
        let (mut begun, is_http2) = read(bytes, &connection).await?;
        let mut all = Vec::new();
        begun.read_to_end(&mut all).await.ok()?;
        Some((all, is_http2))
    }

    #[tokio::test]
    async fn the_first_bytes_tell_the_protocol_and_are_read_again() {
        let mut sent = PREFACE.to_vec();
        sent.extend(b"frames");
        assert_eq!(found(&sent).await, Some((sent.clone(), true)));
        for sent in [&b"POST / HTTP/1.1\r\n\r\n"[..], b"G", b"PRI * HTTP/2.0\r\n\r\nsm\r\n\r\n"] {
            assert_eq!(found(sent).await, Some((sent.to_vec(), false)));
        }
        assert_eq!(found(b"PRI *").await, None);
        assert_eq!(found(b"").await, None);
    }
}
