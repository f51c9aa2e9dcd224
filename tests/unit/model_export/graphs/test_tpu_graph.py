"""{serve, tpu} graphs written here: TensorFlow reads them, and lowered they give a numpy oracle's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from service.core.native_servable import compile_native
from service.errors import InvalidRequest
from service.loading.loader import ServableLoader
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

add_tpu_meta_graph = Late("model_export.graphs.tpu_graph", "add_tpu_meta_graph")
tpu_call = Late("model_export.graphs.tpu_graph", "tpu_call")

SERVE, TPU = frozenset({"serve"}), frozenset({"serve", "tpu"})
K = 3
ROWS = 4

# Multiples of 1/4, so that their sums are exact in float32, in any order of adding.
TABLE = np.arange(24, dtype=np.float32).reshape(8, 3) / 4


def padded(rows: list[list[int]], combiner: str, weights: list[list[float]] | None = None) -> np.ndarray:
    """Returns the vectors that a tensor core computes: rows are cut at K, and a mean's divisor is at least one."""
    out = np.zeros((len(rows), TABLE.shape[1]), np.float32)
    for r, row in enumerate(rows):
        mask = np.array((weights[r] if weights else [1.0] * len(row))[:K], np.float32)
        total = (TABLE[np.array(row[:K], int)] * mask[:, None]).sum(axis=0)
        out[r] = total if combiner == "sum" else total / max(mask.sum(), 1)
    return out


def answer(folder: Path, tags: frozenset[str], signature: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Runs a signature of one MetaGraph as the server does; returns its outputs."""
    servable = ServableLoader(tags, "auto", compile_native, has_towers=False)("m", 1, folder)
    assert servable.native is not None
    try:
        return servable.native.run(signature, inputs)
    finally:
        servable.close()


def meta_graphs(folder: Path) -> dict[frozenset[str], Any]:
    """Returns the tags of each MetaGraph in a SavedModel -> the MetaGraph."""
    from tensorflow.python.tools.saved_model_utils import read_saved_model

    return {frozenset(graph.meta_info_def.tags): graph for graph in read_saved_model(str(folder)).meta_graphs}


def ops(meta_graph: Any) -> Counter[str]:
    """Counts the ops of a graph and of its functions."""
    nodes = [*meta_graph.graph_def.node, *(n for f in meta_graph.graph_def.library.function for n in f.node_def)]
    return Counter(node.op for node in nodes)


V1Model = Callable[[Mapping[str, Any]], dict[str, Any]]


def save_v1(folder: Path, dtypes: Mapping[str, Any], on_host: V1Model, on_tpu: V1Model) -> None:
    """Saves a graph-mode model over tf.Example as an estimator does: {serve} with its variables, then {serve, tpu}."""
    from model_export.graphs.tpu_graph import TPU_TAGS

    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(folder))
    variables = []
    for tags in (("serve",), TPU_TAGS):
        with tf.Graph().as_default(), v1.Session() as session:
            placeholder = v1.placeholder(tf.string, [None], "examples")
            features = tf.io.parse_example(placeholder, {name: tf.io.VarLenFeature(t) for name, t in dtypes.items()})
            outputs = on_host(features) if tags == ("serve",) else tpu_call(on_tpu, features)
            signatures = {"serving_default": v1.saved_model.predict_signature_def({"examples": placeholder}, outputs)}
            main_op = v1.tables_initializer()
            if tags == TPU_TAGS:
                # The graph for a TPU can not run here, but it has the same variables as the graph for the CPU, which
                # are saved already.
                builder.add_meta_graph(tags, signatures, strip_default_attrs=True, main_op=main_op)
            else:
                session.run(v1.global_variables_initializer())
                builder.add_meta_graph_and_variables(session, tags, signatures, main_op=main_op)
            variables.append([variable.name for variable in v1.global_variables()])
    assert variables[0] == variables[1]
    builder.save()


def from_table(shape: Any, dtype: Any, **_: Any) -> Any:
    """Initializes a variable with TABLE."""
    return tf.constant(TABLE, dtype, shape)


@pytest.fixture(scope="module")
def v1_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a model with TensorFlow's own feature columns; returns its folder."""
    v1, column = tf.compat.v1, tf.feature_column

    def model(features: Mapping[str, Any], **device: Any) -> dict[str, Any]:
        identity = column.categorical_column_with_identity
        columns = [
            v1.tpu.experimental.embedding_column(identity(name, 8), 3, combiner, from_table, **device)
            for name, combiner in (("a", "mean"), ("b", "sum"))
        ]
        vectors = v1.keras.layers.DenseFeatures(columns, name="dense")(features)
        scale = v1.get_variable("scale", [], initializer=v1.constant_initializer(2.0))
        return {"vectors": vectors, "scaled": vectors * scale}

    folder = tmp_path_factory.mktemp("v1") / "1"
    device = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, K]}
    save_v1(folder, dict.fromkeys("ab", tf.int64), model, lambda features: model(features, **device))
    return folder


