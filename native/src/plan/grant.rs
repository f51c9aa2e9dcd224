//! The models that one caller may run.

use std::collections::HashSet;

/// The models on which a caller has the right "predict", as names and prefixes of names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Grant {
    names: HashSet<String>,
    prefixes: Vec<String>,
}

impl Grant {
    /// Builds a caller's grant from patterns: names of models, and prefixes of names, which end with `*`.
    #[must_use]
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut grant = Grant::default();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                Some(prefix) => grant.prefixes.push(prefix.to_owned()),
                None => {
                    grant.names.insert(pattern.to_owned());
                }
            }
        }
        grant
    }

    /// Says whether the caller may run a model of this name, even if no such model exists.
    #[must_use]
    pub fn allows(&self, model: &str) -> bool {
        self.names.contains(model) || self.prefixes.iter().any(|prefix| model.starts_with(prefix.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_of_names_are_allowed() {
        let grant = Grant::new(["films", "news-*"]);
        for (model, is_allowed) in
            [("films", true), ("films2", false), ("film", false), ("Films", false), ("news-", true), ("news-eu", true)]
        {
            assert_eq!(grant.allows(model), is_allowed, "{model}");
        }
        assert!(!grant.allows("news") && !grant.allows(""));
        assert!(Grant::new(["*"]).allows("anything"));
        assert!(!Grant::default().allows(""));
    }
}
