"""Finds the inputs of a Keras model, leaf by leaf, and the feature of its TPUEmbedding layers that each leaf feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from model_export.errors import ExportError
from model_export.layers import introspection
from model_export.layers.to_spec import IdsKind, flatten_with_paths
from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """One tensor of the model's inputs.

    path: keys and positions from the root, joined with /.
    ids_of, weights_of: path of the feature that it feeds; both None for any other number.
    lookup: the Keras lookup layer between it and the TPUEmbedding layer, which makes keys of its ids.
    """

    path: str
    type_spec: Any
    ids_of: str | None = None
    weights_of: str | None = None
    lookup: Any = None

    @property
    def kind(self) -> IdsKind:
        """How it travels."""
        if isinstance(self.type_spec, tf.RaggedTensorSpec):
            return "ragged"
        return "sparse" if isinstance(self.type_spec, tf.SparseTensorSpec) else "dense"


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The leaves in tf.nest's order, and the nest they stand in."""

    structure: Any
    leaves: tuple[InputLeaf, ...]

    def pack(self, tensors: Sequence[Any]) -> Any:
        """Packs tensors into the structure that the model is called with."""
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
    """Returns how a model is called.

    A functional model says so itself; its graph tells which input feeds which feature. A subclass model says what it
    was last called with; an input feeds the feature of the same path, or of the path that its own ends with.

    Args:
      inputs: a batch, or the TypeSpecs of one, where the model has not been called yet.
      feature_inputs, weight_inputs: path of a feature -> path of the input with its ids or its weights, where that is
        not found.

    Raises:
      ExportError: the model does not say what it takes, or a path does not exist.
    """
    structure = _structure(model, inputs)
    leaves = [InputLeaf(path, spec) for path, spec in flatten_with_paths(structure)]
    paths = [path for layer in introspection.embedding_layers(model) for path, _ in _features(layer)]
    feeds = _traced(model) if is_functional(model) else _matched([leaf.path for leaf in leaves], paths)
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
    """Says whether a model was put together of symbolic tensors, and so knows its inputs and outputs by name."""
    # A Sequential model becomes one of these when it knows its input.
    return isinstance(model, tf.keras.Model) and bool(getattr(model, "_is_graph_network", False))


def _structure(model: Any, inputs: Any) -> Any:
    if inputs is not None:
        return tf.nest.map_structure(_dynamic_batch, inputs)
    if is_functional(model):
        return tf.nest.map_structure(lambda tensor: _dynamic_batch(tensor.type_spec), model.input)
    spec = model.save_spec() if hasattr(model, "save_spec") else None
    if spec is None:
        raise ExportError(f"{model.name!r} has not been called yet: give inputs=, a batch of what it takes")
    (arguments, _) = spec
    return tf.nest.map_structure(_dynamic_batch, arguments[0])


def _dynamic_batch(value: Any) -> Any:
    spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
    shape = tf.TensorShape([None, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _features(layer: Any) -> list[tuple[str, Any]]:
    return flatten_with_paths(introspection.feature_config(layer))


def _matched(sources: Sequence[str], paths: Sequence[str]) -> _Feeds:
    feeds = _Feeds()
    for path in paths:
        ending = [source for source in sources if f"/{source}".endswith(f"/{path}")]
        chosen = [source for source in ending if source == path] or ending
        if len(chosen) == 1 and chosen[0] not in feeds.ids:
            feeds.ids[chosen[0]] = (path, None)
    return feeds


def _traced(model: Any) -> _Feeds:
    feeds = _Feeds()
    by_tensor = {id(tensor): path for path, tensor in flatten_with_paths(model.input)}
    for layer in introspection.embedding_layers(model):
        for node in _calls_within(model, layer):
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


def _calls_within(model: Any, layer: Any) -> Iterator[Any]:
    # A layer may be shared with other models, whose inputs are not ours.
    ours = {id(node) for nodes in model._nodes_by_depth.values() for node in nodes}
    return (node for node in layer.inbound_nodes if id(node) in ours)


def _source(tensor: Any) -> tuple[Any, Any]:
    lookups = (tf.keras.layers.StringLookup, tf.keras.layers.IntegerLookup)
    layer, node_index, _ = tensor._keras_history
    if isinstance(layer, lookups):
        (before,) = layer.inbound_nodes[node_index].keras_inputs
        return before, layer
    return tensor, None
