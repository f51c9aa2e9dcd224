//! Reads and writes the bytes of one connection. It joins small writes into larger ones, and lets connections read in
//! turns.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection::Connection;
use super::frames::{Flood, FrameMeter};
use crate::admission::limits::{READ_BUDGET, WRITE_BUDGET};

/// A write of at most this many bytes is appended to the buffer of bytes that wait to be written to the socket.
const SMALL_BYTES: usize = 16 << 10;
/// Maximal size of the buffer of waiting bytes: before the buffer would grow beyond, its bytes are written to the
/// socket.
const GATHERED_BYTES: usize = 64 << 10;
/// After a write of at least this many bytes to an HTTP/2 connection, the next flush is delayed.
const LARGE_BYTES: usize = 8 << 10;
/// Maximal number of unused write buffers that each thread keeps for reuse.
const KEPT_BUFFERS: usize = 16;

/// Maximal number of bytes that one read of an HTTP/2 connection may read beyond the current frame. Each frame counts
/// as `FRAME_COST` more bytes of the connection's turn, because small frames cost more than their bytes.
const READ_AT_ONCE: usize = 16 << 10;
const FRAME_COST: usize = 256;

/// Maximal number of a flood's bytes that the server reads and drops before it closes the connection. Of a refused body
/// it drops up to [`Connection::max_discarded`] bytes, because most clients read an answer only after they have sent all.
const DISCARDED_BYTES: usize = 4 << 20;
const DISCARDED_AT_ONCE: usize = 16 << 10;
/// The time limits for this: of a pause between two of the client's bytes, and of all.
const PAUSE: Duration = Duration::from_secs(2);
const LINGER: Duration = Duration::from_secs(30);

