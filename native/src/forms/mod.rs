//! Reads requests and writes answers; one file for each wire form.

pub mod predict_proto;
pub mod protobuf;
mod tensor_proto;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::declined::Declined;
use crate::plan::{Effort, Grant, Routes, Servable};

pub mod json;
pub mod lookup_json;
pub mod oip_binary;
#[cfg(test)]
mod oip_fixture;
pub mod oip_json;
pub mod oip_proto;
pub mod table_rows;
pub mod tensorflow_json;

/// What every form is given beside the bytes of a request.
pub struct Call<'a> {
    /// The published servables.
    pub routes: &'a Routes,
    /// How much work may be done on this thread.
    pub effort: Effort,
    /// Largest answer as arrays, in bytes.
    pub max_response_bytes: usize,
    /// Whether floats of a gRPC Predict travel in `tensor_content`.
    pub as_content: bool,
    /// Whether NaN and infinite numbers are refused in JSON requests and written as null.
    pub strict_json: bool,
    /// The models that the caller may run; None: all.
    pub grant: Option<&'a Grant>,
    /// The random number that decides whether the model's request log has this request; None: it is not logged.
    pub log_draw: Option<f64>,
}

impl<'a> Call<'a> {
    /// Returns the servable for a model's name and version.
    ///
    /// # Errors
    /// [`Declined::Denied`], [`Declined::Drawn`] and [`Declined::Unknown`].
    pub fn find(&self, model: &str, version: Version<'_>) -> Result<&'a Arc<Servable>, Declined> {
        if self.grant.is_some_and(|grant| !grant.allows(model)) {
            return Err(Declined::Denied);
        }
        let routes = self.routes.model(model).ok_or(Declined::Unknown)?;
        if self.log_draw.is_some_and(|draw| draw < routes.log_rate) {
            return Err(Declined::Drawn);
        }
        routes.find(version).ok_or(Declined::Unknown)
    }
}

/// The version of a model that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// The latest one.
    Latest,
    /// This one.
    Number(i64),
    /// The one that the label points to.
    Label(&'a str),
}

/// A finished answer, and the facts that are counted of it.
pub struct Answered {
    /// The body; of gRPC the message without its five-byte prefix.
    pub body: Bytes,
    /// B, the number of rows of the request.
    pub rows: usize,
    /// The servable that answered; it stays leased until this is dropped.
    pub servable: Arc<Servable>,
    /// Number of the signature in `servable`.
    pub signature: usize,
    /// The part of the time that lookups and TensorFlow took.
    pub ran: Duration,
    /// Bytes of JSON before the binary tensors, of an Open Inference answer that has any.
    pub json_length: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(log_rate: f64) -> Routes {
        let (versions, labels) = (vec![(3, None)], vec![("stable".to_owned(), 3)]);
        Routes::new([("m".to_owned(), crate::plan::ModelRoutes { versions, labels, log_rate })].into())
    }

    fn refused(routes: &Routes, grant: Option<&Grant>, log_draw: Option<f64>, model: &str) -> Declined {
        let call = Call { grant, log_draw, ..oip_fixture::call(routes) };
        call.find(model, Version::Latest).expect_err("it has no servable")
    }

    #[test]
    fn callers_find_the_models_that_they_may_run() {
        let (routes, other) = (routes(1.0), Grant::new(["n*"]));
        assert_eq!(refused(&routes, Some(&other), Some(0.0), "m"), Declined::Denied);
        // A caller without the right can not find out whether the model exists.
        assert_eq!(refused(&routes, Some(&other), Some(0.0), "absent"), Declined::Denied);
        assert_eq!(refused(&routes, Some(&other), Some(0.0), "no"), Declined::Unknown);
        assert_eq!(refused(&routes, Some(&Grant::new(["m"])), Some(0.0), "m"), Declined::Drawn);
    }

    #[test]
    fn requests_are_drawn_at_the_rate_of_their_model() {
        for (rate, draw, expected) in [
            (0.0, Some(0.0), Declined::Unknown),
            (0.5, Some(0.4), Declined::Drawn),
            (0.5, Some(0.5), Declined::Unknown),
            (1.0, Some(0.999), Declined::Drawn),
            (1.0, None, Declined::Unknown),
        ] {
            assert_eq!(refused(&routes(rate), None, draw, "m"), expected, "{rate} {draw:?}");
        }
    }
}
