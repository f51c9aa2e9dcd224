//! Reads and writes the `ModelSpec` of requests and answers.
//!
//! Source: `tensorflow_serving/apis/model.proto` (9d981c5).

use super::protobuf::{
    Fields, Value, delimited_len, set_once, text, varint_field_len, write_delimited, write_delimited_header,
    write_varint_field,
};
use crate::plan::{Declined, Servable, Signature, Version, faults};

/// The model, version and signature that a request names.
pub struct ModelSpec<'a> {
    pub model: &'a str,
    pub version: Version<'a>,
    /// Name of the signature; "" if the request names none.
    pub signature: &'a str,
}

impl<'a> ModelSpec<'a> {
    /// Reads field 1 of a request, which must name a model.
    ///
    /// # Errors
    /// [`Declined::Fault`]: the request names no model. Others as [`ModelSpec::read`].
    pub fn of_request(message: &'a [u8]) -> Result<Self, Declined> {
        let mut spec = None;
        for field in Fields::of(message) {
            if let (1, Value::Delimited(bytes)) = field? {
                set_once(&mut spec, bytes)?;
            }
        }
        let spec = Self::read(spec.ok_or_else(faults::no_model_spec)?)?;
        if spec.model.is_empty() { Err(faults::no_model_name().into()) } else { Ok(spec) }
    }

    /// Reads a `ModelSpec`.
    ///
    /// # Errors
    /// The bytes are no such message, or in a rare encoding.
    pub fn read(message: &'a [u8]) -> Result<Self, Declined> {
        let (mut model, mut version, mut signature) = (None, None, None);
        for field in Fields::of(message) {
            match field? {
                (1, Value::Delimited(bytes)) => set_once(&mut model, text(bytes)?)?,
                (2, Value::Delimited(bytes)) => set_once(&mut version, Version::Number(wrapped_integer(bytes)?))?,
                (3, Value::Delimited(bytes)) => set_once(&mut signature, text(bytes)?)?,
                (4, Value::Delimited(bytes)) => set_once(&mut version, Version::Label(text(bytes)?))?,
                _ => return Err(Declined::Unusual),
            }
        }
        Ok(ModelSpec {
            model: model.unwrap_or_default(),
            version: version.unwrap_or(Version::Latest),
            signature: signature.unwrap_or_default(),
        })
    }
}

/// Parses a `google.protobuf.Int64Value`.
fn wrapped_integer(message: &[u8]) -> Result<i64, Declined> {
    let mut number = None;
    for field in Fields::of(message) {
        match field? {
            (1, Value::Varint(value)) => set_once(&mut number, value.cast_signed())?,
            _ => return Err(Declined::Unusual),
        }
    }
    Ok(number.unwrap_or(0))
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

/// Returns the size in bytes of the `ModelSpec` of a signature.
#[must_use]
pub fn spec_len(servable: &Servable, signature: &Signature) -> usize {
    let version_len = varint_field_len(1, servable.version().cast_unsigned());
    delimited_len(1, servable.model().len()) + delimited_len(2, version_len) + delimited_len(3, signature.name.len())
}
