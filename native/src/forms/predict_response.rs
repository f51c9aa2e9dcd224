//! Writes a `PredictResponse` and the `ModelSpec` of a servable's signature.
//!
//! Source: `tensorflow_serving/apis/{predict,model}.proto` (9d981c5).

use bytes::Bytes;
use smallvec::SmallVec;

use super::protobuf::{delimited_len, varint_field_len, write_delimited, write_delimited_header, write_varint_field};
use super::tensor_proto::MessageLayout;
use crate::plan::{Declined, OutputShape, Servable, Signature, Work};

/// Writes a `PredictResponse` into one allocation of exactly its size.
///
/// # Errors
/// As [`Work::fill`].
pub fn write_response(
    work: &mut Work<'_, '_>,
    servable: &Servable,
    signature: &Signature,
    as_content: bool,
) -> Result<Bytes, Declined> {
    let shapes: SmallVec<[OutputShape; 4]> = work.outputs().into();
    let mut outputs = SmallVec::<[Output; 4]>::new();
    for (index, shape) in shapes.iter().enumerate() {
        let name = signature.outputs.get(shape.output).map_or("", |output| &output.name);
        let tensor = MessageLayout::of(work, index, shape, as_content)?;
        let entry_len = delimited_len(1, name.len()) + delimited_len(2, tensor.len);
        outputs.push(Output { name, tensor, entry_len });
    }
    let outputs_len: usize = outputs.iter().map(|output| delimited_len(1, output.entry_len)).sum();
    let size = outputs_len + delimited_len(2, spec_len(servable, signature));

    let mut body = Vec::with_capacity(size);
    for (index, (output, shape)) in outputs.iter().zip(&shapes).enumerate() {
        write_delimited_header(&mut body, 1, output.entry_len);
        write_delimited(&mut body, 1, output.name.as_bytes());
        write_delimited_header(&mut body, 2, output.tensor.len);
        output.tensor.write(work, index, shape, &mut body)?;
    }
    write_spec(&mut body, 2, servable, signature);
    debug_assert_eq!(body.len(), size);
    Ok(Bytes::from(body))
}

/// Appends the `ModelSpec` of a signature as the field with this number.
pub fn write_spec(to: &mut Vec<u8>, field: u32, servable: &Servable, signature: &Signature) {
    let version = servable.version().cast_unsigned();
    write_delimited_header(to, field, spec_len(servable, signature));
    write_delimited(to, 1, servable.model().as_bytes());
    write_delimited_header(to, 2, varint_field_len(1, version));
    write_varint_field(to, 1, version);
    write_delimited(to, 3, signature.name.as_bytes());
}

fn spec_len(servable: &Servable, signature: &Signature) -> usize {
    let version_len = varint_field_len(1, servable.version().cast_unsigned());
    delimited_len(1, servable.model().len()) + delimited_len(2, version_len) + delimited_len(3, signature.name.len())
}

/// One entry in the map of outputs of a `PredictResponse`.
struct Output<'a> {
    name: &'a str,
    tensor: MessageLayout,
    /// Size in bytes of the entry in the map of outputs, without its tag and length.
    entry_len: usize,
}
