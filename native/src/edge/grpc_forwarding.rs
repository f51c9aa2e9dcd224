//! Forwards gRPC calls to the control server: limits how many run there, and inflates compressed messages first.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::connection::MAX_LONG_CALLS;
use super::encoding;
use super::events::Event;
use super::grpc_call::{
    Gathered, Incoming, gather, is_serving, late, refuse, refuse_empty, send_serving, unimplemented,
};
use super::grpc_message::{self, Code, PREFIX_BYTES, Payload, Status};
use super::grpc_metadata;
use super::health;
use super::inflating;
use super::refusals;
use super::shared::{self, Shared};
use crate::admission::fair_queue::{Refusal, client_of};
use crate::admission::gate::Lane;
use crate::admission::limits::INLINE_BYTES;
use crate::admission::long_calls::LongCall;
use crate::forms::built_size::built_size;
use crate::forward::Lost;

/// The answer for a client whose call did not reach the control server, or whose answer was lost.
const LOST: Lost =
    Lost { head: || shared::no_upstream().head(None), trailers: || shared::no_upstream().trailers(None) };

/// Serves a call that is no plain predict or lookup: forwards it to the control server, refuses it, or answers a
/// health check.
pub async fn serve_other(mut incoming: Incoming, mut respond: SendResponse<Payload>, first: Option<Bytes>) {
    let path = incoming.head.uri.path();
    let is_check = path == health::CHECK;
    if !has_one_message(path) {
        if encoding::message_coding(&incoming.head.headers).is_some() {
            // A call that may have several request messages is refused if they are compressed, because the core could
            // check the inflated size of only the first.
            let status = unimplemented("The messages of this method must not be compressed.");
            return refuse(&incoming, respond, &status);
        }
        return forward(incoming, respond, first.unwrap_or_default()).await;
    }
    // For a method with one request message, the core reads the whole message before it forwards the call, so that a
    // slow client does not hold a slot of the control server.
    let gathered = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        gathered = gather(&mut incoming, first, false) => gathered,
    };
    let status = match gathered {
        Gathered::Message(data) if is_check && is_serving(&incoming.shared, &data) => {
            return send_serving(&incoming.shared, &incoming.connection, respond);
        }
        Gathered::Message(data) => return forward(incoming, respond, data).await,
        Gathered::Unusual(begun) | Gathered::TooLong(begun, _) => return forward(incoming, respond, begun).await,
        Gathered::Refused(status) => status,
        Gathered::Empty => return refuse_empty(&incoming, respond),
        Gathered::Lost => return respond.send_reset(Reason::CANCEL),
    };
    refuse(&incoming, respond, &status);
}

/// Returns true if a call of this method has exactly one request message, which the core may read before it forwards
/// the call.
fn has_one_message(path: &str) -> bool {
    let is_known = ["/tensorflow.serving.", "/inference."].iter().any(|service| path.starts_with(service));
    is_known && !path.ends_with("/ModelStreamInfer") || [health::CHECK, health::WATCH].contains(&path)
}

fn lane(path: &str) -> Lane {
    match path.rsplit_once('/') {
        // Searches for nearest rows.
        Some(("/tensorflow.serving.PredictionService", method)) if method != "GetModelMetadata" => Lane::Search,
        Some((_, "Watch" | "ServerReflectionInfo" | "ModelStreamInfer")) => Lane::Stream,
        _ => Lane::Control,
    }
}

/// Forwards a call to the control server. `begun` has the bytes of its body that the core has already read.
pub async fn forward(mut incoming: Incoming, mut respond: SendResponse<Payload>, begun: Bytes) {
    if let Err(status) = grpc_metadata::sanitize(&mut incoming.head.headers) {
        return refuse(&incoming, respond, &status);
    }
    let inflated = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        inflated = inflating::inflate_message(&mut incoming, &begun) => inflated,
    };
    let begun = match inflated {
        Ok(inflated) => inflated.unwrap_or(begun),
        Err(status) => return refuse(&incoming, respond, &status),
    };
    let judged = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        judged = judge(&mut incoming, &begun) => judged,
    };
    let parsed = match judged {
        Ok(permit) => permit,
        Err(status) => return refuse(&incoming, respond, &status),
    };
    let shared = Arc::clone(&incoming.shared);
    let lane = lane(incoming.head.uri.path());
    let _stream = match lane {
        Lane::Stream => match hold_long_call(&incoming) {
            Ok(held) => Some(held),
            Err(status) => return refuse(&incoming, respond, &status),
        },
        Lane::Search | Lane::Control => None,
    };
    let ask = incoming.ask(&begun, begun.len());
    let model = Arc::clone(&ask.path[0]);
    let entered = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        entered = shared.grpc_gates.enter(lane, ask) => entered,
    };
    let permit = match entered {
        Ok(permit) => permit,
        Err(refusal) => return refuse(&incoming, respond, &shared.refuse(&model, refusal, late)),
    };
    if let (Lane::Search, Some(permit)) = (lane, &permit) {
        shared.statistics.waited(&model, permit.waited);
    }
    shared.statistics.count(Event::ForwardedGrpc);
    let method = incoming.method();
    let id = shared.ids.of_http(&incoming.head.headers);
    let client = incoming.client();
    shared.mark(&mut incoming.head.headers, &incoming.connection, &client);
    let is_served = shared.grpc_upstream.forward(incoming.head, incoming.body, begun, respond, permit, LOST).await;
    if !is_served {
        shared.statistics.count(Event::UpstreamFailedGrpc);
        let (id, status) = (id.to_str().unwrap_or_default(), shared::no_upstream());
        refusals::count_status(&shared, method, &model, &status, id, client);
    }
    drop(parsed);
}

