//! Lists of the indexes that belong to an index, such as the features that read an input of a signature, so that a
//! request costs by what it has.

use smallvec::SmallVec;

use super::sparse::{Indexes, Sparse};

/// So few indexes are all asked for their values: listing those that belong to the values of a request takes longer.
const FEW: usize = 16;

/// For each index of one kind, such as an input's, the indexes of another kind that belong to it, such as those of the
/// features that read the input.
#[derive(Debug)]
pub(super) struct Links {
    of: Vec<SmallVec<[usize; 1]>>,
    num_others: usize,
}

impl Links {
    /// Links the indexes below `num_indexes` with the `num_others` of the other kind; `pairs` has an index and one that
    /// belongs to it.
    pub(super) fn new(num_indexes: usize, num_others: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut of = vec![SmallVec::new(); num_indexes];
        for (index, other) in pairs {
            of.get_mut(index).into_iter().for_each(|others: &mut SmallVec<_>| others.push(other));
        }
        Links { of, num_others }
    }

    /// Returns the indexes that belong to one index.
    #[inline]
    pub(super) fn of(&self, index: usize) -> &[usize] {
        self.of.get(index).map_or(&[], |others| others)
    }

    /// Returns the indexes that belong to an index with a value, each once and in ascending order. Where there are few of
    /// their kind, it returns the others too.
    #[inline]
    pub(super) fn of_values<T>(&self, values: &Sparse<T>) -> impl Iterator<Item = usize> + use<T> {
        let is_few = self.num_others <= FEW;
        let (num_all, listed) = if is_few { (self.num_others, Indexes::new()) } else { (0, self.listed(values)) };
        (0..num_all).chain(listed)
    }

    fn listed<T>(&self, values: &Sparse<T>) -> Indexes {
        let mut all: Indexes = values.iter().flat_map(|(index, _)| self.of(index)).copied().collect();
        if !all.is_sorted_by(|one, next| one < next) {
            all.sort_unstable();
            all.dedup();
        }
        all
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_several_values_is_listed_once() {
        let pairs = [(0, 5), (2, 3), (2, 5), (3, 1), (9, 9)];
        let of_values = |num_others, values: [Option<()>; 4]| -> Vec<usize> {
            Links::new(4, num_others, pairs).of_values(&values.into_iter().collect()).collect()
        };
        assert_eq!(of_values(FEW + 1, [Some(()), None, Some(()), None]), [3, 5]);
        assert_eq!(of_values(FEW + 1, [None, Some(()), None, Some(())]), [1]);
        assert!(of_values(FEW, [None, Some(()), None, Some(())]).into_iter().eq(0..FEW));
        assert!(Links::new(4, 6, pairs).of(9).is_empty());
    }
}
