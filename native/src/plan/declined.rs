//! The reasons why the handler of a wire format does not answer a request: the server then runs the request on a thread
//! pool, refuses it, or forwards it to the reference servers in Python.

/// The reason why the handler of a wire format did not answer a request.
///
/// After [`Declined::TooLarge`] and [`Declined::Waits`] the edge calls the form again. After [`Declined::NoRows`] it
/// refuses the request. After any other variant, it forwards the request to the reference servers, which answer or
/// refuse it. Metrics count each variant separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Rows of a Valkey or Redis cluster could not be read, or the request's deadline passed after the read, before its
    /// graph was run, or a batch refused the request; [`crate::plan::Waiting::failure`] says which.
    NoRows,
    /// The request's bytes are not valid, or use a feature of the wire format that only the reference servers in Python
    /// read.
    Unusual,
    /// The core could not confirm that the request's caller may run the model, so it forwards the request.
    Denied,
    /// The request is sampled for a trace or a request log, which only the reference servers write.
    Drawn,
    /// The core does not have the model, version, label, signature or table that the request names; the reference
    /// servers may have it.
    Unknown,
    /// Only the reference servers can answer the request, for example because the core does not run its signature, or
    /// because it asks for rows of a float64 table.
    NotNative,
    /// A name, dtype, shape, row split, id or key in the request does not fit the signature. The reference servers
    /// write the error message.
    Unfit,
    /// A mapped file of the servable was truncated or became unreadable.
    Damaged,
    /// The answer would exceed the server's limit, or the request has more strings, or its JSON more keys or lists, than
    /// the reference servers accept.
    OverLimit,
    /// TensorFlow refused the inputs of a predict's graph, or its run failed.
    Graph,
}

impl Declined {
    /// Says whether the edge tries a request again that a thread of connections declined: on a thread of a pool, or in a
    /// batch.
    #[must_use]
    pub fn is_for_a_pool(self) -> bool {
        matches!(self, Declined::TooLarge | Declined::Waits | Declined::Batches)
    }
}
