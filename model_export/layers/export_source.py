"""Makes a Keras model with TPUEmbedding layers, or one such layer, an ExportSource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.signature_names import EXAMPLES_INPUT, PREDICT, PREDICT_EXAMPLES
from model_export.graphs.source import PredictSignature
from model_export.layers import introspection
from model_export.layers.lookup_source import LookupSource, training_history
from model_export.layers.model_inputs import ModelInputs, model_inputs
from model_export.layers.predict_inputs import PredictInputs
from model_export.layers.serving_module import ServingModule, examples_function, output_namer, predict_function
from model_export.layers.to_spec import IdsKind, flatten_with_paths, input_name, model_spec, named_features
from model_export.layers.vocabularies import Vocabulary
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import TooManyPolicy
from service.types import Array


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
        layers = introspection.embedding_layers(model)
        config = _joined([introspection.feature_config(layer) for layer in layers])
        found = [entry for layer in layers for entry in introspection.tables(layer).items()]
        self._model = model
        self._feature_names = dict(
            zip([path for path, _ in flatten_with_paths(config)], named_features(config, names), strict=True)
        )
        self._inputs: ModelInputs | None = None
        known_kinds: dict[str, IdsKind] = {}
        known_vocabularies: dict[str, Vocabulary] = {}
        if layers[0] is not model:
            self._inputs = model_inputs(
                model, inputs=inputs, feature_inputs=feature_inputs, weight_inputs=weight_inputs
            )
            for leaf in self._inputs.leaves:
                if leaf.ids_of is not None:
                    _check_rank(leaf.path, leaf.type_spec)
                    known_kinds[self._feature_names[leaf.ids_of]] = leaf.kind
                    if leaf.lookup is not None:
                        known_vocabularies[self._feature_names[leaf.ids_of]] = leaf.lookup
        elif given := [n for n, v in _of_models(inputs, feature_inputs, weight_inputs).items() if v is not None]:
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
            spec,
            {input_name(name): held.parameters for name, held in found},
            record,
            width_is_given=max_ids_per_row is not None,
        )

    @property
    def predict_names(self) -> Sequence[str]:
        """Names of the predict signatures: serving_default and, if tf.Examples can hold all inputs, serve_examples.

        A layer without a model has no predict signatures.
        """
        if self._inputs is None:
            return ()
        try:
            self._predict_inputs().dense_fields()
        except ExportError:
            return (PREDICT,)
        return (PREDICT, PREDICT_EXAMPLES)

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs a request to a predict signature on the model in memory; the request's inputs may lack weights."""
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
        keyed = [feature.name for feature in self._spec.features if feature.vocabulary is not None]
        vocabularies = {name: _table_in_memory(self._spec, name) for name in keyed}
        answers = output_namer(self._model)(self._model(parts.model_inputs(tensors, vocabularies)))
        return {name: np.asarray(answer) for name, answer in answers.items()}

    def _predict_inputs(self) -> PredictInputs:
        if self._inputs is None:
            raise ExportError("a TPUEmbedding layer alone has lookups only, no predictions")
        return PredictInputs(self._spec, self._inputs, self._feature_names)

    def _predict_function(self, name: str, vocabularies: Mapping[str, Any]) -> Any:
        build = examples_function if name == PREDICT_EXAMPLES else predict_function
        return build(self._model, self._predict_inputs(), vocabularies)

    def _predict_signature(self, name: str) -> PredictSignature:
        parts = self._predict_inputs()
        if name == PREDICT_EXAMPLES:
            return PredictSignature(parts.features(), EXAMPLES_INPUT, parts.dense_fields())
        return PredictSignature(parts.features())

    def _attach(self, module: ServingModule, functions: Sequence[Any]) -> None:
        module.attach(self._model, functions)


def _of_models(inputs: Any, feature_inputs: Any, weight_inputs: Any) -> dict[str, Any]:
    return {"inputs": inputs, "feature_inputs": feature_inputs, "weight_inputs": weight_inputs}


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
            f"input {path!r} is {type_spec}; a lookup takes one id per row ([B] or [B, 1]), or ragged or sparse rows"
        )


def _table_in_memory(spec: ModelSpec, feature: str) -> Any:
    vocabulary = spec.feature(feature).vocabulary
    assert vocabulary is not None  # callers check this
    keys = tf.constant([str(key) for key in vocabulary.keys])
    lines = tf.range(len(vocabulary.keys), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, lines), default_value=-1)
