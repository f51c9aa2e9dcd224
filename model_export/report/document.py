"""The parts of a report on an artifact, and what it finds suspicious.

>>> import numpy as np
>>> line = project(np.array([[i, 2 * i] for i in range(5)], np.float32), np.arange(5))
>>> [round(share, 6) for share in line.explained], line.points[0] != line.points[4]
([1.0, 0.0], True)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.parity.comparison import ParityReport
from model_export.statistics.files import StatisticsFileError, read_statistics
from model_export.statistics.table_health import Rows, TableHealth
from model_export.statistics.table_statistics import TableStatistics
from service.artifact.manifest import MANIFEST_PATH, LookupFeature, Manifest, TableScale, VocabularyEntry
from service.types import Array


@dataclass(frozen=True, slots=True)
class Projection:
    """The coordinates of a sample of rows on the sample's first two principal components.

    ids: row number of each point; points: two coordinates of each point.
    explained: share of the sample's variance along each of the two axes.
    labels: label of each point, by which it is coloured, None for a row without one; () if no row has a label.
    names: name of each row, such as its key; "" for a row without a name.
    label_title: what the labels mean, such as the name of their column.
    nearest: for each searched point, its nearest rows in the whole table, as pairs of row and cosine.
    nearest_names: names of the rows in `nearest` that are not among the points.
    agreement: share of labelled points whose nearest neighbour in the table (cosine) has the same label; chance: the
        same share for random neighbours. None without labels.
    """

    ids: tuple[int, ...]
    points: tuple[tuple[float, float], ...]
    explained: tuple[float, float]
    labels: tuple[str | None, ...] = ()
    names: tuple[str, ...] = ()
    label_title: str = ""
    nearest: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    nearest_names: Mapping[int, str] = field(default_factory=dict)
    agreement: float | None = None
    chance: float | None = None


def project(rows: Array, ids: Array) -> Projection:
    """Projects [N, D] rows of a table on the first two principal components of these N rows.

    Args:
      rows: [N, D] of a float type; rows that are not finite are left out.
      ids: [N] row numbers.

    Returns the points in the order of ids. The sign of an axis makes its largest weight positive, so the same rows
    always give the same picture. With fewer than two rows, or D = 1, an axis is all 0.
    """
    finite = np.isfinite(rows).all(axis=1)
    values = rows[finite].astype(np.float64)
    ids = ids[finite]
    points = np.zeros((len(values), 2))
    explained = np.zeros(2)
    if len(values) > 1:
        centred = values - values.mean(axis=0)
        _, singular, axes = np.linalg.svd(centred, full_matrices=False)
        axes = axes[:2]
        strongest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
        axes = axes * np.where(strongest < 0, -1.0, 1.0)[:, None]
        points[:, : len(axes)] = centred @ axes.T
        variance = singular**2
        if variance.sum() > 0:
            explained[: len(axes)] = (variance / variance.sum())[:2]
    return Projection(
        ids=tuple(ids.tolist()),
        points=tuple((x, y) for x, y in points.tolist()),
        explained=(float(explained[0]), float(explained[1])),
    )


def label_agreement(rows: Array, labels: Sequence[str | None]) -> tuple[float, float] | None:
    """Returns the share of rows whose nearest neighbour has their label, and the share expected of random neighbours.

    Args:
      rows: [N, D] finite numbers; labels: one per row; rows labelled None are left out.

    Returns: (share, chance), or None for fewer than two labelled rows.
    """
    kept = np.array([i for i, label in enumerate(labels) if label is not None], np.int64)
    if len(kept) < 2:
        return None
    _, codes, counts = np.unique([str(labels[i]) for i in kept], return_inverse=True, return_counts=True)
    vectors = rows[kept].astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(lengths > 0, lengths, 1.0)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    share = float((codes[likeness.argmax(axis=1)] == codes).mean())
    pairs = len(kept) * (len(kept) - 1)
    return share, float((counts * (counts - 1)).sum() / pairs)


# Subfolder of an artifact that may hold the lookup statistics of its training.
STATISTICS_FOLDER = Path("assets.extra") / "statistics"


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
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output of a signature. A variable size is None; shape is None if even the rank varies."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """A report's description of one signature of one MetaGraph: its inputs, outputs and features.

    kind: "lookup" or "predict" by the manifest; "graph" for a signature without a manifest entry.
    features: each feature's inputs and policies; empty without a manifest.
    """

    name: str
    kind: str
    method: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    device: str | None = None
    batch_sizes: tuple[int, ...] = ()
    features: Mapping[str, LookupFeature] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetaGraphReport:
    """One MetaGraph of the SavedModel; a server selects a MetaGraph by its tags.

    tensorflow_version: version of the TensorFlow that wrote the graph; "" if unknown.
    """

    tags: tuple[str, ...]
    tensorflow_version: str
    signatures: tuple[SignatureReport, ...]


@dataclass(frozen=True, slots=True)
class TableReport:
    """A report's entry for one table of the manifest or, without a manifest, one 2-D variable of the SavedModel.

    name: the table's name in the manifest; without a manifest, the variable's key.
    features: names of the features that read the table.
    slices: number of parts in which the table was saved, 0 for a whole table; with parts, file and offset are unused.
    scale: place of the float32 scales of an int8 or int4 table.
    unread: why the table was not read, so that health is None; "" if it was read.
    """

    name: str
    variable: str
    vocabulary_size: int
    embedding_dim: int
    dtype: str
    nbytes: int
    file: str
    offset: int
    features: tuple[str, ...] = ()
    slices: int = 0
    scale: TableScale | None = None
    health: TableHealth | None = None
    unread: str | None = None
    projection: Projection | None = None


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """A report's description of a feature in the manifest; vocabulary is None if clients send row numbers."""

    name: str
    table: str
    vocabulary_name: str | None = None
    vocabulary: VocabularyEntry | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve for a report: the values of one metric over the steps or epochs of a training.

    x_name: "epoch" or "step".
    points: (x, value) by ascending x; values that are not finite numbers are left out.
    """

    name: str
    x_name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ArtifactReport:
    """The data of a whole report on one artifact.

    findings: sentences about problems, the most important first; empty if there are none.
    notes: sentences about parts that the report leaves out, with reasons.
    files: size in bytes of each file, by path relative to the folder.
    parity: result of the last verification: the one just run, or the manifest's; None without either.
    disagreements: faults that the verification just run has found; None if none was run.
    """

    folder: str
    has_manifest: bool
    files: Mapping[str, int]
    meta_graphs: tuple[MetaGraphReport, ...]
    tables: tuple[TableReport, ...] = ()
    features: tuple[FeatureReport, ...] = ()
    curves: tuple[Curve, ...] = ()
    statistics: tuple[TableStatistics, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    parity: ParityReport | None = None
    disagreements: tuple[str, ...] | None = None
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(self.files.values())


# Share of dead or equal rows above which the report lists a table as a finding. A smaller share is normal: a vocabulary
# has some unused ids.
_MANY = 0.1
# Imbalance above which the report lists a table as a finding: the number of ids that were looked up in the table's
# fullest partition, divided by the mean of all partitions.
_UNEVEN = 2.0


def findings(report: ArtifactReport, manifest: Manifest | None) -> Iterator[str]:
    yield from _file_findings(report, manifest)
    present = {signature.name for graph in report.meta_graphs for signature in graph.signatures}
    for name in sorted(set() if manifest is None else set(manifest.signatures) - present):
        yield f"signature {name!r} is in the manifest, but not in saved_model.pb"
    for table in report.tables:
        if table.unread is not None:
            yield f"table {table.name!r} was not read: {table.unread}"
        elif table.health is not None:
            yield from _health_findings(table, table.health)
    for statistics in report.statistics:
        for strategy, loads in statistics.partition_loads.items():
            if (imbalance := statistics.imbalance(strategy)) > _UNEVEN:
                yield (
                    f"table {statistics.table.name!r}: with partition strategy {strategy!r} the fullest of "
                    f"{len(loads)} partitions gets {imbalance:.1f} times the mean of them"
                )


def first_ids(rows: Rows) -> str:
    text = ", ".join(map(str, rows.first_ids))
    more = ", ..." if rows.count > len(rows.first_ids) else ""
    return f"{'row' if rows.count == 1 else 'rows'} {text}{more}"


def _file_findings(report: ArtifactReport, manifest: Manifest | None) -> Iterator[str]:
    if manifest is None or not manifest.files:
        return
    found = {name: size for name, size in report.files.items() if name != MANIFEST_PATH}
    for name in sorted(set(found) | set(manifest.files)):
        if name not in found:
            yield f"file {name} is missing"
        elif name not in manifest.files:
            yield f"file {name} is not in the manifest"
        elif found[name] != manifest.files[name]:
            yield f"file {name} has {found[name]:,} bytes, the manifest says {manifest.files[name]:,}"


def _health_findings(table: TableReport, health: TableHealth) -> Iterator[str]:
    name = f"table {table.name!r}"
    for kind, values, rows in (("NaN", health.nan_values, health.nan), ("Inf", health.inf_values, health.inf)):
        if rows.count:
            yield f"{name}: {values:,} {kind} in {rows.count:,} of {health.rows:,} rows: {first_ids(rows)}"
    if health.dead.count > _MANY * health.rows:
        yield (
            f"{name}: {health.dead.count:,} of {health.rows:,} rows are all zeros and add nothing to a lookup: "
            f"{first_ids(health.dead)}"
        )
    if health.duplicates is not None and health.duplicates.count > _MANY * health.rows:
        yield (
            f"{name}: {health.duplicates.count:,} of {health.rows:,} rows equal an earlier row bit for bit, as rows "
            f"that were never trained do: {first_ids(health.duplicates)}"
        )
