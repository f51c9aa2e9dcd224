//! Finds the index of an input, feature or output by its name.

use std::collections::HashMap;

/// A map with at most this many names uses a linear search, which finds one of 8 names in 10 ns and one of 64 in 60 ns;
/// a hash map takes 20 ns for both.
const FEW: usize = 16;

/// A map from names to indexes. If a name comes twice, its first index counts.
#[derive(Debug)]
pub(super) enum Names {
    Few(Vec<(Box<[u8]>, usize)>),
    Many(HashMap<Box<[u8]>, usize>),
}

impl Names {
    /// Builds the map from pairs of a name and its index.
    pub(super) fn new<'n>(names: impl IntoIterator<Item = (&'n str, usize)>) -> Self {
        let names = names.into_iter().map(|(name, index)| (Box::from(name.as_bytes()), index));
        let few: Vec<(Box<[u8]>, usize)> = names.collect();
        if few.len() <= FEW {
            return Names::Few(few);
        }
        let mut many = HashMap::with_capacity(few.len());
        for (name, index) in few {
            many.entry(name).or_insert(index);
        }
        Names::Many(many)
    }

    /// Returns the index that this map has for a name; None for an unknown name.
    #[inline]
    pub(super) fn index(&self, name: &[u8]) -> Option<usize> {
        match self {
            Names::Few(few) => few.iter().find(|(known, _)| **known == *name).map(|(_, index)| *index),
            Names::Many(many) => many.get(name).copied(),
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_names_are_found_alike() {
        for count in [0, 1, FEW, FEW + 1, 100] {
            let names: Vec<String> = (0..count).map(|index| format!("input {index}")).collect();
            let twice = names.iter().chain(&names).enumerate();
            let found = Names::new(twice.map(|(index, name)| (name.as_str(), index)));
            for (index, name) in names.iter().enumerate() {
                assert_eq!(found.index(name.as_bytes()), Some(index));
            }
            assert_eq!(found.index(b"input"), None);
        }
    }
}
