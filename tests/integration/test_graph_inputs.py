"""Whole graphs with ragged, sparse and default inputs: the native core answers and refuses them as TensorFlow does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.integration.process import PATIENCE_S, ServerProcess, until, write_models

pytestmark = [pytest.mark.tf, pytest.mark.core]

Inputs = Mapping[str, np.ndarray]
Oracle = Callable[[str, Inputs], dict[str, np.ndarray]]


def floats(*values: float) -> np.ndarray:
    """Returns a float32 vector."""
    return np.array(values, np.float32)


def strings(*values: bytes) -> np.ndarray:
    """Returns a vector of byte strings."""
    return np.array([*values, None], object)[:-1]


# Signature of model tf2 -> the defaults of its inputs.
DEFAULTS = {
    "bags": {"bag__weights": floats()},
    "optional": {"scale": np.array(0.25, np.float32), "name": strings(b"a", b"", b"z")},
}


def write_tf2(tf: Any, folder: Path) -> None:
    """Writes a model of TensorFlow 2 with a signature for each kind of input."""
    module = tf.Module()
    whole = tf.TensorSpec([None], tf.int64)

    def function(*specs: Any) -> Any:
        return lambda f: tf.function(f, input_signature=list(specs), autograph=False)

    @function(tf.RaggedTensorSpec([None, None], tf.int64))
    def ragged(x: Any) -> Any:
        return {"sum": tf.reduce_sum(x, axis=1)}

    @function(tf.RaggedTensorSpec([None, None, None], tf.int64))
    def ragged2(x: Any) -> Any:
        return {"sum": tf.reduce_sum(tf.reduce_sum(x, axis=2), axis=1), "padded": x.to_tensor(-1)}

    @function(tf.SparseTensorSpec([None, None], tf.float32))
    def sparse(x: Any) -> Any:
        return {"sum": tf.sparse.reduce_sum(x, axis=1), "dense": tf.sparse.to_dense(tf.sparse.reorder(x))}

    @function(tf.SparseTensorSpec([None, None], tf.float32))
    def in_order(x: Any) -> Any:
        return {"dense": tf.sparse.to_dense(x)}

    @function(tf.TensorSpec([None], tf.complex64), tf.TensorSpec([None], tf.complex128))
    def conjugate(a: Any, b: Any) -> Any:
        return {"a": tf.math.conj(a), "b": tf.math.conj(b)}

    bag = {"bag__values": whole, "bag__row_splits": whole, "bag__weights": tf.TensorSpec([None], tf.float32)}

    def bags(inputs: Any) -> Any:
        values, weights = tf.cast(inputs["bag__values"], tf.float32), inputs["bag__weights"]
        weighted = tf.cond(tf.size(weights) > 0, lambda: values * weights, lambda: values)
        rows = tf.RaggedTensor.from_row_splits(weighted, inputs["bag__row_splits"], validate=False)
        return {"sum": tf.reduce_sum(rows, axis=1)}

    no_weights = {name: None for name in bag} | {name: tf.constant(one) for name, one in DEFAULTS["bags"].items()}
    bag_specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in bag.items()}
    weighted = tf.function(_with_default(bags, no_weights), input_signature=[bag_specs])

    def scaled(inputs: Any) -> Any:
        return {"y": inputs["x"] * inputs["scale"], "text": tf.strings.join([inputs["name"], b"!"])}

    specs = {
        "x": tf.TensorSpec([None], tf.float32, "x"),
        "scale": tf.TensorSpec([], tf.float32, "scale"),
        "name": tf.TensorSpec([None], tf.string, "name"),
    }
    defaults = {"x": None} | {name: tf.constant(array) for name, array in DEFAULTS["optional"].items()}
    optional = tf.function(_with_default(scaled, defaults), input_signature=[specs])
    signatures = {
        "ragged": ragged,
        "ragged2": ragged2,
        "sparse": sparse,
        "in_order": in_order,
        "conjugate": conjugate,
        "bags": weighted,
        "optional": optional,
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)


def _with_default(function: Any, defaults: Any) -> Any:
    def run(inputs: Any = defaults) -> Any:
        return function(inputs)

    return run


def write_tf1(tf: Any, folder: Path) -> None:
    """Writes a model of TensorFlow 1 whose inputs are SparseTensors, which clients send as ragged values."""
    v1 = tf.compat.v1
    info = v1.saved_model.build_tensor_info
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.sparse_placeholder(tf.int64, [None, None], "a")
        words = v1.sparse_placeholder(tf.string, [None, None], "words")
        cube = v1.sparse_placeholder(tf.int64, [None, None, None], "cube")
        small = v1.placeholder(tf.qint8, [None], "small")
        lengths = tf.strings.length(tf.sparse.to_dense(words, default_value=b""))
        both = {"dense": tf.sparse.to_dense(a), "lengths": lengths, "sum": tf.sparse.reduce_sum(a, 1)}
        build = v1.saved_model.build_signature_def
        predict = "tensorflow/serving/predict"
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "both": build(
                    {"a": info(a), "words": info(words)}, {name: info(out) for name, out in both.items()}, predict
                ),
                "quantized": build({"x": info(small)}, {"y": info(tf.bitcast(small, tf.int8))}, predict),
                "cube": build({"cube": info(cube)}, {"shape": info(tf.identity(cube.dense_shape))}, predict),
                "sparse_output": build({"a": info(a)}, {"a": info(a), "sum": info(both["sum"])}, predict),
            },
        )
        builder.save()


@pytest.fixture(scope="module")
def folder(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes both models, and the config file that lists them."""
    folder = tmp_path_factory.mktemp("inputs")
    write_tf2(tf, folder / "tf2" / "1")
    write_tf1(tf, folder / "tf1" / "1")
    write_models(folder, {name: folder / name for name in ("tf1", "tf2")})
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "batched"])
def is_batched(request: pytest.FixtureRequest) -> bool:
    """Whether the server runs requests in batches."""
    return bool(request.param)


