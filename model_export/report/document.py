"""The data of a report on an artifact: a tree of dataclasses, which the text, JSON and HTML renderers read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_export.parity.parity_report import ParityReport
from model_export.report.projection import Projection
from model_export.report.statistics import TableStatistics
from model_export.statistics.table_health import TableHealth
from service.artifact.manifest import LookupFeature, TableScale, VocabularyEntry


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
