//! Why the core leaves a request to somebody else.

/// The reason why a request was not answered here and now.
///
/// Every variant but [`Declined::TooLarge`] sends the request to the reference servers, whose answer or refusal the
/// client gets. The variants exist for the metrics and for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Declined {
    /// The work is too large for an inline answer; the edge repeats the request with [`crate::plan::Effort::Any`] on a
    /// thread of the pool for large work.
    TooLarge,
    /// The bytes are not a request of this form, or use a part of the form that only the reference reads.
    Unusual,
    /// No servable, label, version or signature of that name is published to the core.
    Unknown,
    /// The signature exists and only the reference runs it.
    NotNative,
    /// A name, dtype, shape, row split, id or key does not fit the signature; the reference words the refusal.
    Unfit,
    /// A file that the servable reads was damaged while the server runs.
    Damaged,
    /// The answer would be larger than the server's limit.
    OverLimit,
    /// TensorFlow refused the inputs, or failed.
    Graph,
    /// The request was chosen for a request log or a trace, which the reference keeps.
    Sampled,
}
