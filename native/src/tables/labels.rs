//! The labels of a table's rows, such as the titles of films: lines of a mapped text, for people and never for lookups.

use std::borrow::Cow;

use super::memory::Memory;

#[derive(Clone, Debug)]
pub struct Labels {
    text: Memory,
    starts: Memory,
    first_row: i64,
}

impl Labels {
    /// Returns the labels whose text is in `text`; `starts` has the int64 offsets of its lines, and that of the end; the
    /// first line is the label of row `first_row`.
    ///
    /// # Errors
    /// `starts` has no int64 numbers.
    pub fn new(text: Memory, starts: Memory, first_row: i64) -> Result<Self, &'static str> {
        starts.numbers::<i64>().ok_or("starts")?;
        Ok(Labels { text, starts, first_row })
    }

    /// Returns the label of a row; None for a row without one.
    #[must_use]
    pub fn get(&self, row: i64) -> Option<Cow<'_, str>> {
        let line = usize::try_from(row.checked_sub(self.first_row)?).ok()?;
        // Not checked when the version is loaded, because that would read all of a large file.
        let [start, next] = *self.starts.numbers::<i64>()?.get(line..line.checked_add(2)?)? else { return None };
        let end = usize::try_from(next).ok()?.min(self.text.as_bytes().len());
        let text = self.text.as_bytes().get(usize::try_from(start).ok()?..end)?.trim_ascii_end();
        (!text.is_empty()).then(|| String::from_utf8_lossy(text))
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_line() {
        let labels = |starts: Vec<i64>| {
            let text = Memory::of("Alien\r\n\nBrazil\n".as_bytes().to_vec());
            Labels::new(text, Memory::of_numbers(starts), 7).unwrap()
        };
        let known = labels(vec![0, 7, 8, 15]);
        let found = [6, 7, 8, 9, 10, i64::MIN, i64::MAX].map(|row| known.get(row));
        assert_eq!(found.map(Option::unwrap_or_default), ["", "Alien", "", "Brazil", "", "", ""]);
        let wrong = labels(vec![-1, 9, 2, 99, i64::MAX]);
        assert_eq!([7, 8, 10].map(|row| wrong.get(row)), [None, None, None]);
        assert_eq!(wrong.get(9).as_deref(), Some("ien\r\n\nBrazil"));
    }
}
