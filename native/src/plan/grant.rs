//! The models that one caller may run.

use std::collections::HashSet;

/// The models on which a caller has the right "predict", and those on which it has any right.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Name of the caller, which error texts have.
    pub caller: String,
    allowed: Patterns,
    seen: Patterns,
}

/// Names of models, and prefixes of names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Patterns {
    names: HashSet<String>,
    prefixes: Vec<String>,
}

impl Patterns {
    /// Reads patterns: names of models, and prefixes of names, which end with `*`.
    fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Patterns::default();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                Some(prefix) => all.prefixes.push(prefix.to_owned()),
                None => {
                    all.names.insert(pattern.to_owned());
                }
            }
        }
        all
    }

    fn fit(&self, model: &str) -> bool {
        self.names.contains(model) || self.prefixes.iter().any(|prefix| model.starts_with(prefix.as_str()))
    }
}

impl Grant {
    /// Builds a caller's grant from patterns of the models that it may run.
    #[must_use]
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        Grant { allowed: Patterns::new(patterns), ..Grant::default() }
    }

    /// Adds the caller's name, and patterns of the models on which it has any right.
    #[must_use]
    pub fn of_caller<'a>(self, caller: &str, seen: impl IntoIterator<Item = &'a str>) -> Self {
        Grant { caller: caller.to_owned(), seen: Patterns::new(seen), ..self }
    }

    /// Says whether the caller may run a model of this name, even if no such model exists.
    #[must_use]
    pub fn allows(&self, model: &str) -> bool {
        self.allowed.fit(model)
    }

    /// Says whether the caller has any right on a model of this name: to others, the model does not exist.
    #[must_use]
    pub fn sees(&self, model: &str) -> bool {
        self.allowed.fit(model) || self.seen.fit(model)
    }
}

#[cfg(all(test, not(feature = "model")))]
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
        let reader = Grant::new(["films"]).of_caller("reader", ["news*"]);
        assert!(!reader.allows("news") && reader.sees("news") && reader.sees("films") && !reader.sees("other"));
        assert!(Grant::new(["*"]).allows("anything"));
        assert!(!Grant::default().allows(""));
    }
}
