//! Names the reasons for which the core leaves a request to the reference servers.

/// Says why a form did not answer a request.
///
/// After [`Declined::TooLarge`] the edge asks the form again. After any other, it forwards the request to the reference
/// servers, which answer or refuse it. Metrics count each variant apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Declined {
    /// The work is too large for a thread that serves connections. The edge repeats the request with
    /// [`crate::plan::Effort::Any`] on a thread for large work.
    TooLarge,
    /// The bytes are not a request of this form, or use a part of the form that only the reference reads.
    Unusual,
    /// The core is not certain that the caller may run the model.
    Denied,
    /// The request is sampled for a trace or a request log, which only the reference writes.
    Drawn,
    /// No servable, label, version or signature of that name is published to the core.
    Unknown,
    /// The signature exists and only the reference runs it.
    NotNative,
    /// A name, dtype, shape, row split, id or key does not fit the signature; the reference words the refusal.
    Unfit,
    /// A file that the servable reads was damaged while the server runs.
    Damaged,
    /// The answer would be larger than the server's limit, or the request's JSON has more keys or lists than the
    /// reference reads.
    OverLimit,
    /// TensorFlow refused the inputs, or failed.
    Graph,
}
