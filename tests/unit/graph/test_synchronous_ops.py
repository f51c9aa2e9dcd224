"""Graphs that may run on one thread do, with the same bits, and all others wait for no thread for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.graph import synchronous_ops
from service.graph.graph_session import GraphError, make_program
from service.graph.library import op_definition
from service.graph.restoring import prepared
from service.graph.savedmodel import SavedModelBackend, open_savedmodel
from service.types import Array, GraphThreads

pytestmark = [pytest.mark.tf, pytest.mark.core]

SERVE = frozenset({"serve"})
# Only a run that never ends takes so long.
_PATIENCE_S = 240
_ALL_OPS = synchronous_ops._STATELESS_OPS | synchronous_ops._PREPARING_OPS
Functions = Mapping[str, Callable[[Any], Any]]


def _functions(tf: Any, module: Any) -> tuple[Functions, Functions]:
    """Returns functions of a float matrix [N, 2]: some that one thread may run, and some with kernels that wait."""
    module.kernel = tf.Variable([[2.0, -1.0], [0.5, 3.0]])
    module.words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["1", "2"], tf.constant([10, 20], tf.int64)), -1
    )

    @tf.function(autograph=False)
    def inner(x: Any) -> Any:
        return tf.nn.sigmoid(x @ module.kernel)

    @tf.function(autograph=False, jit_compile=True)
    def compiled(x: Any) -> Any:
        return tf.nn.sigmoid(x @ module.kernel)

    def checked(x: Any) -> Any:
        tf.raw_ops.Assert(condition=tf.reduce_all(x < 1000.0), data=["not below 1000"])
        return x * 2.0

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def apart(x: Any) -> Any:
        return tf.nn.sigmoid(x @ module.kernel)

    def nested(x: Any, depth: int = 2) -> Any:
        """Calls functions that TensorFlow does not inline, each in a condition of another one."""
        if not depth:
            return apart(x)

        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def within(x: Any) -> Any:
            return tf.cond(tf.reduce_sum(x) > 0, lambda: nested(x, depth - 1), lambda: nested(-x, depth - 1))

        return within(x)

    def asserted(x: Any) -> Any:
        # TensorFlow puts the Assert into a function of an If.
        tf.debugging.assert_less(x, 1000.0)
        return x * 2.0

    def looked_up(x: Any) -> Any:
        return tf.cast(module.words.lookup(tf.strings.as_string(tf.cast(x, tf.int32))), tf.float32)

    synchronous = {
        "dense": lambda x: tf.nn.relu(x @ module.kernel) + tf.gather(module.kernel, [0, 1])[0],
        "called": lambda x: inner(inner(x) + 1.0),
        "checked": checked,
        "looked_up": looked_up,
        "passed_on": lambda x: x,
        "tiled": lambda x: tf.tile(x, [1, 2]),
        "einsum": lambda x: tf.einsum("bi,io->bo", x, module.kernel),
    }
    waiting = {
        "cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: x - 1.0),
        "case": lambda x: tf.switch_case(tf.shape(x)[0] % 2, {0: lambda: inner(x), 1: lambda: x}),
        "loop": lambda x: tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, inner(y)), (0, x))[1],
        "mapped": lambda x: tf.map_fn(lambda row: tf.cond(row[0] > 0, lambda: row, lambda: -row), x),
        "folded": lambda x: tf.foldl(lambda a, row: a + inner(row[None])[0], x)[None],
        "nested": nested,
        "apart": lambda x: apart(x),
        "compiled": lambda x: compiled(x),
        "asserted": asserted,
    }
    return synchronous, waiting


def _saved(tf: Any, folder: Path, module: Any, functions: Functions) -> Path:
    signatures = {
        name: tf.function(
            lambda x, f=function: {"y": f(x), "again": x, "sum": tf.reduce_sum(f(x))[None]},
            input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")],
            autograph=False,
        )
        for name, function in functions.items()
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


@pytest.fixture(scope="module")
def synchronous(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel whose signatures one thread may run."""
    module = tf.Module()
    return _saved(tf, tmp_path_factory.mktemp("synchronous") / "1", module, _functions(tf, module)[0])


