"""The partitioner of a strategy splits tables, and no other variable."""

from __future__ import annotations

import pytest


@pytest.mark.tf
def test_only_tables_are_split() -> None:
    from model_export.tensorflow_setup import tf
    from movielens.distributed_loop import TablePartitioner

    partitioner = TablePartitioner(3)
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [1, 1]
    with partitioner.splitting():
        assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [3, 1]
        assert partitioner(tf.TensorShape([2, 4]), tf.float32) == [2, 1]
        assert partitioner(tf.TensorShape([]), tf.float32) == []
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [1, 1]
