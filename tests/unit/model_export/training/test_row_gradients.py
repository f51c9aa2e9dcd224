"""Occurrences of a row are grouped and counted, and their gradients are summed."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf


def test_occurrences_are_numbered_in_batch_order() -> None:
    from model_export.tensorflow_setup import tf
    from model_export.training.table_updates import RowGradient

    found = RowGradient(tf.constant([7, 2, 7, 7, 2], tf.int64), tf.zeros([5, 1])).occurrences()
    assert found.rows.numpy().tolist() == [7, 2]
    assert found.position.numpy().tolist() == [0, 1, 0, 0, 1]
    assert found.rank.numpy().tolist() == [0, 0, 1, 2, 1]
    assert int(found.rounds) == 3


def test_no_occurrence_makes_no_round() -> None:
    from model_export.tensorflow_setup import tf
    from model_export.training.table_updates import RowGradient

    empty = RowGradient(tf.zeros([0], tf.int64), tf.zeros([0, 2]))
    assert int(empty.occurrences().rounds) == 0
    assert empty.summed().values.shape == [0, 2]


def test_ranks_are_those_of_a_loop_over_many_occurrences() -> None:
    from model_export.tensorflow_setup import tf
    from model_export.training.table_updates import RowGradient

    rows = np.random.default_rng(0).integers(0, 40, 1000)
    seen: dict[int, int] = {}
    expected = []
    for row in rows.tolist():
        expected.append(seen.get(row, 0))
        seen[row] = expected[-1] + 1
    found = RowGradient(tf.constant(rows), tf.zeros([1000, 1])).occurrences()
    assert found.rank.numpy().tolist() == expected
    assert int(found.rounds) == max(seen.values())


def test_a_dense_gradient_is_of_all_rows() -> None:
    from model_export.tensorflow_setup import tf
    from model_export.training.table_updates import RowGradient

    table = tf.Variable(tf.ones([3, 2]))
    gradient = RowGradient.of(tf.constant([[1.0, 2], [3, 4], [5, 6]]), table).scaled(tf.constant(2.0))
    assert gradient.rows.numpy().tolist() == [0, 1, 2]
    assert gradient.values.numpy().tolist() == [[2, 4], [6, 8], [10, 12]]