@pytest.fixture(scope="module")
def waiting(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel with signatures whose kernels wait for other threads, beside others."""
    module = tf.Module()
    synchronous, waiting = _functions(tf, module)
    return _saved(tf, tmp_path_factory.mktemp("waiting") / "1", module, {**waiting, "dense": synchronous["dense"]})


def _opened(folder: Path, threads: int | None = 1) -> SavedModelBackend:
    return open_savedmodel(folder, SERVE, GraphThreads(1, side_by_side=threads))


def _has_own_thread(config: bytes) -> bool:
    return b"SINGLE_THREADED_EXECUTOR" in config


def _names(folder: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Returns the names of the graph's tensors: of the input x of each signature, and of its outputs."""
    signatures = prepared(folder, SERVE)[0].signature_def.items()
    return {
        name: (one.inputs["x"].name, {key: info.name for key, info in one.outputs.items()})
        for name, one in signatures
        if "x" in one.inputs
    }


X = np.array([[1.0, 2.0], [0.5, -3.0], [1e-39, 2e-38]], np.float32)


def _outputs(backend: SavedModelBackend, names: tuple[str, Mapping[str, str]], x: Array) -> list[bytes]:
    given, outputs = names
    return [array.tobytes() for array in backend.session.call([given], *backend.fetched(outputs.values()))(x)]


def test_a_graph_that_one_thread_may_run_gives_the_same_bits(tf: Any, synchronous: Path) -> None:
    meta_graph, steps = prepared(synchronous, SERVE)
    program = make_program(meta_graph.graph_def, steps, GraphThreads(1))
    # As it is saved, the graph calls functions.
    assert not _has_own_thread(program.config)
    v1, graph = tf.compat.v1, tf.Graph()
    with graph.as_default():
        tf.import_graph_def(v1.GraphDef.FromString(program.graph_def), name="")
    whole = v1.Session(graph=graph, config=v1.ConfigProto.FromString(program.config))
    for operation, feeds in program.steps:
        whole.run(graph.get_operation_by_name(operation), dict(feeds))
    backend = _opened(synchronous)
    assert _has_own_thread(backend.session.config)
    for signature, (given, outputs) in _names(synchronous).items():
        wanted = [array.tobytes() for array in whole.run([*outputs.values()], {given: X})]
        assert _outputs(backend, (given, outputs), X) == wanted, signature
        for key, name in outputs.items():
            alone = whole.run(name, {given: X})
            assert _outputs(backend, (given, {key: name}), X) == [alone.tobytes()], (signature, key)
    whole.close()
    backend.close()


def test_a_check_that_nothing_reads_still_refuses_the_request(synchronous: Path) -> None:
    from service.errors import InvalidRequest
    from service.loading.loader import ServableLoader

    compile_native = pytest.importorskip("service.core.native_servable").compile_native
    servable = ServableLoader(SERVE, "auto", compile_native)("m", 1, synchronous)
    assert servable.native is not None
    assert servable.native.run("checked", {"x": X})["again"].tobytes() == X.tobytes()
    with pytest.raises(InvalidRequest, match="1000"):
        servable.native.run("checked", {"x": X + 1000}, ("again",))
    assert servable.native.run("dense", {"x": X + 1000}, ("again",))["again"].tolist() == (X + 1000).tolist()
    servable.close()


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_operations_run_side_by_side_where_that_is_asked_for(synchronous: Path, threads: int | None) -> None:
    backend = _opened(synchronous, threads)
    assert _has_own_thread(backend.session.config) == (threads != 2)
    backend.close()


def test_one_signature_that_waits_leaves_all_to_tensorflows_threads(waiting: Path) -> None:
    backend = _opened(waiting)
    assert not _has_own_thread(backend.session.config) and not backend.renamed
    backend.close()


@pytest.mark.parametrize(
    "name", ["cond", "case", "loop", "mapped", "folded", "nested", "apart", "compiled", "asserted"]
)
def test_a_signature_with_a_kernel_that_waits_has_no_thread_of_its_own(tf: Any, tmp_path: Path, name: str) -> None:
    module = tf.Module()
    backend = _opened(_saved(tf, tmp_path / "1", module, {name: _functions(tf, module)[1][name]}))
    assert not _has_own_thread(backend.session.config)
    backend.close()


def test_a_check_that_inlining_would_lose_keeps_the_calls(tf: Any, tmp_path: Path) -> None:
    v1 = tf.compat.v1

    @tf.function(autograph=False)
    def checked(x: Any) -> Any:
        tf.raw_ops.Assert(condition=tf.reduce_all(x < 1000.0), data=["not below 1000"])
        return x * 2.0

    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], "x")
        # The output is no output of the call itself.
        definition = v1.saved_model.predict_signature_def({"x": x}, {"y": checked(x) + 1.0})
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": definition})
        builder.save()
    backend = _opened(tmp_path / "1")
    call = backend.session.call(["x:0"], *backend.fetched([definition.outputs["y"].name]))
    assert call(X)[0].tobytes() == (X * 2 + 1).tobytes()
    with pytest.raises(GraphError, match="1000"):
        call(X + 1000)
    backend.close()


