"""Collects the lookups of a training, and keeps the statistics of each table in a file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from model_export.spec.embedding_config_spec import PartitionStrategy
from model_export.spec.features import ModelSpec
from model_export.statistics.table_statistics import (
    HISTOGRAM_BINS,
    REGISTERS,
    IdCounts,
    TableDescription,
    TableStatistics,
)
from service.artifact.files import write_whole
from service.types import Array

FORMAT_VERSION = 1
_PREFIX = "lookup_statistics_"


class StatisticsFileError(ValueError):
    """Raised if a statistics file can not be read; the message names the file."""


def statistics_path(directory: Path, table: TableDescription, partitions: int) -> Path:
    return directory / f"{_PREFIX}{table.key(partitions)}.json"


def read_statistics(directory: Path) -> list[TableStatistics]:
    """Reads all statistics files of a directory, in order of table names; [] if the directory does not exist.

    Raises:
      StatisticsFileError: a file is damaged or of a newer format.
    """
    statistics = [_read(path) for path in sorted(directory.glob(f"{_PREFIX}*.json"))]
    return sorted(statistics, key=lambda each: each.table.name)


def add_to_file(directory: Path, added: TableStatistics) -> Path:
    """Adds statistics to the file of their table, creates the file if necessary, and returns its path.

    A reader sees the old file or the new one, never a part of it.

    Raises:
      StatisticsFileError: the file there is damaged or of a newer format.

    Concurrency: one caller at a time for each directory. Of two concurrent calls, one's counts may be lost.
    """
    path = statistics_path(directory, added.table, added.partitions)
    whole = _read(path).merged(added) if path.exists() else added
    write_whole(path, json.dumps(to_json(whole)).encode())
    return path


def to_json(statistics: TableStatistics) -> dict[str, Any]:
    counts = statistics.counts
    return {
        "format_version": FORMAT_VERSION,
        **{one.name: getattr(statistics, one.name) for one in fields(statistics)},
        "table": asdict(statistics.table),
        "ids_per_example_histogram": np.trim_zeros(statistics.ids_per_example_histogram, "b").tolist(),
        "counts": {**asdict(counts), "ids": counts.ids.tolist(), "counts": counts.counts.tolist()},
        "distinct_registers": base64.b64encode(statistics.distinct_registers.tobytes()).decode(),
        "partition_loads": {strategy: list(loads) for strategy, loads in statistics.partition_loads.items()},
    }


def from_json(data: Any) -> TableStatistics:
    """Makes TableStatistics from an object of to_json(); raises ValueError, KeyError or TypeError for other objects."""
    if data["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format {data['format_version']!r} is not the one this version reads ({FORMAT_VERSION})")
    histogram = np.zeros(HISTOGRAM_BINS, np.int64)
    histogram[: len(data["ids_per_example_histogram"])] = data["ids_per_example_histogram"]
    registers = np.frombuffer(base64.b64decode(data["distinct_registers"]), np.uint8)
    if len(registers) != REGISTERS:
        raise ValueError(f"distinct_registers has {len(registers)} bytes, expected {REGISTERS}")
    counts, table, loads = data["counts"], data["table"], data["partition_loads"]
    arrays = {name: np.array(counts[name], np.int64) for name in ("ids", "counts")}
    converted: dict[str, Any] = {
        "table": TableDescription(**{**table, "features": tuple(table["features"])}),
        "ids_per_example_histogram": histogram,
        "counts": IdCounts(**{**counts, **arrays}),
        "distinct_registers": registers,
        "partition_loads": {"div": tuple(loads["div"]), "mod": tuple(loads["mod"])},
    }
    return TableStatistics(**{one.name: converted.get(one.name, data[one.name]) for one in fields(TableStatistics)})


def _read(path: Path) -> TableStatistics:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StatisticsFileError(f"can not read statistics {path}: {error}") from error


SAMPLE_RATE = 0.03
"""Share of the steps in the sample, the value in TPUEstimator's documentation."""
_BLOCK = 100


class LookupStatistics:
    """Collector of lookup statistics for all tables of one training.

    The sample has the same number of steps from every hundred, drawn by the seed, so every process samples the same
    steps. It also has the very first step, so that a short run has statistics.

    Args:
      directory: folder of the statistics files; counts are added to existing files of the same tables.
      partitions: number of hosts for which the balance is computed.
      sample_rate: share of steps in the sample, in (0, 1].
      capacity: maximum number of ids per table whose counts are kept.

    Raises:
      ValueError: a rate or number is out of range, or two tables have the same name.
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
        # Read existing statistics files now, so that a damaged file fails before a long training and not after it.
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
        """Says whether the lookups of a training step are sampled; if they are, observe() needs the step's ids."""
        if step == 0:
            return True
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            drawn = np.random.default_rng((self._seed, block)).choice(_BLOCK, self._chosen_per_block, replace=False)
            self._block, self._chosen = block, frozenset(drawn.tolist())
        return place in self._chosen

    def observe(self, step: int, lookups: Mapping[str, tuple[Array, Array | None]]) -> None:
        """Counts a training step, and its ids if the step is in the sample; call it once for each step.

        Args:
          lookups: feature -> ([N] row numbers, [B + 1] row_splits, or None if every example has one id). Ignored for a
            step outside of the sample.

        Raises:
          KeyError: a feature belongs to no table.
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
        paths = [add_to_file(self._directory, statistics) for statistics in self._unsaved.values()]
        self._unsaved = dict(self._empty)
        return paths
