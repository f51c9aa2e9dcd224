"""Computes TensorFlow's own answers: of a SavedModel's signatures in a session, and of lookups that `adopt` added."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model.loader_impl import SavedModelLoader, parse_saved_model

from loadtest.foreign.comparing import Refused
from loadtest.foreign.kinds import InputSpec, Tensors, places
from loadtest.foreign.models import MANIFEST

_LOST_VARIABLE = "Could not find variable"
_OUTSIDE = "is not in [0, "
PREDICT = "tensorflow/serving/predict"


class Reference:
    """A SavedModel in a session, as TensorFlow Serving loads it; a session checks no shapes before the graph runs.

    If the session lacks a variable, because Keras 3 saved two handles for it, or refuses an id outside a table,
    tf.saved_model.load runs the signature.

    signatures: inputs by name, of every signature that Predict can call. A sparse input has the two names that the
        server gives it: <name>__values and <name>__row_splits.
    """

    def __init__(self, saved_model: Path) -> None:
        self._folder = saved_model
        self._object: Any = None
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        meta_graph = SavedModelLoader(str(saved_model)).load(self._session, ["serve"])
        self._definitions = {
            name: definition
            for name, definition in meta_graph.signature_def.items()
            if definition.method_name == PREDICT and definition.outputs
        }
        self.signatures = {name: _specs(definition.inputs) for name, definition in self._definitions.items()}

    def outputs(self, signature: str) -> list[str]:
        return sorted(self._definitions[signature].outputs)

    def predict(self, signature: str, inputs: Tensors) -> Tensors:
        """Runs a signature and returns its outputs by name; raises Refused if TensorFlow refuses the request."""
        definition = self._definitions[signature]
        feeds: dict[str, Any] = {}
        for name, info in definition.inputs.items():
            if info.WhichOneof("encoding") == "coo_sparse":
                feeds |= _sparse_feeds(info.coo_sparse, inputs[f"{name}__values"], inputs[f"{name}__row_splits"])
            else:
                feeds[info.name] = inputs[name]
        fetches = {name: info.name for name, info in definition.outputs.items()}
        try:
            return {name: np.asarray(value) for name, value in self._session.run(fetches, feeds).items()}
        except tf.errors.OpError as error:
            if _LOST_VARIABLE in str(error.message):
                return self._by_object(signature, inputs)
            if _OUTSIDE in str(error.message) and len(feeds) == len(inputs):
                # A session also runs a gather whose rows nothing uses, and refuses an id outside the table there;
                # tf.saved_model.load leaves it out, as the server does.
                try:
                    return self._by_object(signature, inputs)
                except Refused:
                    pass
            code = type(error).__name__.removesuffix("Error")
            # TensorFlow may write "Graph execution error:" before the reason of the error.
            text = str(error.message).removeprefix("Graph execution error:").strip()
            raise Refused(code, text.partition("\n")[0]) from error
        except ValueError as error:
            # A TensorFlow session raises ValueError if the shape of an array in the request does not fit the
            # placeholder.
            raise Refused("InvalidArgument", str(error)) from error

    def _by_object(self, signature: str, inputs: Tensors) -> Tensors:
        self._object = self._object or tf.saved_model.load(str(self._folder))
        tensors = {name: tf.constant(array) for name, array in inputs.items()}
        try:
            return {name: value.numpy() for name, value in self._object.signatures[signature](**tensors).items()}
        except tf.errors.OpError as error:
            raise Refused(type(error).__name__.removesuffix("Error"), str(error.message)) from error

    def close(self) -> None:
        self._session.close()


def read_specs(saved_model: Path) -> dict[str, dict[str, InputSpec]]:
    """Returns the inputs of every signature of a SavedModel by name, without loading its variables."""
    (meta_graph,) = [
        graph for graph in parse_saved_model(str(saved_model)).meta_graphs if "serve" in graph.meta_info_def.tags
    ]
    return {name: _specs(definition.inputs) for name, definition in meta_graph.signature_def.items()}


def _sparse_feeds(names: Any, values: np.ndarray[Any, Any], splits: np.ndarray[Any, Any]) -> dict[str, Any]:
    indices, dense_shape = (array.astype(np.int64) for array in places(np.diff(splits)))
    found = {names.indices_tensor_name: indices, names.values_tensor_name: values}
    return found | {names.dense_shape_tensor_name: dense_shape}


def _specs(inputs: Mapping[str, Any]) -> dict[str, InputSpec]:
    found = {}
    for name, info in inputs.items():
        dtype = np.dtype(object) if info.dtype == tf.string else np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype)
        if info.WhichOneof("encoding") == "coo_sparse":
            found[f"{name}__values"] = InputSpec(dtype, (-1,))
            found[f"{name}__row_splits"] = InputSpec(np.dtype(np.int64), (-1,))
            continue
        shape = None if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
        found[name] = InputSpec(dtype, shape)
    return found


_PARTS = ("ids", "row_splits", "weights")


@dataclass(frozen=True, slots=True)
class _Feature:
    """A feature of an added lookup.

    signature, wanted: the signature and output of the reference that has the feature's rows.
    names: input of the lookup -> input of the reference's signature.
    is_flat: whether the lookup takes the keys of all rows one after the other, without the shape of the original's.
    row_splits: input of the original with row splits, if the lookup answers empty rows at the end of a request that
        the graph may leave out; otherwise "".
    """

    output: str
    signature: str
    wanted: str
    names: Mapping[str, str]
    is_flat: bool
    row_splits: str = ""


@dataclass(frozen=True, slots=True)
class AddedLookup:
    """An added lookup signature, with a reference of the answers that it should give."""

    name: str
    features: tuple[_Feature, ...]
    reference: Reference

    @property
    def specs(self) -> dict[str, InputSpec]:
        found: dict[str, InputSpec] = {}
        for one in self.features:
            found |= self.reference.signatures[one.signature]
        return found

    def request(self, tensors: Tensors) -> Tensors:
        """Returns a request to the lookup, of a request's inputs to the original model."""
        return {
            own: tensors[given].reshape(-1) if one.is_flat else tensors[given]
            for one in self.features
            for own, given in one.names.items()
        }

    def predict(self, tensors: Tensors) -> Tensors:
        """Returns what the lookup should answer; raises Refused if the original graph refuses one of the inputs."""
        found = {}
        for one in self.features:
            inputs = {given: tensors[given] for given in self.reference.signatures[one.signature]}
            rows = self.reference.predict(one.signature, inputs)[one.wanted]
            if one.row_splits:
                missing = len(tensors[one.row_splits]) - 1 - len(rows)
                rows = np.concatenate([rows, np.zeros((max(0, missing), *rows.shape[1:]), rows.dtype)])
            # A lookup answers float32, whatever the dtype of the table.
            found[one.output] = (rows.reshape(-1, rows.shape[-1]) if one.is_flat else rows).astype(np.float32)
        return found


