//! Inflates compressed requests of both wires, and compresses large answers, on the pool for large work if that takes
//! long. How, and which, [`super::encoding`] decides.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::connection::Connection;
use super::encoding::{Accepted, Compressed, Fault, MESSAGE_ENCODING, RATIO, body_coding, message_coding};
use super::grpc_call::{Incoming, late};
use super::grpc_message::{self, Code, PREFIX_BYTES, Status};
use super::shared::{self, Made, Shared};
use crate::admission::account::{Hold, Shares};
use crate::admission::fair_queue::{Ask, Refusal};
use crate::admission::limits::Limits;

const BODY: &str = "body";
const MESSAGE: &str = "message";

/// Counts the refusal of a compressed body, and returns it. `noun`: what HTTP or gRPC calls the body.
fn refused(fault: Fault, shared: &Shared, model: &str, noun: &str) -> Status {
    let (code, text) = match fault {
        // For gRPC, see its statuscodes.md, "Could not decompress".
        Fault::Invalid(text) if noun == MESSAGE => (Code::Internal, format!("The {noun} {text}")),
        Fault::Invalid(text) => (Code::InvalidArgument, format!("The {noun} {text}")),
        Fault::Bytes(limit) => {
            (Code::ResourceExhausted, format!("The decompressed {noun} is over the limit of {limit} bytes."))
        }
        Fault::Ratio => (
            Code::ResourceExhausted,
            format!("The {noun} decompresses to more than {RATIO} times its size; send it less compressed, or plain."),
        ),
        Fault::InFlight | Fault::Work => return shared.no_bytes(model),
    };
    if code == Code::ResourceExhausted {
        shared.statistics.refused(model, "inflated");
    }
    Status { code, text, may_retry: false }
}

/// Inflates the body on the pool for large work, and counts the inflated bytes in `hold`. Returns the plain body,
/// and a permit that the caller keeps as long as the body: the permits limit how many large inflated bodies a
/// connection holds.
async fn large(
    body: Compressed,
    shared: &Arc<Shared>,
    connection: &Connection,
    ask: Ask,
    hold: &mut Hold,
    counters: Arc<Shares>,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), NotInflated> {
    let sent = body.data.len();
    if !hold.reach(sent, || Arc::clone(&counters)) {
        return Err(NotInflated::Fault(Fault::InFlight));
    }
    let permit = Arc::clone(&connection.inflating).acquire_owned().await?;
    let (sender, receiver) = oneshot::channel();
    let mut own = std::mem::take(hold);
    let job = move |told: Result<_, Refusal>| {
        let inflated = told.map(|_| {
            let has_room = |size| own.reach(sent + size, || Arc::clone(&counters));
            body.inflate(usize::MAX - 1, has_room)
        });
        let has_run = inflated.is_ok();
        let _ = sender.send((inflated, own));
        has_run
    };
    // The request's task keeps the queue's ticket while it waits: if the task is dropped, the ticket removes the job
    // from the queue.
    let _ticket = shared.large.submit(ask, None, job).map_err(NotInflated::Refused)?;
    let (inflated, own) = receiver.await?;
    *hold = own;
    let plain = inflated.map_err(NotInflated::Refused)?.map_err(NotInflated::Fault)?;
    Ok((plain, permit))
}

/// The reason why the pool for large work did not inflate a body.
enum NotInflated {
    Fault(Fault),
    Refused(Refusal),
    /// The pool is closed, because the server stops.
    Closed,
}

impl From<tokio::sync::AcquireError> for NotInflated {
    fn from(_: tokio::sync::AcquireError) -> Self {
        NotInflated::Closed
    }
}

impl From<oneshot::error::RecvError> for NotInflated {
    fn from(_: oneshot::error::RecvError) -> Self {
        NotInflated::Closed
    }
}

