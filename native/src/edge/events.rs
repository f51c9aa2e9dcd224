//! Lists the events that the network server counts for all models together.

use super::config::Wire;
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
    /// Returns the event that a connection of this wire was cut.
    #[must_use]
    pub fn cut(wire: Wire) -> Self {
        match wire {
            Wire::Grpc => Event::CutGrpc,
            Wire::Http => Event::CutHttp,
        }
    }

    /// Returns the event that a TLS or HTTP/2 handshake of this wire failed.
    #[must_use]
    pub fn handshake_failed(wire: Wire) -> Self {
        match wire {
            Wire::Grpc => Event::HandshakeFailedGrpc,
            Wire::Http => Event::HandshakeFailedHttp,
        }
    }
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
