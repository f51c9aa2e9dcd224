"""Statistics of a training's lookups for a report: ids per example, hot ids, and balance of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.statistics import table_statistics
from model_export.statistics.files import StatisticsFileError, read_statistics

# Subfolder of an artifact that may hold the lookup statistics of its training.
STATISTICS_FOLDER = Path("assets.extra") / "statistics"
_HOT_IDS = 20


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of one table's lookups in the sampled steps of a training.

    rows: V of the table. features: names of the features that read it.
    steps, sampled_steps: number of trained steps, and of steps in the sample.
    examples: number in the sample; ids: number of ids in them, with repetitions; bad_ids: ids outside the table, which
        `ids` does not count.
    mean_ids, max_ids: ids per example; ids_per_example: (number of ids, number of examples), ascending; 1024 means 1024
        or more.
    distinct_ids: number of distinct ids, within about 2% unless distinct_is_exact.
    hot_ids: (id, times), hottest first, twenty at most.
    partitions: strategy ("div", "mod") -> number of ids in each partition of the table.
    """

    table: str
    rows: int
    features: tuple[str, ...]
    steps: int
    sampled_steps: int
    examples: int
    ids: int
    bad_ids: int
    mean_ids: float
    max_ids: int
    distinct_ids: int
    distinct_is_exact: bool
    ids_per_example: tuple[tuple[int, int], ...] = ()
    hot_ids: tuple[tuple[int, int], ...] = ()
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def imbalance(self, strategy: str) -> float | None:
        loads = self.partitions.get(strategy, ())
        return max(loads) * len(loads) / sum(loads) if sum(loads) else None


def find_statistics(artifact: Path, folder: Path | None) -> tuple[TableStatistics, ...]:
    """Reads the lookup statistics in a folder; if the folder is None, the statistics in the artifact, if it has any.

    Raises:
      ExportError: the folder holds no statistics, or a file can not be read.
    """
    place = artifact / STATISTICS_FOLDER if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise ExportError(f"--statistics: {folder} is not a folder")
    try:
        found = read_statistics(place)
    except StatisticsFileError as error:
        raise ExportError(str(error)) from error
    if not found and folder is not None:
        raise ExportError(f"--statistics: {folder} holds no lookup statistics; was it a profile_data_directory?")
    return tuple(map(_shown, found))


def _shown(found: table_statistics.TableStatistics) -> TableStatistics:
    histogram = found.ids_per_example_histogram
    return TableStatistics(
        table=found.table.name,
        rows=found.table.vocabulary_size,
        features=found.table.features,
        steps=found.steps,
        sampled_steps=found.sampled_steps,
        examples=found.examples,
        ids=found.ids,
        bad_ids=found.bad_ids,
        mean_ids=found.mean_ids_per_example,
        max_ids=found.max_ids_per_example,
        distinct_ids=found.distinct_ids,
        distinct_is_exact=found.distinct_is_exact,
        ids_per_example=tuple((int(ids), int(histogram[ids])) for ids in np.flatnonzero(histogram)),
        hot_ids=tuple((hot.id, hot.count) for hot in found.hot_ids(_HOT_IDS)),
        partitions={str(strategy): loads for strategy, loads in found.partition_loads.items()},
    )
