//! Suggests, for error texts, the known name that was probably meant by a misspelt name.
//!
//! Source: `service/errors.py`, and `SequenceMatcher` and `get_close_matches` of Python's difflib.

use std::collections::HashMap;

/// Least similarity of a suggested name.
const CUTOFF: f64 = 0.75;
/// Limits on the work for a suggestion: comparing names takes time in proportion to the product of their lengths, and
/// clients choose the name.
const MAX_NAMES: usize = 200;
const MAX_LENGTH: usize = 100;

/// Returns the end of an error text, which suggests the most similar known name; "" if no name is similar.
#[must_use]
pub fn did_you_mean<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let word: Vec<char> = name.to_lowercase().chars().collect();
    let mut spelt: Vec<(String, &str)> = known.into_iter().map(|each| (each.to_lowercase(), each)).collect();
    // Of two names that differ only in their case, the last one counts.
    spelt.reverse();
    spelt.sort_by(|a, b| a.0.cmp(&b.0));
    spelt.dedup_by(|a, b| a.0 == b.0);
    if name.chars().count() > MAX_LENGTH || spelt.len() > MAX_NAMES {
        return String::new();
    }
    let similarity = |(low, _): &(String, &str)| {
        let low: Vec<char> = low.chars().collect();
        if most_ratio(&low, &word) < CUTOFF { 0.0 } else { ratio(&low, &word) }
    };
    let scored = spelt.iter().map(|each| (similarity(each), each)).filter(|(ratio, _)| *ratio >= CUTOFF);
    // Of two names that are equally similar, difflib takes the one that is sorted last.
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.0.cmp(&b.1.0)));
    best.map_or_else(String::new, |(_, (_, name))| format!("; did you mean {name}?"))
}

/// Returns how similar two texts are, from 0 to 1: twice the number of characters in matching blocks, by the sum of
/// their lengths.
#[allow(clippy::cast_precision_loss, reason = "texts have at most a hundred characters")]
fn ratio(a: &[char], b: &[char]) -> f64 {
    let length = a.len() + b.len();
    if length == 0 { 1.0 } else { 2.0 * num_matching(a, b) as f64 / length as f64 }
}

/// Returns the number of characters in the matching blocks of two texts, as difflib finds them: the longest common block,
/// the earliest in `a` and then in `b`, and those before and behind it.
fn num_matching(a: &[char], b: &[char]) -> usize {
    let (mut at_a, mut at_b, mut most) = (0, 0, 0);
    // lengths[j]: the length of the common block that ends at the current character of `a` and at `b[j - 1]`.
    let mut lengths = vec![0; b.len() + 1];
    for (i, x) in a.iter().enumerate() {
        for j in (0..b.len()).rev() {
            lengths[j + 1] = if *x == b[j] { lengths[j] + 1 } else { 0 };
        }
        for (j, &size) in lengths.iter().enumerate() {
            if size > most {
                (at_a, at_b, most) = (i + 1 - size, j - size, size);
            }
        }
    }
    if most == 0 {
        return 0;
    }
    num_matching(&a[..at_a], &b[..at_b]) + most + num_matching(&a[at_a + most..], &b[at_b + most..])
}

/// Returns a bound on [`ratio`] that is cheap: as if all common characters were in matching blocks.
#[allow(clippy::cast_precision_loss, reason = "texts have at most a hundred characters")]
fn most_ratio(a: &[char], b: &[char]) -> f64 {
    let mut left: HashMap<char, usize> = HashMap::new();
    for character in b {
        *left.entry(*character).or_default() += 1;
    }
    let mut common = 0;
    for character in a {
        if let Some(count) = left.get_mut(character).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    2.0 * f64::from(common) / (a.len() + b.len()).max(1) as f64
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested() {
        let known = ["tables", "features", "serving_default", "Lookup"];
        // The expected names are those of service.errors.did_you_mean.
        for (name, expected) in [
            ("Tabels", "; did you mean tables?"),
            ("x", ""),
            ("lookups", "; did you mean Lookup?"),
            ("serving_defualt", "; did you mean serving_default?"),
            ("default", ""),
            ("", ""),
        ] {
            assert_eq!(did_you_mean(name, known), expected, "{name}");
        }
        assert_eq!(did_you_mean("ab", ["ab1", "ab2"]), "; did you mean ab2?");
    }

    #[test]
    fn long_names_and_long_lists_are_not_compared() {
        let long = "a".repeat(MAX_LENGTH + 1);
        assert_eq!(did_you_mean(&long, [long.as_str()]), "");
        let many: Vec<String> = (0..=MAX_NAMES).map(|i| format!("name{i}")).collect();
        assert_eq!(did_you_mean("name7", many.iter().map(String::as_str)), "");
    }
}
