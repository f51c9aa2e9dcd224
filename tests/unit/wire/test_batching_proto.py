"""Parses the text of batching parameters as TensorFlow Serving's users write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import InvalidRequest
from service.wire.config_protos import BatchingParameters, parse_batching_text


def test_every_field() -> None:
    text = """
      max_batch_size { value: 16 }
      batch_timeout_micros { value: 500 }
      max_enqueued_batches { value: 7 }
      num_batch_threads { value: 3 }
      thread_pool_name: { value: "pool" }
      enable_large_batch_splitting { value: true }
      max_execution_batch_size { value: 8 }
      allowed_batch_sizes: 4
      allowed_batch_sizes: 16  # the last is max_batch_size
      pad_variable_length_inputs: true
    """
    assert parse_batching_text(text, "f") == BatchingParameters(
        max_batch_size=16,
        batch_timeout_micros=500,
        max_enqueued_batches=7,
        num_batch_threads=3,
        thread_pool_name="pool",
        enable_large_batch_splitting=True,
        max_execution_batch_size=8,
        allowed_batch_sizes=(4, 16),
        pad_variable_length_inputs=True,
    )


def test_what_is_left_out_has_its_default() -> None:
    assert parse_batching_text("", "f") == BatchingParameters()
    assert parse_batching_text("max_batch_size {value: 4}", "f") == BatchingParameters(max_batch_size=4)
    assert parse_batching_text("allowed_batch_sizes: [2, 1000]", "f").allowed_batch_sizes == (2, 1000)


def test_a_zero_that_is_written_is_no_default() -> None:
    with pytest.raises(InvalidRequest, match=r"f: num_batch_threads must be positive; was 0"):
        parse_batching_text("num_batch_threads { value: 0 }", "f")


@pytest.mark.parametrize("text", ["max_batch_size: 4", "no_such_field: 1", "max_batch_size {", "max_batch_size {} x"])
def test_what_is_no_such_message_is_refused_with_the_files_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid protobuf file: 'some/file'"):
        parse_batching_text(text, "some/file")


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"last entry was 2; expected 1000"):
        parse_batching_text("allowed_batch_sizes: 2", "f")


def test_tensorflow_servings_own_test_file(tf_serving_testdata: Path) -> None:
    text = (tf_serving_testdata / "batching_config.txt").read_text()
    assert parse_batching_text(text, "f") == BatchingParameters(
        max_batch_size=128, batch_timeout_micros=0, max_enqueued_batches=1_000_000, num_batch_threads=8
    )