def added_lookups(adopted: Path, reference: Reference, names: Mapping[str, Any]) -> Iterator[AddedLookup | str]:
    """Yields each lookup that an adopted version has and the original has not; or why it cannot be compared.

    Args:
      reference: a SavedModel with a signature for the rows of each feature.
      names: the original's signatures.
    """
    if not (adopted / MANIFEST).exists():
        return
    manifest = json.loads((adopted / MANIFEST).read_text())
    signatures = manifest["signatures"]
    added = {name: entry["features"] for name, entry in signatures.items() if name not in names}
    specs = read_specs(adopted) if added else {}
    for name, features in added.items():
        try:
            matched = [
                _matched(feature, entry, manifest, names, reference, specs[name]) for feature, entry in features.items()
            ]
        except LookupError as error:
            yield f"{name}: {error}"
        else:
            yield AddedLookup(name, tuple(matched), reference)


def _matched(
    feature: str,
    added: Mapping[str, Any],
    manifest: Mapping[str, Any],
    names: Mapping[str, Any],
    reference: Reference,
    own: Mapping[str, InputSpec],
) -> _Feature:
    """Finds the inputs of the original that an added feature stands for.

    They are those of the predict that the feature was found in or, if no predict has it, inputs of the same names.
    """
    entries = [manifest["signatures"].get(name, {"features": {}})["features"].get(feature) for name in names]
    wanted = "combined" if added.get("combiner") else "bounded" if added.get("max_norm") else "rows"
    for entry in [*filter(None, entries), added]:
        having = [name for name, specs in reference.signatures.items() if entry["ids"] in specs]
        for signature in sorted(having, key=lambda name: wanted not in reference.outputs(name)):
            specs = reference.signatures[signature]
            given, taken = specs[entry["ids"]], own[added["ids"]]
            # The server turns keys into rows, by the manifest's vocabulary; the SavedModel's own lookup takes rows.
            if given.dtype.kind != taken.dtype.kind and manifest["features"][feature].get("vocabulary") is None:
                raise LookupError(f"{feature!r} takes {taken.dtype} keys in place of {given.dtype}")
            pairs = {added[part]: entry[part] for part in _PARTS if added.get(part) and entry.get(part)}
            outputs = reference.outputs(signature)
            is_flat = taken.shape is not None and given.shape is not None and len(taken.shape) < len(given.shape)
            keeps = added.get("combiner") and added.get("trailing_empty_rows", "keep") == "keep"
            row_splits = entry["row_splits"] if keeps and entry.get("row_splits") in specs else ""
            told = wanted if wanted in outputs else outputs[0]
            return _Feature(added.get("output") or feature, signature, told, pairs, is_flat, row_splits)
    raise LookupError(f"no signature of the original has the feature {feature!r}")
