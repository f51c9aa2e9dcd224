//! Parses the JSON body of a request in one pass, without building a tree of values.
//!
//! Bodies must be strict JSON without unknown or repeated keys. All others are left to `explain.rs`, which reads them or
//! says what is wrong.

use std::borrow::Cow;

use super::cursor::Cursor;
use super::nested::{Nested, Parsed};
use crate::plan::Declined;

/// Maximal number of columns in a body, because each name is compared with all others; no signature has so many inputs.
const MAX_COLUMNS: usize = 256;

/// The name of one input or feature in a JSON request, and the value that the request gives it.
#[derive(Debug)]
pub struct Column<'a> {
    /// Name of the input or feature that the JSON request gives a value.
    pub name: Cow<'a, str>,
    /// Value that the JSON request gives the input or feature.
    pub value: Nested<'a>,
    /// Number of rows of `instances`, among the rows read so far, that had a value for this column.
    rows: usize,
}

/// The inputs of a `:predict` body: values by name, or one value without a name.
#[derive(Debug)]
pub enum Payload<'a> {
    /// The values of the inputs with their names, if the body names the inputs.
    Columns(Vec<Column<'a>>),
    /// The value of the signature's only input, if the body gives it without a name.
    Value(Nested<'a>),
}

/// A parsed `:predict` body.
#[derive(Debug)]
pub struct PredictBody<'a> {
    /// Name of the signature that the `:predict` body asks for; empty if the client named none.
    pub signature_name: Cow<'a, str>,
    /// Whether the `:predict` body has `instances`, so that the answer is written by row.
    pub is_by_row: bool,
    /// The inputs.
    pub payload: Payload<'a>,
}

/// A parsed `:lookup` body.
#[derive(Debug)]
pub struct LookupBody<'a> {
    /// Name of the signature that the `:lookup` body asks for; empty if the client named none.
    pub signature_name: Cow<'a, str>,
    /// Ids by feature.
    pub features: Vec<Column<'a>>,
    /// Weights by feature.
    pub weights: Vec<Column<'a>>,
}

/// Parses a `:predict` body.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_predict(body: &[u8]) -> Parsed<PredictBody<'_>> {
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
    Ok(PredictBody { signature_name: signature_name.unwrap_or_default(), is_by_row, payload })
}

/// Parses a `:lookup` body.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_lookup(body: &[u8]) -> Parsed<LookupBody<'_>> {
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

/// Parses the body `{"ids": [...]}` of a `:rows` request.
///
/// # Errors
/// [`Declined::Unusual`].
pub fn read_ids(body: &[u8]) -> Parsed<Nested<'_>> {
    let mut ids = None;
    members(body, |key, cursor| {
        if key != "ids" || ids.is_some() {
            return Err(Declined::Unusual);
        }
        cursor.element(ids.insert(Nested::default()), 0)
    })?;
    ids.ok_or(Declined::Unusual)
}

/// Reads a JSON body that is one object; calls `member` to read the value of each key.
fn members<'a>(body: &'a [u8], mut member: impl FnMut(&str, &mut Cursor<'a>) -> Parsed<()>) -> Parsed<()> {
    let mut cursor = Cursor::new(body)?;
    cursor.expect(b'{')?;
    loop {
        let key = cursor.key()?;
        member(&key, &mut cursor)?;
        if !cursor.accept_comma(b'}')? {
            return cursor.end();
        }
    }
}

/// Reads a JSON object, perhaps empty, whose keys are names of inputs or features (columns).
fn columns<'a>(cursor: &mut Cursor<'a>) -> Parsed<Vec<Column<'a>>> {
    let mut columns = Vec::new();
    cursor.expect(b'{')?;
    if cursor.accept(b'}') {
        return Ok(columns);
    }
    loop {
        let name = cursor.key()?;
        let column = add(&mut columns, name, Nested::default())?;
        cursor.element(&mut column.value, 0)?;
        if !cursor.accept_comma(b'}')? {
            return Ok(columns);
        }
    }
}

