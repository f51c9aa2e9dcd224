"""How the rows of a table lie on N hosts: in runs ("div") or dealt out in turn ("mod").

A checkpoint that a TPU with N hosts wrote holds the parts one after the other, so under "mod" its rows are not in the
order of their ids, and nothing in the checkpoint says so. A CPU trains one part, where both are the same.

>>> split_table(np.arange(7), 3, "mod")
[array([0, 3, 6]), array([1, 4]), array([2, 5])]
>>> split_table(np.arange(7), 3, "div")
[array([0, 1, 2]), array([3, 4]), array([5, 6])]

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
    """Says where rows of a table lie.

    Args:
      rows: [N] integers in [0, vocabulary_size).
      partitions: 1 or more; the first vocabulary_size % partitions hold one row more than the others.

    Returns:
      partition: [N] int64, and place: [N] int64, the row within its partition.
    """
    rows = np.asarray(rows, np.int64)
    if strategy == "mod":
        return rows % partitions, rows // partitions
    length, longer = divmod(vocabulary_size, partitions)
    start_of_shorter = longer * (length + 1)
    in_longer = rows < start_of_shorter
    # Without shorter partitions (length 0) every row is in a longer one; 1 keeps the unused division defined.
    beyond, shorter = rows - start_of_shorter, max(length, 1)
    partition = np.where(in_longer, rows // (length + 1), longer + beyond // shorter)
    return partition, np.where(in_longer, rows % (length + 1), beyond % shorter)


def split_table(table: Array, partitions: int, strategy: PartitionStrategy) -> list[Array]:
    """Returns the parts of a table, [V, ...], as N hosts hold them; parts beyond V are empty."""
    partition, place = locate_rows(np.arange(len(table)), len(table), partitions, strategy)
    order = np.lexsort((place, partition))
    ends = np.cumsum(np.bincount(partition, minlength=partitions))[:-1]
    return np.split(table[order], ends)


def join_table(parts: Sequence[Array], strategy: PartitionStrategy) -> Array:
    """Returns the table, rows in the order of their ids, that split_table split.

    Raises:
      ValueError: parts of lengths that no table splits into.
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
    """Lets "div" pass to an export for CPUs, and refuses "mod".

    Args:
      where: what is exported, name=value, for the message.

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
