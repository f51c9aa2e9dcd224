"""Makes an ExportSource of tables and features without a model: it writes lookup signatures, and no predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.graphs.lookup_graph import build_lookup
from model_export.graphs.padded_lookup import Compile
from model_export.graphs.reduced_graph import ReducedVariables
from model_export.graphs.source import LookupPlan, PredictSignature, SavedParts
from model_export.graphs.tpu_graph import add_tpu_meta_graph, tpu_call
from model_export.graphs.vocabulary_graph import vocabulary_tables
from model_export.layers.serving_module import ServingModule
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import SignatureEntry
from service.types import Array


class LookupSource:
    """The ExportSource of tables with lookups and without a model. Concurrency: one caller at a time.

    Args:
      tables: table of the spec -> [V, D] tf.Variable; save() writes its present value.
      width_is_given: whether the user chose max_ids_per_row; otherwise padded lookups of ragged features are refused.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tables: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        width_is_given: bool = True,
    ) -> None:
        self._spec = spec
        self._tables = dict(tables)
        # The tables that the exported lookups read: table name -> variable of the tf.Module that save() writes.
        self._lookup_tables: Mapping[str, Any] = {}
        self._provenance = dict(provenance)
        self._width_is_given = width_is_given

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._provenance

    @property
    def predict_names(self) -> Sequence[str]:
        return ()

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes a SavedModel of the trained variables; of a table in fewer bits, lookups read a variable made here.

        With plan.export_to_tpu, tensor-core lookups of the {serve,tpu} MetaGraph run on a TPU core and all other
        signatures on its host.

        Raises:
          ExportError: the model can not be exported as planned, or no planned signature could run on a TPU core.
        """
        self._check_plan(plan, predict)
        vocabularies = vocabulary_tables(self._spec, plan.vocabulary_files)
        reduced = ReducedVariables(plan.reduced)
        module = ServingModule({**self._tables, **reduced.tables}, vocabularies)
        module.scales = reduced.scales
        self._lookup_tables = reduced.for_lookups(self._tables)
        signatures = self._lookups(module, plan.lookups)
        signatures |= {name: self._predict_function(name, module.vocabularies) for name in predict}
        self._attach(module, [signatures[name] for name in predict])
        tf.saved_model.save(module, str(folder), signatures=signatures)
        if plan.export_to_tpu:
            # Only padded lookups have another graph on a TPU, so only they are traced again.
            padded = {name: entry for name, entry in plan.lookups.items() if entry.batch_sizes}
            add_tpu_meta_graph(folder, module, signatures | self._lookups(module, padded, compiled=_on_tpu))
        return SavedParts(
            {table.name: f"tables/{table.name}/.ATTRIBUTES/VARIABLE_VALUE" for table in self._spec.tables},
            {name: self._predict_signature(name) for name in predict},
            reduced.scale_keys(),
        )

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        rows: Array = self._tables[table][start:stop].numpy()
        return rows

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        raise ExportError(f"there is no signature {signature!r}: tables alone have lookups only")

    def _predict_function(self, name: str, vocabularies: Mapping[str, Any]) -> Any:
        raise ExportError(f"there is no signature {name!r}: tables alone have lookups only")

    def _predict_signature(self, name: str) -> PredictSignature:
        raise ExportError(f"there is no signature {name!r}: tables alone have lookups only")

    def _attach(self, module: ServingModule, functions: Sequence[Any]) -> None:
        # Tables without a model need no other variables in the saved module.
        pass

    def _lookups(
        self, module: ServingModule, entries: Mapping[str, SignatureEntry], **compiled: Compile
    ) -> dict[str, Any]:
        return {
            name: build_lookup(entry, self._spec, self._lookup_tables, module.vocabularies, **compiled).function()
            for name, entry in entries.items()
        }

    def _check_plan(self, plan: LookupPlan, predict: Sequence[str]) -> None:
        if unknown := sorted(set(predict) - set(self.predict_names)):
            raise ExportError(f"this model has no signatures {unknown}; it has {list(self.predict_names)}")
        padded = {name: entry for name, entry in plan.lookups.items() if entry.batch_sizes}
        if plan.export_to_tpu and not padded:
            raise ExportError("export_to_tpu: only the tpu_tensor_core lookup runs on a TPU core; ask for it too")
        for name, entry in padded.items():
            wide = sorted(f for f, lookup in entry.features.items() if lookup.row_splits and lookup.max_ids_per_row)
            if wide and not self._width_is_given:
                raise ExportError(
                    f"signature {name!r} pads rows to a width that nobody has said: give max_ids_per_row= for {wide}"
                )


def _on_tpu(function: Callable[..., dict[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    return lambda padded, mask: tpu_call(function, padded, mask)


def training_history(history: Any) -> list[dict[str, Any]]:
    """Returns the result of Keras' fit(), or a list of records, as the list of records that the manifest holds."""
    given = getattr(history, "history", history)
    if not isinstance(given, Mapping):
        return [dict(entry) for entry in given or ()]
    epochs = max((len(values) for values in given.values()), default=0)
    return [
        {"epoch": epoch + 1, **{metric: float(values[epoch]) for metric, values in given.items()}}
        for epoch in range(epochs)
    ]
