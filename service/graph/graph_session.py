"""Opens TensorFlow sessions, in the native core if it is built, else in Python.

Python can use a session of the core too, so a graph's variables are in memory once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from service.types import Array

if TYPE_CHECKING:
    from service import _native

logger = logging.getLogger(__name__)

# Type of a function that runs a part of a graph: takes one array for each fed tensor, and returns the fetched arrays.
GraphCall = Callable[..., list[Array]]


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """A serialized graph, and the operations that prepare its session, such as restoring variables.

    graph_def, config: a GraphDef and a ConfigProto, serialized.
    steps: operations to run first, in this order, each with the strings for its scalar inputs by tensor: one restores
      variables from the path of a checkpoint, another fills vocabularies from the paths of assets.
    """

    graph_def: bytes = field(repr=False)
    config: bytes
    steps: tuple[tuple[str, Mapping[str, bytes]], ...]


class GraphSession(Protocol):
    """A TensorFlow session: a graph with its variables. Concurrency: any thread.

    number: the session's number in the native core; None: the session is not in the core.
    config: the session's ConfigProto, serialized.
    """

    number: int | None
    config: bytes

    def call(self, feed: Sequence[str], fetch: Sequence[str], target: Sequence[str] = ()) -> GraphCall:
        """Returns a function that computes the fetched tensors from the fed tensors, and runs the target operations.

        The function raises tf.errors.OpError; strings are object arrays of bytes.
        """
        ...

    def run(self, fetch: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Computes the fetched tensors once from the fed tensors; a tensor may be both fed and fetched."""
        ...

    def close(self) -> None:
        """Closes the TensorFlow session, which frees the variables of its graph."""
        ...


class PythonSession:
    """A GraphSession in Python: a tf.compat.v1.Session. Concurrency: any thread."""

    number: int | None = None

    def __init__(self, session: Any, config: bytes) -> None:
        self._session = session
        self.config = config

    def call(self, feed: Sequence[str], fetch: Sequence[str], target: Sequence[str] = ()) -> GraphCall:
        """Returns a function that runs a part of the graph, made by the session's _make_callable_from_options.

        Session.run would compare shapes with the placeholders', which TensorFlow Serving does not, and takes longer
        (271 us a call against 48 us, y = 0.5 x + 2 on eight numbers).
        """
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        options = CallableOptions(feed=feed, fetch=fetch, target=target)
        made: GraphCall = self._session._make_callable_from_options(options)
        return made

    def run(self, fetch: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Computes the fetched tensors once by tf.compat.v1.Session.run."""
        found: list[Array] = self._session.run(list(fetch), dict(feed))
        return found

    def close(self) -> None:
        """Closes the tf.compat.v1.Session, which frees its variables."""
        self._session.close()


class CoreSession:
    """A GraphSession in the native core, which runs graphs without the interpreter lock. Concurrency: any thread."""

    def __init__(self, session: _native.GraphSession, config: bytes) -> None:
        self._session = session
        self.number: int | None = session.number
        self.config = config

    def call(self, feed: Sequence[str], fetch: Sequence[str], target: Sequence[str] = ()) -> GraphCall:
        """Returns a function that runs a part of the graph in the native core.

        Raises tf.errors.OpError for unknown names.
        """
        from service import _native

        try:
            call = self._session.call(list(feed), list(fetch), list(target))
        except _native.GraphFailure as failure:
            raise _op_error(*failure.args) from failure

        def run(*arrays: Array) -> list[Array]:
            try:
                found = call.run([_sent(array) for array in arrays])
            except _native.GraphFailure as failure:
                raise _op_error(*failure.args) from failure
            return [_array(tensor) for tensor in found]

        return run

    def run(self, fetch: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Computes the fetched tensors once in the native core; a tensor that is also fed is returned unchanged."""
        # Fed tensors are not fetched from the session, because TensorFlow refuses to fetch a fed tensor.
        computed = [tensor for tensor in fetch if tensor not in feed]
        found = dict(zip(computed, self.call([*feed], computed)(*feed.values()), strict=True)) if computed else {}
        return [found[tensor] if tensor in found else feed[tensor] for tensor in fetch]

    def close(self) -> None:
        """Closes the native core's session; its variables are freed when the last request that runs in it ends."""
        self._session.close()


def open_core_session(program: GraphProgram) -> CoreSession | None:
    """Opens a graph in the native core; returns None if there is no core, or if the core can not open the graph."""
    import tensorflow as tf

    try:
        from service import _native
    except ImportError:
        return None
    libraries = sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.*"))
    if not libraries:
        return None
    steps = [(operation, [*feeds.items()]) for operation, feeds in program.steps]
    try:
        session = _native.GraphSession.open(str(libraries[0]), program.graph_def, program.config, steps)
    except (_native.GraphFailure, RuntimeError) as error:
        logger.info("the core can not open the graph", extra={"reason": str(error)})
        return None
    return CoreSession(session, program.config)


def open_session(program: GraphProgram, graph: Any) -> GraphSession:
    """Opens a graph in the native core, or in Python if that fails; raises TensorFlow's errors.

    Args:
      graph: the tf.Graph of the program.
    """
    core = open_core_session(program)
    return core if core is not None else PythonSession(open_python_session(program, graph), program.config)


def open_python_session(program: GraphProgram, graph: Any) -> Any:
    """Opens a graph as a tf.compat.v1.Session; raises TensorFlow's errors. graph: the tf.Graph of the program."""
    import tensorflow as tf

    v1 = tf.compat.v1
    config = v1.ConfigProto.FromString(program.config)
    # The single-threaded executor would run the graph on this thread, which does not flush denormal numbers to zero, as
    # TensorFlow's own threads and the native core do.
    config.experimental.executor_type = ""
    session = v1.Session(graph=graph, config=config)
    try:
        for operation, feeds in program.steps:
            session.run(graph.get_operation_by_name(operation), dict(feeds))
    except Exception:
        session.close()
        raise
    return session


def _op_error(code: int, message: str) -> Exception:
    import tensorflow as tf

    try:
        kind = tf.compat.v1.errors.exception_type_from_error_code(code)
    except KeyError:
        kind = tf.errors.UnknownError
    made: Exception = kind(None, None, message)
    return made


def _sent(array: Array) -> tuple[int, tuple[int, ...], object]:
    """Converts an array to the form that the native core takes: DataType number, shape, and bytes or strings."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        strings = [s.encode() if isinstance(s, str) else s for s in array.reshape(-1).tolist()]
        return _number(object), array.shape, strings
    return _number(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _number(dtype: Any) -> int:
    if dtype not in _numbers:
        import tensorflow as tf

        _numbers[dtype] = tf.as_dtype(dtype).as_datatype_enum
    return _numbers[dtype]


def _array(tensor: _native.GraphTensor) -> Array:
    if tensor.dtype not in _dtypes:
        import tensorflow as tf

        _dtypes[tensor.dtype] = np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype)
    dtype = _dtypes[tensor.dtype]
    if dtype.kind == "O":
        # Without the None at the end, which is cut off again, np.array() would make fixed-size strings and not Python
        # objects of a list of bytes.
        return np.array([*tensor.strings(), None], object)[:-1].reshape(tensor.shape)
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    # The array is copied, because a fetched tensor may share memory with a variable that the next run changes.
    made: Array = np.frombuffer(memoryview(tensor), dtype).reshape(tensor.shape).copy()
    return made


# Caches of numpy dtype -> DataType number and of DataType number -> numpy dtype; TensorFlow's own conversion takes 2
# us.
_numbers: dict[Any, int] = {}
_dtypes: dict[int, np.dtype[Any]] = {}
