"""The interface ExportSource, through which the exporter writes and checks a trained model of any kind.

A source writes the SavedModel and computes reference predictions. The exporter does the rest, in the same way for every
source: manifest, parity of lookups, warm-up requests and the rename to a version.
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
    """A signature that runs the model's own graph, and the form of its inputs.

    features: names of the features whose ids are inputs, with the input names and dtypes of their FeatureSpec.
    examples_input: the input of serialized tf.Examples, if the signature has one; each feature is then a field of its
        own name.
    dense_fields: float fields of such a tf.Example -> their length.
    weight_fields: feature -> float field of such a tf.Example that holds one weight per id.
    row_inputs: any other input of row numbers -> their table; the model itself decides about ids without a row.
    The exporter's check of the signature feeds random numbers of the right dtype to any other input.
    """

    features: tuple[str, ...] = ()
    examples_input: str | None = None
    dense_fields: Mapping[str, int] = field(default_factory=dict)
    weight_fields: Mapping[str, str] = field(default_factory=dict)
    row_inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The checkpoint keys of tables, and the predict signatures, of a SavedModel that a source wrote.

    table_variables: table of the spec -> its key in variables/variables.index.
    table_scales: the same for the scales of int8 and int4 tables.
    """

    table_variables: Mapping[str, str]
    predict: Mapping[str, PredictSignature]
    table_scales: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The lookup signatures that a source must write into its SavedModel, beside its predict signatures.

    lookups: signature name -> its manifest entry; graphs.lookup_graph builds a lookup's graph from it.
    vocabulary_files: feature -> file with one key per line, which becomes an asset of the same name.
    export_to_tpu: write a {serve,tpu} MetaGraph too, over the same variables.
    reduced: tables in fewer bits for the lookups to read; predictions read the trained tables.
    """

    lookups: Mapping[str, SignatureEntry]
    vocabulary_files: Mapping[str, Path]
    export_to_tpu: bool = False
    reduced: Mapping[str, ReducedTable] = field(default_factory=dict)


class ExportSource(Protocol):
    """The interface of a trained model that the exporter can write and check. Concurrency: one caller at a time."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Returns what the manifest records of the model's training as JSON values: data, settings, history, errors."""
        ...

    @property
    def predict_names(self) -> Sequence[str]: ...

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes a stock SavedModel into a folder, with the plan's lookup signatures and the named predict signatures.

        Raises:
          ExportError: the model can not be exported as planned.
        """
        ...

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        """Returns rows [start, stop) of a trained table, [stop - start, D], with which saved rows are compared."""
        ...

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Computes the outputs of the model in memory, with which the exporter compares the saved signature's."""
        ...
