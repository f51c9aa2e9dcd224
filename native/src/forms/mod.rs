//! Reads requests and writes answers; one file for each wire form.

pub mod predict_proto;
pub mod protobuf;
mod tensor_proto;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::plan::{Effort, Routes, Servable};

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
