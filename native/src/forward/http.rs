//! Forwards HTTP requests to the control server in uvicorn: streams both bodies, and keeps connections for later
//! requests.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

use super::request_body::{BodyError, RequestBody};
use crate::admission::limits::BodyParts;

/// Time for which an idle connection to the control server is kept. The control server keeps an idle connection
/// longer, so it does not close a connection on which the core is just sending a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximal number of idle connections to the control server that are kept.
const MAX_IDLE: usize = 64;

/// The body of a forwarded request: the bytes that were already read, then the bytes that the client still sends.
pub struct Upload {
    prefix: Option<Bytes>,
    rest: Option<RequestBody>,
    is_withheld: bool,
    parts: BodyParts,
    on_unread: Option<Box<dyn Fn(UnreadReason) + Send>>,
    // This `Arc` is dropped with the request's body, so a weak reference to it tells whether hyper still holds the
    // body.
    alive: Arc<()>,
}

/// The reason why the rest of a forwarded request's body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadReason {
    /// The forwarding ended before the rest of the body was read, for example because the control server answered
    /// early.
    Unread,
    /// The client sent the body in too many tiny parts.
    Flood,
}

impl Upload {
    /// Returns the body of a forwarded request whose bytes have all been received.
    #[must_use]
    pub fn whole(data: Bytes) -> Self {
        let (prefix, alive) = ((!data.is_empty()).then_some(data), Arc::new(()));
        Upload { prefix, rest: None, is_withheld: false, parts: BodyParts::default(), on_unread: None, alive }
    }

    /// Makes the body of a forwarded request from received bytes, `prefix`, and bytes that still come, `rest`. The
    /// body calls `on_unread` later, if `rest` was not read to its end.
    #[must_use]
    pub fn streamed(prefix: Bytes, rest: RequestBody, on_unread: Box<dyn Fn(UnreadReason) + Send>) -> Self {
        let mut upload = Upload::whole(prefix);
        upload.rest = Some(rest);
        upload.on_unread = Some(on_unread);
        upload
    }

    /// Stops the forwarding of bytes that the client still sends: the control server refuses the request by its head.
    /// Nothing is read from the client then, so hyper does not ask it for the body by "100 Continue".
    #[must_use]
    pub fn withhold(mut self) -> Self {
        self.is_withheld = true;
        self
    }

    /// Says whether a part of the request's body is not read yet, so that the client may still send that part.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.is_end_stream())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let is_unread = self.is_unread();
        if let Some(on_unread) = self.on_unread.take().filter(|_| is_unread) {
            on_unread(UnreadReason::Unread);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let me = self.get_mut();
        if let Some(data) = me.prefix.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(rest) = &mut me.rest else {
            return Poll::Ready(None);
        };
        if me.is_withheld {
            return Poll::Pending;
        }
        let frame = Pin::new(rest).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && me.parts.is_flood(frame.data_ref().map_or(0, Bytes::len))
            && let Some(on_unread) = me.on_unread.take()
        {
            on_unread(UnreadReason::Flood);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.prefix.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let prefix = self.prefix.as_ref().map_or(0, |data| data.len() as u64);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(prefix + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(prefix + upper);
        }
        hint
    }
}

/// A connection to the control server that reports writes as successful even after the server has closed the
/// connection. The server may answer and close before it has read the whole body; the answer can then still be read. If
/// there is no answer, the read fails.
struct IgnoreWriteErrors(UnixStream);

impl AsyncRead for IgnoreWriteErrors {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for IgnoreWriteErrors {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.get_mut().0).poll_write(cx, data) {
            Poll::Ready(Err(error)) if is_gone(&error) => Poll::Ready(Ok(data.len())),
            written => written,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, parts) {
            Poll::Ready(Err(error)) if is_gone(&error) => Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum())),
            written => written,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A connection to the HTTP control server; dropping it closes the connection. Without that, a connection whose
/// server answered before it had read the whole body would stay open: the rest of the body waits for a reader that does
/// not come.
struct Sender {
    requests: SendRequest<Upload>,
    driver: AbortHandle,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[derive(Default)]
struct IdleConnections(Mutex<Vec<(Sender, Instant)>>);

impl IdleConnections {
    fn lock(&self) -> MutexGuard<'_, Vec<(Sender, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop_ready(&self) -> Option<Sender> {
        let mut all = self.lock();
        while let Some((sender, since)) = all.pop() {
            if since.elapsed() > IDLE_TIMEOUT {
                // The list is sorted by age, the youngest connection last, so all remaining connections have been idle
                // for too long as well, and are closed.
                all.clear();
                break;
            }
            if sender.requests.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn push(&self, sender: Sender) {
        let mut all = self.lock();
        // In the list of idle connections, the oldest ones are at the start.
        let num_old = all.iter().take_while(|(_, since)| since.elapsed() > IDLE_TIMEOUT).count();
        all.drain(..num_old);
        if all.len() < MAX_IDLE && !sender.requests.is_closed() {
            all.push((sender, Instant::now()));
        }
    }
}

/// A client of the HTTP control server.
pub struct HttpUpstream {
    path: PathBuf,
    idle: Arc<IdleConnections>,
}

/// The body of an answer from the control server. At its end, the connection to the control server is kept for
/// another request, unless the request's body is still unread.
pub struct Forwarded {
    body: Incoming,
    sender: Option<Sender>,
    idle: Arc<IdleConnections>,
    upload: Weak<()>,
}

impl Forwarded {
    fn keep_connection(&mut self) {
        // A connection to the control server is not reused while hyper holds a request's unread body on it, because
        // that body would keep the client's connection open, too.
        if let Some(sender) = self.sender.take()
            && self.upload.strong_count() == 0
        {
            self.idle.push(sender);
        }
    }
}

impl Body for Forwarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let me = self.get_mut();
        let frame = Pin::new(&mut me.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Err(_))) => me.sender = None,
            Poll::Ready(None) => me.keep_connection(),
            Poll::Ready(Some(Ok(_))) if me.body.is_end_stream() => me.keep_connection(),
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl HttpUpstream {
    /// Returns a client of the HTTP control server at this Unix socket; the first request connects.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        HttpUpstream { path, idle: Arc::default() }
    }