thread_local! {
    // Free write buffers of the thread. A connection has a buffer only while bytes wait in it, because buffers for ten
    // thousand idle connections would take 320 MB.
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The state of delayed flushes of one HTTP/2 connection, by which h2 writes several frames in one system call. The
/// library h2 flushes after each frame; the socket delays these flushes until the connection's task has polled h2 to
/// its end.
pub struct Flushes {
    is_put_off: AtomicBool,
    is_due: AtomicBool,
}

impl Default for Flushes {
    /// Returns a state in which the first flush is not delayed, because it sends the server's SETTINGS during the
    /// handshake.
    fn default() -> Self {
        Flushes { is_put_off: AtomicBool::new(false), is_due: AtomicBool::new(true) }
    }
}

impl Flushes {
    /// Returns true if a flush was delayed. Then the caller must poll h2 once more, and the next flush is not delayed.
    pub fn make_due(&self) -> bool {
        let is_put_off = self.is_put_off.swap(false, Relaxed);
        self.is_due.store(is_put_off, Relaxed);
        is_put_off
    }
}

/// The byte stream of one connection; it counts the bytes that are read and written.
pub struct Socket<S> {
    stream: S,
    // State of delayed flushes; None for HTTP/1.1, which never delays a flush.
    flushes: Option<Arc<Flushes>>,
    // Whether the last write had at least `LARGE_BYTES` bytes, so that more writes of the same answer will probably
    // follow.
    is_amid: bool,
    connection: Arc<Connection>,
    waiting: Vec<u8>,
    start: usize,
    turn: usize,
    // Number of bytes that the connection has written since its task began the current turn.
    written: usize,
    // Counts HTTP/2 frames against the connection's frame budget; None for HTTP/1.1.
    meter: Option<FrameMeter>,
    // For HTTP/1.1: the number of bytes that have come of a request's head, and the number of requests before it.
    head: (usize, u64),
    // After the stream is shut down, this timer limits how long the server still reads and drops the client's bytes: the
    // longest pause, and the end of all.
    linger: Option<(Pin<Box<Sleep>>, tokio::time::Instant)>,
    discarded: usize,
}

impl<S> Socket<S> {
    /// Wraps the byte stream of an HTTP/1.1 connection.
    pub fn new(stream: S, connection: Arc<Connection>) -> Self {
        let (flushes, meter, linger) = (None, None, None);
        Socket {
            stream,
            flushes,
            is_amid: false,
            connection,
            waiting: Vec::new(),
            start: 0,
            turn: 0,
            written: 0,
            meter,
            head: (0, 0),
            linger,
            discarded: 0,
        }
    }

    /// Wraps the byte stream of an HTTP/2 connection, whose frames are counted and whose flushes are delayed.
    pub fn metered(stream: S, connection: Arc<Connection>, flushes: Arc<Flushes>) -> Self {
        let meter = Some(FrameMeter::new(Instant::now()));
        Socket { meter, flushes: Some(flushes), ..Socket::new(stream, connection) }
    }

    fn append(&mut self, data: &[u8]) {
        if self.waiting.capacity() == 0 {
            let kept = BUFFERS.with_borrow_mut(Vec::pop);
            self.waiting = kept.unwrap_or_else(|| Vec::with_capacity(GATHERED_BYTES));
        }
        self.waiting.extend_from_slice(data);
    }

    fn clear(&mut self) {
        self.start = 0;
        let mut buffer = std::mem::take(&mut self.waiting);
        if buffer.capacity() > 0 {
            buffer.clear();
            BUFFERS.with_borrow_mut(|kept| {
                if kept.len() < KEPT_BUFFERS {
                    kept.push(buffer);
                }
            });
        }
    }
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.start < self.waiting.len() {
            ready!(self.check_turn(cx));
            let written = Pin::new(&mut self.stream).poll_write(cx, &self.waiting[self.start..]);
            self.start += ready!(self.count(written))?;
        }
        if !self.waiting.is_empty() {
            self.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection's turn if it has written its budget of bytes, so that the thread's other connections can
    /// write.
    fn check_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.written < WRITE_BUDGET {
            return Poll::Ready(());
        }
        self.written = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(size)) => {
                self.written += size;
                self.connection.note_written(size);
                if let Some(meter) = &mut self.meter {
                    meter.note_written(size);
                }
                Poll::Ready(Ok(size))
            }
            Poll::Pending => {
                self.written = 0;
                self.connection.note_blocked();
                Poll::Pending
            }
            failed @ Poll::Ready(Err(_)) => failed,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        if me.connection.flood().is_some() {
            // The client floods the server: the socket reads no more of its bytes, and the connection's task sends
            // GOAWAY and closes the connection.
            return Poll::Pending;
        }
        if me.connection.is_paused() || me.meter.is_some() && me.connection.is_backed_up() {
            // While the connection is paused after refusals, or too many of its answers are unsent, no bytes are read.
            // The connection's task is woken when the pause ends, or when the socket accepts bytes again.
            me.turn = 0;
            return Poll::Pending;
        }
        if me.turn >= READ_BUDGET {
            // The connection's task moves to the end of the runtime's queue, so that other connections read first.
            me.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let most = me.meter.as_ref().map_or(READ_BUDGET, |meter| meter.payload_left().saturating_add(READ_AT_ONCE));
        let mut part = buffer.take(most);
        let read = Pin::new(&mut me.stream).poll_read(cx, &mut part);
        let size = part.filled().len();
        // SAFETY: the code above has filled the first `size` bytes of `part`, the unfilled part of `buffer`, so
        // `buffer` may count them as filled.
        unsafe { buffer.assume_init(size) };
        buffer.advance(size);
        if read.is_pending() {
            me.turn = 0;
            return read;
        }
        me.turn += size;
        me.connection.note_read(size);
        let mut has_room = true;
        if let Some(meter) = &mut me.meter {
            match meter.take(&buffer.filled()[before..]) {
                Ok(frames) => me.turn += frames * FRAME_COST,
                Err(flood) => me.connection.note_flood(flood),
            }
            has_room = me.connection.note_part(meter.part());
        } else if me.connection.num_open() == 0 {
            let begun = me.connection.num_begun();
            me.head = (if me.head.1 == begun { me.head.0 + size } else { size }, begun);
            has_room = me.connection.note_part(me.head.0);
        }
        if !has_room {
            me.connection.note_flood(Flood::Unfinished);
        }
        read
    }
}

impl<S: AsyncRead + Unpin> Socket<S> {
    /// Reads and drops what the client still sends, within limits of time and bytes, so that no unread bytes are left
    /// when the socket is closed. The system resets a socket that is closed with unread bytes, and the client may then
    /// lose the server's last answer.
    fn discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = tokio::time::Instant::now();
        let (linger, end) =
            self.linger.get_or_insert_with(|| (Box::pin(tokio::time::sleep_until(now + PAUSE)), now + LINGER));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let most = if self.connection.flood().is_some() { DISCARDED_BYTES } else { self.connection.max_discarded };
        let turn = most.min(self.discarded + READ_BUDGET);
        let mut space = [MaybeUninit::uninit(); DISCARDED_AT_ONCE];
        while self.discarded < turn {
            let mut buffer = ReadBuf::uninit(&mut space);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            let size = buffer.filled().len();
            if read.is_err() || size == 0 {
                return Poll::Ready(());
            }
            self.discarded += size;
            linger.as_mut().reset((now + PAUSE).min(*end));
            // The dropped bytes count as read application data, because a client may send TLS bytes only in proportion
            // to its application data.
            self.connection.note_read(size);
        }
        if turn < most {
            // Other connections of the thread get their turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        me.is_amid = data.len() >= LARGE_BYTES;
        let data = &data[..data.len().min(WRITE_BUDGET)];
        if data.len() <= SMALL_BYTES {
            if me.waiting.len() + data.len() > GATHERED_BYTES {
                ready!(me.drain(cx))?;
            }
            me.append(data);
            return Poll::Ready(Ok(data.len()));
        }
        while me.start < me.waiting.len() {
            ready!(me.check_turn(cx));
            let parts = [io::IoSlice::new(&me.waiting[me.start..]), io::IoSlice::new(data)];
            let written = Pin::new(&mut me.stream).poll_write_vectored(cx, &parts);
            let size = ready!(me.count(written))?;
            let waited = me.waiting.len() - me.start;
            if size < waited {
                me.start += size;
                continue;
            }
            me.clear();
            if size > waited {
                return Poll::Ready(Ok(size - waited));
            }
        }
        ready!(me.check_turn(cx));
        let written = Pin::new(&mut me.stream).poll_write(cx, data);
        me.count(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        let size = parts.iter().map(|part| part.len()).sum();
        if size <= SMALL_BYTES {
            if me.waiting.len() + size > GATHERED_BYTES {
                ready!(me.drain(cx))?;
            }
            for part in parts {
                me.append(part);
            }
            return Poll::Ready(Ok(size));
        }
        if size > WRITE_BUDGET
            && let Some(first) = parts.iter().find(|part| !part.is_empty())
        {
            return Pin::new(me).poll_write(cx, first);
        }
        ready!(me.drain(cx))?;
        ready!(me.check_turn(cx));
        let written = Pin::new(&mut me.stream).poll_write_vectored(cx, parts);
        me.count(written)
    }

    /// Returns true for HTTP/1.1: hyper then does not copy large answers, and sends each answer before it reads the
    /// next request.
    fn is_write_vectored(&self) -> bool {
        self.meter.is_none()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        if let Some(flushes) = &me.flushes
            && me.is_amid
            && !me.waiting.is_empty()
            && !flushes.is_due.load(Relaxed)
        {
            flushes.is_put_off.store(true, Relaxed);
            return Poll::Ready(Ok(()));
        }
        ready!(me.drain(cx))?;
        if let Some(flushes) = &me.flushes {
            flushes.is_due.store(false, Relaxed);
            flushes.is_put_off.store(false, Relaxed);
        }
        Pin::new(&mut me.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        ready!(me.drain(cx))?;
        if me.linger.is_none() {
            ready!(Pin::new(&mut me.stream).poll_shutdown(cx))?;
        }
        if me.connection.has_unread() {
            ready!(me.discard(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::admission::limits::Limits;

    /// A stream that records the size of each write.
    #[derive(Default)]
    struct Writes(Vec<usize>);

    impl AsyncRead for Writes {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Writes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(data.len());
            Poll::Ready(Ok(data.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes the parts of one HTTP/2 frame and then flushes, as h2 does.
    fn send(socket: &mut Socket<Writes>, parts: &[usize]) {
        let mut cx = Context::from_waker(Waker::noop());
        for &size in parts {
            assert!(
                matches!(Pin::new(&mut *socket).poll_write(&mut cx, &vec![0; size]), Poll::Ready(Ok(n)) if n == size)
            );
        }
        assert!(Pin::new(socket).poll_flush(&mut cx).is_ready());
    }

    #[test]
    fn frames_of_one_answer_are_written_together() {
        let flushes = Arc::new(Flushes::default());
        let connection = Connection::new(String::new(), &Limits::default());
        let mut socket = Socket::metered(Writes::default(), connection, Arc::clone(&flushes));
        send(&mut socket, &[9, 24]);
        assert_eq!(socket.stream.0, [33], "SETTINGS are sent at once");
        for _ in 0..5 {
            send(&mut socket, &[9, 16384]);
        }
        let (three, two) = (3 * 16393, 2 * 16393);
        assert_eq!(socket.stream.0, [33, three + 9]);
        assert!(flushes.make_due());
        send(&mut socket, &[]);
        assert_eq!(socket.stream.0, [33, three + 9, two - 9]);
        assert!(!flushes.make_due(), "nothing waits");
        send(&mut socket, &[9, 16384]);
        send(&mut socket, &[9, 10]);
        assert_eq!(socket.stream.0[3..], [16393 + 19], "a small write ends the answer");
        assert!(!flushes.make_due(), "nothing waits");
    }
}