/// Inflates the body of an HTTP request, if it is compressed, and removes the headers that describe its compressed form.
/// Returns the plain body, and a permit that the caller keeps as long as a large inflated body.
///
/// # Errors
/// The refusal of the request.
pub async fn inflate_body(
    shared: &Arc<Shared>,
    connection: &Connection,
    head: &mut Parts,
    data: Bytes,
    hold: &mut Hold,
    ask: Ask,
    too_long: impl Fn(&str, Refusal) -> Status,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Status> {
    let coding = body_coding(&head.headers);
    let coding = coding.map_err(|text| Status { code: Code::InvalidArgument, text, may_retry: false })?;
    let Some(coding) = coding else { return Ok((data, None)) };
    let body = Compressed { coding, data, start: 0, limit: shared.limits.max_request_bytes };
    let (plain, permit) = if let Some(plain) = body.small() {
        (plain, None)
    } else {
        let (model, deadline) = (Arc::clone(&ask.path[0]), ask.deadline.unwrap_or_else(Instant::now));
        let counters = connection.shares(&shared.account, &model);
        let inflating = Box::pin(large(body, shared, connection, ask, hold, counters));
        match tokio::time::timeout_at(deadline.into(), inflating).await {
            Ok(Ok((plain, permit))) => (plain, Some(permit)),
            Ok(Err(NotInflated::Fault(fault))) => return Err(refused(fault, shared, &model, BODY)),
            Ok(Err(NotInflated::Refused(refusal))) => return Err(too_long(&model, refusal)),
            Ok(Err(NotInflated::Closed)) => return Err(shared::no_upstream()),
            Err(_) => return Err(too_long(&model, Refusal::Late)),
        }
    };
    head.headers.remove(CONTENT_ENCODING);
    head.headers.remove(CONTENT_LENGTH);
    Ok((plain.into(), permit))
}

/// Returns the compressed message in the body of a call; None if the body is not one whole compressed message.
///
/// # Errors
/// The call's metadata does not name the compression.
fn compressed_message(headers: &HeaderMap, data: &Bytes, limits: &Limits) -> Result<Option<Compressed>, Status> {
    let Some(([1, ..], message)) = data.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    if data.first_chunk().map(|prefix| grpc_message::length(*prefix)) != Some(message.len()) {
        return Ok(None);
    }
    let Some(coding) = message_coding(headers) else {
        return Err(Status {
            code: Code::Internal,
            text: "The message is compressed, but the metadata 'grpc-encoding' does not say how.".into(),
            may_retry: false,
        });
    };
    let message = data.slice_ref(message);
    Ok(Some(Compressed { coding, data: message, start: PREFIX_BYTES, limit: limits.max_message_bytes }))
}

/// Writes the prefix before an inflated message, and removes the metadata that names its compression.
fn plain_message(headers: &mut HeaderMap, mut plain: Vec<u8>) -> Option<Bytes> {
    let size = u32::try_from(plain.len() - PREFIX_BYTES).ok()?;
    plain[1..PREFIX_BYTES].copy_from_slice(&size.to_be_bytes());
    headers.remove(MESSAGE_ENCODING);
    Some(plain.into())
}

/// Inflates a small compressed message on a thread of connections. Returns the plain message, with its prefix; None if
/// the body is something else.
#[must_use]
pub fn inflate_small_message(headers: &mut HeaderMap, data: &Bytes, limits: &Limits) -> Option<Bytes> {
    let plain = compressed_message(headers, data, limits).ok()??;
    let plain = small_message(&plain)?;
    plain_message(headers, plain)
}

/// Inflates the compressed message of a call, and removes the metadata that names its compression. Returns the plain
/// message, with its prefix; None if `data` is not one whole compressed message.
///
/// # Errors
/// The refusal of the call.
pub async fn inflate_message(incoming: &mut Incoming, data: &Bytes) -> Result<Option<Bytes>, Status> {
    let shared = Arc::clone(&incoming.shared);
    let Some(message) = compressed_message(&incoming.head.headers, data, &shared.limits)? else { return Ok(None) };
    if let Some(plain) = small_message(&message) {
        return Ok(plain_message(&mut incoming.head.headers, plain));
    }
    let (ask, counters) = (incoming.ask(&[], message.data.len()), incoming.shares(&[]));
    let connection = Arc::clone(&incoming.connection);
    let mut hold = std::mem::take(&mut incoming.hold);
    let inflated = Box::pin(large(message, &shared, &connection, ask, &mut hold, counters)).await;
    incoming.hold = hold;
    match inflated {
        Ok((plain, permit)) => {
            incoming.inflated = Some(permit);
            Ok(plain_message(&mut incoming.head.headers, plain))
        }
        Err(NotInflated::Fault(fault)) => Err(refused(fault, &shared, "", MESSAGE)),
        Err(NotInflated::Refused(refusal)) => Err(shared.refuse("", refusal, late)),
        Err(NotInflated::Closed) => Err(shared::no_upstream()),
    }
}

/// Inflates a message as [`Compressed::small`] does. As in other gRPC servers, a message without bytes is empty.
fn small_message(message: &Compressed) -> Option<Vec<u8>> {
    if message.data.is_empty() { Some(vec![0; PREFIX_BYTES]) } else { message.small() }
}

/// Compresses on the pool for large work the answer that a thread of connections made and left plain because it is
/// large.
///
/// # Errors
/// The queue refuses the work, and the client does not accept a plain answer.
pub async fn finish(
    shared: &Arc<Shared>,
    mut made: Made,
    accepted: Accepted,
    ask: impl FnOnce() -> Ask,
) -> Result<Made, Refusal> {
    if !made.body.is_due() {
        return Ok(made);
    }
    let (sender, receiver) = oneshot::channel();
    let plain = made.body.clone();
    let worker = Arc::clone(shared);
    let job = move |told: Result<_, Refusal>| {
        let encoded = told.map(|_| worker.compressors.finish(plain));
        // The thread drops its reference to the server first: it must not be the last to drop it.
        drop(worker);
        let has_run = encoded.is_ok();
        let _ = sender.send(encoded);
        has_run
    };
    let refusal = match shared.large.submit(ask(), None, job) {
        Ok(_ticket) => match receiver.await {
            Ok(Ok(encoded)) => {
                let model = made.answered.servable.model();
                made.debt = made.debt.resized(&shared.account, model, encoded.len());
                made.body = encoded;
                return Ok(made);
            }
            Ok(Err(refusal)) => refusal,
            // The pool is closed, because the server stops.
            Err(_) => Refusal::Late,
        },
        Err(refusal) => refusal,
    };
    if accepted.is_required() { Err(refusal) } else { Ok(Made { body: made.body.left_plain(), ..made }) }
}
