"""Batching parameters have defaults, and errors in TensorFlow Serving's words."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import InvalidRequest
from service.wire.config_protos import BatchingParameters


def test_the_defaults_are_tensorflow_servings() -> None:
    parameters = BatchingParameters()
    parameters.check()
    assert (parameters.max_batch_size, parameters.batch_timeout_micros, parameters.max_enqueued_batches) == (
        1000,
        0,
        10,
    )
    assert (parameters.batch_rows, parameters.thread_pool_name) == (1000, "batch_threads")


def test_split_batches_may_be_smaller_than_requests() -> None:
    parameters = BatchingParameters(max_batch_size=8, max_execution_batch_size=2)
    assert parameters.batch_rows == 8, "it counts only where requests are split, as in TensorFlow Serving"
    split = BatchingParameters(max_batch_size=8, max_execution_batch_size=2, enable_large_batch_splitting=True)
    split.check()
    assert split.batch_rows == 2
    assert split.document["max_execution_batch_size"] == 2
    assert parameters.document["max_execution_batch_size"] == 8
    assert BatchingParameters(max_batch_size=8, enable_large_batch_splitting=True).batch_rows == 8


def test_no_waiting_batch_may_be_given_unless_requests_are_split() -> None:
    BatchingParameters(max_enqueued_batches=0).check()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_batch_size": 0}, "input_batch_size_limit must be positive; was 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be non-negative; was -1"),
        ({"max_enqueued_batches": -1}, "max_enqueued_batches must be positive; was -1"),
        (
            {"max_enqueued_batches": 0, "enable_large_batch_splitting": True},
            "max_enqueued_batches must be positive; was 0",
        ),
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        (
            {"enable_large_batch_splitting": True, "max_execution_batch_size": 0},
            "max_execution_batch_size must be positive; was 0",
        ),
        (
            {"max_batch_size": 2, "enable_large_batch_splitting": True, "max_execution_batch_size": 3},
            (
                "When enable_large_batch_splitting is true, input_batch_size_limit must be greater than or equal to "
                "max_execution_batch_size; they were 2 and 3"
            ),
        ),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (2, 4)},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (4, 4, 8)},
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (0, 8)},
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
    ],
)
def test_what_can_not_be_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        BatchingParameters(**values).check()
    assert refused.value.message == text