    /// Forwards a request, and returns the answer, whose body follows; None if the control server can not be reached,
    /// or is lost before its answer begins.
    pub async fn forward(&self, head: Parts, body: Upload) -> Option<Response<Forwarded>> {
        let upload = Arc::downgrade(&body.alive);
        let mut request = request(head, body);
        loop {
            let (mut sender, is_new) = match self.idle.pop_ready() {
                Some(sender) => (sender, false),
                None => (self.connect().await?, true),
            };
            match sender.requests.try_send_request(request).await {
                Ok(response) => return Some(self.forwarded_response(response, sender, upload)),
                Err(mut error) => match error.take_message() {
                    // The control server closed the kept connection before anything of the request was sent, so the
                    // request is sent again.
                    Some(unsent) if !is_new => request = unsent,
                    _ => return None,
                },
            }
        }
    }

    /// Asks the HTTP control server for its health, with these headers; returns whether it answers.
    pub async fn answers(&self, headers: HeaderMap) -> bool {
        let mut head = Request::new(()).into_parts().0;
        (head.uri, head.headers) = (Uri::from_static("/healthz"), headers);
        head.headers.insert(HOST, HeaderValue::from_static("localhost"));
        let Some(mut response) = self.forward(head, Upload::whole(Bytes::new())).await else { return false };
        // The answer's body is read to its end, so that the connection is kept.
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(response.body_mut()).poll_frame(cx)).await {}
        !response.status().is_server_error()
    }

    async fn connect(&self) -> Option<Sender> {
        let stream = super::connect(&self.path).await.ok()?;
        let (requests, connection) =
            hyper::client::conn::http1::Builder::new().handshake(TokioIo::new(IgnoreWriteErrors(stream))).await.ok()?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the HTTP control server ended");
            }
        });
        Some(Sender { requests, driver: driver.abort_handle() })
    }

    fn forwarded_response(
        &self,
        response: Response<Incoming>,
        sender: Sender,
        upload: Weak<()>,
    ) -> Response<Forwarded> {
        let (mut head, body) = response.into_parts();
        remove_hop_by_hop(&mut head.headers);
        head.version = Version::HTTP_11;
        let mut body = Forwarded { body, sender: Some(sender), idle: Arc::clone(&self.idle), upload };
        if body.is_end_stream() {
            body.keep_connection();
        }
        Response::from_parts(head, body)
    }
}

fn request(mut head: Parts, body: Upload) -> Request<Upload> {
    remove_hop_by_hop(&mut head.headers);
    // The core answers `Expect: 100-continue` itself, when it reads the body, so the control server does not get this
    // header.
    head.headers.remove(EXPECT);
    head.version = Version::HTTP_11;
    if let Some(path) = head.uri.path_and_query().filter(|_| head.uri.authority().is_some()) {
        // A client may send its request target in absolute form, as to a proxy; the control server gets only the
        // path.
        head.uri = Uri::from(path.clone());
    }
    Request::from_parts(head, body)
}

/// Removes the hop-by-hop headers, which apply to one connection only. Source: RFC 9110, section 7.6.1.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    let known = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    let others = [HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];
    for name in named.into_iter().chain(known).chain(others) {
        headers.remove(name);
    }
}
