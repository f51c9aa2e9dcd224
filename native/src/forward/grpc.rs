//! Forwards gRPC calls to the control server in grpcio: copies the streams in both directions, with trailers,
//! cancellation and flow control.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bytes::{Buf, Bytes};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, Uri, Version};

use crate::admission::gate::Permit;

/// HTTP/2 window of one call: how many bytes of an answer the control server may send before the client reads them.
const STREAM_WINDOW: u32 = 1 << 20;
/// HTTP/2 window of the connection to the control server. It has the maximal size, so that a slow client does not
/// stop the answers to others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const FRAME_BYTES: u32 = 1 << 20;
/// Maximal size of the metadata in an answer of the gRPC control server.
const HEADER_LIST_BYTES: u32 = 1 << 20;

/// A client of the gRPC control server, with one connection, which is opened again after it is lost.
pub struct GrpcUpstream {
    path: PathBuf,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    connecting: tokio::sync::Mutex<()>,
    pings: tokio::sync::Mutex<Option<PingPong>>,
}

/// The reason why a stream was copied only in part.
pub enum StreamEnded {
    /// The sender of the bytes disconnected, or reset its HTTP/2 stream; the value is the reason of the reset.
    Source(Option<Reason>),
    /// The receiver of the bytes accepts no more of them.
    Sink,
}

/// The answer for a client whose call did not reach the control server, or whose answer was lost.
#[derive(Clone, Copy)]
pub struct Lost {
    /// Makes the head of an answer with the error, if the client has no head yet.
    pub head: fn() -> Response<()>,
    /// Makes the trailers that end an answer whose head was sent.
    pub trailers: fn() -> HeaderMap,
}

impl GrpcUpstream {
    /// Returns a client of the gRPC control server at this Unix socket; the first call connects.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        GrpcUpstream {
            path,
            sender: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            pings: tokio::sync::Mutex::default(),
        }
    }

    fn current_sender(&self) -> Option<SendRequest<Bytes>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ready_sender(&self) -> Option<SendRequest<Bytes>> {
        if let Some(sender) = self.current_sender()
            && let Ok(sender) = sender.ready().await
        {
            return Some(sender);
        }
        let _connecting = self.connecting.lock().await;
        // Another call may have opened the connection while this call waited for the lock, so this call looks for it
        // again.
        if let Some(sender) = self.current_sender()
            && let Ok(sender) = sender.ready().await
        {
            return Some(sender);
        }
        let stream = super::connect(&self.path).await.ok()?;
        let (sender, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .enable_push(false)
            .handshake(stream)
            .await
            .ok()?;
        *self.pings.lock().await = connection.ping_pong();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the gRPC control server ended");
            }
        });
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        sender.ready().await.ok()
    }

    /// Sends an HTTP/2 PING to the gRPC control server; returns whether it answers. A ping needs no thread of the
    /// server's pool, all of which may be waiting for slow calls.
    pub async fn answers(&self) -> bool {
        if self.ready_sender().await.is_none() {
            return false;
        }
        match &mut *self.pings.lock().await {
            Some(pings) => pings.ping(Ping::opaque()).await.is_ok(),
            None => false,
        }
    }

    /// Forwards a call to the control server; returns false if the control server was not reached or was lost.
    /// `prefix` has the bytes of the body that were already read. `permit` is dropped when the answer starts.
    pub(crate) async fn forward<B: Buf + From<Bytes>>(
        &self,
        head: Parts,
        mut body: RecvStream,
        prefix: Bytes,
        mut respond: SendResponse<B>,
        permit: Option<Permit>,
        lost: Lost,
    ) -> bool {
        let sender = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return true,
            sender = self.ready_sender() => sender,
        };
        let is_empty = prefix.is_empty() && body.is_end_stream();
        let started = sender.and_then(|mut sender| sender.send_request(request(head)?, is_empty).ok());
        let Some((response, mut upstream)) = started else {
            let _ = respond.send_response((lost.head)(), true);
            return false;
        };
        let upload = async {
            if is_empty {
                return;
            }
            let sent = upload(prefix, &mut body, &mut upstream).await;
            if let Err(StreamEnded::Source(_)) = sent {
                upstream.send_reset(Reason::CANCEL);
            }
        };
        let download = async {
            let response = tokio::select! {
                biased;
                _ = poll_fn(|cx| respond.poll_reset(cx)) => return true,
                response = response => response,
            };
            drop(permit);
            match response {
                Ok(response) => download(response, respond, lost).await,
                Err(error) => {
                    if let Some(reason) = error.reason().filter(|_| error.is_reset() && error.is_remote()) {
                        respond.send_reset(reason);
                        return true;
                    }
                    let _ = respond.send_response((lost.head)(), true);
                    false
                }
            }
        };
        let (mut upload, mut download) = (std::pin::pin!(upload), std::pin::pin!(download));
        let mut is_uploading = true;
        loop {
            // A forwarded gRPC call ends when its answer ends. Dropping an unfinished upload resets the stream to the
            // control server.
            tokio::select! {
                () = &mut upload, if is_uploading => is_uploading = false,
                is_served = &mut download => return is_served,
            }
        }
    }
}

