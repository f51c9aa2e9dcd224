//! Lists, in headers or trailers of an answer, the tables whose rows could not all be read, and the unknown keys.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::forms::Answered;
use crate::plan::Instead;

const STALE_ROWS: HeaderName = HeaderName::from_static("x-stale-rows");
const UNKNOWN_KEYS: HeaderName = HeaderName::from_static("x-unknown-keys");
/// Percent-encodes a name, as Python's `quote(name, safe="")` does.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.').remove(b'~');
const DEFAULT_ROWS: HeaderName = HeaderName::from_static("x-default-rows");

/// Adds the notes of an answer; `x-unknown-keys: FEATURE=COUNT, FEATURE=COUNT` counts the request's keys that the
/// vocabulary of a feature, or input, lacks.
pub fn add(headers: &mut HeaderMap, answered: &Answered) {
    let Some(notes) = &answered.notes else { return };
    add_instead(headers, &notes.instead);
    if notes.has_unknown_keys() {
        let signature = &answered.servable.signatures()[answered.signature];
        let counts = notes.unknown_keys().map(|(input, count)| (signature.name_of_values(input), count));
        add_counts(headers, UNKNOWN_KEYS, counts);
    }
}

/// Adds the header `x-stale-rows: TABLE=COUNT, TABLE=COUNT` if rows of the cache are in the answer, and the header
/// `x-default-rows` in the same form if default rows are.
fn add_instead(headers: &mut HeaderMap, instead: &[Instead]) {
    type Count = fn(&Instead) -> usize;
    let kinds: [(HeaderName, Count); 2] = [(STALE_ROWS, |one| one.stale_rows), (DEFAULT_ROWS, |one| one.default_rows)];
    for (name, count) in kinds.into_iter().filter(|_| !instead.is_empty()) {
        let tables = instead.iter().map(|one| (&*one.table, count(one))).filter(|(_, count)| *count > 0);
        add_counts(headers, name, tables);
    }
}

fn add_counts<'a>(headers: &mut HeaderMap, header: HeaderName, counts: impl Iterator<Item = (&'a str, usize)>) {
    let texts: Vec<String> =
        counts.map(|(name, count)| format!("{}={count}", utf8_percent_encode(name, ESCAPED))).collect();
    if !texts.is_empty()
        && let Ok(value) = HeaderValue::from_str(&texts.join(", "))
    {
        headers.insert(header, value);
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_rows_has_a_header_with_its_tables() {
        let one = |table: &str, stale_rows, default_rows| Instead { table: table.into(), stale_rows, default_rows };
        let mut headers = HeaderMap::new();
        add_instead(&mut headers, &[]);
        assert!(headers.is_empty());
        add_instead(&mut headers, &[one("user", 3, 0), one("bücher, neu", 1, 0)]);
        assert_eq!(headers[STALE_ROWS], "user=3, b%C3%BCcher%2C%20neu=1");
        assert_eq!(headers.len(), 1);
        add_instead(&mut headers, &[one("user_id", 0, 7)]);
        assert_eq!(headers[DEFAULT_ROWS], "user_id=7");
    }
}