def test_a_resource_that_a_function_makes_stays_the_functions(tf: Any, tmp_path: Path) -> None:
    def made(x: Any) -> Any:
        table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float32, use_node_name_sharing=True)
        return x + tf.raw_ops.LookupTableFindV2(table_handle=table, keys=tf.cast(x, tf.int64), default_value=1.0)

    backend = _opened(_saved(tf, tmp_path / "1", tf.Module(), {"made": made}))
    assert not _has_own_thread(backend.session.config)
    backend.close()


@pytest.mark.parametrize(("model", "kind"), [("waiting", "whole"), ("waiting", "cut"), ("synchronous", "whole")])
def test_many_requests_at_once_do_not_hang(request: pytest.FixtureRequest, model: str, kind: str) -> None:
    command = [sys.executable, "-m", "tests.unit.graph.runs_at_once", str(request.getfixturevalue(model)), kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        pytest.fail("hangs: a run waits for a thread that waits itself")
    assert done.returncode == 0, done.stderr


def test_an_op_that_one_thread_may_run_calls_no_function_and_has_no_reference(tf: Any) -> None:
    from tensorflow.python.framework import kernels

    for name in sorted(_ALL_OPS):
        definition = op_definition(name)
        assert definition is not None, name
        assert not any(attribute.type in ("func", "list(func)") for attribute in definition.attr), name
        assert not any(output.is_ref for output in definition.output_arg), name
        devices = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(name).kernel}
        assert devices & {"CPU", "DEFAULT"}, name


def test_ops_whose_kernels_wait_are_not_listed() -> None:
    # Names of AsyncOpKernels in the sources of TensorFlow 2.21, those that a SavedModel is likely to have.
    waiting = (
        "PartitionedCall StatefulPartitionedCall RemoteCall SymbolicGradient If StatelessIf While StatelessWhile Case "
        "StatelessCase For MapDefun BatchFunction Batch Unbatch QueueDequeueV2 QueueDequeueManyV2 QueueEnqueueV2 "
        "BarrierTakeMany IteratorGetNext IteratorGetNextSync MakeIterator ReduceDataset DatasetToSingleElement "
        "InitializeTableFromDataset AccumulatorTakeGradient StackPopV2 MutexLock CropAndResize ReaderRead _Recv _Send "
        "CollectiveReduce XlaLaunch"
    )
    assert not set(waiting.split()) & _ALL_OPS
