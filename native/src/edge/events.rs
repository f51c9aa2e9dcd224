//! Lists the events that the network server counts for all models together.

use super::frames::Flood;
use crate::plan::Declined;

/// An event that the network server counts for all models together.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Event {
    DeclinedTooLarge,
    DeclinedWaits,
    DeclinedBatches,
    DeclinedQueued,
    DeclinedSearch,
    ForwardedGrpc,
    ForwardedHttp,
    UpstreamFailedGrpc,
    UpstreamFailedHttp,
    Panicked,
    RefusedConnections,
    ClosedIdle,
    CutGrpc,
    CutHttp,
    FloodData,
    FloodReset,
    FloodSettings,
    FloodPing,
    FloodWindow,
    FloodHeaders,
    FloodOther,
    FloodHttp2,
    FloodParts,
    FloodTls,
    FloodUnfinished,
    MalformedHttp,
    HandshakeFailedGrpc,
    HandshakeFailedHttp,
    ConnectedGrpc,
    ConnectedHttp,
    DisconnectedGrpc,
    DisconnectedHttp,
}

/// Number of events that the network server counts: the variants of [`Event`].
pub const NUM_EVENTS: usize = Event::DisconnectedHttp as usize + 1;

impl Event {
    // Events of a wire; the index is the number of the [`super::config::Wire`].
    pub const CUT: [Event; 2] = [Event::CutGrpc, Event::CutHttp];
    pub const HANDSHAKE_FAILED: [Event; 2] = [Event::HandshakeFailedGrpc, Event::HandshakeFailedHttp];
    pub const CONNECTED: [Event; 2] = [Event::ConnectedGrpc, Event::ConnectedHttp];
    pub const DISCONNECTED: [Event; 2] = [Event::DisconnectedGrpc, Event::DisconnectedHttp];
}

impl From<Flood> for Event {
    fn from(flood: Flood) -> Self {
        match flood {
            Flood::Data => Event::FloodData,
            Flood::Reset => Event::FloodReset,
            Flood::Settings => Event::FloodSettings,
            Flood::Ping => Event::FloodPing,
            Flood::Window => Event::FloodWindow,
            Flood::Headers => Event::FloodHeaders,
            Flood::Other => Event::FloodOther,
            Flood::Tls => Event::FloodTls,
            Flood::Unfinished => Event::FloodUnfinished,
        }
    }
}

impl Event {
    /// Returns the event that a form declined a request for this reason; None for a fault, which is counted by its code, and
    /// for reasons that no form gives the edge.
    #[must_use]
    pub fn declined(reason: &Declined) -> Option<Self> {
        Some(match reason {
            Declined::TooLarge => Event::DeclinedTooLarge,
            Declined::Waits => Event::DeclinedWaits,
            Declined::Batches => Event::DeclinedBatches,
            Declined::Queued => Event::DeclinedQueued,
            Declined::Search => Event::DeclinedSearch,
            Declined::Unusual | Declined::Malformed | Declined::Fault(_) => return None,
        })
    }
}
