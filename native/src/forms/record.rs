//! Writes a request and its answer for the log of its model, as an entry of a `PredictionLog`. A lookup or predict of any
//! form is written as the `PredictRequest` that has the same meaning.
//!
//! Source: `tensorflow_serving/apis/{prediction_log,predict,model}.proto` (9d981c5).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::model_spec::write_spec;
use super::predict_response::write_response;
use super::protobuf::{delimited_len, write_delimited, write_delimited_header};
use super::tensor_proto::write_input;
use super::{Answered, Call};
use crate::plan::{Declined, Inputs, Servable, Work};

/// Field number of `PredictionLog.predict_log`.
const PREDICT_LOG: u32 = 6;

/// The record of an answered request: a serialized `PredictionLog` that lacks its `log_metadata`.
#[derive(Debug)]
pub struct LogRecord(pub Vec<u8>);

/// A request that is drawn for the log of its model, and whose answer is not written yet.
pub struct Recording {
    /// The serialized `PredictRequest`.
    request: Vec<u8>,
}

impl Recording {
    /// Returns the request of a signature, if it is drawn for the log; `wanted` has the indexes of the outputs that the
    /// request names.
    #[must_use]
    pub fn begin(
        call: &Call<'_>,
        servable: &Servable,
        signature: usize,
        inputs: &Inputs<'_>,
        wanted: &[usize],
    ) -> Option<Self> {
        let plan = servable.signatures().get(signature).filter(|_| is_drawn(call, servable))?;
        let mut request = Vec::new();
        write_spec(&mut request, 1, servable, plan);
        for (index, tensor) in inputs.iter() {
            let input = &plan.inputs[index];
            let mut proto = Vec::new();
            write_input(&mut proto, tensor);
            write_delimited_header(&mut request, 2, delimited_len(1, input.name.len()) + delimited_len(2, proto.len()));
            write_delimited(&mut request, 1, input.name.as_bytes());
            write_delimited(&mut request, 2, &proto);
        }
        for output in wanted.iter().filter_map(|&index| plan.outputs.get(index)) {
            write_delimited(&mut request, 3, output.name.as_bytes());
        }
        Some(Recording { request })
    }

    /// Returns the record of the request and its answer.
    ///
    /// # Errors
    /// As [`Work::append`], which this calls again for each output.
    fn end(self, work: &mut Work<'_, '_>, servable: &Servable, signature: usize) -> Result<Box<LogRecord>, Declined> {
        let response = write_response(work, servable, &servable.signatures()[signature], false)?;
        Ok(log_record(PREDICT_LOG, &self.request, &response))
    }
}

impl Answered {
    /// Ends the work for a request of a signature, whose run began at `began`, and returns the answer without its body.
    ///
    /// # Errors
    /// As [`Work::append`], which a record calls again, and [`Work::finish`].
    pub fn end(
        mut work: Work<'_, '_>,
        recording: Option<Recording>,
        servable: &Arc<Servable>,
        signature: usize,
        began: Instant,
    ) -> Result<Self, Declined> {
        let record = recording.map(|recording| recording.end(&mut work, servable, signature)).transpose()?;
        let rows = work.rows();
        let notes = work.finish()?;
        let (servable, ran) = (Arc::clone(servable), began.elapsed());
        Ok(Answered { body: Bytes::new(), rows, servable, signature, ran, json_length: None, notes, began, record })
    }
}

/// Says whether a request is drawn for the log of its model.
#[must_use]
pub fn is_drawn(call: &Call<'_>, servable: &Servable) -> bool {
    call.log.is_some_and(|draw| draw < call.log_rate(servable.model()))
}

/// Returns the record of a request; `field` is the number in `PredictionLog` of the log of its method.
#[must_use]
pub fn log_record(field: u32, request: &[u8], response: &[u8]) -> Box<LogRecord> {
    let size = delimited_len(1, request.len()) + delimited_len(2, response.len());
    let mut record = Vec::with_capacity(delimited_len(field, size));
    write_delimited_header(&mut record, field, size);
    write_delimited(&mut record, 1, request);
    write_delimited(&mut record, 2, response);
    Box::new(LogRecord(record))
}
