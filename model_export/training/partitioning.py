"""Computes on which of N hosts each row of a table is placed: in consecutive runs ("div") or in turn ("mod").

The checkpoint of a TPU with N hosts holds the parts one after the other. With "mod" its rows are therefore not in the
order of their ids, and the checkpoint does not record that. A CPU trains one part, for which both are the same.

>>> [locate_rows(np.arange(7), 7, 3, strategy)[0].tolist() for strategy in ("mod", "div")]
[[0, 1, 2, 0, 1, 2, 0], [0, 0, 0, 1, 1, 2, 2]]

Source: TPUEmbeddingConfiguration.ShardingStrategy in tensorflow/core/protobuf/tpu/tpu_embedding_configuration.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.spec.embedding_config_spec import PartitionStrategy
from service.types import Array


def locate_rows(rows: Array, vocabulary_size: int, partitions: int, strategy: PartitionStrategy) -> tuple[Array, Array]:
    """Returns for each row of a table the number of its partition, and its place in the partition.

    Args:
      rows: [N] integers in [0, vocabulary_size).
      partitions: 1 or more; the first vocabulary_size % partitions hold one row more than the others.

    Returns:
      partition: [N] int64, and place: [N] int64, the row number within its partition.
    """
    rows = np.asarray(rows, np.int64)
    if strategy == "mod":
        return rows % partitions, rows // partitions
    length, longer = divmod(vocabulary_size, partitions)
    start_of_shorter = longer * (length + 1)
    in_longer = rows < start_of_shorter
    # If the shorter partitions have no rows, all rows are in the longer ones; `shorter` is then 1 only to avoid a
    # division by 0.
    beyond, shorter = rows - start_of_shorter, max(length, 1)
    partition = np.where(in_longer, rows // (length + 1), longer + beyond // shorter)
    return partition, np.where(in_longer, rows % (length + 1), beyond % shorter)


def join_table(parts: Sequence[Array], strategy: PartitionStrategy) -> Array:
    """Joins the parts of all hosts to the whole [V, ...] table, with rows in the order of their ids.

    Raises:
      ValueError: no table is split into parts of these lengths.
    """
    joined = np.concatenate(parts)
    length, longer = divmod(len(joined), len(parts))
    expected = [length + (number < longer) for number in range(len(parts))]
    if [len(part) for part in parts] != expected:
        raise ValueError(f"parts have {[len(part) for part in parts]} rows, expected {expected}")
    partition, place = locate_rows(np.arange(len(joined)), len(joined), len(parts), strategy)
    starts = np.concatenate([[0], np.cumsum(expected)[:-1]])
    return np.asarray(joined[starts[partition] + place])


def refuse_mod_export(strategy: PartitionStrategy, **where: Any) -> None:
    """Refuses partition_strategy "mod" in an export, because a model for CPUs can not have it.

    Raises:
      ExportError: the strategy is "mod".
    """
    if strategy == "mod":
        named = "".join(f" ({name} {value})" for name, value in where.items())
        raise ExportError(
            f'partition_strategy is "mod"{named}: a checkpoint of N TPU hosts then holds row i at part i % N, and does '
            "not record N, so a CPU would read other rows than were trained. Train with partition_strategy='div', or "
            "put the parts of such a checkpoint in order with model_export.training.partitioning.join_table first"
        )
