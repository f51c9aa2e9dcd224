"""Computes TensorFlow's own answers: runs a SavedModel in a session, fed and fetched as its SignatureDefs say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model.loader_impl import SavedModelLoader, parse_saved_model

from loadtest.foreign.comparing import Refused
from loadtest.foreign.kinds import InputSpec, Tensors

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
    lengths = np.diff(splits)
    columns = np.concatenate([np.arange(n) for n in [0, *lengths]])
    indices = np.stack([np.repeat(np.arange(len(lengths)), lengths), columns], 1).reshape(-1, 2).astype(np.int64)
    return {
        names.indices_tensor_name: indices,
        names.values_tensor_name: values,
        names.dense_shape_tensor_name: np.array([len(lengths), max(1, lengths.max(initial=0))], np.int64),
    }


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
