//! The reasons why a request has no answer from rows or a graph, and the counts of rows that replace others.

/// The canonical code of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCode {
    /// The request's deadline had passed before its rows were read or its graph was run.
    DeadlineExceeded,
    /// Rows can not be read now, or too many batches wait.
    Unavailable,
    /// The request does not fit into a batch.
    InvalidArgument,
    /// The outputs of the signature's graph can not be split by request.
    FailedPrecondition,
}

impl FailureCode {
    /// Returns the code's canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FailureCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            FailureCode::Unavailable => "UNAVAILABLE",
            FailureCode::InvalidArgument => "INVALID_ARGUMENT",
            FailureCode::FailedPrecondition => "FAILED_PRECONDITION",
        }
    }
}

/// The reason why rows of a Valkey or Redis cluster could not be read, or why the request's graph was not run, or why
/// its outputs are not an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The canonical code of the error.
    pub code: FailureCode,
    /// The error text for the client, one sentence.
    pub text: String,
    /// Whether the server has too much work now, so that the client may send the request again.
    pub may_retry: bool,
}

impl Failure {
    /// Returns a failure that is not for want of room.
    #[must_use]
    pub fn new(code: FailureCode, text: impl Into<String>) -> Self {
        Failure { code, text: text.into(), may_retry: false }
    }

    /// Returns the failure of a request for which a queue has no room.
    #[must_use]
    pub fn full(text: String) -> Self {
        Failure { code: FailureCode::Unavailable, text, may_retry: true }
    }
}

/// The counts of cached rows and of default rows that an answer has in place of one table's rows that could not be
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instead {
    /// The table's name.
    pub table: String,
    /// Number of distinct rows of the answer that are from the row cache, and may be older than the rows in the
    /// cluster.
    pub stale_rows: usize,
    /// Number of distinct rows that could not be read and that the answer replaces by the feature's default row.
    pub default_rows: usize,
}