/// Counts a long-lived call against the limits on such calls, until the caller drops the returned values.
///
/// # Errors
/// The connection, its address, or all connections together already have as many as they may.
fn hold_long_call(incoming: &Incoming) -> Result<(OwnedSemaphorePermit, LongCall), Status> {
    let shared = &incoming.shared;
    let refused = |text: String| {
        shared.statistics.refused("", "streams");
        Err(Status { code: Code::ResourceExhausted, text, may_retry: false })
    };
    let Ok(of_connection) = Arc::clone(&incoming.connection.streaming).try_acquire_owned() else {
        return refused(format!(
            "A connection may have {MAX_LONG_CALLS} health watches and reflection calls at the same time."
        ));
    };
    let Some(of_all) = shared.long_calls.begin(&client_of(&incoming.connection.peer)) else {
        return refused(
            "The server, or the client's address, has too many health watches and reflection calls.".into(),
        );
    };
    Ok((of_connection, of_all))
}

/// Computes how many bytes the control server takes to parse a call's message, and counts them against the limit on
/// bytes in flight. Returns a permit that the caller keeps until the call ends; None for a small message, and if `data` is
/// no whole plain message, which the control server then does not parse.
async fn judge(incoming: &mut Incoming, data: &Bytes) -> Result<Option<OwnedSemaphorePermit>, Status> {
    let message = match data.split_first_chunk::<PREFIX_BYTES>() {
        Some((prefix, message)) if prefix[0] == 0 && message.len() == grpc_message::length(*prefix) => {
            data.slice_ref(message)
        }
        _ => return Ok(None),
    };
    let shared = Arc::clone(&incoming.shared);
    let limit = shared.account.limit() / 2;
    let path = incoming.head.uri.path();
    if message.len() <= INLINE_BYTES {
        let size = parsed_size(path, &message, limit).map_err(|text| too_large(&shared, text))?;
        return incoming.reach(data, data.len() + size).map(|()| None);
    }
    let path = path.to_owned();
    incoming.reach(data, data.len())?;
    // Permits limit how many compressed or large messages of the connection are parsed at the same time. A call whose
    // message was inflated has one already.
    let permit = if incoming.inflated.is_some() {
        None
    } else {
        let Ok(permit) = Arc::clone(&incoming.connection.inflating).acquire_owned().await else {
            return Err(shared::no_upstream());
        };
        Some(permit)
    };
    let (sender, receiver) = oneshot::channel();
    let job = move |told: Result<Duration, Refusal>| {
        let size = told.map(|_| parsed_size(&path, &message, limit));
        let has_run = size.is_ok();
        let _ = sender.send(size);
        has_run
    };
    // The call's task keeps the queue's ticket while it waits: if the task is dropped, the ticket removes the job from
    // the queue.
    let ticket = shared.large.submit(incoming.ask(&[], data.len()), None, job);
    let _ticket = ticket.map_err(|refusal| shared.refuse("", refusal, late))?;
    match receiver.await {
        Ok(Ok(Ok(size))) => incoming.reach(data, data.len() + size).map(|()| permit),
        Ok(Ok(Err(text))) => Err(too_large(&shared, text)),
        Ok(Err(refusal)) => Err(shared.refuse("", refusal, late)),
        // No result comes if the thread pool dropped the job with the sender, because the pool is closed when the
        // server stops.
        Err(_) => Err(shared::no_upstream()),
    }
}

/// Returns how many bytes the control server takes to parse a message. `limit`: the maximal size of what the server
/// builds from it.
///
/// # Errors
/// The text that tells the client why the message is too large.
fn parsed_size(path: &str, message: &[u8], limit: usize) -> Result<usize, String> {
    let built = built_size(path, message).map_err(|too_many| too_many.fault().text)?;
    if built > limit {
        return Err(format!(
            "The message's values would take {built} bytes in memory, and a request may take {limit}. Send it in several \
             requests."
        ));
    }
    Ok(built)
}

fn too_large(shared: &Shared, text: String) -> Status {
    shared.statistics.refused("", "inflated");
    Status { code: Code::ResourceExhausted, text, may_retry: false }
}
