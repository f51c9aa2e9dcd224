"""Everything there is to tell about an artifact, as one tree that each renderer walks."""

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
    """An input or output of a signature; a size is None where it may vary, shape where even the rank may."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """One signature of one MetaGraph.

    kind: "lookup" or "predict" as the manifest says; "graph" where no manifest knows it.
    features: how each feature travels and which policies hold for it; empty without a manifest.
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
    """One graph of the SavedModel: a server picks it by its tags.

    tensorflow_version: what wrote it, "" where it does not say.
    """

    tags: tuple[str, ...]
    tensorflow_version: str
    signatures: tuple[SignatureReport, ...]


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table, or any 2-D variable of a SavedModel without a manifest.

    name: the manifest's; without one, the variable's.
    features: those that read it.
    slices: in how many parts it was saved; file and offset are then of none of them. 0: whole.
    scale: where the float32 lie that the rows of an int8 or int4 table are multiplied by.
    unread: why health is None.
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
    """A feature of the manifest; vocabulary is None where clients send rows."""

    name: str
    table: str
    vocabulary_name: str | None = None
    vocabulary: VocabularyEntry | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over training.

    x_name: "epoch" or "step".
    points: (x, value), x ascending; a value that is no number is left out.
    """

    name: str
    x_name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ArtifactReport:
    """The whole of it.

    findings: what someone should look at, most important first; empty where all is well.
    notes: what the report leaves out, and why.
    files: size in bytes by path relative to the folder.
    parity: of the last verification: the one in the manifest, or the one just run; None without either.
    disagreements: what a verification that was just run found wrong; None where none was run.
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
        """Size of all files."""
        return sum(self.files.values())
