//! Serves the requests of a client that speaks HTTP/2 on the HTTP port. They are answered as those over HTTP/1.1 are.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;

use super::connection::{Connection, Debt, PendingCall};
use super::grpc_message::Payload;
use super::http::{Answer, Content, Exchange, note_refusal, too_many_headers};
use super::shared::Shared;
use crate::admission::limits::MAX_HEADERS;
use crate::forward::RequestBody;
use crate::forward::{Forwarded, send_in_window};

/// Time for which the server reads and drops the rest of a refused body, so that a client that reads the answer only
/// after it has sent all gets the answer.
const LINGER: Duration = Duration::from_secs(30);

/// Returns the future that answers a request.
pub fn begin(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: Request<RecvStream>,
    respond: SendResponse<Payload>,
) -> PendingCall {
    Box::pin(serve(Arc::clone(shared), Arc::clone(connection), request, respond))
}

async fn serve(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Payload>,
) {
    let (mut head, stream) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let (body, rest) = RequestBody::http2(stream, &head.headers);
    let max_body = shared.limits.max_request_bytes as u64;
    if head.headers.remove(EXPECT).is_some() && !body.is_end_stream() && body.size_hint().lower() <= max_body {
        let mut go_on = Response::new(());
        *go_on.status_mut() = StatusCode::CONTINUE;
        let _ = respond.send_informational(go_on);
    }
    let max_discarded = connection.max_discarded;
    {
        let exchange = Exchange::new(&shared, &connection);
        let answer = tokio::select! {
            biased;
            // The client has cancelled the request, so the server stops its work on it.
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            answer = answer(&exchange, head, body) => answer,
        };
        note_refusal(&connection, &answer);
        send(&exchange, answer, is_head, respond).await;
    }
    let _ = tokio::time::timeout(LINGER, async {
        // The forwarding of a refused body ends soon after its answer.
        if let Ok(rest) = rest.await {
            discard(rest, max_discarded).await;
        }
    })
    .await;
}

/// Returns the answer to a request, after the client has read enough of the connection's other answers.
async fn answer(exchange: &Exchange<'_>, mut head: Parts, body: RequestBody) -> Response<Answer> {
    let connection = exchange.connection;
    let open = connection.open();
    if head.headers.len() > MAX_HEADERS {
        return too_many_headers(exchange.shared, open);
    }
    let _permits = match exchange.shared.hold_head(connection, &head.headers) {
        Ok(permits) => permits,
        Err(status) => return exchange.refuse(&head.headers, &status, open),
    };
    connection.room().await;
    normalize(&mut head);
    if is_grpc(&head) {
        return exchange.refuse_grpc(&head, open);
    }
    exchange.checked(head, body, open).await
}

/// Returns true for a gRPC call. The path of a gRPC method, such as /tensorflow.serving.PredictionService/Predict, is no
/// path of the HTTP API.
fn is_grpc(head: &Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
        && head.uri.path().split('/').nth(1).is_some_and(|service| service.contains('.'))
}

/// Changes what HTTP/2 writes in another way than HTTP/1.1: the authority, and cookies in several headers. Source: RFC
/// 9113, sections 8.2.3 and 8.3.1.
fn normalize(head: &mut Parts) {
    if let Some(authority) = head.uri.authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok()) {
        let is_other = head.headers.get_all(HOST).iter().any(|host| *host != authority);
        if is_other {
            // A second, different Host makes the request malformed.
            head.headers.append(HOST, authority);
        } else {
            head.headers.insert(HOST, authority);
        }
    }
    let cookies: Vec<&[u8]> = head.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(all) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        head.headers.insert(COOKIE, all);
    }
}

async fn send(exchange: &Exchange<'_>, answer: Response<Answer>, is_head: bool, mut respond: SendResponse<Payload>) {
    let (mut head, answer) = answer.into_parts();
    remove_headers_of_http1(&mut head.headers);
    let length = answer.size_hint().exact().filter(|length| *length > 0 || !is_head);
    if let Some(length) = length
        && !head.status.is_informational()
        && head.status != StatusCode::NO_CONTENT
        && head.status != StatusCode::NOT_MODIFIED
    {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    let is_end = is_head || answer.is_end_stream();
    head.version = Version::HTTP_2;
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), is_end) else { return };
    if is_end {
        return;
    }
    match answer.content {
        Content::Whole(data) => {
            exchange.connection.note_handed(data.len());
            let _ = stream.send_data(data.into(), true);
        }
        Content::Forwarded(body) => send_forwarded(exchange, body, stream).await,
    }
}

async fn send_forwarded(exchange: &Exchange<'_>, mut body: Forwarded, mut stream: SendStream<Payload>) {
    loop {
        let frame = tokio::select! {
            biased;
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
            frame = poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)) => frame,
        };
        match frame {
            None => {
                let _ = stream.send_data(Bytes::new().into(), true);
                return;
            }
            Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                // The bytes count as unread while they wait for the client's windows, so that a client that opens none
                // is disconnected.
                let _debt = Debt::new(exchange.connection, &exchange.shared.account, "", data.len());
                if !data.is_empty() && send_in_window(data, false, &mut stream).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn remove_headers_of_http1(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// Reads and drops the rest of a body, up to `most` bytes.
async fn discard(mut rest: RecvStream, most: usize) {
    let mut size = 0;
    while size < most
        && let Some(Ok(data)) = rest.data().await
    {
        size += data.len();
        let _ = rest.flow_control().release_capacity(data.len());
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn normalized(uri: &str, headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        normalize(&mut head);
        head.headers
    }

    #[test]
    fn the_authority_is_the_host_and_cookies_are_one_header() {
        let headers = normalized("http://a.example:80/x", &[("cookie", "a=1"), ("cookie", "b=2")]);
        assert_eq!(headers[HOST], "a.example:80");
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2"]);
        assert_eq!(normalized("http://a/x", &[("host", "a")]).get_all(HOST).iter().count(), 1);
        assert_eq!(normalized("http://a/x", &[("host", "b")]).get_all(HOST).iter().count(), 2);
        assert_eq!(normalized("/x", &[("host", "b")])[HOST], "b");
    }
}
