"""Makes a tf.compat.v1.tpu.CrossShardOptimizer, the wrapper in old TPU scripts, call its inner optimizer directly.

TensorFlow's wrapper sums gradients over TPU cores with the operation CrossReplicaSum, which has no CPU kernel. Our
estimator has one replica, whose gradient already is the sum.

Source: tensorflow/python/tpu/tpu_optimizer.py at v2.21.0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from model_export.tensorflow_setup import tf

_LOGGER = logging.getLogger(__name__)
_WRAPPER = tf.compat.v1.tpu.CrossShardOptimizer


@dataclass(slots=True)
class _Unwrapping:
    num_shards: int | None
    is_logged: bool = False


# The state of the innermost `unwrapped` block of the running thread; None outside of all blocks.
_ACTIVE: ContextVar[_Unwrapping | None] = ContextVar("unwrapping", default=None)


def _patch(name: str) -> None:
    # TensorFlow has no hook for this. Code that runs outside of an `unwrapped` block still gets the original method.
    original = getattr(_WRAPPER, name)

    def method(wrapper: Any, *args: Any, **named: Any) -> Any:
        state = _ACTIVE.get()
        if state is None:
            return original(wrapper, *args, **named)
        _check(wrapper, state)
        return getattr(wrapper._opt, name)(*args, **named)

    setattr(_WRAPPER, name, method)


_patch("compute_gradients")
_patch("apply_gradients")


@contextmanager
def unwrapped(num_shards: int | None) -> Iterator[None]:
    """Makes this thread's CrossShardOptimizers train, in the `with` block, as the optimizers that they wrap.

    Writes one log line when this happens.

    Raises:
      ValueError: a CrossShardOptimizer has a group_assignment of several replicas, or sums the gradients of several
        shards.
    """
    token = _ACTIVE.set(_Unwrapping(num_shards))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


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
