//! Writes a `PredictResponse`.
//!
//! Source: `tensorflow_serving/apis/predict.proto` (9d981c5).

use bytes::Bytes;
use smallvec::SmallVec;

use super::model_spec::{spec_len, write_spec};
use super::protobuf::{delimited_len, write_delimited, write_delimited_header};
use super::tensor_proto::MessageLayout;
use crate::plan::{Declined, Servable, Signature, Work};

/// Writes a `PredictResponse` into one allocation of exactly its size.
///
/// # Errors
/// As [`Work::append`].
pub fn write_response(
    work: &mut Work<'_, '_>,
    servable: &Servable,
    signature: &Signature,
    as_content: bool,
) -> Result<Bytes, Declined> {
    let mut outputs = SmallVec::<[Output; 4]>::new();
    for index in 0..work.outputs().len() {
        let name = signature.outputs.get(work.outputs()[index].output).map_or("", |output| &output.name);
        let tensor = MessageLayout::of(work, index, as_content)?;
        let entry_len = delimited_len(1, name.len()) + delimited_len(2, tensor.len);
        outputs.push(Output { name, tensor, entry_len });
    }
    let outputs_len: usize = outputs.iter().map(|output| delimited_len(1, output.entry_len)).sum();
    let size = outputs_len + delimited_len(2, spec_len(servable, signature));

    let mut body = Vec::with_capacity(size);
    for (index, output) in outputs.iter().enumerate() {
        write_delimited_header(&mut body, 1, output.entry_len);
        write_delimited(&mut body, 1, output.name.as_bytes());
        write_delimited_header(&mut body, 2, output.tensor.len);
        output.tensor.write(work, index, &mut body)?;
    }
    write_spec(&mut body, 2, servable, signature);
    debug_assert_eq!(body.len(), size);
    Ok(Bytes::from(body))
}

/// One entry in the map of outputs of a `PredictResponse`.
struct Output<'a> {
    name: &'a str,
    tensor: MessageLayout,
    /// Size in bytes of the entry in the map of outputs, without its tag and length.
    entry_len: usize,
}
