"""Finds the input tensors of a Keras model, and for each the feature of a TPUEmbedding layer that it feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from model_export.errors import ExportError
from model_export.layers import introspection
from model_export.layers.to_spec import IdsKind, flatten_with_paths
from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """One tensor in the nest of a Keras model's inputs.

    path: keys and positions in the nest from its root, joined with /.
    ids_of, weights_of: path of the feature whose ids or weights the tensor holds; both None for other inputs.
    lookup: the Keras lookup layer that maps the tensor's keys to ids for the TPUEmbedding layer; None if there is none.
    """

    path: str
    type_spec: Any
    ids_of: str | None = None
    weights_of: str | None = None
    lookup: Any = None

    @property
    def kind(self) -> IdsKind:
        if isinstance(self.type_spec, tf.RaggedTensorSpec):
            return "ragged"
        return "sparse" if isinstance(self.type_spec, tf.SparseTensorSpec) else "dense"


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The input tensors of a Keras model in tf.nest's order, and the nest whose leaves they are."""

    structure: Any
    leaves: tuple[InputLeaf, ...]

    def pack(self, tensors: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(self.structure, list(tensors))


@dataclass(frozen=True, slots=True)
class _Feeds:
    ids: dict[str, tuple[str, Any]] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)


def model_inputs(
    model: Any,
    *,
    inputs: Any = None,
    feature_inputs: Mapping[str, str] | None = None,
    weight_inputs: Mapping[str, str] | None = None,
) -> ModelInputs:
    """Returns the input tensors of a Keras model, each with the feature whose ids or weights it holds.

    The graph of a functional model shows which input feeds which feature. A subclass model knows the inputs of its last
    call; an input feeds the feature whose path equals, or ends, the input's path.

    Args:
      inputs: a batch, or the TypeSpecs of one, for a model that was not called yet.
      feature_inputs, weight_inputs: path of a feature -> path of the input that holds its ids or its weights, for
        inputs that are not found.

    Raises:
      ExportError: the model's inputs are unknown, or a path does not exist.
    """
    structure = _structure(model, inputs)
    leaves = [InputLeaf(path, spec) for path, spec in flatten_with_paths(structure)]
    paths = [path for layer in introspection.embedding_layers(model) for path, _ in _features(layer)]
    if is_functional(model):
        feeds = _traced(model)
    else:
        found_ids = matched_inputs([leaf.path for leaf in leaves], paths)
        feeds = _Feeds({source: (path, None) for source, path in found_ids.items()})
    for argument, given in (("feature_inputs", feature_inputs), ("weight_inputs", weight_inputs)):
        for path, source in (given or {}).items():
            if path not in paths or source not in {leaf.path for leaf in leaves}:
                raise ExportError(
                    f"{argument} names feature {path!r} and input {source!r}; features are {paths}, inputs are "
                    f"{[leaf.path for leaf in leaves]}"
                )
            if argument == "weight_inputs":
                feeds.weights[source] = path
            else:
                feeds.ids[source] = (path, None)
    found = []
    for leaf in leaves:
        ids_of, lookup = feeds.ids.get(leaf.path, (None, None))
        found.append(replace(leaf, ids_of=ids_of, lookup=lookup, weights_of=feeds.weights.get(leaf.path)))
    return ModelInputs(structure, tuple(found))


def is_functional(model: Any) -> bool:
    # Keras makes a Sequential model functional as soon as the model's input is known.
    return isinstance(model, tf.keras.Model) and bool(getattr(model, "_is_graph_network", False))


def _structure(model: Any, inputs: Any) -> Any:
    if inputs is not None:
        return tf.nest.map_structure(dynamic_batch, inputs)
    if is_functional(model):
        return tf.nest.map_structure(lambda tensor: dynamic_batch(tensor.type_spec), model.input)
    spec = model.save_spec() if hasattr(model, "save_spec") else None
    if spec is None:
        raise ExportError(f"{model.name!r} has not been called yet: give inputs=, a batch of what it takes")
    (arguments, _) = spec
    return tf.nest.map_structure(dynamic_batch, arguments[0])


def dynamic_batch(value: Any) -> Any:
    spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
    shape = tf.TensorShape([None, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _features(layer: Any) -> list[tuple[str, Any]]:
    return flatten_with_paths(introspection.feature_config(layer))


def matched_inputs(sources: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Returns path of an input -> path of the feature that it feeds: the feature's path equals or ends the input's."""
    feeds: dict[str, str] = {}
    for path in paths:
        ending = [source for source in sources if f"/{source}".endswith(f"/{path}")]
        chosen = [source for source in ending if source == path] or ending
        if len(chosen) == 1 and chosen[0] not in feeds:
            feeds[chosen[0]] = path
    return feeds


def _traced(model: Any) -> _Feeds:
    feeds = _Feeds()
    by_tensor = {id(tensor): path for path, tensor in flatten_with_paths(model.input)}
    ours = {id(node) for nodes in model._nodes_by_depth.values() for node in nodes}
    for layer in introspection.embedding_layers(model):
        # Other models may call the same layer; their calls are left out.
        for node in (node for node in layer.inbound_nodes if id(node) in ours):
            features = node.call_args[0] if node.call_args else node.call_kwargs["features"]
            weights = node.call_args[1] if len(node.call_args) > 1 else node.call_kwargs.get("weights")
            for path, tensor in flatten_with_paths(features):
                source, lookup = _source(tensor)
                if id(source) in by_tensor:
                    feeds.ids.setdefault(by_tensor[id(source)], (path, lookup))
            for path, tensor in flatten_with_paths(weights):
                if id(tensor) in by_tensor:
                    feeds.weights[by_tensor[id(tensor)]] = path
    return feeds


def _source(tensor: Any) -> tuple[Any, Any]:
    lookups = (tf.keras.layers.StringLookup, tf.keras.layers.IntegerLookup)
    layer, node_index, _ = tensor._keras_history
    if isinstance(layer, lookups):
        (before,) = layer.inbound_nodes[node_index].keras_inputs
        return before, layer
    return tensor, None