@pytest.fixture(scope="module")
def server(folder: Path, is_batched: bool) -> Iterator[ServerProcess]:
    """A server of both models."""
    flags = ["--enable_batching"] if is_batched else []
    with ServerProcess(*flags, model_config_file=folder / "models.config", graph_signatures="auto") as server:
        yield server.ready()


@pytest.fixture(scope="module")
def oracle(tf: Any, folder: Path) -> Oracle:
    """Runs signatures of model tf2 with TensorFlow itself."""
    signatures = tf.saved_model.load(str(folder / "tf2" / "1")).signatures

    def run(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        found = signatures[name](**{key: tf.constant(array) for key, array in inputs.items()})
        return {key: tensor.numpy() for key, tensor in found.items()}

    return run


@contextmanager
def nothing_forwarded(server: ServerProcess) -> Iterator[None]:
    """Checks that the core forwards no request to Python meanwhile, but one for the status page."""

    def count() -> dict[str, int]:
        found: dict[str, int] = server.http.get("/v1/statusz").json()["data_plane"]["forwarded"]
        return found

    before = count()
    yield
    assert count() == {"grpc": before["grpc"], "http": before["http"] + 1}


def by_grpc(tf: Any, server: ServerProcess, model: str, signature: str, inputs: Inputs) -> dict[str, np.ndarray] | str:
    """Returns the outputs that a signature has over gRPC, or the text for invalid inputs."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(tf.make_tensor_proto(array).SerializeToString())
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    try:
        data = call(request.SerializeToString(), timeout=PATIENCE_S)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), error
        return error.details() or ""
    outputs = message_class("tensorflow.serving.PredictResponse").FromString(data).outputs
    proto = tf.make_tensor_proto(0.0)
    return {
        name: tf.make_ndarray(type(proto).FromString(tensor.SerializeToString())) for name, tensor in outputs.items()
    }


def by_rest(server: ServerProcess, model: str, signature: str, inputs: Mapping[str, Any]) -> Any:
    """Returns the outputs that a signature has over REST, or the text for invalid inputs."""
    sent = {name: _as_json(array) if isinstance(array, np.ndarray) else array for name, array in inputs.items()}
    body = {"signature_name": signature, "inputs": sent}
    answer = server.http.post(f"/v1/models/{model}:predict", json=body)
    assert answer.status_code in (200, 400), answer.text
    return answer.json()["outputs"] if answer.status_code == 200 else answer.json()["error"]


def _as_json(array: np.ndarray) -> Any:
    """Returns the lists of an array, with strings as text."""
    if array.dtype.kind == "O":
        return np.array([text.decode() for text in array.reshape(-1)], object).reshape(array.shape).tolist()
    return array.tolist()


def _sparse(indices: list[list[int]], shape: list[int]) -> dict[str, np.ndarray]:
    return {"x": np.array(indices), "x_1": floats(0.5, 2), "x_2": np.array(shape)}


VALUES, ROWS = np.array([4, 2, 9, 1, 7]), np.array([0, 2, 2, 5])
BAGS = {"bag__values": VALUES, "bag__row_splits": ROWS}
REQUESTS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "ragged": ("ragged", {"x": VALUES, "x_1": ROWS}),
    "ragged, only empty rows": ("ragged", {"x": np.array([], np.int64), "x_1": np.array([0, 0, 0])}),
    "ragged, row splits that go down": ("ragged", {"x": np.array([4, 2, 9]), "x_1": np.array([0, 3, 1, 3])}),
    "ragged rank 2": ("ragged2", {"x": VALUES, "x_1": np.array([0, 2, 2, 4]), "x_2": np.array([0, 2, 2, 4, 5])}),
    "sparse": ("sparse", _sparse([[0, 1], [2, 0]], [4, 3])),
    "sparse, no values": ("sparse", {"x": np.zeros((0, 2), np.int64), "x_1": floats(), "x_2": np.array([2, 3])}),
    "sparse, out of order": ("sparse", _sparse([[2, 0], [0, 1]], [3, 2])),
    "sparse, out of order where the graph needs order": ("in_order", _sparse([[2, 0], [0, 1]], [3, 2])),
    "sparse, too small a dense shape": ("in_order", _sparse([[0, 1], [2, 0]], [2, 2])),
    "sparse, a dense shape of another rank": ("in_order", _sparse([[0, 1], [2, 0]], [3])),
    "bags": ("bags", BAGS),
    "bags with weights": ("bags", BAGS | {"bag__weights": floats(1, 0.5, 2, -1, 0.25)}),
    "bags without rows": ("bags", {"bag__values": np.array([], np.int64), "bag__row_splits": np.array([0])}),
    "complex numbers": (
        "conjugate",
        {"a": np.array([1 + 2j, -0.5j], np.complex64), "b": np.array([1e300 + 1j, 0.25], np.complex128)},
    ),
    "defaults": ("optional", {"x": floats(1, 2, 3)}),
    "one default": ("optional", {"x": floats(1, 2, 3), "name": strings(b"x", b"y", b"z")}),
    "no default": ("optional", {"x": floats(1, 2), "scale": np.array(4, np.float32), "name": strings(b"x", b"y")}),
}


# JSON has no form for a tensor of shape [0, 2], and none for complex numbers.
NOT_IN_JSON = ("sparse, no values", "complex numbers")


@pytest.mark.parametrize("request_of", list(REQUESTS))
def test_inputs_are_answered_or_refused_as_by_tensorflow(
    tf: Any, server: ServerProcess, oracle: Oracle, is_batched: bool, request_of: str
) -> None:
    signature, inputs = REQUESTS[request_of]
    with nothing_forwarded(server):
        found = by_grpc(tf, server, "tf2", signature, inputs)
        shown = None if request_of in NOT_IN_JSON else by_rest(server, "tf2", signature, inputs)
    try:
        wanted: Any = oracle(signature, DEFAULTS.get(signature, {}) | inputs)
    except tf.errors.OpError as error:
        wanted = error.message
    if (
        is_batched
        and isinstance(found, str)
        and found.startswith(("Batching Run() input tensors must", "Batched output"))
    ):
        # In TensorFlow Serving's batches, all inputs and outputs have the first dimension in common.
        assert signature != "bags" and request_of not in ("defaults", "one default")
        wanted = found
    assert_equal(found, shown, wanted)


def assert_equal(found: Any, shown: Any, wanted: Any) -> None:
    """Compares the answers over gRPC and REST with TensorFlow's arrays, or with the text of its error."""
    if isinstance(wanted, str):
        # Behind the text, the server names the inputs that may be the reason.
        assert isinstance(found, str) and found.partition("; input ")[0] in wanted, (found, wanted)
        assert shown in (found, None)
        return
    assert isinstance(found, dict) and found.keys() == wanted.keys(), (found, shown, wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist())
        if shown is not None:
            assert (shown if len(wanted) == 1 else shown[name]) == _as_json(array)


WORDS = {"words__values": strings(b"red", b"a", b""), "words__row_splits": np.array([0, 2, 2, 3])}
SPARSE = {
    "some rows": ([[4, 2, 9], [], [7]], WORDS),
    "only empty rows": ([[], [], []], {"words__values": strings(), "words__row_splits": np.array([0, 0, 0, 0])}),
    "no rows": ([], {"words__values": strings(), "words__row_splits": np.array([0])}),
}


@pytest.mark.parametrize("rows_of", list(SPARSE))
def test_a_sparse_tensor_is_sent_as_ragged_values(tf: Any, server: ServerProcess, folder: Path, rows_of: str) -> None:
    rows, words = SPARSE[rows_of]
    splits = np.cumsum([0, *map(len, rows)])
    inputs = {"a__values": np.array([one for row in rows for one in row], np.int64), "a__row_splits": splits, **words}
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, ["serve"], str(folder / "tf1" / "1"))
        signature = meta_graph.signature_def["both"]
        feed = {}
        for key in ("a", "words"):
            sent = tf.RaggedTensor.from_row_splits(inputs[f"{key}__values"], inputs[f"{key}__row_splits"]).to_sparse()
            names = signature.inputs[key].coo_sparse
            feed[names.values_tensor_name] = session.run(sent.values)
            feed[names.indices_tensor_name] = session.run(sent.indices)
            feed[names.dense_shape_tensor_name] = session.run(sent.dense_shape)
        wanted = session.run({name: info.name for name, info in signature.outputs.items()}, feed)
    with nothing_forwarded(server):
        found = by_grpc(tf, server, "tf1", "both", inputs)
        assert_equal(found, by_rest(server, "tf1", "both", inputs), wanted)
        if rows:
            nested = {"a": rows, "words": [["red", "a"], [], [""]] if words is WORDS else [[], [], []]}
            assert_equal(found, by_rest(server, "tf1", "both", nested), wanted)