fn add<'c, 'a>(columns: &'c mut Vec<Column<'a>>, name: Cow<'a, str>, value: Nested<'a>) -> Parsed<&'c mut Column<'a>> {
    if columns.len() >= MAX_COLUMNS || columns.iter().any(|column| column.name == name) {
        return Err(Declined::Unusual);
    }
    columns.push(Column { name, value, rows: 0 });
    columns.last_mut().ok_or(Declined::Unusual)
}

/// Reads the value of the key `inputs` of a `:predict` body: an object of columns, or the value of the only input.
fn inputs<'a>(cursor: &mut Cursor<'a>) -> Parsed<Payload<'a>> {
    if cursor.is_at(b'{') && !cursor.is_at_base64() {
        return columns(cursor).map(Payload::Columns);
    }
    let mut value = Nested::default();
    cursor.element(&mut value, 0)?;
    Ok(Payload::Value(value))
}

/// Reads `instances`: a list of objects, or a list of values of the only input. The first row decides which of the two
/// it must be.
fn instances<'a>(cursor: &mut Cursor<'a>) -> Parsed<Payload<'a>> {
    cursor.expect(b'[')?;
    let mut rows = 0;
    if cursor.is_at(b'{') && !cursor.is_at_base64() {
        let mut columns = Vec::new();
        loop {
            row(cursor, &mut columns, rows)?;
            rows += 1;
            if !cursor.accept_comma(b']')? {
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
        if !cursor.accept_comma(b']')? {
            break;
        }
    }
    values.close(0, rows);
    Ok(Payload::Value(values))
}

/// Reads one object of `instances` and adds its values to the columns. Declines an object whose keys, in any order, are
/// not those of the first object.
fn row<'a>(cursor: &mut Cursor<'a>, columns: &mut Vec<Column<'a>>, row: usize) -> Parsed<()> {
    cursor.expect(b'{')?;
    let mut count = 0;
    loop {
        let name = cursor.key()?;
        let column = if row == 0 {
            add(columns, name, Nested::column())?
        } else {
            // Fast path: most objects in `instances` have their keys in the order of the first object.
            let is_next = columns.get(count).is_some_and(|column| column.name == name);
            let number = if is_next { Some(count) } else { columns.iter().position(|column| column.name == name) };
            &mut columns[number.ok_or(Declined::Unusual)?]
        };
        if column.rows != row {
            return Err(Declined::Unusual);
        }
        column.rows += 1;
        cursor.element(&mut column.value, 1)?;
        count += 1;
        if !cursor.accept_comma(b'}')? {
            break;
        }
    }
    if count == columns.len() { Ok(()) } else { Err(Declined::Unusual) }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::forms::json::nested::Leaves;

    /// The oracle: returns the leaves and the sizes of a JSON value, as numpy would find them; None if its lists are
    /// uneven.
    fn plain(value: &Value) -> Option<(Vec<Value>, Vec<usize>)> {
        let Value::Array(items) = value else {
            return Some((vec![value.clone()], vec![]));
        };
        let mut leaves = Vec::new();
        let mut inner: Option<Vec<usize>> = None;
        for item in items {
            let (more, sizes) = plain(item)?;
            leaves.extend(more);
            if inner.get_or_insert_with(|| sizes.clone()) != &sizes {
                return None;
            }
        }
        let mut sizes = vec![items.len()];
        sizes.extend(inner.unwrap_or_default());
        Some((leaves, sizes))
    }

    fn values(leaves: Leaves<'_>) -> Vec<Value> {
        match leaves {
            Leaves::None => vec![],
            Leaves::Ints(numbers) => numbers.into_iter().map(Value::from).collect(),
            Leaves::Floats(numbers) => numbers.into_iter().map(Value::from).collect(),
            Leaves::Bools(bools) => bools.into_iter().map(|one| Value::from(one == 1)).collect(),
            Leaves::Strings(strings) => {
                let texts = strings.iter().map(|one| std::str::from_utf8(one).expect("text"));
                texts.map(Value::from).collect()
            }
        }
    }

    fn leaf() -> impl Strategy<Value = Value> {
        prop_oneof![
            8 => any::<i64>().prop_map(Value::from),
            2 => (-1e9..1e9).prop_map(Value::from),
            1 => any::<bool>().prop_map(Value::from),
            2 => ".*".prop_map(Value::from),
        ]
    }

    fn lists() -> impl Strategy<Value = Value> {
        let even = (prop::collection::vec(0_usize..4, 0..4), leaf())
            .prop_map(|(sizes, leaf)| sizes.iter().rev().fold(leaf, |inner, &size| Value::from(vec![inner; size])));
        let any = leaf().prop_recursive(3, 24, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Value::from));
        prop_oneof![even, any]
    }

    proptest! {
        #[test]
        fn values_are_read_as_serde_json_reads_them(value in lists(), pretty: bool) {
            let document = serde_json::json!({"inputs": {"x": value}});
            let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
            let text = text.expect("text");
            let Ok(body) = read_predict(text.as_bytes()) else {
                // The parser declines values that mix lists and leaves, or leaves of several kinds; the test skips
                // these.
                return Ok(());
            };
            let Payload::Columns(mut columns) = body.payload else { panic!("columns") };
            let found = columns.remove(0).value.into_dense().map(|(leaves, sizes)| (values(leaves), sizes.to_vec()));
            let expected = plain(&document["inputs"]["x"]).map(|(leaves, sizes)| {
                let is_float = leaves.iter().any(Value::is_f64);
                let as_floats = leaves.iter().map(|leaf| leaf.as_f64().map_or(leaf.clone(), Value::from));
                (if is_float { as_floats.collect() } else { leaves }, sizes)
            });
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn lists_of_ids_are_read(rows in prop::collection::vec(prop::collection::vec(any::<i64>(), 0..5), 0..5)) {
            let text = serde_json::json!({"features": {"x": rows}}).to_string();
            let body = read_lookup(text.as_bytes()).expect("plain");
            let (leaves, splits) = body.features.into_iter().next().expect("one").value.into_rows().expect("rows");
            let ids: Vec<i64> = rows.iter().flatten().copied().collect();
            prop_assert_eq!(leaves.len(), ids.len());
            if let Leaves::Ints(found) = leaves {
                prop_assert_eq!(found, ids);
            }
            let mut end = 0;
            let ends = rows.iter().map(|row| { end += row.len(); i64::try_from(end).expect("short") });
            prop_assert_eq!(splits, std::iter::once(0).chain(ends).collect::<Vec<_>>());
        }

        #[test]
        fn floats_are_read_to_the_last_bit(number: f64) {
            prop_assume!(number.is_finite());
            let text = format!("{{\"inputs\":{number:e}}}");
            let body = read_predict(text.as_bytes()).expect("plain");
            let Payload::Value(value) = body.payload else { panic!("a value") };
            prop_assert_eq!(value.into_dense().expect("a scalar").0, Leaves::Floats(vec![number]));
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let body = |depth: usize| format!("{{\"inputs\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(read_predict(body(8).as_bytes()).is_ok());
        assert!(read_predict(body(9).as_bytes()).is_err());
        assert!(read_predict(format!("{{\"inputs\":{}", "[".repeat(100_000)).as_bytes()).is_err());
    }

    #[test]
    fn objects_with_many_keys_are_declined() {
        let body = |count: usize| {
            let members: Vec<String> = (0..count).map(|i| format!("\"{i}\":[]")).collect();
            format!("{{\"features\":{{{}}}}}", members.join(","))
        };
        assert!(read_lookup(body(MAX_COLUMNS).as_bytes()).is_ok());
        assert!(read_lookup(body(MAX_COLUMNS + 1).as_bytes()).is_err());
    }
}
