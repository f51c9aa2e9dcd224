//! The reasons why the handler of a wire format does not answer a request: the server then runs the request on a thread
//! pool, or refuses it; a search for nearest rows goes to the control servers in Python.

use super::faults::{self, BoxedFault, Subject};
use super::foreign::message_hint;

/// The reason why the handler of a wire format did not answer a request.
///
/// After [`Declined::TooLarge`], [`Declined::Waits`], [`Declined::Batches`] and [`Declined::Queued`] the edge calls the
/// form again. After [`Declined::Fault`] it refuses the request. After [`Declined::Search`] it forwards the request to the
/// control servers. Metrics count each variant but the fault separately; a fault counts by its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The request takes too long for a thread that serves connections. The server tries it again, with
    /// [`crate::plan::Effort::Any`], on the thread pool for large work.
    TooLarge,
    /// The request needs rows that must be read from a Valkey or Redis cluster, or from the disk. The edge runs it
    /// again, with [`crate::plan::Effort::Wait`], on the thread pool for requests that wait.
    Waits,
    /// The request runs a graph that is batched. The edge calls the form again, with [`super::Effort::Queue`].
    Batches,
    /// The request waits in a batch queue ([`super::BatchPlace::take_queued`]). The edge calls the form again when its
    /// batch has run.
    Queued,
    /// A fast reader does not know the request's encoding. The form reads it again by another reader; no form returns
    /// this.
    Unusual,
    /// The request's bytes are no message of its method. The form returns the fault that names the message in its place.
    Malformed,
    /// The request is a predict that searches for nearest rows, which the servers in Python do.
    Search,
    /// The request has this fault: the edge refuses the request with the fault's code and text.
    Fault(BoxedFault),
}

impl From<BoxedFault> for Declined {
    fn from(fault: BoxedFault) -> Self {
        Declined::Fault(fault)
    }
}

impl Declined {
    /// Returns the reason; a fault counts for this subject.
    #[must_use]
    pub fn at(self, subject: impl FnOnce() -> Subject) -> Self {
        match self {
            Declined::Fault(fault) => Declined::Fault(fault.at(subject())),
            other => other,
        }
    }

    /// Returns the reason; a message that is no such message becomes the fault that names its type.
    #[must_use]
    pub fn of_message(self, name: &str, message: &[u8]) -> Self {
        match self {
            Declined::Malformed => faults::not_a_message(name, message_hint(message)).into(),
            other => other,
        }
    }

    /// Says whether the edge tries a request again that a thread of connections declined: on a thread of a pool, or in a
    /// batch.
    #[must_use]
    pub fn is_for_a_pool(&self) -> bool {
        matches!(self, Declined::TooLarge | Declined::Waits | Declined::Batches)
    }
}
