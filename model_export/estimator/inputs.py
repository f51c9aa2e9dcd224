"""Gets features and labels from the result of an input_fn."""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf


def features_and_labels(result: Any) -> tuple[Any, Any, list[Any]]:
    """Splits what input_fn returned into features, labels (or None), and session hooks that initialize a data set's
    iterator.

    Args:
      result: a tf.data.Dataset of features or of (features, labels), or such tensors.

    Raises:
      ValueError: the result is a tuple or list that does not have two elements.
    """
    hooks: list[Any] = []
    if isinstance(result, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(_InitializeDataset(iterator.initializer))
        result = iterator.get_next()
    if not isinstance(result, (list, tuple)) or hasattr(result, "_fields"):
        return result, None, hooks
    if len(result) != 2:
        raise ValueError(f"input_fn should return (features, labels) as a len 2 tuple, got {len(result)} elements")
    features, labels = result
    return features, labels, hooks


class _InitializeDataset(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)
