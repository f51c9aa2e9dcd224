//! Serves one HTTP/2 connection of either wire: its task reads requests, answers small ones as they arrive, and runs all
//! others.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::config::Wire;
use super::connection::{Connection, Order, PendingCall};
use super::events::Event;
use super::grpc_message::Payload;
use super::refusal_pause::RefusalPause;
use super::request_window::{RequestWindow, STREAM_WINDOW};
use super::shared::Shared;
use super::socket::{Flushes, Socket};
use super::{grpc, http_over_http2};

/// Maximal number of requests that the connection's task reads before it answers them.
const BATCH: usize = 64;
/// Number of bytes of answers that the connection's task makes before h2 writes them: few enough that they are still in
/// the processor's caches then.
const UNWRITTEN_BYTES: usize = 128 << 10;
/// Time for which one connection's task may answer requests before other connections get the thread.
const TURN: Duration = Duration::from_micros(500);
/// Number of bytes that one connection may send before the server has read them (the HTTP/2 window).
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Maximal size of an HTTP/2 frame, which h2 holds in memory until the whole frame has come: HTTP/2's default, which no
/// client may choose to exceed unasked. Source: RFC 9113, section 6.5.2.
const FRAME_BYTES: u32 = 16 << 10;

/// Serves one HTTP/2 connection until it is closed.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    wire: Wire,
    stream: S,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
) {
    let limits = &shared.limits;
    let flushes = Arc::new(Flushes::default());
    let socket = Socket::metered(stream, Arc::clone(&connection), Arc::clone(&flushes));
    // Boxed, so that its memory is free once it is over.
    let mut handshake = Box::pin(
        h2::server::Builder::new()
            .max_concurrent_streams(limits.max_streams)
            // A server that got no processor time for a while reads calls together with their cancellations, because
            // their deadlines have passed. h2's default of 20 would close the connection of all of a client's calls.
            .max_pending_accept_reset_streams(limits.max_streams as usize)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(limits.max_header_list_bytes)
            .handshake::<_, Payload>(socket),
    );
    let watched = &connection;
    let handshake = poll_fn(move |cx| match handshake.as_mut().poll(cx) {
        Poll::Pending if watched.flood().is_some() => Poll::Ready(None),
        state => state.map(Result::ok),
    });
    let Ok(Some(h2)) = tokio::time::timeout(limits.handshake_timeout, handshake).await else {
        shared.statistics.count(connection.flood().map_or(Event::HANDSHAKE_FAILED[wire as usize], Event::from));
        return;
    };
    let mut pause = RefusalPause::new(&shared.pauses, Arc::clone(&connection));
    let mut task = Task {
        wire,
        shared: &shared,
        connection: &connection,
        h2,
        flushes,
        batch: VecDeque::new(),
        calls: FuturesUnordered::new(),
        window: RequestWindow::default(),
        num_begun: 0,
        is_draining: false,
        is_ending: false,
    };
    poll_fn(|cx| {
        connection.wake_by(cx.waker());
        pause.poll_end(cx);
        let begun = Instant::now();
        let state = task.turn(begun + TURN, cx);
        if state.is_pending() {
            pause.after_turn(begun, std::mem::take(&mut task.num_begun), cx);
            let h2 = &mut task.h2;
            if task.window.after_turn(&connection, begun, |bytes| h2.set_initial_window_size(bytes).is_ok()) {
                // h2 sends the SETTINGS frame with the new window size in the task's next turn, so the task wakes
                // itself. If the client has not acknowledged the last SETTINGS frame, the task waits for the
                // acknowledgement instead: a client that never sends it must not make the task run again and again.
                cx.waker().wake_by_ref();
            }
        }
        state
    })
    .await;
}

