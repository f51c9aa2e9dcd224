"""TensorFlow's graphs are answered as TensorFlow Serving answers them, and refused in the graph's own words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import read_signatures
from service.engine.servable import Servable
from service.errors import ArtifactError, InvalidRequest
from service.graph.savedmodel import SavedModelBackend, open_savedmodel
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native

pytestmark = pytest.mark.tf

SERVE = frozenset({"serve"})


def open_folder(folder: Path) -> SavedModelBackend:
    """Opens a SavedModel's graph."""
    return open_savedmodel(folder, SERVE, threads=2)


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
    return ServableLoader(SERVE, "auto", 2, compile_native)("m", int(folder.name), folder)


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


@pytest.mark.parametrize(("inter_op_threads", "side_by_side"), [(None, 2), (5, 5), (0, 0)])
def test_the_session_has_the_threads_it_was_given(
    tf: Any, folder: Path, inter_op_threads: int | None, side_by_side: int
) -> None:
    backend = open_savedmodel(folder, SERVE, threads=2, inter_op_threads=inter_op_threads)
    config = tf.compat.v1.ConfigProto.FromString(backend.session.config)
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (2, side_by_side)
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
        servable = ServableLoader(SERVE, "auto", 2, compile_native)("m", 1, folder)
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


def test_graphs_flush_denormal_numbers_as_tensorflows_threads_do(tf: Any, tmp_path: Path) -> None:
    from service.graph.flat_graph import flatten
    from service.graph.graph_session import DenseGraph, PythonSession

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
    program = dense._program(tmp_path, {}, threads=1, inter_op_threads=1)
    # TensorFlow's single-threaded executor runs this graph on the thread of its caller.
    assert b"SINGLE_THREADED_EXECUTOR" in program.config
    own = dense.open(tmp_path, {}, threads=1, inter_op_threads=1).session
    python = PythonSession(program)
    for found in (own.run(["y:0", "kept:0"], {"x:0": numbers}), python.run(["y:0", "kept:0"], {"x:0": numbers})):
        assert [array.tobytes() for array in found] == [array.tobytes() for array in wanted]
