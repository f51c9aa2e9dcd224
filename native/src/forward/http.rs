//! Forwards HTTP requests to uvicorn: bodies streamed both ways, connections kept for the next request.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

use crate::edge::limits::BodyParts;

/// Time for which an idle connection is kept. The reference keeps it longer, so it never closes one under a request.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// How many idle connections are kept.
const MOST_KEPT: usize = 64;

/// Body of a forwarded request: what was read of it, then the rest as it comes.
pub struct Upload {
    begun: Option<Bytes>,
    rest: Option<Incoming>,
    parts: BodyParts,
    on_left: Option<Box<dyn Fn(Left) + Send>>,
}

/// The reason why the rest of a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The reference did not read it.
    Unread,
    /// The body came in too many tiny parts.
    Flood,
}

impl Upload {
    /// Takes a whole body.
    #[must_use]
    pub fn whole(data: Bytes) -> Self {
        Upload { begun: (!data.is_empty()).then_some(data), rest: None, parts: BodyParts::default(), on_left: None }
    }

    /// Takes the bytes of a body that were read, and its rest. `on_left` is called if the rest is not read to its end.
    #[must_use]
    pub fn streamed(begun: Bytes, rest: Incoming, on_left: Box<dyn Fn(Left) + Send>) -> Self {
        let mut upload = Upload::whole(begun);
        upload.rest = Some(rest);
        upload.on_left = Some(on_left);
        upload
    }

    /// Says whether the rest of the body has not been read to its end, so that the client may still be sending it.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.is_end_stream())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let is_unread = self.is_unread();
        if let Some(on_left) = self.on_left.take().filter(|_| is_unread) {
            on_left(Left::Unread);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let me = self.get_mut();
        if let Some(data) = me.begun.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(rest) = &mut me.rest else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(rest).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && me.parts.is_flood(frame.data_ref().map_or(0, Bytes::len))
            && let Some(on_left) = me.on_left.take()
        {
            on_left(Left::Flood);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self.begun.as_ref().map_or(0, |data| data.len() as u64);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(begun + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(begun + upper);
        }
        hint
    }
}

/// A connection whose failed writes are dropped: a reference that answers before it has read the whole body, and closes,
/// is still to be heard. If it said nothing, reading tells.
struct Patient(UnixStream);

impl AsyncRead for Patient {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
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

/// A connection to the reference; dropping it closes the connection. Without that, a connection whose reference answered
/// before it had read the whole body would stay open: the rest of the body waits for a reader that does not come.
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
struct Kept(Mutex<Vec<(Sender, Instant)>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Vec<(Sender, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Sender> {
        let mut all = self.lock();
        while let Some((sender, since)) = all.pop() {
            if since.elapsed() > KEPT_FOR {
                // The others are older.
                all.clear();
                break;
            }
            if sender.requests.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        let mut all = self.lock();
        // The oldest come first.
        let num_old = all.iter().take_while(|(_, since)| since.elapsed() > KEPT_FOR).count();
        all.drain(..num_old);
        if all.len() < MOST_KEPT && !sender.requests.is_closed() {
            all.push((sender, Instant::now()));
        }
    }
}

/// A client of the HTTP reference.
pub struct HttpUpstream {
    path: PathBuf,
    kept: Arc<Kept>,
}

/// Body of a forwarded answer. At its end the connection is kept for another request.
pub struct Forwarded {
    body: Incoming,
    sender: Option<Sender>,
    kept: Arc<Kept>,
}

impl Forwarded {
    fn done(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.kept.keep(sender);
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
            Poll::Ready(None) => me.done(),
            Poll::Ready(Some(Ok(_))) if me.body.is_end_stream() => me.done(),
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
    /// Names the reference's socket; nothing is connected yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        HttpUpstream { path, kept: Arc::default() }
    }

    /// Hands a request over and returns the head of its answer; None: there is no reference.
    pub async fn forward(&self, head: Parts, body: Upload) -> Option<Response<Forwarded>> {
        let mut request = request(head, body);
        loop {
            let (mut sender, is_new) = match self.kept.take() {
                Some(sender) => (sender, false),
                None => (self.connect().await?, true),
            };
            match sender.requests.try_send_request(request).await {
                Ok(response) => return Some(self.answer(response, sender)),
                Err(mut error) => match error.take_message() {
                    // A kept connection that the reference closed meanwhile: nothing of the request was sent.
                    Some(unsent) if !is_new => request = unsent,
                    _ => return None,
                },
            }
        }
    }

    async fn connect(&self) -> Option<Sender> {
        let stream = UnixStream::connect(&self.path).await.ok()?;
        let (requests, connection) =
            hyper::client::conn::http1::Builder::new().handshake(TokioIo::new(Patient(stream))).await.ok()?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the HTTP reference ended");
            }
        });
        Some(Sender { requests, driver: driver.abort_handle() })
    }

    fn answer(&self, response: Response<Incoming>, sender: Sender) -> Response<Forwarded> {
        let (mut head, body) = response.into_parts();
        remove_hop_by_hop(&mut head.headers);
        head.version = Version::HTTP_11;
        let mut body = Forwarded { body, sender: Some(sender), kept: Arc::clone(&self.kept) };
        if body.is_end_stream() {
            body.done();
        }
        Response::from_parts(head, body)
    }
}

fn request(mut head: Parts, body: Upload) -> Request<Upload> {
    remove_hop_by_hop(&mut head.headers);
    // The edge has answered it, by reading the body.
    head.headers.remove(EXPECT);
    head.version = Version::HTTP_11;
    if let Some(path) = head.uri.path_and_query().filter(|_| head.uri.authority().is_some()) {
        // The absolute form, which proxies are sent.
        head.uri = Uri::from(path.clone());
    }
    Request::from_parts(head, body)
}

/// Removes the headers that are about one connection. Source: RFC 9110, section 7.6.1.
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
