"""Opens SavedModels and runs their graphs, with sparse inputs and joined rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import metadata_json, read_signatures
from service.core.native_servable import compile_native
from service.errors import ArtifactError, InvalidRequest, Unimplemented
from service.graph.flat_graph import flatten
from service.graph.joined_rows import joined_rows
from service.graph.savedmodel import SavedModelBackend, open_savedmodel
from service.graph.sparse import to_coo
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.reference.graphs import Graph
from service.types import GraphThreads
from service.versions.servable import Servable

pytestmark = pytest.mark.tf

SERVE = frozenset({"serve"})


def open_folder(folder: Path) -> SavedModelBackend:
    """Opens a SavedModel's graph."""
    return open_savedmodel(folder, SERVE, GraphThreads(2))


@pytest.fixture(scope="module")
def folder(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that has a signature for each behaviour which this file tests."""

    def function(*specs: Any) -> Any:
        return lambda f: tf.function(f, input_signature=list(specs), autograph=False)

    module = tf.Module()
    module.a, module.b = tf.Variable(0.5), tf.Variable(2.0)
    vector, strings = tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([None], tf.string, "x")

    @function(vector)
    def half_plus_two(x: Any) -> Any:
        return {"y": module.a * x + module.b, "x_again": x}

    @function(tf.TensorSpec([2, 2], tf.float32, "x"))
    def inverse(x: Any) -> Any:
        return {"y": tf.linalg.inv(x)}

    @function(strings)
    def shout(x: Any) -> Any:
        return {"y": tf.strings.upper(x), "length": tf.strings.length(x)}

    @function(strings)
    def parse(x: Any) -> Any:
        return {"y": tf.strings.to_number(x)}

    defaults = {"x": None, "w": tf.constant([10.0])}

    def weighted(inputs: Any = defaults) -> Any:
        return {"y": inputs["x"] * inputs["w"]}

    specs = {name: tf.TensorSpec([None], tf.float32, name) for name in defaults}
    optional = tf.function(weighted, input_signature=[specs], autograph=False)
    folder = tmp_path_factory.mktemp("graph") / "1"
    signatures = {"serving_default": half_plus_two, "inverse": inverse, "shout": shout, "parse": parse}
    tf.saved_model.save(module, str(folder), signatures=signatures | {"optional": optional})
    return folder


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Servable]:
    """The model, whose graph the core runs."""
    servable = loaded(folder)
    yield servable
    servable.close()


def floats(*values: float) -> np.ndarray:
    """Returns a float vector."""
    return np.array(values, np.float32)


def test_half_plus_two(backend: Servable) -> None:
    outputs = predict(backend, {"x": floats(1, 2)}, "serving_default")
    assert (outputs["y"].tolist(), outputs["y"].dtype) == ([2.5, 3], np.float32)


def test_strings_go_both_ways_as_bytes(backend: Servable) -> None:
    outputs = predict(backend, {"x": np.array([b"ab", b"", b"\xff\0c"], object)}, "shout")
    assert outputs["y"].tolist() == [b"AB", b"", b"\xff\0C"]
    assert outputs["y"].dtype == object
    assert outputs["length"].tolist() == [2, 0, 3]


def test_arrays_that_lie_unaligned_or_can_not_be_written_are_taken(backend: Servable) -> None:
    x = np.frombuffer(b"x" + floats(*range(100)).tobytes(), np.float32, 100, 1)
    assert not x.flags.aligned
    for array in (x, floats(*range(200))[::2] / 2):
        assert predict(backend, {"x": array}, "serving_default")["y"].tolist() == [i / 2 + 2 for i in range(100)]


def test_an_optional_input_has_its_default_or_what_was_sent(folder: Path, backend: Servable) -> None:
    spec = read_signatures(folder / "saved_model.pb")["optional"]
    assert spec.required == {"x"}
    assert predict(backend, {"x": floats(1, 2)}, "optional")["y"].tolist() == [10, 20]
    assert predict(backend, {"x": floats(1, 2), "w": floats(3)}, "optional")["y"].tolist() == [3, 6]


def test_no_rows_are_answered_with_no_rows(backend: Servable) -> None:
    assert predict(backend, {"x": floats()}, "serving_default")["y"].shape == (0,)


def test_the_signatures_shape_is_not_checked_where_the_graph_does_not_mind(backend: Servable) -> None:
    assert predict(backend, {"x": floats(1, 2).reshape(1, 2)}, "serving_default")["y"].tolist() == [[2.5, 3]]


@pytest.mark.parametrize(
    ("signature", "x"),
    [
        ("inverse", floats(1, 2, 3)),
        ("inverse", np.zeros((2, 2), np.float32)),
        ("parse", np.array([b"not a number"], object)),
        ("parse", np.array([b"\xff\xfe"], object)),
        ("serving_default", np.array([b"text"], object)),
    ],
)
def test_what_the_graph_refuses_is_the_clients_fault_in_one_line(
    backend: Servable, signature: str, x: np.ndarray
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        predict(backend, {"x": x}, signature)
    assert caught.value.message
    assert "\n" not in caught.value.message
    assert "Graph execution error" not in caught.value.message
    assert ".py" not in caught.value.message


def test_threads_may_run_side_by_side_from_the_first_call(folder: Path) -> None:
    backend, together = loaded(folder), threading.Barrier(4)

    def run(i: int) -> list[float]:
        together.wait(60)
        results = [predict(backend, {"x": floats(i)}, "serving_default")["y"].tolist() for _ in range(20)]
        assert all(result == results[0] for result in results)
        return results[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4), timeout=120)) == [[2], [2.5], [3], [3.5]]
    backend.close()


def test_two_models_at_once_keep_apart(tf: Any, folder: Path, backend: Servable) -> None:
    other = loaded(folder)
    other.close()
    assert predict(backend, {"x": floats(2)}, "serving_default")["y"].tolist() == [3]


@pytest.mark.core
@pytest.mark.parametrize("what", ["variables/variables.index", "variables/variables.data-00000-of-00001"])
def test_a_folder_that_tensorflow_can_not_load_is_refused_in_its_words(tmp_path: Path, folder: Path, what: str) -> None:
    for source in folder.rglob("*"):
        target = tmp_path / source.relative_to(folder)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif str(source.relative_to(folder)) != what:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    with pytest.raises(ArtifactError, match="^TensorFlow can not load ") as caught:
        open_folder(tmp_path)
    assert "\n" not in caught.value.message


def loaded(folder: Path) -> Servable:
    """Loads a version folder as model m, whose graphs the core runs."""
    pytest.importorskip("service._native", reason="the native core is not built")
    return ServableLoader(SERVE, "auto", compile_native)("m", int(folder.name), folder)


def predict(
    servable: Servable, inputs: dict[str, np.ndarray], signature: str = "serving_default"
) -> dict[str, np.ndarray]:
    """Runs a signature in the core; returns its outputs."""
    assert servable.native is not None
    return servable.native.run(signature, inputs)


def test_a_savedmodel_without_manifest_is_served_as_it_is(folder: Path) -> None:
    servable = loaded(folder)
    assert predict(servable, {"x": floats(1)})["y"].tolist() == [2.5]
    assert predict(servable, {"x": floats(1)}, "optional")["y"].tolist() == [10]
    assert servable.tables == {}
    with pytest.raises(InvalidRequest, match=r"Expects arg\[0\] to be float but int64 is provided"):
        predict(servable, {"x": np.array([1])})
    with pytest.raises(InvalidRequest, match="Missing but required: {x}"):
        predict(servable, {})
    servable.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("saved_model_half_plus_two_cpu", 2.5),
        ("saved_model_half_plus_two_tf2_cpu", 2.5),
        ("saved_model_half_plus_three", 3.5),
        ("saved_model_half_plus_two_mlmd", 2.5),
    ],
)
def test_tensorflow_servings_own_models(tf_serving_testdata: Path, name: str, expected: float) -> None:
    servable = loaded(tf_serving_testdata / name / "00000123")
    assert predict(servable, {"x": floats(1)})["y"].tolist() == [expected]
    assert predict(servable, {"x": floats(1, 2).reshape(2, 1)})["y"].tolist() == [[expected], [expected + 0.5]]


def test_a_graph_that_parses_examples(tf: Any, tf_serving_testdata: Path) -> None:
    servable = loaded(tf_serving_testdata / "saved_model_half_plus_two_cpu" / "00000123")
    name = next(n for n, spec in servable.signatures.items() if "string" in {t.dtype for t in spec.inputs.values()})
    (input_name,) = servable.signatures[name].inputs
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(2.0)
    example.features.feature["x2"].float_list.value.append(2.0)
    (output,) = predict(servable, {input_name: np.array([example.SerializeToString()], object)}, name).values()
    assert output.reshape(-1).tolist() in ([3.0], [4.0])
    with pytest.raises(InvalidRequest, match="[Pp]arse"):
        predict(servable, {input_name: np.array([b"\xff\xff"], object)}, name)


def test_a_graph_that_parses_sequences_beside_a_loop(tf: Any, tmp_path: Path) -> None:
    """The parsing op has attributes that a saved graph leaves out; a graph with a loop is opened as it was saved."""
    module = tf.Module()
    context = {"user": tf.io.FixedLenFeature([], tf.int64)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")], autograph=False)
    def parse(x: Any) -> Any:
        found, _, _ = tf.io.parse_sequence_example(x, context, {"seen": tf.io.RaggedFeature(tf.int64)})
        return {"user": found["user"], "y": tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.size(x)])[0]}

    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": parse})
    example = tf.train.SequenceExample()
    example.context.feature["user"].int64_list.value.append(7)
    servable = loaded(tmp_path / "1")
    found = predict(servable, {"x": np.array([example.SerializeToString()], object)}, "serving_default")
    assert (found["user"].tolist(), found["y"].tolist()) == ([7], 3)
    servable.close()


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_output_that_is_an_input_is_answered_as_it_was_sent(tf: Any, tmp_path: Path, is_whole: bool) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.int64, [None], "x")
        # A loop can not be inlined, so the graph is opened as it was saved.
        y = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.size(x)])[0] if is_whole else tf.size(x)
        v1.saved_model.simple_save(session, str(tmp_path / "1"), {"x": x}, {"key": x, "again": x, "y": y})
    servable = loaded(tmp_path / "1")
    inputs = {"x": np.array([7, -1])}
    outputs = predict(servable, inputs, "serving_default")
    wanted = {"key": [7, -1], "again": [7, -1], "y": 3 if is_whole else 2}
    assert {name: array.tolist() for name, array in outputs.items()} == wanted
    servable.close()
    spec = read_signatures(tmp_path / "1" / "saved_model.pb")["serving_default"]
    graph = Graph(tmp_path / "1", SERVE, GraphThreads(1))
    assert {name: array.tolist() for name, array in graph.run(spec, inputs, (*wanted,)).items()} == wanted
    graph.close()


def test_a_graph_that_names_a_device_of_another_machine_runs_here(tf: Any, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
        x = v1.placeholder(tf.float32, [None], "x")
        with tf.device("/gpu:7"):
            y = tf.nn.top_k(x * v1.get_variable("factor", initializer=3.0), 2).values
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        definition = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": definition})
        builder.save()
    servable = loaded(tmp_path / "1")
    assert predict(servable, {"x": floats(1, 2)}, "serving_default")["y"].tolist() == [6, 3]
    servable.close()
    spec = read_signatures(tmp_path / "1" / "saved_model.pb")["serving_default"]
    graph = Graph(tmp_path / "1", SERVE, GraphThreads(1))
    assert graph.run(spec, {"x": floats(1, 2)}, ("y",))["y"].tolist() == [6, 3]
    graph.close()


def test_a_graph_with_state_keeps_it_between_requests(tf_serving_testdata: Path) -> None:
    servable = loaded(tf_serving_testdata / "saved_model_counter" / "00000123")
    assert {"get_counter", "incr_counter"} <= set(servable.signatures)
    (before,) = predict(servable, {}, "get_counter").values()
    predict(servable, {}, "incr_counter")
    (after,) = predict(servable, {}, "get_counter").values()
    assert float(after.reshape(())) == float(before.reshape(())) + 1


def test_a_matrix_in_a_matrix_out(tf_serving_testdata: Path) -> None:
    servable = loaded(tf_serving_testdata / "matrix_half_plus_two" / "1")
    x = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    assert np.array_equal(predict(servable, {"x": x})["y"], x / 2 + 2)


def test_what_is_no_savedmodel_is_refused(tf_serving_testdata: Path) -> None:
    for name in ("bad_half_plus_two", "saved_model_half_plus_two_tflite"):
        with pytest.raises(ArtifactError, match=r"cannot read .*saved_model\.pb"):
            loaded(tf_serving_testdata / name / "00000123")


@pytest.mark.core
@pytest.mark.parametrize(
    ("threads", "given"),
    [(GraphThreads(2), (1, 2)), (GraphThreads(2, 3), (3, 3)), (GraphThreads(2, None, 5), (1, 5))],
)
def test_the_session_has_the_threads_it_was_given(
    tf: Any, folder: Path, threads: GraphThreads, given: tuple[int, int]
) -> None:
    backend = open_savedmodel(folder, SERVE, threads)
    config = tf.compat.v1.ConfigProto.FromString(backend.session.config)
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == given
    backend.close()


def _saved_by_tf2(tf: Any, folder: Path, *, has_slot: bool) -> None:
    module = tf.Module()
    module.factor, module.dropped = tf.Variable([2.0, 3.0]), tf.Variable([1.0])
    if has_slot:
        module.slot = tf.Variable(tf.zeros([100, 100]))

    def multiplied(x: Any) -> Any:
        # Nothing uses what is read here, but the function reads it.
        module.dropped.read_value()
        return {"y": module.factor * x}

    signature = tf.function(multiplied).get_concrete_function(tf.TensorSpec([None], tf.float32, "x"))
    tf.saved_model.save(module, str(folder), signatures=signature)


def _saved_by_tf1(tf: Any, folder: Path, *, has_slot: bool) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], "x")
        factor = v1.get_variable("factor", initializer=[2.0, 3.0], use_resource=False)
        if has_slot:
            v1.get_variable("slot", initializer=np.zeros((100, 100), np.float32), use_resource=False)
        y = factor * x
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        definition = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": definition})
        builder.save()


@pytest.mark.parametrize("save", [_saved_by_tf2, _saved_by_tf1])
def test_a_variable_that_no_signature_reads_is_not_restored(tf: Any, tmp_path: Path, save: Any) -> None:
    from service.graph.restoring import prepared

    for has_slot in (True, False):
        folder = tmp_path / f"{has_slot}"
        save(tf, folder, has_slot=has_slot)
        servable = ServableLoader(SERVE, "auto", compile_native)("m", 1, folder)
        assert predict(servable, {"x": np.array([1.0, 10.0], np.float32)})["y"].tolist() == [2.0, 30.0]
        meta_graph, steps = prepared(folder, SERVE)
        assert (steps[0][0] == meta_graph.saver_def.restore_op_name) == (not has_slot)
        if not has_slot:
            continue
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            tf.import_graph_def(tf.compat.v1.GraphDef.FromString(meta_graph.graph_def.SerializeToString()), name="")
            for operation, fed in steps:
                session.run(graph.get_operation_by_name(operation), dict(fed))
            is_restored = {}
            for operation in graph.get_operations():
                if operation.type in ("VarHandleOp", "VariableV2"):
                    (variable,) = operation.outputs
                    of_kind = variable.dtype == tf.resource
                    asked = (
                        tf.raw_ops.VarIsInitializedOp(resource=variable)
                        if of_kind
                        else tf.raw_ops.IsVariableInitialized(ref=variable)
                    )
                    is_restored[operation.get_attr("shape").dim[0].size] = session.run(asked)
        # By the first dimension: two factors, one number that is read for nothing, and the slot of 100 x 100.
        assert is_restored.pop(100) == np.False_
        assert all(is_restored.values()) and 2 in is_restored


@pytest.mark.parametrize("kind", ["MutableHashTable", "DenseHashTable"])
def test_a_table_that_changes_is_restored_beside_variables_that_are_not(tf: Any, tmp_path: Path, kind: str) -> None:
    module = tf.Module()
    more = {} if kind == "MutableHashTable" else {"empty_key": -1, "deleted_key": -2}
    module.table = getattr(tf.lookup.experimental, kind)(tf.int64, tf.int64, 0, **more)
    module.table.insert(tf.constant([10, -20], tf.int64), tf.constant([1, 2], tf.int64))
    module.rows, module.slot = tf.Variable([[0.0], [1.0], [2.0]]), tf.Variable(tf.zeros([100]))
    find = tf.function(
        lambda x: {"y": tf.gather(module.rows, module.table.lookup(x))},
        input_signature=[tf.TensorSpec([None], tf.int64, "x")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": find})
    servable = ServableLoader(SERVE, "auto", compile_native)("m", 1, tmp_path / "1")
    assert predict(servable, {"x": np.array([10, -20, 3])})["y"].tolist() == [[1.0], [2.0], [0.0]]


@pytest.mark.core
def test_a_graph_with_functions_does_not_run_on_its_callers_thread_alone(tf: Any, tmp_path: Path) -> None:
    from service.graph.flat_graph import flatten
    from service.graph.graph_session import DenseGraph

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], "x")
        v1.enable_control_flow_v2()
        tf.identity(tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x * 3), "y")
    meta_graph = v1.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph.as_graph_def())
    assert meta_graph.graph_def.library.function
    flat = flatten(meta_graph.graph_def, ["y:0"])
    dense = DenseGraph(meta_graph, {})
    dense.add(flat, set(flat.nodes), {})
    assert b"SINGLE_THREADED_EXECUTOR" not in dense._program(tmp_path, {}, GraphThreads(1)).config
    session = dense.open(tmp_path, {}, GraphThreads(1)).session
    for numbers, wanted in (([1.0, 2.0], [2.0, 4.0]), ([-1.0, -2.0], [-3.0, -6.0])):
        (found,) = session.run(["y:0"], {"x:0": np.array(numbers, np.float32)})
        assert found.tolist() == wanted


@pytest.mark.core
def test_graphs_flush_denormal_numbers_as_tensorflows_threads_do(tf: Any, tmp_path: Path) -> None:
    from service.graph.flat_graph import flatten
    from service.graph.graph_session import DenseGraph

    # Denormal numbers, and numbers whose product with the kernel is denormal.
    numbers = np.array([[1e-39, -1e-39, 1.5], [2e-38, 3e-38, -1e-38]], np.float32)
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        y = tf.identity(tf.matmul(x, tf.constant([[0.25], [1.0], [0.5]])) + 0 * tf.reduce_sum(x), "y")
        kept = tf.identity(tf.concat([x, x], 1), "kept")
        with v1.Session() as session:
            wanted = session.run([y, kept], {x: numbers})
            session.run(v1.global_variables_initializer())
    assert wanted[0][0, 0] == 0.75 and wanted[1].tobytes() == np.concatenate([numbers, numbers], 1).tobytes()
    meta_graph = v1.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph.as_graph_def())
    flat = flatten(meta_graph.graph_def, ["y:0", "kept:0"])
    dense = DenseGraph(meta_graph, {})
    dense.add(flat, set(flat.nodes), {})
    program = dense._program(tmp_path, {}, GraphThreads(1))
    # TensorFlow's single-threaded executor runs this graph on the thread of its caller.
    assert b"SINGLE_THREADED_EXECUTOR" in program.config
    own = dense.open(tmp_path, {}, GraphThreads(1)).session
    python = dense.open_in_python(tmp_path, {})
    for found in (own.run(["y:0", "kept:0"], {"x:0": numbers}), python.run(["y:0", "kept:0"], {"x:0": numbers})):
        assert [array.tobytes() for array in found] == [array.tobytes() for array in wanted]


@pytest.mark.core
def test_long_runs_have_a_session_with_all_threads_and_the_same_variables(tf: Any, tmp_path: Path) -> None:
    from service.graph.flat_graph import flatten
    from service.graph.graph_session import CoreSession, DenseGraph
    from service.graph.restoring import prepared, saved_tensors

    rng, module = np.random.default_rng(3), tf.Module()
    kernel = rng.standard_normal((64, 2048)).astype(np.float32)
    module.kernel = tf.Variable(kernel)
    words = tf.lookup.KeyValueTensorInitializer(["a", "b"], [2.0, 3.0])
    module.words = tf.lookup.StaticHashTable(words, 0.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 64], name="x"), tf.TensorSpec([None], tf.string, "word")])  # type: ignore[untyped-decorator]
    def score(x: Any, word: Any) -> dict[str, Any]:
        return {"score": tf.reduce_sum(tf.tanh(x @ module.kernel), 1) * module.words.lookup(word)}

    tf.saved_model.save(module, str(tmp_path), signatures=score)
    meta_graph, _ = prepared(tmp_path, SERVE)
    info = meta_graph.signature_def["serving_default"]
    flat = flatten(meta_graph.graph_def, [info.outputs["score"].name])
    dense = DenseGraph(meta_graph, {})
    dense.add(flat, flat.ancestors([flat.resolved(info.outputs["score"].name)]), {})
    saved = saved_tensors(meta_graph)
    program = dense._program(tmp_path, saved, GraphThreads(3), may_open_twice=True)
    assert program.long_runs is not None and program.long_runs.num_weights == 64 * 2048
    config = tf.compat.v1.ConfigProto
    assert config.FromString(program.config).intra_op_parallelism_threads == 1
    assert config.FromString(program.long_runs.config).intra_op_parallelism_threads == 3
    # A user's number of threads is for all runs; a graph that is opened once, and has as few weights, has one thread.
    assert dense._program(tmp_path, saved, GraphThreads(3, 2), may_open_twice=True).long_runs is None
    once = dense._program(tmp_path, saved, GraphThreads(3))
    assert once.long_runs is None and config.FromString(once.config).intra_op_parallelism_threads == 1
    session = dense.open(tmp_path, saved, GraphThreads(3), may_open_twice=True).session
    assert isinstance(session, CoreSession)
    for rows in (1, 1024):
        x = rng.standard_normal((rows, 64)).astype(np.float32)
        word = rng.choice(np.array([b"a", b"b", b"?"], object), rows)
        fed = {info.inputs["x"].name: x, info.inputs["word"].name: word}
        (found,) = session.run([flat.resolved(info.outputs["score"].name)], fed)
        factor = np.array([{b"a": 2.0, b"b": 3.0}.get(one, 0.0) for one in word])
        np.testing.assert_allclose(found, np.tanh(x.astype(float) @ kernel).sum(1) * factor, rtol=1e-4, atol=1e-3)
    session.close()


ROWS = [[4, 2, 9], [], [7], []]


def ragged(rows: list[list[int]], dtype: str = "int64") -> tuple[np.ndarray, np.ndarray]:
    """Returns the values and row splits of lists of unequal length."""
    return np.array([x for row in rows for x in row], dtype), np.cumsum([0, *map(len, rows)])


@pytest.mark.parametrize("rows", [ROWS, [], [[]], [[], []], [[1]], [[], [5, 6]]], ids=str)
def test_to_coo_is_tensorflows_own_conversion(tf: Any, rows: list[list[int]]) -> None:
    values, splits = ragged(rows)
    expected = tf.RaggedTensor.from_row_splits(values, splits).to_sparse()
    found = to_coo(values, splits)
    for array, tensor in zip(found, (expected.values, expected.indices, expected.dense_shape), strict=True):
        assert (array.tolist(), array.shape) == (tensor.numpy().tolist(), tensor.shape)
        assert array.dtype == np.int64


@pytest.fixture(scope="module")
def sparse_folder(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel whose signatures have sparse inputs and outputs."""
    v1 = tf.compat.v1
    sparse_folder = tmp_path_factory.mktemp("sparse") / "1"
    signature = v1.saved_model.build_signature_def
    info = v1.saved_model.build_tensor_info
    with tf.Graph().as_default(), v1.Session() as session:
        a, words, cube = (
            v1.sparse_placeholder(dtype, [None] * rank, name)
            for name, dtype, rank in (("a", tf.int64, 2), ("words", tf.string, 2), ("cube", tf.int64, 3))
        )
        x = v1.placeholder(tf.int64, [None], "x")
        dense = tf.sparse.to_dense(a) + x[:, None]
        shape = tf.identity(a.dense_shape)
        lengths = tf.strings.length(tf.sparse.to_dense(words, default_value=b""))
        builder = v1.saved_model.Builder(str(sparse_folder))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "both": signature(
                    {"a": info(a), "words": info(words), "x": info(x)},
                    {"dense": info(dense), "lengths": info(lengths), "shape": info(shape)},
                    "tensorflow/serving/predict",
                ),
                "cube": signature({"cube": info(cube)}, {"y": info(tf.identity(cube.dense_shape))}),
                "sparse_answer": signature({"a": info(a)}, {"a": info(a), "shape": info(shape)}),
            },
        )
        builder.save()
    return sparse_folder


