"""Delays a table's gradient by one step, as on a TPU that looks up the next batch while it trains on the present one.

The pending gradient lies in local variables, so checkpoints have the same names with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model_export.tensorflow_setup import tf
from model_export.training.row_gradients import RowGradient

Update = Callable[[RowGradient, Any], Any]


class PendingGradient:
    """The pending gradient of one table, and the learning rate of the step in which it was computed.

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
        """Returns an operation that applies the pending gradient and then makes `gradient` the pending one."""
        # Compute this step's gradient before the previous step's gradient is applied, so that this step's lookups read
        # the table without it.
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
        """Returns an operation that applies the pending gradient; after it, there is no pending gradient."""
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