def examples(rows: Mapping[str, list[list[int]]]) -> np.ndarray:
    """Returns rows of ids as serialized tf.Examples."""

    def example(row: dict[str, list[int]]) -> bytes:
        ids = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in row.items()}
        return bytes(tf.train.Example(features=tf.train.Features(feature=ids)).SerializeToString())

    return np.array([example(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)], object)


def test_a_v1_call_computes_the_padded_lookup(v1_folder: Path) -> None:
    rows = {"a": [[1], [], [7, 7, 2], [1, 2, 3, 4]], "b": [[0, 1, 2, 3, 4], [5], [], [2, 2]]}
    on_tpu = answer(v1_folder, TPU, "serving_default", examples=examples(rows))
    expected = np.concatenate([padded(rows["a"], "mean"), padded(rows["b"], "sum")], axis=1)
    np.testing.assert_allclose(on_tpu["vectors"], expected, rtol=1e-6)
    np.testing.assert_allclose(on_tpu["scaled"], 2 * expected, rtol=1e-6)
    # The {serve} graph of the same folder reads all ids of a row, without the cut at K.
    uncut = answer(v1_folder, SERVE, "serving_default", examples=examples(rows))["vectors"]
    np.testing.assert_allclose(uncut[3, :3], TABLE[[1, 2, 3, 4]].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(uncut[0, 3:], TABLE[:5].sum(axis=0), rtol=1e-6)


def test_a_v1_call_holds_the_dense_part_and_no_more(v1_folder: Path) -> None:
    graph = meta_graphs(v1_folder)[TPU]
    assert set(meta_graphs(v1_folder)) == {SERVE, TPU}
    outside, inside = (Counter(n.op for n in nodes) for nodes in (graph.graph_def.node, _only_function(graph)))
    assert (outside["TPUPartitionedCall"], outside["ParseExampleV2"], inside["ParseExampleV2"]) == (1, 1, 0)
    assert (outside["ResourceGather"], inside["ResourceGather"], inside["TPUReplicateMetadata"]) == (0, 2, 1)
    # XLA can not compile the padding of sparse ids, so these nodes are marked to run on the host.
    hosted = {n.op for n in _only_function(graph) if "_xla_outside_compilation" in n.attr}
    assert "SparseSlice" in hosted
    assert "ResourceGather" not in hosted
    shape = graph.signature_def["serving_default"].outputs["vectors"].tensor_shape
    assert [dim.size for dim in shape.dim] == [-1, 6]


def test_vocabularies_and_weights_of_our_columns_stay_on_the_host(tmp_path: Path) -> None:
    from model_export.columns.embedding_column import embedding_column

    column = tf.feature_column
    words = column.categorical_column_with_vocabulary_list("word", list("abcdefgh"))
    weighted = column.weighted_categorical_column(column.categorical_column_with_identity("id", 8), "weight")
    device = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, K]}

    def model(features: Mapping[str, Any]) -> dict[str, Any]:
        columns = [embedding_column(c, 3, initializer=from_table, **device) for c in (words, weighted)]
        return {"vectors": tf.compat.v1.keras.layers.DenseFeatures(columns, name="dense")(features)}

    save_v1(tmp_path / "1", {"word": tf.string, "id": tf.int64, "weight": tf.float32}, model, model)
    example = tf.train.Example()
    example.features.feature["word"].bytes_list.value.extend([b"c", b"unknown", b"b", b"h"])
    example.features.feature["id"].int64_list.value.extend([5, 6])
    example.features.feature["weight"].float_list.value.extend([0.5, 0.25])
    requests = np.array([example.SerializeToString(), b""], object)
    # The lookup reads the first K = 3 words, of which c and b are known. The weights sum to 0.75, less than the least
    # divisor of a mean, 1. The layer puts its columns in the order of their names.
    expected = [[*(0.5 * TABLE[5] + 0.25 * TABLE[6]), *TABLE[[2, 1]].mean(axis=0)], [0] * 6]
    for tags in (SERVE, TPU):
        answered = answer(tmp_path / "1", tags, "serving_default", examples=requests)["vectors"]
        np.testing.assert_allclose(answered, expected, rtol=1e-6)


def _only_function(graph: Any) -> Any:
    (function,) = graph.graph_def.library.function
    return function.node_def