@pytest.fixture(scope="module")
def served(sparse_folder: Path) -> Servable:
    """It, in the native core."""
    return ServableLoader(SERVE, "auto", compile_native)("m", 1, sparse_folder)


def run(served: Servable, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a signature in the core; returns its outputs."""
    assert served.native is not None
    return served.native.run(signature, inputs)


def test_a_sparse_matrix_is_described_as_ragged(sparse_folder: Path) -> None:
    spec = read_signatures(sparse_folder / "saved_model.pb")["both"]
    assert spec.ragged.keys() == {"a", "words"}
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in spec.inputs.items()} == {
        "a__values": ("int64", (None,)),
        "a__row_splits": ("int64", (None,)),
        "words__values": ("string", (None,)),
        "words__row_splits": ("int64", (None,)),
        "x": ("int64", (None,)),
    }
    assert spec.required == set(spec.inputs)
    metadata = json.loads(metadata_json("m", 1, {"s": spec}))["metadata"]["signature_def"]["signature_def"]["s"]
    values = metadata["inputs"]["a__values"]
    assert (values["dtype"], values["tensor_shape"]["dim"][0]["size"]) == ("DT_INT64", "-1")


def test_ragged_rows_become_the_sparse_tensor(served: Servable) -> None:
    values, splits = ragged(ROWS)
    inputs = {
        "a__values": values,
        "a__row_splits": splits,
        "words__values": np.array([b"red", b"a", b""], object),
        "words__row_splits": np.array([0, 2, 2, 3, 3]),
        "x": np.array([10, 20, 30, 40]),
    }
    outputs = run(served, "both", inputs)
    assert outputs["dense"].tolist() == [[14, 12, 19], [20, 20, 20], [37, 30, 30], [40, 40, 40]]
    assert outputs["lengths"].tolist() == [[3, 1], [0, 0], [0, 0], [0, 0]]
    assert outputs["shape"].tolist() == [4, 3]


def test_a_tensor_without_a_form_on_the_wire_is_refused(served: Servable) -> None:
    assert served.not_run == {"cube": 'input "cube" is a sparse or composite tensor'}
    with pytest.raises(Unimplemented, match='input "cube" is a sparse or composite tensor'):
        run(served, "cube", {"cube": np.zeros((1, 1, 1), np.int64)})


def test_the_other_outputs_of_such_a_signature_are_answered(served: Servable) -> None:
    values, splits = ragged(ROWS)
    assert served.native is not None
    inputs = {"a__values": values, "a__row_splits": splits}
    assert served.native.run("sparse_answer", inputs, ("shape",))["shape"].tolist() == [4, 3]
    with pytest.raises(Unimplemented, match='Output "a" .* is a sparse or composite tensor'):
        run(served, "sparse_answer", inputs)


SHAPES = {"a:0": (2,), "b:0": (2,), "c:0": (1, 2), "d:0": (3, 2), "e:0": None}
Found = dict[str, tuple[str, tuple[int, ...] | None]]


def found(tf: Any, build: Callable[..., Any]) -> Found:
    """Builds a graph on five sources; returns the tensors fed to it -> the sources joined into each, and its shape."""
    with tf.Graph().as_default() as graph:
        parts = [
            tf.compat.v1.placeholder(tf.float32, None if shape is None else [None, *shape], name.partition(":")[0])
            for name, shape in SHAPES.items()
        ]
        ends = build(*parts)
        outputs = [end.name for end in (ends if isinstance(ends, list) else [ends])]
    fed = joined_rows(flatten(graph.as_graph_def(), outputs), outputs, SHAPES, outputs)
    return {name: ("".join(part[0] for part in value.parts), value.shape) for name, value in fed.items()}


@pytest.mark.parametrize("axis", [1, -1])
def test_sources_side_by_side(tf: Any, axis: int) -> None:
    three = found(tf, lambda a, b, c, d, e: tf.concat([b, tf.squeeze(c, 1), a], axis, name="joined") * 2)
    assert three == {"joined:0": ("bca", (6,))}
    two = found(tf, lambda a, b, c, d, e: [tf.concat([b, a], axis, name="joined") * 2, e * 3])
    assert two == {"joined:0": ("ba", (4,)), "e:0": ("e", None)}


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda tf, a, b, c, d: tf.stack([a, b], 1, name="x"), ("ab", (2, 2))),
        (lambda tf, a, b, c, d: tf.stack([tf.squeeze(c, 1), b], -2, name="x"), ("cb", (2, 2))),
        (lambda tf, a, b, c, d: tf.concat([c, d], 1, name="x"), ("cd", (4, 2))),
        (lambda tf, a, b, c, d: tf.concat([c, tf.expand_dims(b, 1)], -1, name="x"), ("cb", (1, 4))),
        (lambda tf, a, b, c, d: tf.reshape(d, [-1, 6], name="x"), ("d", (6,))),
        (lambda tf, a, b, c, d: tf.reshape(d, [tf.shape(d)[0], -1], name="x"), ("d", (6,))),
        (lambda tf, a, b, c, d: tf.reshape(tf.concat([a, b], 1), [-1, 2, 2], name="x"), ("ab", (2, 2))),
        (lambda tf, a, b, c, d: tf.identity(tf.concat([tf.concat([a, b], 1), a], 1)[:, :4], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(d, [-1, 2], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(d, [tf.shape(a)[0], -1], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(a, [2, -1], name="x"), None),
        (lambda tf, a, b, c, d: tf.squeeze(c, name="x"), None),
        (lambda tf, a, b, c, d: tf.stack([a, b], 2, name="x"), None),
        (lambda tf, a, b, c, d: tf.stack([a, b], 0, name="x"), None),
        (lambda tf, a, b, c, d: tf.concat([d, d[:, :, :1]], 2, name="x"), None),
        (lambda tf, a, b, c, d: tf.expand_dims(a, 0, name="x"), None),
    ],
)
def test_tensors_with_the_bytes_of_sources(tf: Any, build: Callable[..., Any], wanted: Any) -> None:
    fed = found(tf, lambda a, b, c, d, e: build(tf, a, b, c, d) * 2)
    assert fed.get("x:0") == wanted


@pytest.mark.parametrize(
    "build",
    [
        lambda tf, a, b, c: tf.concat([a, b], 0) * 2,
        lambda tf, a, b, c: tf.concat([a, b, b], 1) * 2,
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, a * 3],
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, tf.concat([b, a], 1) * 3],
        lambda tf, a, b, c: tf.concat([a, b], 1),
        lambda tf, a, b, c: tf.concat([a, b * 2], 1) * 2,
        lambda tf, a, b, c: tf.concat([a, b], tf.compat.v1.placeholder(tf.int32, [])) * 2,
    ],
    ids=[
        *("below each other", "one twice", "one read elsewhere", "in two orders", "an output", "one changed"),
        "an axis that is computed",
    ],
)
def test_what_is_more_than_that(tf: Any, build: Callable[..., Any]) -> None:
    assert found(tf, lambda a, b, c, d, e: build(tf, a, b, c)) == {"a:0": ("a", (2,)), "b:0": ("b", (2,))}


def test_the_same_bytes_in_two_shapes(tf: Any) -> None:
    def build(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return [tf.concat([a, b], 1, name="flat") * 2, tf.stack([a, b], 1, name="stacked") * 3]

    assert found(tf, build) == {"flat:0": ("ab", (4,)), "stacked:0": ("ab", (2, 2))}


def test_what_something_waits_for(tf: Any) -> None:
    def build(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        joined = tf.concat([a, b], 1)
        with tf.control_dependencies([joined]):
            return [joined * 2, d * 2]

    assert found(tf, build).keys() == {"a:0", "b:0", "d:0"}


def test_a_towers_features_are_fed_together(tower_version: Path) -> None:
    servable = ServableLoader(frozenset({"serve"}), "auto", compile_native)("m", 1, tower_version)
    tower = servable.backends["serving_default"]
    assert isinstance(tower, TowerBackend)
    (joined,) = tower.cuts["serving_default"].fed.values()
    assert len(joined.parts) == 2
    servable.close()
