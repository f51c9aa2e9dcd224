//! Reads the body of a request in one pass, without a tree of values: names, and numbers end to end.
//!
//! What is read here is strict JSON of a known form without an unknown or a repeated key. All else is the reference's to
//! read or to refuse.

use std::borrow::Cow;

use super::cursor::{Cursor, Read};
use super::nested::Nested;
use crate::declined::Declined;

/// More inputs than signatures have; each name is held against all others.
const MAX_COLUMNS: usize = 256;

/// The value of one input or feature.
#[derive(Debug)]
pub struct Column<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its value.
    pub value: Nested<'a>,
    /// How many rows gave an element of it.
    rows: usize,
}

/// The tensors of a predict.
#[derive(Debug)]
pub enum Payload<'a> {
    /// By name.
    Columns(Vec<Column<'a>>),
    /// That of the only input.
    Value(Nested<'a>),
}

/// The body of a `:predict`.
#[derive(Debug)]
pub struct PredictBody<'a> {
    /// Empty where the client named none.
    pub signature_name: Cow<'a, str>,
    /// Whether tensors came in `instances`, so that the answer goes by row.
    pub is_by_row: bool,
    /// The tensors.
    pub payload: Payload<'a>,
}

/// The body of a `:lookup`.
#[derive(Debug)]
pub struct LookupBody<'a> {
    /// Empty where the client named none.
    pub signature_name: Cow<'a, str>,
    /// Ids by feature.
    pub features: Vec<Column<'a>>,
    /// Weights by feature.
    pub weights: Vec<Column<'a>>,
}

/// Reads the body of a `:predict`.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_predict(body: &[u8]) -> Read<PredictBody<'_>> {
    let (mut signature_name, mut payload) = (None, None);
    members(body, |key, cursor| {
        match key {
            "signature_name" if signature_name.is_none() => signature_name = Some(cursor.string()?),
            "instances" if payload.is_none() => payload = Some((true, instances(cursor)?)),
            "inputs" if payload.is_none() => payload = Some((false, inputs(cursor)?)),
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    })?;
    let (is_by_row, payload) = payload.ok_or(Declined::Unusual)?;
    Ok(PredictBody {
        signature_name: signature_name.unwrap_or_default(),
        is_by_row,
        payload,
    })
}

/// Reads the body of a `:lookup`.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_lookup(body: &[u8]) -> Read<LookupBody<'_>> {
    let (mut signature_name, mut features, mut weights) = (None, None, None);
    members(body, |key, cursor| {
        match key {
            "signature_name" if signature_name.is_none() => signature_name = Some(cursor.string()?),
            "features" if features.is_none() => features = Some(columns(cursor)?),
            "weights" if weights.is_none() => weights = Some(columns(cursor)?),
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    })?;
    Ok(LookupBody {
        signature_name: signature_name.unwrap_or_default(),
        features: features.ok_or(Declined::Unusual)?,
        weights: weights.unwrap_or_default(),
    })
}

/// Reads `{"ids": [...]}`.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_ids(body: &[u8]) -> Read<Nested<'_>> {
    let mut ids = None;
    members(body, |key, cursor| {
        if key != "ids" || ids.is_some() {
            return Err(Declined::Unusual);
        }
        cursor.element(ids.insert(Nested::default()), 0)
    })?;
    ids.ok_or(Declined::Unusual)
}

/// Passes through a body that is one object; `member` reads the value of each key.
fn members<'a>(body: &'a [u8], mut member: impl FnMut(&str, &mut Cursor<'a>) -> Read<()>) -> Read<()> {
    let mut cursor = Cursor::new(body)?;
    cursor.expect(b'{')?;
    loop {
        let key = cursor.key()?;
        member(&key, &mut cursor)?;
        if !cursor.has_next(b'}')? {
            return cursor.end();
        }
    }
}

/// Reads an object of columns, perhaps an empty one.
fn columns<'a>(cursor: &mut Cursor<'a>) -> Read<Vec<Column<'a>>> {
    let mut columns = Vec::new();
    cursor.expect(b'{')?;
    if cursor.take(b'}') {
        return Ok(columns);
    }
    loop {
        let name = cursor.key()?;
        let column = add(&mut columns, name, Nested::default())?;
        cursor.element(&mut column.value, 0)?;
        if !cursor.has_next(b'}')? {
            return Ok(columns);
        }
    }
}

