//! Handles `POST /v1/models/{model}/tables/{table}:rows`, which returns rows of a table by their ids, as float32.
//!
//! The reference implementation is `service/wire/json_lookup.py`.

use bytes::Bytes;

use super::json::explain;
use super::json::floats::{NonFinite, write_numbers};
use super::json::nested::{Leaves, Nested};
use super::json::outputs::{check_body, check_numbers, text_buffer};
use super::json::reader::read_ids;
use super::{Call, Version};
use crate::plan::{DataType, Declined, faults, read_table};
use crate::tables::table::{Dtype, Ints, LookupError, OnBadId, OutputRows, Policy};

/// Returns the body of the answer to a `:rows` request. The counts of looked-up ids do not change, because those belong
/// to signatures.
///
/// `max_rows` is the server's limit on the number of ids in one request.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn answer(
    call: &Call<'_>,
    model: &str,
    version: Version<'_>,
    table: &str,
    max_rows: usize,
    body: &[u8],
) -> Result<Bytes, Declined> {
    check_body(call.effort, body)?;
    let ids = match read_ids(body).map(Nested::into_dense) {
        Ok(Some((Leaves::Ints(ids), dims))) if dims.len() == 1 => ids,
        Ok(Some((Leaves::None, dims))) if dims.len() == 1 => Vec::new(),
        _ => explain::table_ids(body)?,
    };
    if ids.len() > max_rows {
        return Err(faults::too_many_table_ids(ids.len(), max_rows).into());
    }
    let servable = call.find(model, version)?;
    let number = servable.find_table(table)?;
    let table = &servable.tables()[number];
    if table.dtype == Dtype::Float64 || servable.is_remote(number) {
        return Err(Declined::NotNative);
    }
    let row_bytes = table.embedding_dim * 4;
    let num_bytes = ids.len().checked_mul(row_bytes).ok_or(Declined::NotNative)?;
    check_numbers(call.effort, num_bytes / 4)?;
    let policy = Policy { on_bad_id: OnBadId::Error, default_row: 0 };
    read_table(servable, number, Ints::of(&ids), policy, call.effort)?;
    let mut rows = Vec::with_capacity(num_bytes);
    let out = OutputRows::new(&mut rows.spare_capacity_mut()[..num_bytes], 0, row_bytes, row_bytes, ids.len());
    table
        .gather(Ints::of(&ids), policy, out)
        .map_err(|error| refused(error, &ids, servable.vocabulary_size(number)))?;
    // SAFETY: gather() has written every row, so all `num_bytes` bytes of the vector are initialised.
    unsafe { rows.set_len(num_bytes) };
    if servable.is_damaged() {
        return Err(servable.damaged().into());
    }
    let mut body = text_buffer(num_bytes / 4);
    body.extend_from_slice(b"{\"rows\":");
    let dims = [ids.len(), table.embedding_dim];
    write_numbers(DataType::Float32, &dims, &rows, NonFinite::of(call.strict_json), &mut body);
    body.push(b'}');
    Ok(Bytes::from(body))
}

/// Returns the error for an id that has no row in the table.
#[cold]
fn refused(error: LookupError, ids: &[i64], vocabulary_size: usize) -> Declined {
    let (LookupError::BadId(position) | LookupError::TooMany(position)) = error;
    let last = i64::try_from(vocabulary_size).unwrap_or(i64::MAX) - 1;
    ids.get(position).map_or(Declined::NotNative, |&id| faults::bad_id("ids", id, position, last).into())
}
