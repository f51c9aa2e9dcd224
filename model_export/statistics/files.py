"""Stores lookup statistics on disk: one JSON file per table, named by a hash of the table's configuration."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from model_export.statistics.distinct_ids import REGISTERS
from model_export.statistics.hot_ids import IdCounts
from model_export.statistics.table_statistics import HISTOGRAM_BINS, TableDescription, TableStatistics

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
    directory.mkdir(parents=True, exist_ok=True)
    path = statistics_path(directory, added.table, added.partitions)
    whole = _read(path).merged(added) if path.exists() else added
    handle, name = tempfile.mkstemp(dir=directory, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(to_json(whole), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def to_json(statistics: TableStatistics) -> dict[str, Any]:
    """Returns all lookup statistics of a table as a JSON object; leaves out the zeros at the histogram's end."""
    histogram = np.trim_zeros(statistics.ids_per_example_histogram, "b")
    return {
        "format_version": FORMAT_VERSION,
        "table": asdict(statistics.table),
        "partitions": statistics.partitions,
        "steps": statistics.steps,
        "sampled_steps": statistics.sampled_steps,
        "examples": statistics.examples,
        "ids": statistics.ids,
        "bad_ids": statistics.bad_ids,
        "max_ids_per_example": statistics.max_ids_per_example,
        "ids_per_example_histogram": histogram.tolist(),
        "counts": {
            "capacity": statistics.counts.capacity,
            "ids": statistics.counts.ids.tolist(),
            "counts": statistics.counts.counts.tolist(),
            "undercount": statistics.counts.undercount,
        },
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
    counts = data["counts"]
    return TableStatistics(
        table=TableDescription(**{**data["table"], "features": tuple(data["table"]["features"])}),
        partitions=data["partitions"],
        steps=data["steps"],
        sampled_steps=data["sampled_steps"],
        examples=data["examples"],
        ids=data["ids"],
        bad_ids=data["bad_ids"],
        max_ids_per_example=data["max_ids_per_example"],
        ids_per_example_histogram=histogram,
        counts=IdCounts(
            counts["capacity"],
            np.array(counts["ids"], np.int64),
            np.array(counts["counts"], np.int64),
            counts["undercount"],
        ),
        distinct_registers=registers,
        partition_loads={"div": tuple(data["partition_loads"]["div"]), "mod": tuple(data["partition_loads"]["mod"])},
    )


def _read(path: Path) -> TableStatistics:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StatisticsFileError(f"can not read statistics {path}: {error}") from error
