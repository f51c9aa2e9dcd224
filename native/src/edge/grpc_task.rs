//! Answers a gRPC call whose message has not arrived yet, is large, or needs a long computation.

use std::future::poll_fn;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;

use super::dispatch::Dispatch;
use super::grpc_call::{Gathered, Incoming, Plain, Reply, gather, late, refuse_empty, send};
use super::grpc_forwarding::{forward, serve_other};
use super::grpc_message::{Code, PREFIX_BYTES, Payload, Status};
use super::inflating;
use super::pooled::Pooled;
use super::shared::{Failed, Outcome};
use crate::admission::limits::INLINE_BYTES;
use crate::forms::Call;
use crate::plan::{Declined, Effort};

/// Serves one gRPC call until it is answered.
pub async fn serve_call(
    mut incoming: Incoming,
    plain: Option<Plain>,
    mut respond: SendResponse<Payload>,
    first: Option<Bytes>,
) {
    let Some(plain) = plain else {
        return serve_other(incoming, respond, first).await;
    };
    let next = tokio::select! {
        biased;
        // The client has cancelled the call, so the server stops its work on the call and sends no answer.
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        next = answer(&mut incoming, &plain, first) => next,
    };
    finish(incoming, &plain, respond, next).await;
}

/// Continues a small request that the handler declined on the connection's task: runs it on a thread pool, or forwards
/// a search to the control server.
pub async fn declined_small(
    mut incoming: Incoming,
    plain: Plain,
    mut respond: SendResponse<Payload>,
    data: Bytes,
    declined: Declined,
) {
    if declined.is_for_a_pool() {
        let next = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            next = large(&mut incoming, &plain, data, &declined) => next,
        };
        return finish(incoming, &plain, respond, next).await;
    }
    forward(incoming, respond, data).await;
}

/// The next step for a call: an answer, a forward to the control server, or a reset of its stream.
enum Next {
    Reply(Reply),
    /// Forwards the call to the control server, with the bytes of the body that were already read.
    Forward(Bytes),
    /// Refuses the call, which has no message.
    RefuseEmpty,
    Reset(Reason),
}

async fn finish(incoming: Incoming, plain: &Plain, mut respond: SendResponse<Payload>, next: Next) {
    match next {
        Next::Reply(reply) => {
            send(&incoming.shared, &incoming.connection, &incoming.head, plain, respond, reply);
        }
        Next::Forward(begun) => forward(incoming, respond, begun).await,
        Next::RefuseEmpty => refuse_empty(&incoming, respond),
        Next::Reset(reason) => respond.send_reset(reason),
    }
}

/// Reads the request message of a call, and returns how the call continues: with an answer, forwarded, or reset.
async fn answer(incoming: &mut Incoming, plain: &Plain, first: Option<Bytes>) -> Next {
    // While the client leaves too many answers unread, the call does not read its request body. The unread bytes of the
    // body use up the connection's HTTP/2 window, so the client must stop sending.
    incoming.connection.room().await;
    let data = match gather(incoming, first, true).await {
        Gathered::Message(data) => data,
        Gathered::Unusual(begun) => match inflating::inflate_message(incoming, &begun).await {
            Ok(Some(data)) => data,
            Ok(None) => return no_message(&begun),
            Err(status) => return Next::Reply(Reply::Refusal(status)),
        },
        Gathered::TooLong(_, fault) => return Next::Reply(Reply::Fault(fault)),
        Gathered::Refused(status) => return Next::Reply(Reply::Refusal(status)),
        Gathered::Empty => return Next::RefuseEmpty,
        Gathered::Lost => return Next::Reset(Reason::CANCEL),
    };
    if data.len() > INLINE_BYTES {
        return large(incoming, plain, data, &Declined::TooLarge).await;
    }
    // The connection's other requests may have been answered while this one's body came.
    incoming.connection.room().await;
    let message = data.get(PREFIX_BYTES..).unwrap_or_default();
    let outcome = incoming.shared.call(Effort::Small, &incoming.connection, &plain.terms, |dispatch, call| {
        dispatch.grpc(plain.method, call, message)
    });
    match outcome {
        Err(Failed::Declined(declined)) if declined.is_for_a_pool() => large(incoming, plain, data, &declined).await,
        outcome => after(incoming, plain, outcome, data).await,
    }
}

/// Returns the refusal of a body that is neither a plain nor a compressed message.
fn no_message(body: &[u8]) -> Next {
    match body {
        [flag, _, _, _, _, ..] if *flag > 1 => {
            let text = format!("The message's prefix has the unknown flag {flag}.");
            Next::Reply(Reply::Refusal(Status { code: Code::Internal, text, may_retry: false }))
        }
        _ => Next::RefuseEmpty,
    }
}

async fn after(incoming: &Incoming, plain: &Plain, outcome: Outcome, data: Bytes) -> Next {
    match outcome {
        Ok(made) => {
            let finished =
                inflating::finish(&incoming.shared, made, plain.terms.accepted, || incoming.ask(&data, data.len()));
            match finished.await {
                Ok(made) => Next::Reply(Reply::Answer(made)),
                Err(refusal) => Next::Reply(Reply::Refusal(incoming.shared.refuse("", refusal, late))),
            }
        }
        Err(Failed::Refused(fault)) => Next::Reply(Reply::Fault(fault)),
        Err(Failed::Panicked) => Next::Reply(Reply::Panic),
        Err(Failed::Declined(_)) => Next::Forward(data),
    }
}

/// Answers a gRPC message on a thread of a pool; `why` is the reason why a thread of connections does not answer it.
async fn large(incoming: &mut Incoming, plain: &Plain, data: Bytes, why: &Declined) -> Next {
    if let Err(status) = incoming.reach(&data, data.len()) {
        return Next::Reply(Reply::Refusal(status));
    }
    let announcement = incoming.announcement.take().map(|(announcement, _)| announcement);
    let (method, body, ask) = (plain.method, data.clone(), incoming.ask(&data, data.len()));
    let form = move |dispatch: &dyn Dispatch, call: &Call<'_>| {
        dispatch.grpc(method, call, body.get(PREFIX_BYTES..).unwrap_or_default())
    };
    let (shared, connection, terms) = (&incoming.shared, &incoming.connection, &plain.terms);
    match (Pooled { shared, connection, terms, ask, form }).run(why, announcement, late).await {
        Ok(outcome) => after(incoming, plain, outcome, data).await,
        Err(status) => Next::Reply(Reply::Refusal(status)),
    }
}
