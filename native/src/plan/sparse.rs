//! Values for some of the inputs or features of a signature.

use smallvec::SmallVec;

/// The indexes of some inputs, features or outputs of a signature, in ascending order.
pub(super) type Indexes = SmallVec<[usize; 8]>;

/// So many values have room before the list of values grows.
const USUAL: usize = 8;

/// Values for some of the inputs or features of a signature, by their indexes. A signature may have hundreds of them and
/// a request one: a pass over the values reads four bytes for each index that has none. The values are large, and are
/// moved with a request from step to step, so they lie on the heap.
#[derive(Clone, Debug)]
pub struct Sparse<T> {
    /// For each index, one more than the position of its value in `values`; 0 for an index without a value.
    places: SmallVec<[u32; USUAL]>,
    /// The values in the order in which they came; None for a value that was taken.
    values: Vec<Option<T>>,
}

impl<T> Sparse<T> {
    /// Returns no values for the indexes below `num_indexes`.
    #[must_use]
    pub fn new(num_indexes: usize) -> Self {
        let values = Vec::with_capacity(num_indexes.min(USUAL));
        Sparse { places: SmallVec::from_elem(0, num_indexes), values }
    }

    /// Returns the value of an index.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.values.get(self.place(index)?)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let place = self.place(index)?;
        self.values.get_mut(place)?.as_mut()
    }

    /// Says whether an index has a value.
    #[must_use]
    #[inline]
    pub fn has(&self, index: usize) -> bool {
        self.get(index).is_some()
    }

    /// Removes the value of an index, and returns it.
    #[inline]
    pub(super) fn take(&mut self, index: usize) -> Option<T> {
        let place = self.place(index)?;
        self.values.get_mut(place)?.take()
    }

    /// Sets the value of an index; returns the value that it had before.
    ///
    /// # Panics
    /// The index is not below the number of indexes.
    #[inline]
    pub fn insert(&mut self, index: usize, value: T) -> Option<T> {
        if let Some(place) = self.place(index) {
            return self.values[place].replace(value);
        }
        self.values.push(Some(value));
        self.places[index] = u32::try_from(self.values.len()).unwrap_or(0);
        None
    }

    /// Returns the values with their indexes, in ascending order of the indexes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> + Clone {
        let places = self.places.iter().enumerate().filter(|(_, place)| **place != 0);
        places.filter_map(|(index, _)| Some((index, self.get(index)?)))
    }

    #[inline]
    fn place(&self, index: usize) -> Option<usize> {
        (*self.places.get(index)? as usize).checked_sub(1)
    }
}

impl<T> FromIterator<Option<T>> for Sparse<T> {
    fn from_iter<I: IntoIterator<Item = Option<T>>>(values: I) -> Self {
        let mut all = Sparse::new(0);
        for (index, value) in values.into_iter().enumerate() {
            all.places.push(0);
            value.map(|value| all.insert(index, value));
        }
        all
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_indexes_in_ascending_order() {
        let mut sparse = Sparse::new(40);
        for index in [31, 2, 17] {
            assert_eq!(sparse.insert(index, 10 * index), None);
        }
        assert_eq!(sparse.insert(2, 21), Some(20));
        assert_eq!(sparse.iter().collect::<Vec<_>>(), [(2, &21), (17, &170), (31, &310)]);
        assert_eq!((sparse.take(17), sparse.take(17), sparse.get(17), sparse.get(40)), (Some(170), None, None, None));
        assert_eq!(sparse.iter().collect::<Vec<_>>(), [(2, &21), (31, &310)]);
        assert_eq!(sparse.insert(17, 1), None);
        assert_eq!(sparse.iter().collect::<Vec<_>>(), [(2, &21), (17, &1), (31, &310)]);
        let collected: Sparse<u8> = [None, Some(7), None].into_iter().collect();
        assert!(collected.get(1) == Some(&7) && !collected.has(0) && !collected.has(2));
    }
}
