"""Opens TensorFlow sessions in the native core.

The native core calls TensorFlow's C API, for which the Python package of TensorFlow is not imported. Python can use a
session of the core too, so a graph's variables are in memory once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from service.artifact import tensor_proto
from service.artifact.protos import message_class
from service.graph.flat_graph import FlatGraph, called_functions, flatten, node_of
from service.graph.kernel_checks import add_checks
from service.graph.library import find_core
from service.graph.restoring import Saved, Step, add_restore, asset_paths, checkpoint_prefix, init_op, shared_name
from service.graph.synchronous_ops import may_run_on_one_thread
from service.graph.table_reads import NotProven
from service.types import Array, GraphThreads

if TYPE_CHECKING:
    from service import _native


logger = logging.getLogger(__name__)

# Type of a function that runs a part of a graph: takes one array for each fed tensor, and returns the fetched arrays.
GraphCall = Callable[..., list[Array]]
Shape = tuple[int | None, ...]

# Operations that multiply a matrix of weights with each row of a request, and those that pass a variable on to them.
_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D"})
_READS = frozenset({"ReadVariableOp", "Identity", "Cast", "Reshape", "Transpose", "ExpandDims"})
# A graph that is opened only once, and has as many weights, has several threads for an operation.
_MANY_WEIGHTS = 1 << 20

# Ops of vocabularies, and ops that fill one and do nothing else.
_VOCABULARIES = frozenset({"HashTable", "HashTableV2"})
_FILLS = frozenset({"InitializeTableV2", "InitializeTableFromTextFileV2", "LookupTableImportV2"})

# Numbers of google.rpc.Code, which TensorFlow uses too.
INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED = 3, 9, 11, 12


class GraphError(Exception):
    """An error of a TensorFlow session. code: a number of google.rpc.Code. message: in TensorFlow's words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class LongRuns(NamedTuple):
    """The second session of a graph, whose operations use several threads; the core opens it for its first long run.

    config: a ConfigProto, serialized. num_weights: numbers that are multiplied for each row of a request.
    """

    config: bytes
    num_weights: int


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """A serialized graph, and the operations that prepare its session, such as restoring variables.

    graph_def, config: a GraphDef and a ConfigProto, serialized.
    steps: operations to run first, in this order, each with the strings for its scalar inputs by tensor: one restores
      variables from the path of a checkpoint, another fills vocabularies from the paths of assets.
    is_single_threaded: whether a run of the graph waits for no other run: its thread runs all operations, one by one.
    num_threads: most threads of the pools of its session, and of the session for long runs.
    """

    graph_def: bytes = field(repr=False)
    config: bytes
    steps: tuple[Step, ...]
    is_single_threaded: bool
    num_threads: int
    long_runs: LongRuns | None = None


def make_program(
    graph_def: Any,
    steps: Sequence[Step],
    threads: GraphThreads,
    *,
    may_open_twice: bool = False,
    side_by_side: bool = False,
) -> GraphProgram:
    """Returns the program of a graph, which runs on the thread of each request if that is safe.

    Args:
      graph_def: gets nodes that check a request's tensors.
      may_open_twice: a second session may run long requests: the graph keeps no state, and has few variables.
      side_by_side: the pool's threads run operations side by side, even if one thread could run all.
    """
    add_checks(graph_def)
    config = message_class("tensorflow.ConfigProto")()
    # A graph may name the GPU of the machine that saved it.
    config.allow_soft_placement = True
    config.intra_op_parallelism_threads = threads.within_op or threads.all
    config.inter_op_parallelism_threads = threads.side_by_side or config.intra_op_parallelism_threads
    # The other executor hands each run to a thread of the pool, and back. Measured with one row and three gathers: 9.4
    # us a run, 3.5 in the caller's thread; with 128 rows and layers of 160, 256 and 1 columns: 219 us and 173 us.
    is_synchronous = may_run_on_one_thread(graph_def)
    is_single_threaded = is_synchronous and not side_by_side
    if is_single_threaded:
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
        # This executor can not run a graph whose nodes are placed on several devices, and kernels for GPUs may wait.
        config.device_count["GPU"] = 0
    num_threads = config.intra_op_parallelism_threads + config.inter_op_parallelism_threads
    long_runs = None
    weights = _num_weights(graph_def.node, has_calls=not is_synchronous)
    if threads.within_op is None and (may_open_twice or weights < _MANY_WEIGHTS):
        if may_open_twice and weights and threads.all > 1:
            long_runs = LongRuns(config.SerializeToString(), weights)
        config.intra_op_parallelism_threads = 1
    return GraphProgram(
        graph_def.SerializeToString(),
        config.SerializeToString(),
        tuple(steps),
        is_single_threaded,
        num_threads,
        long_runs,
    )