fn add<'c, 'a>(columns: &'c mut Vec<Column<'a>>, name: Cow<'a, str>, value: Nested<'a>) -> Read<&'c mut Column<'a>> {
    if columns.len() >= MAX_COLUMNS || columns.iter().any(|column| column.name == name) {
        return Err(Declined::Unusual);
    }
    columns.push(Column { name, value, rows: 0 });
    columns.last_mut().ok_or(Declined::Unusual)
}

/// Reads `inputs`: an object of columns, or the value of the only input.
fn inputs<'a>(cursor: &mut Cursor<'a>) -> Read<Payload<'a>> {
    if cursor.is_at(b'{') && !cursor.is_at_base64() {
        return columns(cursor).map(Payload::Columns);
    }
    let mut value = Nested::default();
    cursor.element(&mut value, 0)?;
    Ok(Payload::Value(value))
}

/// Reads `instances`: a list of objects, or of values of the only input. The first row says of which.
fn instances<'a>(cursor: &mut Cursor<'a>) -> Read<Payload<'a>> {
    cursor.expect(b'[')?;
    let mut rows = 0;
    if cursor.is_at(b'{') && !cursor.is_at_base64() {
        let mut columns = Vec::new();
        loop {
            row(cursor, &mut columns, rows)?;
            rows += 1;
            if !cursor.has_next(b']')? {
                break;
            }
        }
        for column in &mut columns {
            column.value.close(0, rows);
        }
        return Ok(Payload::Columns(columns));
    }
    let mut values = Nested::column();
    loop {
        cursor.element(&mut values, 1)?;
        rows += 1;
        if !cursor.has_next(b']')? {
            break;
        }
    }
    values.close(0, rows);
    Ok(Payload::Value(values))
}

/// Reads one object of `instances`; all of them have the same keys, in any order.
fn row<'a>(cursor: &mut Cursor<'a>, columns: &mut Vec<Column<'a>>, row: usize) -> Read<()> {
    cursor.expect(b'{')?;
    let mut count = 0;
    loop {
        let name = cursor.key()?;
        let column = if row == 0 {
            add(columns, name, Nested::column())?
        } else {
            // The order is mostly that of the first row.
            let is_next = columns.get(count).is_some_and(|column| column.name == name);
            let number = if is_next {
                Some(count)
            } else {
                columns.iter().position(|column| column.name == name)
            };
            &mut columns[number.ok_or(Declined::Unusual)?]
        };
        if column.rows != row {
            return Err(Declined::Unusual);
        }
        column.rows += 1;
        cursor.element(&mut column.value, 1)?;
        count += 1;
        if !cursor.has_next(b'}')? {
            break;
        }
    }
    if count == columns.len() {
        Ok(())
    } else {
        Err(Declined::Unusual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w2() -> String {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut users, mut items, mut tags) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..128 {
            users.push(random.i64(0..1_000_000));
            items.push(random.i64(0..200_000));
            let length = random.usize(1..=20);
            tags.push((0..length).map(|_| random.i64(0..50_000)).collect::<Vec<_>>());
        }
        serde_json::json!({"features": {"item": items, "user": users, "tags": tags}}).to_string()
    }

    #[test]
    #[ignore = "a measurement"]
    fn time_to_read() {
        let body = w2();
        println!("{} bytes", body.len());
        let time = |name: &str, work: &dyn Fn()| {
            let once = || {
                let start = std::time::Instant::now();
                (0..10).for_each(|_| work());
                start.elapsed() / 10
            };
            println!("{name}: {:?}", (0..300).map(|_| once()).min().unwrap());
        };
        time("cursor", &|| {
            std::hint::black_box(read_lookup(std::hint::black_box(body.as_bytes())).unwrap());
        });
        time("serde_json to Value", &|| {
            std::hint::black_box(
                serde_json::from_slice::<serde_json::Value>(std::hint::black_box(body.as_bytes())).unwrap(),
            );
        });
    }
}
