//! The JSON value of a tensor while it is parsed: its leaves, end to end, and the lengths of its nested lists. The
//! parser does not know the dtype.

use std::borrow::Cow;

use crate::plan::{Declined, Dims};

/// Maximal number of levels of nested lists in a tensor. A tensor with more levels is left to the other reader, which
/// reads up to 64 levels.
pub const MAX_DEPTH: usize = 8;

/// The result of parsing JSON: a value, or the reason why another reader must read the body.
pub type Parsed<T> = Result<T, Declined>;

/// The leaves of nested JSON lists, which are the elements that are not lists, in the order of the text. All leaves
/// have one kind; if one number is a float, all numbers are stored as floats.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Leaves<'a> {
    /// No leaves.
    #[default]
    None,
    /// Integers.
    Ints(Vec<i64>),
    /// Leaves that are numbers, at least one of which is written with a point or an exponent.
    Floats(Vec<f64>),
    /// Booleans, as 0 or 1.
    Bools(Vec<u8>),
    /// Leaves that are byte strings: JSON strings, or objects `{"b64": ...}` in base64.
    Strings(Vec<Cow<'a, [u8]>>),
}

impl Leaves<'_> {
    /// Returns the number of leaves of the JSON value; a leaf is an element that is no list.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Leaves::None => 0,
            Leaves::Ints(numbers) => numbers.len(),
            Leaves::Floats(numbers) => numbers.len(),
            Leaves::Bools(bools) => bools.len(),
            Leaves::Strings(strings) => strings.len(),
        }
    }

    /// Says whether the JSON value has no leaves, as an empty list has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The element of `Nested::sizes` for a depth at which no list has ended yet, so that its length is unknown.
const OPEN: usize = usize::MAX;

/// A JSON value that is built element by element. The depth of an element is the number of lists around it.
#[derive(Clone, Debug, Default)]
pub struct Nested<'a> {
    leaves: Leaves<'a>,
    /// For each depth in the JSON value, the length of the first list at this depth.
    sizes: Dims,
    /// For each depth in the JSON value, whether the lists at this depth have different lengths.
    is_uneven: [bool; MAX_DEPTH],
    /// Depth of the JSON value's leaves, which are the elements that are no lists; None before the first leaf is added.
    leaf_depth: Option<usize>,
    /// For each list at depth 1, the number of leaves of the JSON value up to the end of that list.
    ends: Vec<i64>,
}

impl<'a> Nested<'a> {
    /// Returns a JSON value that is one list, still empty; its elements are added at depth 1.
    #[must_use]
    pub fn column() -> Self {
        let mut column = Nested::default();
        column.sizes.push(OPEN);
        column
    }

    /// Starts a list of the JSON value; `depth` is the number of lists around it.
    ///
    /// # Errors
    /// The value has a leaf at this depth, or nests too deeply.
    #[inline]
    pub fn open(&mut self, depth: usize) -> Parsed<()> {
        if depth >= MAX_DEPTH || self.leaf_depth == Some(depth) {
            return Err(Declined::Unusual);
        }
        if self.sizes.len() <= depth {
            self.sizes.push(OPEN);
        }
        Ok(())
    }

    /// Ends a list of `length` elements in the JSON value; `depth` is the number of lists around that list.
    #[inline]
    pub fn close(&mut self, depth: usize, length: usize) {
        let size = &mut self.sizes[depth];
        if *size == OPEN {
            *size = length;
        }
        self.is_uneven[depth] |= *size != length;
        if depth == 1 {
            // The number of leaves always fits an i64, because a body has fewer leaves than bytes.
            #[allow(clippy::cast_possible_wrap)]
            self.ends.push(self.leaves.len() as i64);
        }
    }

    #[inline]
    fn leaf(&mut self, depth: usize) -> Parsed<()> {
        match self.leaf_depth {
            Some(known) if known == depth => Ok(()),
            None if self.sizes.len() <= depth => {
                self.leaf_depth = Some(depth);
                Ok(())
            }
            _ => Err(Declined::Unusual),
        }
    }

    /// Adds an integer to the JSON value; `depth` is the number of lists around the integer.
    ///
    /// # Errors
    /// The value has a list at this depth, or a leaf of another depth or kind.
    #[inline]
    pub fn int(&mut self, depth: usize, number: i64) -> Parsed<()> {
        self.leaf(depth)?;
        match &mut self.leaves {
            Leaves::Ints(numbers) => numbers.push(number),
            Leaves::None => {
                let mut numbers = Vec::with_capacity(16);
                numbers.push(number);
                self.leaves = Leaves::Ints(numbers);
            }
            #[allow(clippy::cast_precision_loss)]
            Leaves::Floats(numbers) => numbers.push(number as f64),
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    }

    /// Adds a float to the JSON value; `depth` is the number of lists around the float.
    ///
    /// # Errors
    /// The value has a list at this depth, or a leaf of another depth or kind.
    #[inline]
    pub fn float(&mut self, depth: usize, number: f64) -> Parsed<()> {
        self.leaf(depth)?;
        match &mut self.leaves {
            Leaves::Floats(numbers) => numbers.push(number),
            Leaves::None => self.leaves = Leaves::Floats(vec![number]),
            Leaves::Ints(before) => {
                #[allow(clippy::cast_precision_loss)]
                let mut numbers: Vec<f64> = before.iter().map(|&whole| whole as f64).collect();
                numbers.push(number);
                self.leaves = Leaves::Floats(numbers);
            }
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    }

    /// Adds a boolean to the JSON value; `depth` is the number of lists around the boolean.
    ///
    /// # Errors
    /// The value has a list at this depth, or a leaf of another depth or kind.
    pub fn bool(&mut self, depth: usize, value: bool) -> Parsed<()> {
        self.leaf(depth)?;
        match &mut self.leaves {
            Leaves::Bools(bools) => bools.push(value.into()),
            Leaves::None => self.leaves = Leaves::Bools(vec![value.into()]),
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    }

    /// Adds a string to the JSON value; `depth` is the number of lists around the string.
    ///
    /// # Errors
    /// The value has a list at this depth, or a leaf of another depth or kind.
    pub fn string(&mut self, depth: usize, bytes: Cow<'a, [u8]>) -> Parsed<()> {
        self.leaf(depth)?;
        match &mut self.leaves {
            Leaves::Strings(strings) => strings.push(bytes),
            Leaves::None => self.leaves = Leaves::Strings(vec![bytes]),
            _ => return Err(Declined::Unusual),
        }
        Ok(())
    }

    /// Returns the leaves and sizes of the tensor that the value forms; None if lists of one depth differ in length.
    #[must_use]
    pub fn into_dense(self) -> Option<(Leaves<'a>, Dims)> {
        let is_even = !self.is_uneven.contains(&true);
        is_even.then_some((self.leaves, self.sizes))
    }

    /// Returns the leaves and the row splits of a value that is a list with one flat list for each row; else None.
    #[must_use]
    pub fn into_rows(self) -> Option<(Leaves<'a>, Vec<i64>)> {
        let is_empty = self.sizes.len() == 1 && self.sizes[0] == 0;
        if !(is_empty || self.sizes.len() == 2) {
            return None;
        }
        let mut splits = self.ends;
        splits.insert(0, 0);
        Some((self.leaves, splits))
    }
}
