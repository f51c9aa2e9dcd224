"""Declares TensorFlow Serving's batching parameters with their defaults, and checks them.

Source: tensorflow_serving/servables/tensorflow/{session_bundle_config.proto,bundle_factory_util.cc} (9d981c5);
tensorflow/core/kernels/batching_util/shared_batch_scheduler.h (TensorFlow 2.21).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class BatchingParameters:
    """The batching parameters of a signature's queue. All sizes are numbers of rows, not of requests.

    max_batch_size: rows of the largest request, and of a batch.
    batch_timeout_micros: how long a batch that is not full waits for more requests; 0: not at all.
    max_enqueued_batches: batches that may wait, per signature; a request that needs one more is refused.
    num_batch_threads: batches run at the same time, over all models; None: as many as there are processors.
    allowed_batch_sizes: the sizes that batches are padded up to, increasing; the last is max_batch_size; empty: batches
      are not padded.
    pad_variable_length_inputs: whether inputs of unequal inner shapes may share a batch, padded to the largest.
    enable_large_batch_splitting: whether a request may be spread over several batches.
    max_execution_batch_size: rows of a batch where requests are split; None: max_batch_size.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int | None = None
    thread_pool_name: str = "batch_threads"
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int | None = None

    @property
    def batch_rows(self) -> int:
        """The number of rows with which a batch is full."""
        if self.enable_large_batch_splitting and self.max_execution_batch_size is not None:
            return self.max_execution_batch_size
        return self.max_batch_size

    @property
    def document(self) -> dict[str, Any]:
        """The parameters of one signature's queue in the form that native/src/towers/batching/parameters.rs reads."""
        return {
            "max_batch_size": self.max_batch_size,
            "batch_timeout_micros": self.batch_timeout_micros,
            "max_enqueued_batches": self.max_enqueued_batches,
            "allowed_batch_sizes": self.allowed_batch_sizes,
            "pad_variable_length_inputs": self.pad_variable_length_inputs,
            "enable_large_batch_splitting": self.enable_large_batch_splitting,
            "max_execution_batch_size": self.batch_rows,
        }

    def check(self) -> None:
        """Checks the batching parameters; raises InvalidRequest, with TensorFlow Serving's text, for a wrong value."""
        if self.max_batch_size < 1:
            raise InvalidRequest(f"input_batch_size_limit must be positive; was {self.max_batch_size}")
        if self.batch_timeout_micros < 0:
            raise InvalidRequest(f"batch_timeout_micros must be non-negative; was {self.batch_timeout_micros}")
        if self.max_enqueued_batches < (1 if self.enable_large_batch_splitting else 0):
            raise InvalidRequest(f"max_enqueued_batches must be positive; was {self.max_enqueued_batches}")
        if self.num_batch_threads is not None and self.num_batch_threads < 1:
            raise InvalidRequest(f"num_batch_threads must be positive; was {self.num_batch_threads}")
        if self.batch_rows < 1:
            raise InvalidRequest(f"max_execution_batch_size must be positive; was {self.batch_rows}")
        if self.batch_rows > self.max_batch_size:
            raise InvalidRequest(
                "When enable_large_batch_splitting is true, input_batch_size_limit must be greater than or equal to "
                f"max_execution_batch_size; they were {self.max_batch_size} and {self.batch_rows}"
            )
        self._check_allowed_sizes()

    def _check_allowed_sizes(self) -> None:
        sizes = self.allowed_batch_sizes
        if not sizes:
            return
        if sizes[0] < 1 or any(a >= b for a, b in zip(sizes, sizes[1:], strict=False)):
            raise InvalidRequest("allowed_batch_sizes entries must be monotonically increasing")
        if sizes[-1] != self.max_batch_size:
            raise InvalidRequest(
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
                f"{sizes[-1]}; expected {self.max_batch_size}"
            )
