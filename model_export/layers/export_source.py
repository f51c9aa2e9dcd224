"""The ExportSource of models with TPUEmbedding layers, and of such a layer alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ADOPT_IT, ExportError
from model_export.graphs.combining import Compile
from model_export.graphs.lookup_graph import build_lookup, vocabulary_tables
from model_export.graphs.reduced_graph import ReducedVariables
from model_export.graphs.source import (
    EXAMPLES_INPUT,
    PREDICT,
    PREDICT_EXAMPLES,
    LookupPlan,
    PredictSignature,
    SavedParts,
)
from model_export.graphs.tpu_graph import add_tpu_meta_graph, tpu_call
from model_export.layers import introspection
from model_export.layers.model_inputs import ModelInputs, model_inputs
from model_export.layers.predict_inputs import (
    PredictInputs,
    ServingModule,
    examples_function,
    output_namer,
    predict_function,
)
from model_export.layers.to_spec import IdsKind, Vocabulary, flatten_with_paths, input_name, model_spec, named_features
from model_export.spec.features import ModelSpec, VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import SignatureEntry, TooManyPolicy
from service.types import Array


class LookupSource(ABC):
    """The ExportSource of a model whose layers look up tables, or of such a layer. Concurrency: one caller at a time.

    Args:
      tables: table of the spec -> [V, D] tf.Variable; save() writes its present value.
      inputs: the model's inputs; None: a layer alone, or a model without predictions.
      feature_names: path of a feature that an input feeds, in its layer's nest -> the feature's name in the spec.
      width_is_given: whether the user chose max_ids_per_row; otherwise padded lookups of ragged features are refused.

    no_predictions: why a model has no predict signature; "" if it has one, and for a layer alone.
    """

    def __init__(
        self,
        model: Any,
        spec: ModelSpec,
        tables: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        inputs: ModelInputs | None,
        feature_names: Mapping[str, str],
        width_is_given: bool = True,
    ) -> None:
        self._model, self._spec, self._inputs, self._feature_names = model, spec, inputs, feature_names
        self._tables = dict(tables)
        # The tables that the exported lookups read: table name -> variable of the tf.Module that save() writes.
        self._lookup_tables: Mapping[str, Any] = {}
        self._provenance = dict(provenance)
        self._width_is_given = width_is_given
        self.no_predictions = ""

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._provenance

    @property
    def predict_names(self) -> Sequence[str]:
        """The model's prediction, serving_default; none of a layer alone, or if no_predictions says why."""
        return () if self._inputs is None else (PREDICT,)

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
        module.attach(self._model, [signatures[name] for name in predict])
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
        parts = self._predict_inputs()
        if signature == PREDICT_EXAMPLES:
            tensors = parts.parsed(tf.constant(inputs[EXAMPLES_INPUT]))
        else:
            optional = parts.optional()
            tensors = {
                name: tf.zeros([0])
                if name in optional and name not in inputs
                else tf.constant(inputs[name], spec.dtype)
                for name, spec in parts.tensor_specs().items()
            }
        keyed = {name: words for name in parts.features() if (words := self._spec.feature(name).vocabulary) is not None}
        vocabularies = {name: _table_in_memory(words) for name, words in keyed.items()}
        answers = output_namer(self._model)(self._model(parts.model_inputs(tensors, vocabularies)))
        return {name: np.asarray(answer) for name, answer in answers.items()}

    def _predict_inputs(self) -> PredictInputs:
        if self._inputs is None:
            raise ExportError(f"there is no prediction: {self.no_predictions or 'a layer alone has lookups only'}")
        return PredictInputs(self._spec, self._inputs, self._feature_names)

    def _predict_function(self, name: str, vocabularies: Mapping[str, Any]) -> Any:
        build = examples_function if name == PREDICT_EXAMPLES else predict_function
        return build(self._model, self._predict_inputs(), vocabularies)

    @abstractmethod
    def _predict_signature(self, name: str) -> PredictSignature: ...

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


