"""The gradient of a loss by a table: one vector for each occurrence of an id, grouped or summed by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class RowGradient:
    """Gradients of rows of a table; a row may occur several times.

    rows: [N] int64, rows of the table. values: [N, D].
    """

    rows: Any
    values: Any

    @staticmethod
    def of(gradient: Any, variable: Any) -> RowGradient:
        """Makes a RowGradient of a result of tf.gradients: IndexedSlices, or a tensor with all rows of the table."""
        if isinstance(gradient, tf.IndexedSlices):
            return RowGradient(tf.cast(gradient.indices, tf.int64), gradient.values)
        return RowGradient(tf.range(variable.shape[0], dtype=tf.int64), gradient)

    def scaled(self, factor: Any | None) -> RowGradient:
        if factor is None:
            return self
        return RowGradient(self.rows, self.values * tf.cast(factor, self.values.dtype))

    def occurrences(self) -> Occurrences:
        """Groups the vectors of a table's gradient by row, and numbers the vectors of each row."""
        rows, position = tf.unique(self.rows)
        counts = tf.math.bincount(position, minlength=tf.size(rows), dtype=tf.int32)
        # rank[i] counts the occurrences of the same row that come before occurrence i in the batch.
        order = tf.argsort(position, stable=True)
        starts = tf.cumsum(counts, exclusive=True)
        places = tf.range(tf.size(position)) - tf.gather(starts, tf.gather(position, order))
        rank = tf.scatter_nd(order[:, tf.newaxis], places, tf.shape(position))
        return Occurrences(rows, position, rank, tf.reduce_max(tf.concat([[0], counts], 0)))

    def summed(self) -> RowGradient:
        """Returns one vector for each distinct row of the gradient: the sum over the row's occurrences."""
        rows, position = tf.unique(self.rows)
        return RowGradient(rows, tf.math.unsorted_segment_sum(self.values, position, tf.size(rows)))


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of rows in a gradient, grouped by row and numbered.

    rows: [U] int64, distinct. position: [N] int32, index into rows. rank: [N] int32, 0 for a row's first occurrence.
    rounds: scalar int32, the largest number of occurrences of a row.
    """

    rows: Any
    position: Any
    rank: Any
    rounds: Any
