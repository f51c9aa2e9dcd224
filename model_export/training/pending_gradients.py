"""Delays a gradient by one step, as on a TPU that looks up the next batch while it still trains on this one.

The pending gradient lies in local variables, so checkpoints have the same names with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model_export.tensorflow_setup import tf
from model_export.training.row_gradients import RowGradient

Update = Callable[[RowGradient, Any], Any]


class PendingGradient:
    """The pending gradient of one table, with the learning rate of the step that it belongs to.

    Args:
      name: name of the table's variable.
      variable: the [V, D] table.
    """

    def __init__(self, name: str, variable: Any) -> None:
        width, dtype = variable.shape[1], variable.dtype.base_dtype
        self._rows = _local(f"{name}/pending/rows", tf.zeros([0], tf.int64), [None])
        self._values = _local(f"{name}/pending/values", tf.zeros([0, width], dtype), [None, width])
        self._rate = _local(f"{name}/pending/rate", tf.zeros([], tf.float32), [])
        self._is_held = _local(f"{name}/pending/is_held", tf.constant(False), [])

    def exchange(self, gradient: RowGradient, rate: Any, update: Update) -> Any:
        """Returns an operation that applies the pending gradient, then makes the given one pending."""
        # Compute the new gradient first, so that this step's lookups read the table before the update.
        with tf.control_dependencies([gradient.rows, gradient.values, rate]):
            applied = self._apply(update)
        with tf.control_dependencies([applied]):
            return tf.group(
                self._rows.assign(gradient.rows, read_value=False),
                self._values.assign(gradient.values, read_value=False),
                self._rate.assign(rate, read_value=False),
                self._is_held.assign(True, read_value=False),
            )

    def flush(self, update: Update) -> Any:
        """Returns an operation that applies the pending gradient; afterwards none is pending."""
        with tf.control_dependencies([self._apply(update)]):
            return tf.group(self._is_held.assign(False, read_value=False))

    def _apply(self, update: Update) -> Any:
        def apply() -> Any:
            held = RowGradient(self._rows.read_value(), self._values.read_value())
            with tf.control_dependencies([update(held, self._rate.read_value())]):
                return tf.constant(True)

        return tf.cond(self._is_held.read_value(), apply, lambda: tf.constant(False))


def _local(name: str, initial: Any, shape: list[int | None]) -> Any:
    v1 = tf.compat.v1
    with v1.name_scope(None):
        return v1.Variable(
            initial,
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            name=name,
            shape=tf.TensorShape(shape),
            use_resource=True,
        )