class LayerSource(LookupSource):
    """The ExportSource of a model with TPUEmbedding layers. Concurrency: one caller at a time.

    Signatures: serving_default takes ids like a lookup, optional weights, and any other input under its path;
    serve_examples takes serialized tf.Examples. A TPUEmbedding layer alone has lookups only. Several TPUEmbedding
    layers count as one, so their features and tables must have different names.

    Args:
      model: a functional, Sequential or subclass Keras model, or a TPUEmbedding layer.
      inputs, feature_inputs, weight_inputs: the model's inputs, if they can not be found; see
        model_inputs.model_inputs.
      kinds, max_ids_per_row, vocabularies, names, on_too_many_ids: see to_spec.model_spec. The kind of a feature
        that an input of the model feeds is found, and so is the vocabulary of a Keras lookup layer between them.
      history: the result of fit(), or a list of {"epoch" or "step": n, metric: number}.
      provenance: further JSON values about the training, for the manifest.

    Raises:
      ExportError: the model has no TPUEmbedding layer, or one of its features can not be served as a lookup.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Any = None,
        feature_inputs: Mapping[str, str] | None = None,
        weight_inputs: Mapping[str, str] | None = None,
        kinds: Mapping[str, IdsKind] | None = None,
        max_ids_per_row: Mapping[str, int] | int | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        names: Mapping[str, str] | None = None,
        on_too_many_ids: TooManyPolicy = "error",
        history: Any = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        of_models = {"inputs": inputs, "feature_inputs": feature_inputs, "weight_inputs": weight_inputs}
        layers = introspection.embedding_layers(model)
        config = _joined([introspection.feature_config(layer) for layer in layers])
        found = [entry for layer in layers for entry in introspection.tables(layer).items()]
        feature_names = dict(
            zip([path for path, _ in flatten_with_paths(config)], named_features(config, names), strict=True)
        )
        found_inputs: ModelInputs | None = None
        known_kinds: dict[str, IdsKind] = {}
        known_vocabularies: dict[str, Vocabulary] = {}
        if layers[0] is not model:
            found_inputs = model_inputs(
                model, inputs=inputs, feature_inputs=feature_inputs, weight_inputs=weight_inputs
            )
            for leaf in found_inputs.leaves:
                if leaf.ids_of is not None:
                    _check_rank(leaf.path, leaf.type_spec)
                    known_kinds[feature_names[leaf.ids_of]] = leaf.kind
                    if leaf.lookup is not None:
                        known_vocabularies[feature_names[leaf.ids_of]] = leaf.lookup
        elif given := [name for name, value in of_models.items() if value is not None]:
            raise ExportError(f"{', '.join(given)}: a TPUEmbedding layer alone has lookups only; leave them out")
        spec = model_spec(
            config,
            kinds={**known_kinds, **(kinds or {})},
            max_ids_per_row=1 if max_ids_per_row is None else max_ids_per_row,
            vocabularies={**known_vocabularies, **(vocabularies or {})},
            names=names,
            on_too_many_ids=on_too_many_ids,
        )
        record = {
            "trained_with": "TPUEmbedding layer",
            "model": type(model).__name__,
            "table_optimizers": {name: held.optimizer and type(held.optimizer).__name__ for name, held in found},
            "history": training_history(history),
            **(provenance or {}),
        }
        super().__init__(
            model,
            spec,
            {input_name(name): held.parameters for name, held in found},
            record,
            inputs=found_inputs,
            feature_names=feature_names,
            width_is_given=max_ids_per_row is not None,
        )

    @property
    def predict_names(self) -> Sequence[str]:
        """Names of the predict signatures: serving_default and, if tf.Examples can hold all inputs, serve_examples."""
        if self._inputs is None:
            return ()
        try:
            self._predict_inputs().dense_fields()
        except ExportError:
            return (PREDICT,)
        return (PREDICT, PREDICT_EXAMPLES)

    def _predict_signature(self, name: str) -> PredictSignature:
        parts = self._predict_inputs()
        if name == PREDICT_EXAMPLES:
            return PredictSignature(parts.features(), EXAMPLES_INPUT, parts.dense_fields())
        return PredictSignature(parts.features())


def _joined(configs: list[Any]) -> Any:
    if len(configs) == 1:
        return configs[0]
    if not all(isinstance(config, Mapping) for config in configs):
        raise ExportError("a model with several TPUEmbedding layers needs a dict as feature_config of each")
    joined: dict[str, Any] = {}
    for config in configs:
        if twice := sorted(set(joined) & set(config)):
            raise ExportError(f"two TPUEmbedding layers have features {twice}; give them different names")
        joined |= config
    return joined


def _check_rank(path: str, type_spec: Any) -> None:
    shape = type_spec.shape
    if isinstance(type_spec, tf.RaggedTensorSpec | tf.SparseTensorSpec):
        is_fit = shape.rank == 2
    else:
        is_fit = shape.rank == 1 or (shape.rank == 2 and shape[1] == 1)
    if not is_fit:
        raise ExportError(
            f"input {path!r} is {type_spec}; a lookup takes one id per row ([B] or [B, 1]), or ragged or sparse rows; "
            f"{ADOPT_IT}"
        )


def _table_in_memory(vocabulary: VocabularySpec) -> Any:
    keys = tf.constant([str(key) for key in vocabulary.keys])
    lines = tf.range(len(vocabulary.keys), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, lines), default_value=-1)
