"""Makes a tf.compat.v1.tpu.CrossShardOptimizer, the wrapper in old TPU scripts, call its inner optimizer directly.

TensorFlow's wrapper sums gradients over TPU cores with the operation CrossReplicaSum, which has no CPU kernel. Our
estimator has one replica, whose gradient already is the sum.

Source: tensorflow/python/tpu/tpu_optimizer.py at v2.21.0.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from model_export.tensorflow_setup import tf

_LOGGER = logging.getLogger(__name__)
_WRAPPER = tf.compat.v1.tpu.CrossShardOptimizer


@dataclass(slots=True)
class _Unwrapping:
    """State of one `with unwrapped(...)` block: TPUConfig.num_shards, and whether the block has logged its line yet."""

    num_shards: int | None
    is_logged: bool = False


class _PatchedMethods:
    """The patch of two methods of CrossShardOptimizer, installed while any thread is inside an `unwrapped` block.

    TensorFlow has no hook for this. Threads that are not inside `unwrapped` still run the original methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread = threading.local()
        self._originals = (_WRAPPER.compute_gradients, _WRAPPER.apply_gradients)

    @property
    def active(self) -> _Unwrapping | None:
        """The state of this thread's innermost `unwrapped` block; None if the thread is in no such block."""
        found: _Unwrapping | None = getattr(self._thread, "active", None)
        return found

    @contextmanager
    def installed(self, state: _Unwrapping) -> Iterator[None]:
        outer = self.active
        with self._lock:
            if not self._users:
                self._originals = (_WRAPPER.compute_gradients, _WRAPPER.apply_gradients)
                _WRAPPER.compute_gradients = self._replacement(self._originals[0], "compute_gradients")
                _WRAPPER.apply_gradients = self._replacement(self._originals[1], "apply_gradients")
            self._users += 1
        self._thread.active = state
        try:
            yield
        finally:
            self._thread.active = outer
            with self._lock:
                self._users -= 1
                if not self._users:
                    _WRAPPER.compute_gradients, _WRAPPER.apply_gradients = self._originals

    def _replacement(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def method(wrapper: Any, *args: Any, **named: Any) -> Any:
            state = self.active
            if state is None:
                return original(wrapper, *args, **named)
            _check(wrapper, state)
            return getattr(wrapper._opt, name)(*args, **named)

        return method


_METHODS = _PatchedMethods()


@contextmanager
def unwrapped(num_shards: int | None) -> Iterator[None]:
    """Makes this thread's CrossShardOptimizers train, in the `with` block, as the optimizers that they wrap.

    Writes one log line when this happens.

    Args:
      num_shards: TPUConfig.num_shards.

    Raises:
      ValueError: a CrossShardOptimizer has a group_assignment of several replicas, or sums the gradients of several
        shards.
    """
    with _METHODS.installed(_Unwrapping(num_shards)):
        yield


def _check(wrapper: Any, state: _Unwrapping) -> None:
    groups = wrapper._group_assignment
    if groups and groups != [[0]]:
        raise ValueError(
            f"CrossShardOptimizer has group_assignment={groups}, but this estimator trains one replica: leave "
            "group_assignment out"
        )
    is_sum = wrapper._reduction == tf.compat.v1.losses.Reduction.SUM
    if is_sum and (state.num_shards or 1) > 1:
        raise ValueError(
            f"CrossShardOptimizer has reduction=SUM, which adds up the gradients of TPUConfig's num_shards="
            f"{state.num_shards} shards, but this estimator computes one gradient, of the whole batch. Leave reduction "
            "out if the loss is the mean of the batch; set num_shards=1 if the loss is the sum of the batch"
        )
    if not state.is_logged:
        state.is_logged = True
        inside = type(wrapper._opt).__name__
        _LOGGER.warning("CrossShardOptimizer is not needed here: the estimator trains with the %s inside it", inside)
