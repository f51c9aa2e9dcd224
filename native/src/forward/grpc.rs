//! Forwards gRPC calls to grpcio: streamed both ways, with trailers, cancellation and flow control.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bytes::{Buf, Bytes};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use tokio::net::UnixStream;

use super::gate::Permit;
use crate::edge::grpc_message::Payload;
use crate::edge::shared::no_upstream;

/// Unread answer bytes of one call; more waits in the reference.
const STREAM_WINDOW: u32 = 1 << 20;
/// Calls must not wait for each other's slow clients, so the window of the connection is as large as there is.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const FRAME_BYTES: u32 = 1 << 20;
/// Metadata that the reference may answer with.
const HEADER_LIST_BYTES: u32 = 1 << 20;

/// The gRPC reference, by one connection that is made anew whenever it is lost.
pub struct GrpcUpstream {
    path: PathBuf,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    connecting: tokio::sync::Mutex<()>,
}

/// Why a direction of a call ended before its end.
enum Broken {
    /// The sender of the bytes reset the stream, for this reason.
    Source(Option<Reason>),
    /// The receiver takes no more.
    Sink,
}

impl GrpcUpstream {
    /// Names the reference's socket; nothing is connected yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        GrpcUpstream { path, sender: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn known(&self) -> Option<SendRequest<Bytes>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ready(&self) -> Option<SendRequest<Bytes>> {
        if let Some(sender) = self.known()
            && let Ok(sender) = sender.ready().await
        {
            return Some(sender);
        }
        let _connecting = self.connecting.lock().await;
        // Another call may have connected meanwhile.
        if let Some(sender) = self.known()
            && let Ok(sender) = sender.ready().await
        {
            return Some(sender);
        }
        let stream = UnixStream::connect(&self.path).await.ok()?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .enable_push(false)
            .handshake(stream)
            .await
            .ok()?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the gRPC reference ended");
            }
        });
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        sender.ready().await.ok()
    }

    /// Forwards a call to the reference; says whether the reference took it. `begun` holds the bytes of the body that
    /// were read before. `permit` is held until the answer begins.
    pub(crate) async fn forward(
        &self,
        head: Parts,
        mut body: RecvStream,
        begun: Bytes,
        mut respond: SendResponse<Payload>,
        permit: Option<Permit>,
    ) -> bool {
        let sender = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return true,
            sender = self.ready() => sender,
        };
        let is_empty = begun.is_empty() && body.is_end_stream();
        let started = sender.and_then(|mut sender| sender.send_request(request(head)?, is_empty).ok());
        let Some((response, mut upstream)) = started else {
            let _ = respond.send_response(no_upstream().head(None), true);
            return false;
        };
        let upload = async {
            if is_empty {
                return;
            }
            let sent = upload(begun, &mut body, &mut upstream).await;
            if let Err(Broken::Source(_)) = sent {
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
                Ok(response) => download(response, respond).await,
                Err(error) => {
                    if let Some(reason) = error.reason().filter(|_| error.is_reset() && error.is_remote()) {
                        respond.send_reset(reason);
                        return true;
                    }
                    let _ = respond.send_response(no_upstream().head(None), true);
                    false
                }
            }
        };
        let (mut upload, mut download) = (std::pin::pin!(upload), std::pin::pin!(download));
        let mut is_uploading = true;
        loop {
            // The call ends with its answer; dropping what is left of the upload resets the reference's stream.
            tokio::select! {
                () = &mut upload, if is_uploading => is_uploading = false,
                is_served = &mut download => return is_served,
            }
        }
    }
}

/// Makes the reference's request of a client's; None where its path is none.
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

async fn upload(begun: Bytes, body: &mut RecvStream, upstream: &mut SendStream<Bytes>) -> Result<(), Broken> {
    if !begun.is_empty() {
        let is_whole = body.is_end_stream();
        send(begun, is_whole, upstream).await?;
        if is_whole {
            return Ok(());
        }
    }
    pump(body, upstream).await
}

/// Hands the reference's answer to the client; says whether it came to its end.
async fn download(response: Response<RecvStream>, mut respond: SendResponse<Payload>) -> bool {
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
    let Err(broken) = pump(&mut body, &mut client).await else {
        return true;
    };
    match broken {
        Broken::Sink => true,
        Broken::Source(Some(reason)) => {
            client.send_reset(reason);
            true
        }
        Broken::Source(None) => {
            // The head is sent, so the trailers tell that the reference was lost.
            let _ = client.send_trailers(no_upstream().trailers(None));
            false
        }
    }
}

/// Moves data and trailers. Capacity is given back to the source only after the sink took the data.
async fn pump<B: Buf + From<Bytes>>(source: &mut RecvStream, sink: &mut SendStream<B>) -> Result<(), Broken> {
    loop {
        let data = tokio::select! {
            biased;
            _ = poll_fn(|cx| sink.poll_reset(cx)) => return Err(Broken::Sink),
            data = source.data() => data,
        };
        let data = match data {
            None => break,
            Some(Err(error)) => return Err(broken(&error)),
            Some(Ok(data)) => data,
        };
        let size = data.len();
        let is_last = source.is_end_stream();
        if size > 0 || is_last {
            send(data, is_last, sink).await?;
        }
        let _ = source.flow_control().release_capacity(size);
        if is_last {
            return Ok(());
        }
    }
    match source.trailers().await {
        Ok(Some(trailers)) => sink.send_trailers(trailers).map_err(|_| Broken::Sink),
        Ok(None) => sink.send_data(Bytes::new().into(), true).map_err(|_| Broken::Sink),
        Err(error) => Err(broken(&error)),
    }
}

fn broken(error: &h2::Error) -> Broken {
    Broken::Source(error.reason().filter(|_| error.is_reset() && error.is_remote()))
}

async fn send<B: Buf + From<Bytes>>(mut data: Bytes, is_last: bool, sink: &mut SendStream<B>) -> Result<(), Broken> {
    while !data.is_empty() {
        sink.reserve_capacity(data.len());
        let capacity = poll_fn(|cx| sink.poll_capacity(cx)).await;
        let Some(Ok(capacity)) = capacity else {
            return Err(Broken::Sink);
        };
        let part = data.split_to(capacity.min(data.len()));
        if part.is_empty() {
            continue;
        }
        let is_end = is_last && data.is_empty();
        sink.send_data(part.into(), is_end).map_err(|_| Broken::Sink)?;
        if is_end {
            return Ok(());
        }
    }
    if is_last {
        sink.send_data(Bytes::new().into(), true).map_err(|_| Broken::Sink)?;
    }
    Ok(())
}
