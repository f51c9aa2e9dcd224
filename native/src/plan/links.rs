//! Lists of the indexes that belong to an index, such as the features that read an input of a signature, so that a
//! request costs by what it has.

use smallvec::SmallVec;

use super::sparse::Indexes;

/// For each index of one kind, such as an input's, the indexes of another kind that belong to it, such as those of the
/// features that read the input.
#[derive(Debug)]
pub(super) struct Links(Vec<SmallVec<[usize; 1]>>);

impl Links {
    /// Links the indexes below `num_indexes`; `pairs` has an index and one that belongs to it.
    pub(super) fn new(num_indexes: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut linked = vec![SmallVec::new(); num_indexes];
        for (index, other) in pairs {
            linked.get_mut(index).into_iter().for_each(|others: &mut SmallVec<_>| others.push(other));
        }
        Links(linked)
    }

    /// Returns the indexes that belong to one index.
    #[inline]
    pub(super) fn of(&self, index: usize) -> &[usize] {
        self.0.get(index).map_or(&[], |linked| linked)
    }

    /// Returns the indexes that belong to one of several indexes, each once and in ascending order.
    #[inline]
    pub(super) fn of_all(&self, indexes: impl IntoIterator<Item = usize>) -> Indexes {
        let mut all: Indexes = indexes.into_iter().flat_map(|index| self.of(index)).copied().collect();
        if !all.is_sorted_by(|one, next| one < next) {
            all.sort_unstable();
            all.dedup();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_several_indexes_is_listed_once() {
        let links = Links::new(4, [(0, 5), (2, 3), (2, 5), (3, 1), (9, 9)]);
        assert_eq!(links.of_all([0, 2])[..], [3, 5]);
        assert_eq!(links.of_all([3, 1])[..], [1]);
        assert!(links.of(9).is_empty());
    }
}