def test_row_splits_that_do_not_fit_are_refused(tf: Any, server: ServerProcess) -> None:
    for splits, text in (([0, 2], "ends at 2"), ([1, 3], "must start with 0"), ([0, 3, 1, 3], "must not decrease")):
        inputs = {"bag__values": np.array([4, 2, 9]), "bag__row_splits": np.array(splits)}
        with nothing_forwarded(server):
            found = by_grpc(tf, server, "tf2", "bags", inputs)
            assert found == by_rest(server, "tf2", "bags", inputs)
        assert isinstance(found, str) and text in found


def test_tensors_that_no_request_or_answer_can_carry_are_refused(tf: Any, server: ServerProcess) -> None:
    def post(signature: str, **more: Any) -> tuple[int, str]:
        body = {"signature_name": signature, **more}
        answer = server.http.post("/v1/models/tf1:predict", json=body)
        return answer.status_code, answer.text

    with nothing_forwarded(server):
        status, text = post("quantized", inputs={"x": [1]})
    assert status == 501 and 'run: \\"x\\" is qint8, which no request or answer can carry. Signatures that' in text
    with nothing_forwarded(server):
        status, text = post("cube", inputs={"cube": [[[1]]]})
    assert status == 501 and 'input \\"cube\\" is a sparse or composite tensor' in text
    rows = {"a__values": [4, 2], "a__row_splits": [0, 1, 2]}
    status, text = post("sparse_output", inputs=rows)
    assert status == 501 and 'Output \\"a\\" of signature' in text
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "tf1", "sparse_output"
    request.output_filter.append("sum")
    for name, numbers in rows.items():
        request.inputs[name].ParseFromString(tf.make_tensor_proto(np.array(numbers)).SerializeToString())
    data = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(
        request.SerializeToString(), timeout=PATIENCE_S
    )
    outputs = message_class("tensorflow.serving.PredictResponse").FromString(data).outputs
    assert [(name, list(tensor.int64_val)) for name, tensor in outputs.items()] == [("sum", [4, 2])]
    notices = server.http.get("/v1/statusz").json()["attention"]
    told = [one["message"] for one in notices if "cube" in one["message"]]
    assert told == ['version 1: the native core does not run cube: input "cube" is a sparse or composite tensor']


def test_strict_refuses_a_version_with_a_predict_that_no_request_can_run(folder: Path) -> None:
    settings: dict[str, Any] = {
        "model_base_path": folder / "tf1",
        "graph_signatures": "auto",
        "max_num_load_retries": 0,
    }
    with ServerProcess("--strict", **settings) as server:
        server.answering()
        until(lambda: server.http.get("/v1/models/default").json()["model_version_status"][0]["state"] == "END")
        (status,) = server.http.get("/v1/models/default").json()["model_version_status"]
        assert status["status"]["error_code"] == "FAILED_PRECONDITION"
        assert '"cube": input "cube" is a sparse or composite tensor' in status["status"]["error_message"]