/// The task of one connection. All calls of the connection run in this task, so that a connection with many calls gets no
/// more turns than another one.
struct Task<'s, S> {
    wire: Wire,
    shared: &'s Arc<Shared>,
    connection: &'s Arc<Connection>,
    h2: h2::server::Connection<Socket<S>, Payload>,
    flushes: Arc<Flushes>,
    // Calls of this connection that h2 has accepted, and that the connection's task has not begun to answer.
    batch: VecDeque<(Request<RecvStream>, SendResponse<Payload>)>,
    calls: FuturesUnordered<PendingCall>,
    window: RequestWindow,
    // Number of requests that the task began in its current turn, plus the number of pending calls that ended in this
    // turn.
    num_begun: u32,
    is_draining: bool,
    is_ending: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Task<'_, S> {
    /// Runs one turn of the connection's task: reads and answers requests, and writes, until no work is left or the
    /// turn's time ends.
    fn turn(&mut self, end: Instant, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_cut() || self.accept(cx).is_ready() {
                return Poll::Ready(());
            }
            if self.batch.is_empty() && !self.is_ending && self.connection.flood().is_some() {
                continue;
            }
            let mut is_idle = true;
            let handed = self.connection.handed();
            while self.may_answer(handed)
                && let Some((request, respond)) = self.batch.pop_front()
            {
                is_idle = false;
                let call = match self.wire {
                    Wire::Grpc => grpc::begin(self.shared, self.connection, request, respond, cx),
                    Wire::Http => Some(http_over_http2::begin(self.shared, self.connection, request, respond)),
                };
                self.calls.extend(call);
                if self.is_over(end, cx) {
                    return Poll::Pending;
                }
            }
            while self.may_answer(handed)
                && let Poll::Ready(Some(())) = Pin::new(&mut self.calls).poll_next(cx)
            {
                is_idle = false;
                if self.is_over(end, cx) {
                    return Poll::Pending;
                }
            }
            if is_idle && !self.flushes.make_due() {
                return Poll::Pending;
            }
            if is_idle && Instant::now() >= end {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Says whether the task may answer one more request before it lets h2 write the answers that h2 already holds.
    /// When h2 wrote last, the task had handed it `handed` bytes of answers in all.
    fn may_answer(&self, handed: usize) -> bool {
        !self.connection.is_backed_up() && self.connection.handed().wrapping_sub(handed) < UNWRITTEN_BYTES
    }

    /// Counts a request; returns true if this task has used its time and must let tasks of other connections run. The
    /// task is then woken again after them.
    fn is_over(&mut self, end: Instant, cx: &mut Context<'_>) -> bool {
        self.num_begun += 1;
        let is_over = Instant::now() >= end;
        if is_over {
            cx.waker().wake_by_ref();
        }
        is_over
    }

    /// Executes the server's current order for the connection, such as a drain, and ends a flooding connection; returns
    /// true if the connection must be closed at once.
    fn is_cut(&mut self) -> bool {
        if !self.is_ending
            && let Some(flood) = self.connection.flood()
        {
            self.is_ending = true;
            self.shared.statistics.count(flood.into());
            self.h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
        match self.connection.order() {
            Order::Serve => {}
            Order::Cut => {
                self.shared.statistics.count(Event::CUT[self.wire as usize]);
                return true;
            }
            Order::Drain | Order::Close => {
                if !self.is_draining {
                    self.is_draining = true;
                    self.h2.graceful_shutdown();
                }
            }
        }
        false
    }

    /// Moves requests that have arrived from h2 to `batch`; returns ready if the connection has ended.
    fn accept(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Each call of `accept` polls h2 at least once, because the poll also writes answers.
        loop {
            match ready!(self.h2.poll_accept(cx)) {
                Some(Ok(accepted)) => self.batch.push_back(accepted),
                ended => {
                    if let Some(Err(error)) = ended
                        && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)
                        && !self.is_ending
                    {
                        self.shared.statistics.count(Event::FloodHttp2);
                    }
                    return Poll::Ready(());
                }
            }
            if self.batch.len() >= BATCH {
                return Poll::Pending;
            }
        }
    }
}
