//! Parses requests, runs them, and writes their answers. Each wire format has a module here, which is called a form.

pub mod built_size;
mod examples;
pub mod examples_json;
pub mod examples_proto;
mod model_spec;
pub mod predict_proto;
mod predict_response;
pub mod protobuf;
pub mod record;
mod tensor_proto;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use examples::Method as InferenceMethod;
pub use record::LogRecord;

pub use crate::plan::Version;
use crate::plan::faults::{self, BoxedFault, Names};
use crate::plan::{Effort, Grant, Notes, Routes, Servable};
use crate::tables::halves::Half;

pub mod json;
pub mod lookup_json;
pub mod oip_binary;
#[cfg(all(test, not(feature = "model")))]
mod oip_fixture;
pub mod oip_json;
pub mod oip_proto;
pub mod table_rows;
pub mod tensorflow_json;
mod usual;

/// How a gRPC Predict answer has the numbers of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorEncoding {
    /// In typed fields, such as `float_val`.
    Values,
    /// In `tensor_content`.
    Content,
    /// In `tensor_content`, and those of float32 outputs rounded to 16 bits. The typed field of such numbers has up to
    /// three bytes for each.
    Half(Half),
}

impl TensorEncoding {
    /// The encodings, with their names in the metadata of a request.
    const NAMES: [(&str, TensorEncoding); 4] = [
        ("values", TensorEncoding::Values),
        ("content", TensorEncoding::Content),
        ("float16", TensorEncoding::Half(Half::Float16)),
        ("bfloat16", TensorEncoding::Half(Half::Bfloat16)),
    ];

    /// Returns the encoding of a request that chooses none.
    #[must_use]
    pub fn of_server(as_content: bool) -> Self {
        if as_content { TensorEncoding::Content } else { TensorEncoding::Values }
    }

    /// Returns the encoding with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn of_name(name: &[u8]) -> Result<Self, BoxedFault> {
        let found = Self::NAMES.iter().find(|(known, _)| known.as_bytes() == name);
        let unknown = || {
            faults::tensor_encoding(&String::from_utf8_lossy(name), &Names::listed(Self::NAMES.map(|(known, _)| known)))
        };
        found.map(|&(_, encoding)| encoding).ok_or_else(unknown)
    }

    /// Returns the 16 bits to which numbers of float32 outputs are rounded; None if they are not.
    #[must_use]
    pub fn half(self) -> Option<Half> {
        if let TensorEncoding::Half(half) = self { Some(half) } else { None }
    }
}

/// The context of one request: all that a wire format's handler (form) needs besides the request's bytes.
pub struct Call<'a> {
    /// The routing table, which gives the published servable for a model and a version.
    pub routes: &'a Routes,
    /// How much work the calling thread may do for the request.
    pub effort: Effort<'a>,
    /// Maximal size of an answer's arrays, in bytes.
    pub max_response_bytes: usize,
    /// How a gRPC Predict answer has the numbers of its tensors.
    pub encoding: TensorEncoding,
    /// Whether JSON answers have `null` in place of NaN and infinity, and JSON requests with such numbers are refused.
    pub strict_json: bool,
    /// The models that the caller of the request may run; None: all models.
    pub grant: Option<&'a Grant>,
    /// A random number from 0 to below 1: the request is logged if it is below its model's log rate. None if no request is
    /// logged.
    pub log: Option<f64>,
}

impl<'a> Call<'a> {
    /// Returns the servable of a model's version, if the caller may run the model and the core can run the version.
    ///
    /// # Errors
    /// An unknown name, a model that the caller may not run, or a version that can not be run.
    pub fn find(&self, model: &str, version: Version<'_>) -> Result<&'a Arc<Servable>, BoxedFault> {
        if let Some(grant) = self.grant
            && !grant.allows(model)
        {
            // A model on which the caller has no right does not exist for the caller.
            let fault = if grant.sees(model) {
                faults::no_right(&grant.caller, model).of_model(model)
            } else {
                version.unknown(model)
            };
            return Err(fault);
        }
        self.routes.find(model, version)
    }

    /// Returns the fraction of a model's requests that are logged.
    #[must_use]
    pub fn log_rate(&self, model: &str) -> f64 {
        self.routes.model(model).map_or(0.0, |routes| routes.log_rate)
    }
}

/// Highest rank of a request's tensor: more dimensions are a mistake or an attack.
const MAX_RANK: usize = 64;

/// The signature of an answer to a request that runs none, such as one for rows of a table.
pub const NO_SIGNATURE: usize = usize::MAX;

/// A finished answer, with the figures that the metrics count.
pub struct Answered {
    /// The answer's bytes: the HTTP body, or the gRPC message without its five-byte prefix.
    pub body: Bytes,
    /// B, the number of rows of the request.
    pub rows: usize,
    /// The servable that answered the request; its version can not be unloaded before this reference is dropped.
    pub servable: Arc<Servable>,
    /// Index, in `servable.signatures()`, of the signature that the request ran; or [`NO_SIGNATURE`].
    pub signature: usize,
    /// Time of the lookup or the graph run; for gRPC answers and binary tensors, with the time of writing them.
    pub ran: Duration,
    /// For an Open Inference answer with binary tensors, the number of bytes of JSON text before the tensors.
    pub json_length: Option<usize>,
    /// The notes that the client gets beside the answer, if there are any.
    pub notes: Option<Box<Notes>>,
    /// When the lookup or the graph run began.
    pub began: Instant,
    /// The request's record for the log of its model; None if the request is not drawn for it.
    pub record: Option<Box<LogRecord>>,
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn routes() -> Routes {
        let (versions, labels) = (vec![(3, None)], vec![("stable".to_owned(), 3)]);
        let model = crate::plan::ModelRoutes { versions, labels, problem: String::new(), log_rate: 0.0 };
        Routes::default().with([("m".to_owned(), model)].into(), &[])
    }

    fn refused(routes: &Routes, grant: Option<&Grant>, model: &str) -> BoxedFault {
        let call = Call { grant, ..oip_fixture::call(routes) };
        call.find(model, Version::Latest).expect_err("it has no servable")
    }

    fn unknown(model: &str) -> BoxedFault {
        faults::unknown_model(model)
    }

    #[test]
    fn callers_find_the_models_that_they_may_run() {
        let (routes, other) = (routes(), Grant::new(["n*"]));
        assert_eq!(refused(&routes, Some(&other), "m"), unknown("m"));
        let reader = Grant::new(["n*"]).of_caller("reader", ["m"]);
        let fault = faults::no_right("reader", "m").of_model("m");
        assert_eq!(refused(&routes, Some(&reader), "m"), fault);
        // A caller without the right to run a model gets the same result whether the model exists or not.
        assert_eq!(refused(&routes, Some(&other), "absent"), unknown("absent"));
        assert_eq!(refused(&routes, Some(&other), "no"), unknown("no"));
        let not_run = faults::version_not_run("m", 3).of_model("m");
        assert_eq!(refused(&routes, Some(&Grant::new(["m"])), "m"), not_run);
    }
}
