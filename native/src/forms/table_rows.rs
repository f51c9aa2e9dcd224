//! Handles `POST /v1/models/{model}/tables/{table}:rows`, which returns rows of a table by their ids, as float32, and
//! their labels if the client asks for them.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::json::explain;
use super::json::floats::{NonFinite, write_numbers};
use super::json::nested::{Leaves, Nested};
use super::json::outputs::{check_body, check_numbers, text_buffer};
use super::json::reader::read_ids;
use super::{Answered, Call, NO_SIGNATURE, Version};
use crate::plan::{DataType, Declined, Notes, Servable, check_answer_size, faults, read_table};
use crate::tables::table::{Ints, OutputRows};

/// Returns the answer to a `:rows` request. The counts of looked-up ids do not change, because those belong
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
) -> Result<Answered, Declined> {
    check_body(call.effort, body)?;
    let (ids, wants_labels) = match read_ids(body).map(Nested::into_dense) {
        Ok(Some((Leaves::Ints(ids), dims))) if dims.len() == 1 => (ids, false),
        Ok(Some((Leaves::None, dims))) if dims.len() == 1 => (Vec::new(), false),
        _ => explain::table_ids(body)?,
    };
    if ids.len() > max_rows {
        return Err(faults::too_many_table_ids(ids.len(), max_rows).into());
    }
    let servable = call.find(model, version)?;
    let number = servable.find_table(table)?;
    let dim = servable.tables()[number].embedding_dim;
    let row_bytes = dim * 4;
    let num_bytes = ids.len().saturating_mul(row_bytes);
    check_answer_size(num_bytes, ids.len(), call.max_response_bytes)?;
    check_numbers(call.effort, num_bytes / 4)?;
    let mut rows = Vec::with_capacity(num_bytes);
    let out = OutputRows::new(&mut rows.spare_capacity_mut()[..num_bytes], 0, row_bytes, row_bytes, ids.len());
    let labels = if wants_labels { Some(labels(servable, number, &ids, call.max_response_bytes)?) } else { None };
    let began = Instant::now();
    let instead = read_table(servable, number, Ints::of(&ids), out, call.effort)?;
    // SAFETY: read_table() has written every row, so all `num_bytes` bytes of the vector are initialised.
    unsafe { rows.set_len(num_bytes) };
    let ran = began.elapsed();
    if servable.is_damaged() {
        return Err(servable.damaged().into());
    }
    let mut body = text_buffer(num_bytes / 4);
    body.extend_from_slice(b"{\"rows\":");
    write_numbers(DataType::Float32, &[ids.len(), dim], &rows, NonFinite::of(call.strict_json), &mut body);
    if let Some(labels) = labels {
        body.extend_from_slice(b",\"labels\":");
        body.extend_from_slice(&labels);
    }
    body.push(b'}');
    Ok(Answered {
        body: Bytes::from(body),
        rows: ids.len(),
        servable: Arc::clone(servable),
        signature: NO_SIGNATURE,
        ran,
        json_length: None,
        notes: Notes::of_instead(instead).boxed(),
        began,
        record: None,
    })
}

/// Returns the labels of rows as a JSON list, with null for a row without one.
fn labels(servable: &Servable, table: usize, ids: &[i64], max_bytes: usize) -> Result<Vec<u8>, Declined> {
    let mut list = vec![b'['];
    for (place, &id) in ids.iter().enumerate() {
        if place > 0 {
            list.push(b',');
        }
        let label = servable.labels(table).and_then(|labels| labels.get(id));
        let written = serde_json::to_writer(&mut list, &label);
        written.map_err(|error| faults::internal(error.to_string()))?;
        check_answer_size(list.len(), ids.len(), max_bytes)?;
    }
    list.push(b']');
    Ok(list)
}