/// Converts the head of a client's request to a request to the control server; None if the client's path is invalid.
fn request(head: Parts) -> Option<Request<()>> {
    let Parts { method, uri, headers, .. } = head;
    let parts = uri.into_parts();
    let mut absolute = http::uri::Parts::default();
    absolute.scheme = Some(Scheme::HTTP);
    absolute.authority = Some(parts.authority.unwrap_or_else(|| Authority::from_static("localhost")));
    absolute.path_and_query = Some(parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/")));
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_parts(absolute).ok()?;
    *request.headers_mut() = headers;
    *request.version_mut() = Version::HTTP_2;
    Some(request)
}

async fn upload(prefix: Bytes, body: &mut RecvStream, upstream: &mut SendStream<Bytes>) -> Result<(), StreamEnded> {
    if !prefix.is_empty() {
        let is_whole = body.is_end_stream();
        send_in_window(prefix, is_whole, upstream).await?;
        if is_whole {
            return Ok(());
        }
    }
    pump(body, upstream).await
}

/// Forwards the control server's answer to the client; returns false if the server was lost before the answer's end.
async fn download<B: Buf + From<Bytes>>(
    response: Response<RecvStream>,
    mut respond: SendResponse<B>,
    lost: Lost,
) -> bool {
    let (head, mut body) = response.into_parts();
    let is_end = body.is_end_stream();
    let mut answer = Response::new(());
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    let Ok(mut client) = respond.send_response(answer, is_end) else {
        return true;
    };
    if is_end {
        return true;
    }
    let Err(stream_ended) = pump(&mut body, &mut client).await else {
        return true;
    };
    match stream_ended {
        StreamEnded::Sink => true,
        StreamEnded::Source(Some(reason)) => {
            client.send_reset(reason);
            true
        }
        StreamEnded::Source(None) => {
            // The head of the answer is already sent, so only the trailers can tell the client that the control
            // server was lost.
            let _ = client.send_trailers((lost.trailers)());
            false
        }
    }
}

/// Copies data and trailers from one stream to another. Lets the sender send more bytes only after the receiver has
/// accepted the earlier ones.
async fn pump<B: Buf + From<Bytes>>(source: &mut RecvStream, sink: &mut SendStream<B>) -> Result<(), StreamEnded> {
    loop {
        let data = tokio::select! {
            biased;
            _ = poll_fn(|cx| sink.poll_reset(cx)) => return Err(StreamEnded::Sink),
            data = source.data() => data,
        };
        let data = match data {
            None => break,
            Some(Err(error)) => return Err(stream_ended(&error)),
            Some(Ok(data)) => data,
        };
        let size = data.len();
        let is_last = source.is_end_stream();
        if size > 0 || is_last {
            send_in_window(data, is_last, sink).await?;
        }
        let _ = source.flow_control().release_capacity(size);
        if is_last {
            return Ok(());
        }
    }
    match source.trailers().await {
        Ok(Some(trailers)) => sink.send_trailers(trailers).map_err(|_| StreamEnded::Sink),
        Ok(None) => sink.send_data(Bytes::new().into(), true).map_err(|_| StreamEnded::Sink),
        Err(error) => Err(stream_ended(&error)),
    }
}

fn stream_ended(error: &h2::Error) -> StreamEnded {
    StreamEnded::Source(error.reason().filter(|_| error.is_reset() && error.is_remote()))
}

/// Sends data as the receiver's windows allow.
///
/// # Errors
/// The receiver accepts no more bytes.
pub async fn send_in_window<B: Buf + From<Bytes>>(
    mut data: Bytes,
    is_last: bool,
    sink: &mut SendStream<B>,
) -> Result<(), StreamEnded> {
    while !data.is_empty() {
        sink.reserve_capacity(data.len());
        let capacity = poll_fn(|cx| sink.poll_capacity(cx)).await;
        let Some(Ok(capacity)) = capacity else {
            return Err(StreamEnded::Sink);
        };
        let part = data.split_to(capacity.min(data.len()));
        if part.is_empty() {
            continue;
        }
        let is_end = is_last && data.is_empty();
        sink.send_data(part.into(), is_end).map_err(|_| StreamEnded::Sink)?;
        if is_end {
            return Ok(());
        }
    }
    if is_last {
        sink.send_data(Bytes::new().into(), true).map_err(|_| StreamEnded::Sink)?;
    }
    Ok(())
}
