"""Runs the signatures of a SavedModel as TensorFlow Serving does: in one session, fed and fetched by tensor name.

A session, not tf.saved_model.load: it can run exports of TensorFlow 1 and 2, signatures that only the SignatureDef map
has, and a {serve,tpu} MetaGraph after it is lowered for a CPU.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from service.artifact.protos import message_class
from service.artifact.tpu_lowering import lower
from service.graph.restoring import add_needed_restore, signature_tensors
from service.graph.sparse import to_coo
from service.types import INIT_SIGNATURE, ROW_SPLITS_SUFFIX, VALUES_SUFFIX, Array

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

    def __init__(self, session: Any, signature_defs: Mapping[str, Any]) -> None:
        self._session = session
        self._definitions = dict(signature_defs)

    @property
    def names(self) -> list[str]:
        return sorted(self._definitions)

    def inputs(self, signature: str) -> dict[str, InputInfo]:
        """Returns the inputs of a signature by name; an input that is not one tensor has the dtype ""."""
        definition = self._definitions[signature]
        return {key: _input_info(info, definition.defaults.get(key)) for key, info in definition.inputs.items()}

    def output_ranks(self, signature: str) -> dict[str, int | None]:
        infos = self._definitions[signature].outputs
        return {
            key: None if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim) for key, info in infos.items()
        }

    def run(self, signature: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs a signature and returns all outputs.

        Args:
          inputs: arrays by name; a sparse input is given as two, its values and row splits, as the server takes it.

        Raises:
          GraphRefusedError: the graph refuses the request. GraphFailedError: it fails otherwise.
          ValueError: an input is unknown or missing, or its shape does not fit the graph's placeholder.
        """
        definition = self._definitions[signature]
        defaults = {name: tf.make_ndarray(value) for name, value in definition.defaults.items()}
        given = {**defaults, **inputs}
        sparse = {key: info.coo_sparse for key, info in definition.inputs.items() if _is_sparse(info)}
        parts = {key: (key + VALUES_SUFFIX, key + ROW_SPLITS_SUFFIX) for key in sparse}
        takes = {name for key in definition.inputs for name in parts.get(key, (key,))}
        if set(given) != takes:
            raise ValueError(f"signature {signature!r} takes {sorted(takes)}, got {sorted(given)}")
        feeds = {definition.inputs[key].name: given[key] for key in definition.inputs if key not in sparse}
        for key, names in sparse.items():
            tensors = (names.values_tensor_name, names.indices_tensor_name, names.dense_shape_tensor_name)
            feeds |= dict(zip(tensors, to_coo(*(given[part] for part in parts[key])), strict=True))
        fetches = {key: info.name for key, info in definition.outputs.items()}
        try:
            answer: dict[str, Array] = self._session.run(fetches, feeds)
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise GraphRefusedError(_first_line(error)) from error
        except tf.errors.OpError as error:
            raise GraphFailedError(f"{type(error).__name__}: {_first_line(error)}") from error
        return answer


def _is_sparse(info: Any) -> bool:
    return bool(info.WhichOneof("encoding") == "coo_sparse")


def _first_line(error: Any) -> str:
    message = str(error.message).strip().removeprefix("Graph execution error:").strip()
    return message.partition("\n")[0]


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
    with tempfile.TemporaryDirectory() as temporary:
        folder, wanted = artifact, tuple(tags)
        if "tpu" in tags:
            folder, wanted = _lowered(artifact, wanted, Path(temporary)), SERVE
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            try:
                # TensorFlow 1's loader warns that it is deprecated; no other loader feeds inputs by name.
                with without_warnings("tensorflow"):
                    meta_graph = _load(session, folder, wanted)
            except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
                raise ExportError(f"TensorFlow can not load {artifact}: {error}") from error
            definitions = {name: d for name, d in meta_graph.signature_def.items() if name != INIT_SIGNATURE}
            yield SignatureRunner(session, definitions)


def _load(session: Any, folder: Path, tags: Sequence[str]) -> Any:
    """Loads a MetaGraph into a session as tf.compat.v1.saved_model.load does, but for variables that nothing reads."""
    from tensorflow.python.saved_model.loader_impl import SavedModelLoader, get_init_op

    loader = SavedModelLoader(str(folder))
    meta_graph = loader.get_meta_graph_def_from_tags(tags)
    saver, _ = loader.load_graph(session.graph, list(tags))
    init = get_init_op(meta_graph)
    roots = [*signature_tensors(meta_graph), *([] if init is None else [init.name])]
    path = str(folder / "variables" / "variables")
    needed = None if saver is None else add_needed_restore(session.graph, meta_graph, roots, path)
    if needed is None:
        loader.restore_variables(session, saver)
    else:
        session.run(session.graph.get_operation_by_name(needed))
    loader.run_init_ops(session, list(tags))
    return meta_graph


def _lowered(artifact: Path, tags: tuple[str, ...], folder: Path) -> Path:
    # The new SavedModel's folder links to the artifact's variables and assets, because only the graph is rewritten.
    saved_model = read_saved_model(artifact)
    graphs = [graph for graph in saved_model.meta_graphs if set(graph.meta_info_def.tags) == set(tags)]
    if not graphs:
        raise ExportError(f"{artifact} has no MetaGraph tagged {', '.join(tags)}")
    lower(graphs[0])
    alone = message_class("tensorflow.SavedModel")(saved_model_schema_version=saved_model.saved_model_schema_version)
    alone.meta_graphs.add().CopyFrom(graphs[0])
    (folder / "saved_model.pb").write_bytes(alone.SerializeToString())
    for name in ("variables", "assets"):
        if (artifact / name).is_dir():
            (folder / name).symlink_to((artifact / name).absolute())
    return folder


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
