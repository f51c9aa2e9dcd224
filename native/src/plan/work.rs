//! One request on its way through a plan: judged, run, and written into an answer.

use std::mem::MaybeUninit;

use super::inputs::{DataType, Dims, Inputs};
use super::servable::Servable;
use crate::declined::Declined;

/// How much work may be done on the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Some tens of microseconds: the thread serves connections. More is [`Declined::TooLarge`].
    Small,
    /// Any: the thread is one of the pool for large work.
    Any,
}

/// Shape of one output of an answer.
#[derive(Clone, Debug)]
pub struct OutputShape {
    /// Number of the output in the signature.
    pub output: usize,
    /// Its dtype.
    pub dtype: DataType,
    /// Its sizes.
    pub dims: Dims,
}

impl OutputShape {
    /// Bytes of its numbers; 0 of strings.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }
}

/// A judged request.
///
/// A form calls `prepare`, then `outputs` to learn how large the answer is, then `fill` once for each output in that
/// order, and `finish` at the end. A lookup reads its rows in `fill`, straight into the answer; a predict has run in
/// `prepare`.
pub struct Work<'r> {
    servable: &'r Servable,
    inputs: Inputs<'r>,
}

impl<'r> Work<'r> {
    /// Judges the inputs of a request, and runs a predict.
    ///
    /// # Errors
    /// The reason why the reference must answer.
    pub fn prepare(
        servable: &'r Servable,
        signature: usize,
        inputs: Inputs<'r>,
        wanted: &[usize],
        effort: Effort,
        max_response_bytes: usize,
    ) -> Result<Self, Declined> {
        let _ = (signature, wanted, effort, max_response_bytes);
        let work = Work { servable, inputs };
        let _ = (work.servable, &work.inputs);
        todo!("plan")
    }

    /// B.
    #[must_use]
    pub fn rows(&self) -> usize {
        todo!("plan")
    }

    /// The outputs of the answer, in its order.
    #[must_use]
    pub fn outputs(&self) -> &[OutputShape] {
        todo!("plan")
    }

    /// Writes the little-endian numbers of output `number` of [`Work::outputs`], end to end.
    ///
    /// # Errors
    /// As `prepare`; the memory is then not initialised.
    ///
    /// # Panics
    /// The memory has not [`OutputShape::num_bytes`] bytes.
    pub fn fill(&self, number: usize, to: &mut [MaybeUninit<u8>]) -> Result<(), Declined> {
        let _ = (number, to);
        todo!("plan")
    }

    /// Returns the strings of output `number` of [`Work::outputs`], of dtype string.
    #[must_use]
    pub fn strings(&self, number: usize) -> Vec<&[u8]> {
        let _ = number;
        todo!("plan")
    }

    /// Counts what was read, and says whether the files were sound to the end. To be called once, after all `fill`s.
    ///
    /// # Errors
    /// [`Declined::Damaged`].
    pub fn finish(self) -> Result<(), Declined> {
        todo!("plan")
    }
}