def test_the_server_takes_the_folder_by_its_tags(v1_folder: Path) -> None:
    one = examples({"a": [[1, 2, 3, 4]], "b": [[]]})
    for tags, row in ((SERVE, TABLE[[1, 2, 3, 4]]), (TPU, TABLE[[1, 2, 3]])):
        servable = ServableLoader(tags, "auto", compile_native)("m", 1, v1_folder)
        assert servable.native is not None
        outputs = servable.native.run("serving_default", {"examples": one}, ("vectors",))
        np.testing.assert_allclose(outputs["vectors"][0, :3], row.mean(axis=0), rtol=1e-6)
        servable.backends["serving_default"].close()


def test_a_bad_id_is_the_clients_fault_on_the_lowered_graph(v1_folder: Path) -> None:
    # XLA would read the last row for an id beyond the table; a server must not answer with another id's vector.
    with pytest.raises(InvalidRequest, match=r"8 is not in \[0, 8\)"):
        answer(v1_folder, TPU, "serving_default", examples=examples({"a": [[8]], "b": [[1]]}))


Dense = Callable[[Mapping[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def tf2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Callable[[Any, Dense], Any], Dense]:
    """A module saved as {serve}: its folder, the module, a function that makes its signature, its dense function."""
    file = tmp_path_factory.mktemp("vocabulary") / "words.txt"
    file.write_text("red\ngreen\nblue\n")
    module = tf.Module()
    module.tables = {"t": tf.Variable(TABLE)}
    initializer = tf.lookup.TextFileInitializer(
        str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.words = tf.lookup.StaticHashTable(initializer, default_value=7)

    def dense(features: Mapping[str, Any]) -> dict[str, Any]:
        vectors = tf.gather(module.tables["t"], features["ids"]) * features["mask"][:, :, None]
        divisor = tf.maximum(tf.reduce_sum(features["mask"], axis=1, keepdims=True), 1.0)
        return {"mean": tf.reduce_sum(vectors, axis=1) / divisor, "sum": tf.reduce_sum(vectors, axis=1)}

    def signature(saved: Any, run: Dense) -> Any:
        # The host maps words to rows; `run` gets dense tensors of static shape.
        def lookup(inputs: Mapping[str, Any]) -> dict[str, Any]:
            def rectangle(values: Any) -> Any:
                return tf.RaggedTensor.from_row_splits(values, inputs["x__row_splits"]).to_tensor(shape=[ROWS, K])

            ids = tf.cast(saved.words.lookup(inputs["x__values"]), tf.int32)
            return run({"ids": rectangle(ids), "mask": rectangle(inputs["x__weights"])})

        specs = {
            name: tf.TensorSpec([None], dtype, name)
            for name, dtype in (("x__values", tf.string), ("x__row_splits", tf.int64), ("x__weights", tf.float32))
        }
        return tf.function(lookup, input_signature=[specs], autograph=False)

    folder = tmp_path_factory.mktemp("tf2") / "1"
    tf.saved_model.save(module, str(folder), signatures={"s": signature(module, dense)})
    return folder, module, signature, dense


@pytest.fixture(scope="module")
def both(tf2: Any) -> Path:
    """Adds a {serve, tpu} MetaGraph to the model of `tf2`."""
    folder, module, signature, dense = tf2
    before = {path: path.stat().st_mtime_ns for path in (folder / "variables").iterdir()}
    add_tpu_meta_graph(folder, module, {"s": signature(module, lambda features: tpu_call(dense, features))})
    assert {path: path.stat().st_mtime_ns for path in (folder / "variables").iterdir()} == before
    return folder


def test_a_trackables_call_computes_the_padded_lookup(both: Path) -> None:
    words, weights = [["green", "blue", "red", "red"], [], ["violet"], ["red"]], [[1, 0.5, 2, 9], [], [4], [0.25]]
    rows = [[1, 2, 0, 0], [], [7], [0]]
    inputs = {
        "x__values": np.array([word.encode() for row in words for word in row], object),
        "x__row_splits": np.array([0, 4, 4, 5, 6]),
        "x__weights": np.array([w for row in weights for w in row], np.float32),
    }
    for tags in (SERVE, TPU):
        outputs = answer(both, tags, "s", **inputs)
        for combiner in ("mean", "sum"):
            np.testing.assert_allclose(outputs[combiner], padded(rows, combiner, weights), rtol=1e-6)


def test_tensorflows_loader_takes_either_of_the_two(both: Path) -> None:
    assert set(meta_graphs(both)) == {SERVE, TPU}
    assert ops(meta_graphs(both)[SERVE])["TPUPartitionedCall"] == 0
    assert ops(meta_graphs(both)[TPU])["TPUPartitionedCall"] == 1
    served = tf.saved_model.load(str(both), tags=["serve"])
    words = {"x__values": tf.constant(["blue"]), "x__row_splits": tf.constant([0, 1, 1, 1, 1], tf.int64)}
    outputs = served.signatures["s"](x__weights=tf.constant([1.0]), **words)
    assert outputs["sum"].numpy().tolist() == [TABLE[2].tolist(), *[[0, 0, 0]] * 3]
    for_tpu = tf.saved_model.load(str(both), tags=["serve", "tpu"])
    assert list(for_tpu.signatures) == ["s"]
    assert for_tpu.signatures["s"].structured_outputs["sum"].shape == [ROWS, 3]
    assert tf.saved_model.experimental.read_fingerprint(str(both)).saved_model_checksum


def test_control_flow_functions_and_host_work_survive_the_lowering(tmp_path: Path) -> None:
    module = tf.Module()
    module.two = tf.Variable(2.0)
    double = tf.function(lambda x: x * module.two, autograph=False, jit_compile=True)
    plus_two = tf.function(lambda x: x + module.two, autograph=False)

    def dense(x: Any) -> dict[str, Any]:
        y = plus_two(double(x))
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: plus_two(-y))
        y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, plus_two(y)), (tf.constant(0), y))[1]
        text = tf.compat.v1.tpu.outside_compilation(lambda n: tf.strings.as_string(tf.cast(n, tf.int32)), y)
        appended = tf.compat.v1.tpu.outside_compilation(lambda t: tf.strings.to_number(t + "1"), text)
        return {"y": y, "appended": tf.reshape(appended, tf.shape(y))}

    specs = [tf.TensorSpec([None], tf.float32, "x")]

    def guarded(x: Any) -> dict[str, Any]:
        # The assertion gives the TPU call a control dependency beside its inputs.
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "too large")]):
            return tpu_call(dense, x)

    def chosen(x: Any) -> dict[str, Any]:
        branches = [lambda f=f: tpu_call(lambda x: {"y": f(x)}, x) for f in (plus_two, double)]
        return dict(tf.switch_case(tf.minimum(tf.size(x), 1), branches))

    def functions(*bodies: Any) -> dict[str, Any]:
        names = ("guarded", "chosen")
        return {n: tf.function(f, input_signature=specs, autograph=False) for n, f in zip(names, bodies, strict=False)}

    tf.saved_model.save(module, str(tmp_path), signatures=functions(lambda x: {"y": x * module.two}))
    add_tpu_meta_graph(tmp_path, module, functions(guarded, chosen))
    x = np.array([1, -2, 3], np.float32)
    outputs = answer(tmp_path, TPU, "guarded", x=x)
    assert outputs["y"].tolist() == (2 * x + 2 + 6).tolist()
    assert outputs["appended"].tolist() == [101, 41, 141]
    # 2 x + 2 is -8, 4, 2. The sum is not above 0, so the graph takes its other branch.
    assert answer(tmp_path, TPU, "guarded", x=np.array([-5, 1, 0], np.float32))["y"].tolist() == [16, 4, 6]
    assert answer(tmp_path, TPU, "chosen", x=x)["y"].tolist() == (2 * x).tolist()
    assert answer(tmp_path, TPU, "chosen", x=x[:0])["y"].tolist() == []
    with pytest.raises(InvalidRequest, match="^assertion failed: .*too large"):
        answer(tmp_path, TPU, "guarded", x=x * 100)


def test_a_call_needs_a_graph_and_an_output() -> None:
    with pytest.raises(ExportError, match="use it within a tf.function or a v1 graph"):
        tpu_call(lambda x: {"y": x}, tf.constant(1.0))
    for graph in (tf.Graph(), tf.compat.v1.get_default_graph()):
        with graph.as_default(), pytest.raises(ExportError, match="build returned no outputs"):
            tpu_call(lambda x: {}, tf.constant(1.0))


def test_a_call_takes_any_structure_and_outputs_keep_their_shapes() -> None:
    seen = []

    def build(first: Any, second: Any) -> dict[str, Any]:
        seen.append((first, second))
        return {"z": first["a"] + second[0], "b": second[1]}

    with tf.Graph().as_default():
        x, y = tf.compat.v1.placeholder(tf.float32, [None, 2]), tf.compat.v1.placeholder(tf.int32, [5])
        outputs = tpu_call(build, {"a": x}, (x, y))
    assert len(seen) == 1
    assert {name: (t.shape.as_list(), t.dtype) for name, t in outputs.items()} == {
        "b": ([5], tf.int32),
        "z": ([None, 2], tf.float32),
    }
