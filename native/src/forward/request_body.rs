//! The body of an HTTP request, which comes over HTTP/1.1 or HTTP/2.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

/// The error of a body that its client did not send to its end.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The body of an HTTP request.
pub enum RequestBody {
    Http1(Incoming),
    Http2(Http2Body),
}

/// The body of an HTTP/2 request.
pub struct Http2Body {
    // None only after the body is dropped.
    stream: Option<RecvStream>,
    // Number of bytes that will still come; None if the client did not tell.
    left: Option<u64>,
    rest: Option<oneshot::Sender<RecvStream>>,
}

impl RequestBody {
    /// Makes the body of an HTTP/2 request with these headers. Once the body is dropped, the receiver gets the stream with
    /// the part that was not read, or an error if all was read.
    #[must_use]
    pub fn http2(stream: RecvStream, headers: &HeaderMap) -> (Self, oneshot::Receiver<RecvStream>) {
        let (sender, receiver) = oneshot::channel();
        let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let left = if stream.is_end_stream() { Some(0) } else { told };
        (RequestBody::Http2(Http2Body { stream: Some(stream), left, rest: Some(sender) }), receiver)
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let (Some(stream), Some(rest)) = (self.stream.take(), self.rest.take())
            && !stream.is_end_stream()
        {
            let _ = rest.send(stream);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            RequestBody::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            RequestBody::Http2(body) => {
                let Some(stream) = &mut body.stream else { return Poll::Ready(None) };
                stream.poll_data(cx).map(|data| {
                    let data = data?.inspect(|data| {
                        let _ = stream.flow_control().release_capacity(data.len());
                        body.left = body.left.map(|left| left.saturating_sub(data.len() as u64));
                    });
                    Some(data.map(Frame::data).map_err(Into::into))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Http1(body) => body.is_end_stream(),
            RequestBody::Http2(body) => body.stream.as_ref().is_none_or(RecvStream::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Http1(body) => body.size_hint(),
            RequestBody::Http2(body) => body.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
