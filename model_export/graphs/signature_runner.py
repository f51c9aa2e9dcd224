"""Runs the signatures of a SavedModel as TensorFlow Serving does: in one session, fed and fetched by tensor name.

A session, not tf.saved_model.load: it can run exports of TensorFlow 1 and 2, signatures that only the SignatureDef map
has, and a {serve,tpu} MetaGraph after it is lowered for a CPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from service.artifact.protos import message_class
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError, ServiceError
from service.reference.graphs import Graph, first_line
from service.types import INIT_SIGNATURE, Array, GraphThreads, SignatureSpec

SERVE = ("serve",)
SERVE_TPU = ("serve", "tpu")


class GraphRefusedError(Exception):
    """Raised if a TensorFlow graph refuses a request; the message is the first line of TensorFlow's error."""


class GraphFailedError(Exception):
    """Raised if a TensorFlow graph fails for another reason than the request; the message names the error's type."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """One input of a signature. dtype: numpy's name or "string"; shape: None if unknown; default: None if not given."""

    dtype: str
    shape: tuple[int | None, ...] | None
    default: Array | None = None


class SignatureRunner:
    """Runner of the signatures of one loaded MetaGraph. Concurrency: one caller at a time."""

    def __init__(self, graph: Graph, signatures: Mapping[str, SignatureSpec]) -> None:
        self._graph, self.signatures = graph, signatures

    @property
    def names(self) -> list[str]:
        return sorted(self.signatures)

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Runs a signature and returns the given outputs; None: all.

        Args:
          inputs: arrays by name; a sparse input is given as two, its values and row splits, as the server takes it. For
            some outputs, those that the graph needs for them.

        Raises:
          GraphRefusedError: the graph refuses the request. GraphFailedError: it fails otherwise.
          ValueError: an input is unknown or missing.
        """
        spec = self.signatures[signature]
        given = {**spec.defaults, **inputs} if outputs is None else inputs
        if set(given) != set(spec.inputs) and (outputs is None or not set(given) < set(spec.inputs)):
            raise ValueError(f"signature {signature!r} takes {sorted(spec.inputs)}, got {sorted(given)}")
        arrays = {name: np.asarray(array, spec.inputs[name].numpy_dtype) for name, array in given.items()}
        try:
            return self._graph.run(spec, arrays, tuple(spec.outputs if outputs is None else outputs))
        except ServiceError as error:
            cause = error.__cause__
            if isinstance(cause, (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)):
                raise GraphRefusedError(first_line(cause.message)) from error
            if isinstance(cause, tf.errors.OpError):
                raise GraphFailedError(f"{type(cause).__name__}: {first_line(cause.message)}") from error
            raise GraphFailedError(error.message) from error


def constant_arrays(artifact: Path, most_elements: int) -> Iterator[Array]:
    """Yields the values of the small constants in an artifact's {serve} graph and in all its functions.

    The patterns of regular expressions, which are attributes of their nodes, are among them, as arrays of strings.
    """
    graph = serving_graph(read_saved_model(artifact), artifact).graph_def
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if node.op == "Const":
                tensor = node.attr["value"].tensor
                if math.prod(dim.size for dim in tensor.tensor_shape.dim) <= most_elements:
                    yield tf.make_ndarray(tensor)
            elif "pattern" in node.attr:
                yield np.array([node.attr["pattern"].s, node.attr["rewrite"].s, None], object)[:-1]


def meta_graph_tags(artifact: Path) -> list[tuple[str, ...]]:
    return [tuple(sorted(graph.meta_info_def.tags)) for graph in read_saved_model(artifact).meta_graphs]


def read_saved_model(artifact: Path) -> Any:
    """Parses saved_model.pb to a SavedModel message of our private descriptor pool; raises ExportError."""
    message = message_class("tensorflow.SavedModel")()
    try:
        message.ParseFromString((artifact / "saved_model.pb").read_bytes())
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read {artifact / 'saved_model.pb'}: {error}") from error
    return message


def read_signature_inputs(artifact: Path) -> dict[str, dict[str, InputInfo]]:
    """Reads the inputs of each signature of the {serve} MetaGraph without loading the graph; raises ExportError."""
    return {
        name: {key: _input_info(info, definition.defaults.get(key)) for key, info in definition.inputs.items()}
        for name, definition in serving_graph(read_saved_model(artifact), artifact).signature_def.items()
        if name != INIT_SIGNATURE
    }


def serving_graph(saved_model: Any, artifact: Path) -> Any:
    """Returns the {serve} MetaGraph of a SavedModel message that was read from an artifact; raises ExportError."""
    for graph in saved_model.meta_graphs:
        if set(graph.meta_info_def.tags) == set(SERVE):
            return graph
    raise ExportError(f"{artifact} has no MetaGraph tagged serve")


@contextmanager
def open_signatures(artifact: Path, tags: Sequence[str] = SERVE) -> Iterator[SignatureRunner]:
    """Loads the MetaGraph with the given tags; one tagged "tpu" is first rewritten so that a CPU can run it.

    Raises:
      ExportError: TensorFlow can not load the MetaGraph; the message holds TensorFlow's error.
    """
    graph = Graph(artifact, frozenset(tags), GraphThreads(0))
    try:
        signatures = read_signatures(artifact / "saved_model.pb", frozenset(tags))
        graph.open()
    except ArtifactError as error:
        raise ExportError(error.message) from error
    try:
        yield SignatureRunner(graph, {name: spec for name, spec in signatures.items() if name != INIT_SIGNATURE})
    finally:
        graph.close()


def _input_info(info: Any, default: Any) -> InputInfo:
    shape = info.tensor_shape
    sizes = None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    # A sparse or composite input consists of several tensors, so it can not be fed by one name; its dtype is "".
    dtype = tf.as_dtype(info.dtype).name if info.name else ""
    return InputInfo(dtype, sizes, None if default is None else tf.make_ndarray(default))


@contextmanager
def without_warnings(of: str) -> Iterator[None]:
    logger = logging.getLogger(of)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
