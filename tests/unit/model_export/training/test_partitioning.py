"""Rows are on the hosts that TensorFlow's embedding_lookup and its protobuf name, and return in the right order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.training.partitioning import join_table, locate_rows, refuse_mod_export
from tests.unit.model_export.late import tf

# The examples of TensorFlow's tpu_embedding_configuration.proto: 13 rows on 5 hosts.
OF_THE_PROTOBUF = {
    "mod": [[0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8], [4, 9]],
    "div": [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10], [11, 12]],
}


def split_table(table: np.ndarray, partitions: int, strategy: Any) -> list[np.ndarray]:
    """Splits a table into one part for each host; if there are more hosts than rows, the last parts are empty."""
    partition, _ = locate_rows(np.arange(len(table)), len(table), partitions, strategy)
    return [table[partition == number] for number in range(partitions)]


SIZES = [(13, 5), (12, 4), (1, 1), (7, 1), (3, 8), (8, 8), (100, 7)]


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_parts_are_those_of_the_protobufs_example(strategy: Any) -> None:
    assert [part.tolist() for part in split_table(np.arange(13), 5, strategy)] == OF_THE_PROTOBUF[strategy]


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("rows", "partitions"), SIZES)
def test_a_row_is_found_where_it_was_put(strategy: Any, rows: int, partitions: int) -> None:
    table = np.random.default_rng(0).normal(size=(rows, 3))
    parts = split_table(table, partitions, strategy)
    partition, place = locate_rows(np.arange(rows), rows, partitions, strategy)
    assert len(parts) == partitions
    assert [len(part) for part in parts] == [len(part) for part in np.array_split(table, partitions)]
    for row in range(rows):
        np.testing.assert_array_equal(parts[partition[row]][place[row]], table[row])
    np.testing.assert_array_equal(join_table(parts, strategy), table)


@pytest.mark.tf
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("rows", "partitions"), [(13, 5), (12, 4), (8, 8)])
def test_tensorflow_looks_the_parts_up_as_the_table(strategy: Any, rows: int, partitions: int) -> None:
    table = np.random.default_rng(0).normal(size=(rows, 3))
    ids = np.arange(rows)[::-1].copy()
    parts = [tf.constant(part) for part in split_table(table, partitions, strategy)]
    found = tf.compat.v1.nn.embedding_lookup(parts, ids, partition_strategy=strategy)
    np.testing.assert_array_equal(found, table[ids])


def test_parts_that_no_table_splits_into_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^parts have \[1, 3\] rows, expected \[2, 2\]$"):
        join_table([np.zeros((1, 2)), np.zeros((3, 2))], "div")


def test_mod_is_refused_at_export_and_div_is_not() -> None:
    refuse_mod_export("div")
    with pytest.raises(ExportError, match=r'^partition_strategy is "mod" \(model_dir m\): a checkpoint of N TPU hosts'):
        refuse_mod_export("mod", model_dir="m")
