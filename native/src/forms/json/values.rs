//! The values of a parsed JSON document.

use std::borrow::Cow;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of 64 bits, with or without a sign.
    Int(i128),
    /// A number with a point or an exponent, NaN, infinity, or an integer beyond 64 bits.
    Float(f64),
    Text(Cow<'a, str>),
    List(List<'a>),
    /// An object, with its members in the order of the text.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// A JSON list. A list of integers takes eight bytes for each, because a body may have millions.
#[derive(Clone, Debug, PartialEq)]
pub enum List<'a> {
    /// A list of integers that fit an i64; perhaps empty.
    Ints(Vec<i64>),
    /// Any other list.
    Mixed(Vec<Json<'a>>),
}

impl<'a> List<'a> {
    /// Returns the number of the list's elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            List::Ints(numbers) => numbers.len(),
            List::Mixed(values) => values.len(),
        }
    }

    /// Says whether the list has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements of a list that has none, or others than integers; None for a list of integers.
    #[must_use]
    pub fn mixed(&self) -> Option<&[Json<'a>]> {
        match self {
            List::Ints(numbers) => numbers.is_empty().then_some(&[]),
            List::Mixed(values) => Some(values),
        }
    }

    /// Returns the elements of a list of integers that fit an i64; None for any other list.
    #[must_use]
    pub fn integers(&self) -> Option<Vec<i64>> {
        match self {
            List::Ints(numbers) => Some(numbers.clone()),
            List::Mixed(_) => None,
        }
    }

    /// Iterates over the list's elements.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Cow<'_, Json<'a>>> {
        (0..self.len()).map(|index| match self {
            List::Ints(numbers) => Cow::Owned(Json::Int(numbers[index].into())),
            List::Mixed(values) => Cow::Borrowed(&values[index]),
        })
    }

    /// Adds an element.
    pub(super) fn push(&mut self, value: Json<'a>) {
        match self {
            List::Ints(numbers) => match value {
                Json::Int(number) if i64::try_from(number).is_ok() => numbers.extend(i64::try_from(number)),
                value => {
                    let before = numbers.iter().map(|&number| Json::Int(number.into()));
                    *self = List::Mixed(before.chain([value]).collect());
                }
            },
            List::Mixed(values) => values.push(value),
        }
    }
}
