"""Looks at a sample of a training's steps and keeps statistics of the ids they look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from model_export.spec.embedding_config_spec import PartitionStrategy
from model_export.spec.features import ModelSpec
from model_export.statistics.files import add_to_file, read_statistics
from model_export.statistics.table_statistics import TableDescription, TableStatistics
from service.types import Array

SAMPLE_RATE = 0.03
"""Share of the steps that are looked at, as TPUEstimator's documentation says."""
_BLOCK = 100


class LookupStatistics:
    """Statistics of the tables of one training.

    Of every hundred steps the same number is looked at, which of them is drawn by the seed, so a step is or is not
    looked at whichever process asks. The first step of all is looked at too, so that a short run says something.

    Args:
      directory: where files are kept; those that are there for the same tables are added to.
      partitions: number of hosts that the balance is worked out for.
      sample_rate: in (0, 1].
      capacity: number of ids per table whose counts are kept.

    Raises:
      ValueError: a rate or number out of range, or two tables of one name.
      StatisticsFileError: a file in the directory is damaged or of a newer format.

    Concurrency: one caller at a time.
    """

    def __init__(
        self,
        directory: Path,
        tables: Sequence[TableDescription],
        *,
        partitions: int = 8,
        sample_rate: float = SAMPLE_RATE,
        seed: int = 0,
        capacity: int = 4096,
    ) -> None:
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate is {sample_rate}, expected a number above 0 and up to 1")
        if len({table.name for table in tables}) != len(tables):
            raise ValueError("two tables have the same name")
        # Before a long training rather than after it.
        read_statistics(directory)
        self._directory = directory
        self._empty = {
            table.name: TableStatistics.empty(table, partitions=partitions, capacity=capacity) for table in tables
        }
        self._unsaved = dict(self._empty)
        self._table_of = {feature: table.name for table in tables for feature in table.features}
        self._chosen_per_block = max(1, round(sample_rate * _BLOCK))
        self._seed = seed
        self._block = -1
        self._chosen = frozenset[int]()

    @staticmethod
    def for_model(
        directory: Path,
        spec: ModelSpec,
        *,
        partition_strategy: PartitionStrategy = "div",
        partitions: int = 8,
        seed: int = 0,
    ) -> LookupStatistics:
        """Builds for all tables and features of a model."""
        tables = [
            TableDescription(
                name=table.name,
                vocabulary_size=table.vocabulary_size,
                embedding_dim=table.embedding_dim,
                combiner=table.combiner,
                features=tuple(feature.name for feature in spec.features if feature.table == table.name),
                partition_strategy=partition_strategy,
            )
            for table in spec.tables
        ]
        return LookupStatistics(directory, tables, partitions=partitions, seed=seed)

    def wants(self, step: int) -> bool:
        """Says whether observe looks at a step; its ids need not be fetched where not."""
        if step == 0:
            return True
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            drawn = np.random.default_rng((self._seed, block)).choice(_BLOCK, self._chosen_per_block, replace=False)
            self._block, self._chosen = block, frozenset(drawn.tolist())
        return place in self._chosen

    def observe(self, step: int, lookups: Mapping[str, tuple[Array, Array | None]]) -> None:
        """Counts a step, to be called once for each; looks at its ids if wants(step).

        Args:
          lookups: feature -> rows of its table, [N] integers, and row_splits, [B + 1], or None where every example has
            one id. Nothing is read where the step is not wanted.

        Raises:
          KeyError: a feature that no table has.
        """
        is_sampled = self.wants(step)
        for name, statistics in self._unsaved.items():
            self._unsaved[name] = statistics.with_step(is_sampled=is_sampled)
        if not is_sampled:
            return
        for feature, (values, row_splits) in lookups.items():
            table = self._table_of[feature]
            splits = np.arange(len(values) + 1) if row_splits is None else row_splits
            self._unsaved[table] = self._unsaved[table].with_rows(values, splits)

    def save(self) -> list[Path]:
        """Adds what was seen since the last save to the files, and returns their paths."""
        paths = [add_to_file(self._directory, statistics) for statistics in self._unsaved.values()]
        self._unsaved = dict(self._empty)
        return paths