def _num_weights(graph: Iterable[Any], *, has_calls: bool) -> int:
    """Counts the weights of a graph's matrix products: a request multiplies each once for each of its rows.

    has_calls: the functions that the graph calls may have products, so the numbers of all its matrices are counted.
    """
    nodes = {node.name: node for node in graph}
    if has_calls:
        return sum(_num_elements(node) for node in nodes.values())
    products = (node for node in nodes.values() if node.op in _PRODUCTS)
    read = (_read_node(nodes, name) for node in products for name in node.input if not name.startswith("^"))
    return sum(_num_elements(node) for node in read if node is not None)


def _read_node(nodes: Mapping[str, Any], tensor: str) -> Any | None:
    while (node := nodes.get(node_of(tensor))) is not None and node.op in _READS:
        tensor = node.input[0]
    return node


def _num_elements(node: Any) -> int:
    if node.op not in ("VarHandleOp", "VariableV2", "Const"):
        return 0
    shape = node.attr["value"].tensor.tensor_shape if node.op == "Const" else node.attr["shape"].shape
    return math.prod(max(dim.size, 0) for dim in shape.dim) if len(shape.dim) > 1 else 0


class CoreSession:
    """A TensorFlow session in the native core: a graph with its variables, which run without the interpreter lock.
    Concurrency: any thread.

    number: the session's number in the native core. config: the session's ConfigProto, serialized.
    """

    def __init__(self, session: _native.GraphSession, config: bytes) -> None:
        self._session = session
        self.number = session.number
        self.config = config

    def open_for_long_runs(self, long_runs: LongRuns, steps: Sequence[Step]) -> None:
        prepared = [(operation, [*feeds.items()]) for operation, feeds in steps]
        self._session.open_for_long_runs(long_runs.config, prepared, long_runs.num_weights)

    def call(self, feed: Sequence[str], fetch: Sequence[str], target: Sequence[str] = ()) -> GraphCall:
        """Returns a function that computes the fetched tensors from the fed tensors, and runs the target operations.

        Both raise GraphError: for unknown names, and for a run that fails. Strings are object arrays of bytes.
        """
        with _as_graph_errors():
            call = self._session.call(list(feed), list(fetch), list(target))

        def run(*arrays: Array) -> list[Array]:
            with _as_graph_errors():
                found = call.run([_sent(array) for array in arrays])
            return [_array(tensor) for tensor in found]

        return run

    def run(self, fetch: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        # Fed tensors are not fetched from the session, because TensorFlow refuses to fetch a fed tensor.
        computed = [tensor for tensor in fetch if tensor not in feed]
        found = dict(zip(computed, self.call([*feed], computed)(*feed.values()), strict=True)) if computed else {}
        return [found[tensor] if tensor in found else feed[tensor] for tensor in fetch]

    def shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor as far as the graph says it: None in place of a size, or of the whole shape."""
        sizes = self._session.shape(tensor)
        return None if sizes is None else tuple(sizes)

    def close(self) -> None:
        """Closes the native core's session; its variables are freed when the last request that runs in it ends."""
        self._session.close()


def open_session(program: GraphProgram) -> CoreSession | None:
    """Opens a graph in the native core, and runs its steps; None where the core can not load TensorFlow's library.

    Raises GraphError if TensorFlow refuses the graph or a step.
    """
    found = find_core()
    if found is None:
        return None
    try:
        with _as_graph_errors():
            opened = found.core.GraphSession.open(found.library, program.graph_def, program.config, program.num_threads)
    except RuntimeError as error:
        logger.warning("TensorFlow's library can not be loaded", extra={"reason": str(error)})
        return None
    session = CoreSession(opened, program.config)
    try:
        for operation, feeds in program.steps:
            session.call([*feeds], [], [operation])(*(np.array(text, object) for text in feeds.values()))
    except Exception:
        session.close()
        raise
    if program.long_runs is not None:
        session.open_for_long_runs(program.long_runs, program.steps)
    return session


@contextmanager
def _as_graph_errors() -> Iterator[None]:
    from service import _native

    try:
        yield
    except _native.GraphFailure as failure:
        raise GraphError(*failure.args) from failure


def _sent(array: Array) -> tuple[int, tuple[int, ...], object]:
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        strings = [s.encode() if isinstance(s, str) else s for s in array.reshape(-1).tolist()]
        return tensor_proto.STRING, array.shape, strings
    number = tensor_proto.NUMBER_OF_DTYPE.get(array.dtype)
    if number is None:
        raise GraphError(INVALID_ARGUMENT, f"TensorFlow has no tensors of dtype {array.dtype.name}")
    return number, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _array(tensor: _native.GraphTensor) -> Array:
    if tensor.dtype == tensor_proto.STRING:
        # Without the None at the end, which is cut off again, np.array() would make fixed-size strings and not Python
        # objects of a list of bytes.
        return np.array([*tensor.strings(), None], object)[:-1].reshape(tensor.shape)
    dtype = tensor_proto.NUMPY_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise GraphError(UNIMPLEMENTED, f"no answer can hold a tensor of dtype {tensor_proto.dtype_name(tensor.dtype)}")
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    # The array is copied, because a fetched tensor may share memory with a variable that the next run changes.
    made: Array = np.frombuffer(memoryview(tensor), dtype).reshape(tensor.shape).copy()
    return made


class DenseSession(NamedTuple):
    """An open session of a dense graph (without embedding tables).

    nodes: the names of the graph's nodes. is_single_threaded: as in GraphProgram.
    """

    session: CoreSession
    nodes: frozenset[str]
    is_single_threaded: bool


class Fed(NamedTuple):
    """A tensor that runs are fed: its DataType number, and its shape as far as the whole graph says it.

    TensorFlow fuses operations by the shapes that it knows, and fused operations give other last bits: with a fed
    tensor of unknown shape, Keras' LayerNormalization is not fused.
    """

    dtype: int
    shape: Shape | None = None


class Preparation:
    """The functions and the init graph of a MetaGraph, read once for the sessions of all its parts.

    init: the name of the init node; "" if the graph has none.
    """

    def __init__(self, meta_graph: Any) -> None:
        self.functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
        self.init = init_op(meta_graph)
        self._flat = flatten(meta_graph.graph_def, [self.init]) if self.init else None
        # A function that control flow calls may find a vocabulary by its name.
        called = (node for function in self.functions.values() for node in function.node_def)
        self._called = frozenset(shared_name(node) for node in called if node.op in _VOCABULARIES)

    def init_nodes(self, nodes: Mapping[str, Any]) -> Iterator[tuple[FlatGraph, set[str], Callable[[str], bool]]]:
        """Yields arguments of DenseGraph.add() for the init graph, without what fills vocabularies of other nodes."""
        if self._flat is None:
            return
        flat = self._flat
        used = self._called | {shared_name(node) for node in nodes.values() if node.op in _VOCABULARIES}
        unused = set()
        for name, node in flat.nodes.items():
            handle = flat.nodes[node_of(node.input[0])] if node.op in _FILLS else None
            if handle is not None and handle.op in _VOCABULARIES and shared_name(handle) not in used:
                unused.add(name)

        def follow(reference: str) -> bool:
            return node_of(reference) not in unused

        needed = flat.ancestors([self.init, *(f"^{call}" for call in flat.calls)], follow=follow)
        if any(flat.nodes[name].op != "NoOp" for name in needed):
            yield flat, needed, follow


class DenseGraph:
    """The builder of a dense graph: collects the nodes of signatures in a GraphDef without embedding tables.

    Concurrency: one caller at a time.
    """

    def __init__(self, meta_graph: Any, tables: Mapping[str, str], preparation: Preparation | None = None) -> None:
        self._meta_graph = meta_graph
        self._tables = tables
        self._preparation = preparation or Preparation(meta_graph)
        self._nodes: dict[str, Any] = {}

    def add(
        self,
        flat: FlatGraph,
        needed: set[str],
        placeholders: Mapping[str, Fed],
        follow: Callable[[str], bool] = bool,
    ) -> None:
        """Adds to the dense graph the nodes that one signature needs.

        Args:
          placeholders: nodes that become placeholders -> the fed tensor.
        """
        for name in needed - self._nodes.keys():
            node = type(flat.nodes[name])(name=name, op="Placeholder")
            if name in placeholders:
                dtype, sizes = placeholders[name]
                node.attr["dtype"].type = dtype
                node.attr["shape"].shape.unknown_rank = sizes is None
                for size in sizes or ():
                    node.attr["shape"].shape.dim.add(size=-1 if size is None else size)
            else:
                node.CopyFrom(flat.nodes[name])
                inputs = [i for i in node.input if not i.startswith("^") or (follow(i) and node_of(i) in needed)]
                del node.input[:]
                node.input.extend(inputs)
                # A node's attribute "_class" is removed: it may name a node that is left out, and only matters if a
                # graph is placed on several machines.
                node.attr.pop("_class", None)
                # A read of an attribute that a saved graph leaves out, because it has its default, adds it without a
                # value, which TensorFlow refuses.
                for key in [key for key, value in node.attr.items() if value.WhichOneof("value") is None]:
                    del node.attr[key]
            self._nodes[name] = node

    def open(
        self, artifact: Path, saved: Mapping[str, Saved], threads: GraphThreads, *, may_open_twice: bool = False
    ) -> DenseSession:
        """Opens a TensorFlow session over the nodes that add() has collected, and restores their variables.

        Raises NotProven if one of the nodes reads an embedding table, or the core can not load TensorFlow's library.
        """
        program = self._program(artifact, saved, threads, may_open_twice=may_open_twice)
        return DenseSession(_opened(program), frozenset(self._nodes), program.is_single_threaded)

    def open_outline(self) -> CoreSession:
        """Opens a session that says the shapes of tensors; its variables are not restored, so nothing can be run.

        Raises NotProven if the core can not load TensorFlow's library.
        """
        return _opened(make_program(self._graph_def(), (), GraphThreads(1)))

    def open_in_python(self, artifact: Path, saved: Mapping[str, Saved]) -> Any:
        """Opens the dense graph as a tf.compat.v1.Session with one thread, whose graph can still be extended."""
        import tensorflow as tf

        program, v1, graph = self._program(artifact, saved, GraphThreads(1)), tf.compat.v1, tf.Graph()
        with graph.as_default():
            tf.import_graph_def(v1.GraphDef.FromString(program.graph_def), name="")
        config = v1.ConfigProto.FromString(program.config)
        # The single-threaded executor would run the graph on this thread, which does not flush denormal numbers to
        # zero, as TensorFlow's own threads and the native core do.
        config.experimental.executor_type = ""
        session = v1.Session(graph=graph, config=config)
        for operation, feeds in program.steps:
            session.run(graph.get_operation_by_name(operation), dict(feeds))
        return session

    def _program(
        self, artifact: Path, saved: Mapping[str, Saved], threads: GraphThreads, *, may_open_twice: bool = False
    ) -> GraphProgram:
        init = self._add_init()
        graph_def = self._graph_def()
        if read := sorted(self._nodes.keys() & self._tables.keys()):
            raise NotProven(f"what is left still reads table {self._tables[read[0]]!r}")
        variables = self._nodes.keys() & saved.keys()
        restored = add_restore(graph_def, saved, variables, checkpoint_prefix(artifact))
        steps: list[Step] = [(restored, {})]
        if init:
            assets = asset_paths(self._meta_graph, artifact)
            steps.append((init, {tensor: path for tensor, path in assets.items() if node_of(tensor) in self._nodes}))
        return make_program(graph_def, steps, threads, may_open_twice=may_open_twice)

    def _graph_def(self) -> Any:
        graph_def = type(self._meta_graph.graph_def)()
        graph_def.versions.CopyFrom(self._meta_graph.graph_def.versions)
        graph_def.node.extend(self._nodes.values())
        graph_def.library.CopyFrom(self._library())
        return graph_def

    def _add_init(self) -> str:
        name = ""
        for flat, needed, follow in self._preparation.init_nodes(self._nodes):
            name = self._preparation.init
            self.add(flat, needed, {}, follow)
        return name

    def _library(self) -> Any:
        functions = self._preparation.functions
        library = type(self._meta_graph.graph_def.library)()
        found: set[str] = set()
        todo = list(self._nodes.values())
        for node in todo:
            for name in called_functions(node):
                if name not in found and name in functions:
                    found.add(name)
                    library.function.add().CopyFrom(functions[name])
                    todo.extend(functions[name].node_def)
        return library


def _opened(program: GraphProgram) -> CoreSession:
    if (session := open_session(program)) is None:
        raise NotProven("the native core can not load TensorFlow's library")
    return session
