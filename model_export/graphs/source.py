"""Interface between the exporter and a trained model, however it was trained.

A source writes the SavedModel and answers for its own predictions; manifest, lookups' parity, warm-up requests and the
rename into a version are the exporter's work and the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from model_export.graphs.reduced_table import ReducedTable
from model_export.spec.features import ModelSpec
from service.artifact.manifest import SignatureEntry
from service.types import Array


@dataclass(frozen=True, slots=True)
class PredictSignature:
    """A signature that runs the model's own graph.

    features: those whose ids it takes, under the input names and dtypes of their FeatureSpec.
    examples_input: the input that takes serialized tf.Example instead; each feature is then a field of its own name.
    dense_fields: float fields of such an Example, and their length.
    weight_fields: feature -> float field of such an Example that holds one weight per id.
    Any other input is fed numbers of its dtype when the signature is checked.
    """

    features: tuple[str, ...] = ()
    examples_input: str | None = None
    dense_fields: Mapping[str, int] = field(default_factory=dict)
    weight_fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Description of the SavedModel that a source wrote.

    table_variables: table of the spec -> its key in variables/variables.index.
    table_scales: the same of the scales of int8 and int4 tables.
    """

    table_variables: Mapping[str, str]
    predict: Mapping[str, PredictSignature]
    table_scales: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The lookup signatures that a source has to write beside its own.

    lookups: signature name -> its manifest entry; export.lookup_graph builds the graph of one.
    vocabulary_files: feature -> file with one key per line, to become an asset of that name.
    export_to_tpu: write a {serve,tpu} MetaGraph too, over the same variables.
    reduced: tables that lookups are to read with fewer bits; predictions read the trained table.
    """

    lookups: Mapping[str, SignatureEntry]
    vocabulary_files: Mapping[str, Path]
    export_to_tpu: bool = False
    reduced: Mapping[str, ReducedTable] = field(default_factory=dict)


class ExportSource(Protocol):
    """A trained model. Concurrency: one caller at a time."""

    @property
    def spec(self) -> ModelSpec:
        """Tables and features."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Returns the provenance of its training, JSON values only: data, settings, history, error."""
        ...

    @property
    def predict_names(self) -> Sequence[str]:
        """Signatures that save() can write beside the lookups."""
        ...

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes a stock SavedModel into folder, with the lookups and the named predict signatures.

        Raises:
          ExportError: the model can not be served as asked.
        """
        ...

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        """Returns [stop - start, D] rows of the trained table: what the saved bytes are held against."""
        ...

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Answers a request with the model in memory: what the saved signature is held against."""
        ...
