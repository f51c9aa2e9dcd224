"""Calls a real server with the stock tritonclient, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess
from tests.toy_model import write_toy_model

with warnings.catch_warnings():
    # tritonclient's import warns: its generated code is of an older major version of protobuf, and gevent warns if it
    # is imported late.
    warnings.simplefilter("ignore")
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http
    from tritonclient.utils import InferenceServerException, np_to_triton_dtype

WIRES = ("http", "grpc")
each_wire = pytest.mark.parametrize("wire", WIRES)


class Client:
    """tritonclient on one wire: what its two modules do differently is here."""

    def __init__(self, server: ServerProcess, wire: str) -> None:
        self.wire, self.module = wire, triton_http if wire == "http" else triton_grpc
        port = server.http_port if wire == "http" else server.grpc_port
        self.triton: Any = self.module.InferenceServerClient(f"127.0.0.1:{port}")

    def close(self) -> None:
        """Closes its connections."""
        self.triton.close()

    def tensor(self, name: str, array: np.ndarray, **options: Any) -> Any:
        """Returns an input tensor of the client library; binary_data=False sends it as JSON, over HTTP only."""
        made = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        return made.set_data_from_numpy(array, **(options if self.wire == "http" else {}))

    def infer(self, model: str, arrays: dict[str, np.ndarray], signature: str = "", **options: Any) -> Any:
        """Runs an inference with binary tensors; returns its result."""
        inputs = [self.tensor(name, array) for name, array in arrays.items()]
        parameters = {"signature_name": signature} if signature else {}
        return self.triton.infer(model, inputs, parameters=parameters, **options)

    def document(self, answer: Any) -> Any:
        """Returns an answer about a server or a model as plain Python objects."""
        from google.protobuf import json_format

        if self.wire == "http":
            return answer
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)


@pytest.fixture(scope="module")
def toy(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy model with small limits and without TensorFlow."""
    settings = {"model_base_path": toy_model, "model_name": "toy", "graph_signatures": "off"}
    limits = {"max_request_bytes": 1 << 20, "max_response_bytes": 1 << 20}
    with ServerProcess(**settings, **limits) as server:
        yield server.ready()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Returns a function that makes clients; closes them after the test."""
    clients: list[Client] = []

    def connect(server: ServerProcess, wire: str) -> Client:
        clients.append(Client(server, wire))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """Returns the status and the text with which a call fails."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


LOOKUP = {
    "user": np.array([1, 4]),
    "tags__values": np.array([b"red", b"green"], object),
    "tags__row_splits": np.array([0, 2, 2]),
}


@each_wire
def test_lookups(toy: ServerProcess, connect: Callable[..., Client], wire: str) -> None:
    client = connect(toy, wire)
    result = client.infer("toy", LOOKUP, "lookup", request_id="42", model_version="1")
    assert result.as_numpy("user").tolist() == [[1, 10], [4, 40]]
    assert result.as_numpy("tags").tolist() == [[1.5, 2.5, 1], [0, 0, 0]]
    assert result.as_numpy("tags_sum") is None
    response = client.document(result.get_response())
    assert (response["id"], response["model_name"], response["model_version"]) == ("42", "toy", "1")

    wanted = [client.module.InferRequestedOutput("tags")]
    result = client.infer("toy", LOOKUP, "lookup", outputs=wanted)
    assert result.as_numpy("user") is None and result.as_numpy("tags").shape == (2, 3)
    none = client.infer("toy", {"user": np.array([], np.int64)}, "lookup")
    assert none.as_numpy("user").shape == (0, 2)


def test_json_tensors_in_and_out(toy: ServerProcess, connect: Callable[..., Client]) -> None:
    client = connect(toy, "http")
    inputs = [client.tensor(name, array, binary_data=False) for name, array in LOOKUP.items()]
    inputs[0] = client.tensor("user", LOOKUP["user"])
    wanted = [
        triton_http.InferRequestedOutput("user", binary_data=False),
        triton_http.InferRequestedOutput("tags", binary_data=True),
    ]
    result = client.triton.infer("toy", inputs, outputs=wanted, parameters={"signature_name": "lookup"})
    assert result.get_output("user")["data"] == [1.0, 10.0, 4.0, 40.0]
    assert result.get_output("tags")["parameters"] == {"binary_data_size": 24}
    assert result.as_numpy("user").tolist() == [[1, 10], [4, 40]]
    assert result.as_numpy("tags").tolist() == [[1.5, 2.5, 1], [0, 0, 0]]


@each_wire
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression(toy: ServerProcess, connect: Callable[..., Client], wire: str, coding: str) -> None:
    client = connect(toy, wire)
    names = ("request_compression_algorithm", "response_compression_algorithm")
    options = dict.fromkeys(names, coding) if wire == "http" else {"compression_algorithm": coding}
    arrays = {"tags__values": np.tile(np.arange(4), 20_000), "tags__row_splits": np.arange(0, 80_001, 8)}
    result = client.infer("toy", arrays, "lookup", **options)
    assert result.as_numpy("tags").tolist() == [[1.5, 3.5, 1]] * 10_000


@each_wire
def test_errors_have_their_status_and_text(toy: ServerProcess, connect: Callable[..., Client], wire: str) -> None:
    client = connect(toy, wire)
    user = {"user": np.array([1])}
    is_http = wire == "http"
    bad, missing = ("400", "404") if is_http else ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND")
    too_large = "413" if is_http else "StatusCode.RESOURCE_EXHAUSTED"
    unknown = (missing, "Servable not found for request: Latest(nobody); models: toy")
    assert refused(lambda: client.infer("nobody", user)) == unknown
    assert refused(lambda: client.triton.get_model_metadata("nobody")) == unknown
    status, text = refused(lambda: client.infer("toy", user, "lookup", model_version="7"))
    assert (status, text) == (missing, "Servable not found for request: Specific(toy, 7); versions served: 1")
    status, text = refused(lambda: client.infer("toy", {"user": np.array([9])}, "lookup"))
    assert (status, text) == (
        bad,
        'input "user": id 9 at position 0 is out of range, its table has ids 0 to 4.',
    )
    status, text = refused(lambda: client.infer("toy", {"user": np.array([1.0])}, "lookup"))
    assert (status, text) == (bad, 'input "user": expected int64, got float64.')
    status, text = refused(lambda: client.infer("toy", {"user": np.zeros(1 << 18, np.int64)}, "lookup"))
    assert status == too_large
    many_rows = {"tags__values": np.zeros(0, np.int64), "tags__row_splits": np.zeros(100_000, np.int64)}
    status, text = refused(lambda: client.infer("toy", many_rows, "lookup"))
    assert status == too_large and "this server's limit is 1048576 bytes" in text
    status, text = refused(
        lambda: client.infer("toy", {"user": np.array([1]), "tags__values": np.array([1])}, "lookup")
    )
    assert status == bad and "Missing but required: {tags__row_splits}" in text
    # The request names no signature, so it asks for the default, serving_default, which needs TensorFlow.
    status, text = refused(lambda: client.infer("toy", user))
    assert 'Signature "serving_default" runs a TensorFlow graph' in text
    assert status == ("400" if is_http else "StatusCode.FAILED_PRECONDITION")
    shared = client.module.InferInput("user", [1], "INT64")
    shared.set_shared_memory("region", 8)
    status, text = refused(lambda: client.triton.infer("toy", [shared]))
    assert (status, text) == (bad, 'input "user": the parameter "shared_memory_region" is not supported.')
    assert client.infer("toy", user, "lookup").as_numpy("user").tolist() == [[1, 10]]


@each_wire
def test_health_metadata_and_index(toy: ServerProcess, connect: Callable[..., Client], wire: str) -> None:
    client = connect(toy, wire)
    triton = client.triton
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("toy") and triton.is_model_ready("toy", "1")
    assert not triton.is_model_ready("toy", "7")
    assert not triton.is_model_ready("nobody")
    metadata = client.document(triton.get_server_metadata())
    assert metadata["name"] == "embedding-server" and "binary_tensor_data" in metadata["extensions"]
    model = client.document(triton.get_model_metadata("toy"))
    assert (model["name"], model["platform"], model["versions"]) == ("toy", "tensorflow_savedmodel", ["1"])
    assert [tensor["name"] for tensor in model["inputs"]] == ["tags__row_splits", "tags__values", "user"]
    assert model["outputs"][0]["datatype"] == "FP32"
    config = client.document(triton.get_model_config("toy"))
    config = config if wire == "http" else config["config"]
    assert [(tensor["name"], tensor["data_type"]) for tensor in config["output"]] == [("score", "TYPE_FP32")]
    index = client.document(triton.get_model_repository_index())
    (entry,) = (e for e in (index if wire == "http" else index["models"]) if e["state"] == "READY")
    assert (entry["name"], entry["version"]) == ("toy", "1")
    if wire == "http":
        lookup = triton.get_model_metadata("toy", query_params={"signature_name": "lookup"})
        assert {"name": "tags__weights", "datatype": "FP32", "shape": [-1]} in lookup["inputs"]


@each_wire
def test_what_is_not_served_says_so(toy: ServerProcess, connect: Callable[..., Client], wire: str) -> None:
    triton = connect(toy, wire).triton
    for call in (
        lambda: triton.get_system_shared_memory_status(),
        lambda: triton.register_system_shared_memory("r", "/key", 64),
        lambda: triton.unregister_cuda_shared_memory(),
        lambda: triton.get_trace_settings(),
        lambda: triton.update_log_settings({"log_verbose_level": 1}),
        lambda: triton.load_model("toy"),
        lambda: triton.unload_model("toy"),
        lambda: triton.get_inference_statistics("toy"),
    ):
        status, text = refused(call)
        assert status == ("501" if wire == "http" else "StatusCode.UNIMPLEMENTED")
        assert "not implemented" in text


def test_a_stream_says_that_it_is_not_served(toy: ServerProcess, connect: Callable[..., Client]) -> None:
    client = connect(toy, "grpc")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.triton.start_stream(lambda result, error: answers.put(error))
    # The client may raise here if the server has refused the stream already; only the callback gets the reason.
    with suppress(InferenceServerException):
        client.triton.async_stream_infer("toy", [client.tensor("user", np.array([1]))])
    error = answers.get(timeout=60)
    assert error.status() == "StatusCode.UNIMPLEMENTED" and "ModelStreamInfer is not implemented" in error.message()
    client.triton.stop_stream()


def test_asynchronous_calls(toy: ServerProcess, connect: Callable[..., Client]) -> None:
    http, grpc_client = connect(toy, "http"), connect(toy, "grpc")
    parameters = {"signature_name": "lookup"}
    pending = http.triton.async_infer("toy", [http.tensor("user", np.array([2]))], parameters=parameters)
    assert pending.get_result().as_numpy("user").tolist() == [[2, 20]]
    results: list[Any] = []
    is_done = threading.Event()

    def done(result: Any, error: Any) -> None:
        results.append((result, error))
        is_done.set()

    grpc_client.triton.async_infer("toy", [grpc_client.tensor("user", np.array([3]))], done, parameters=parameters)
    assert is_done.wait(60)
    ((result, error),) = results
    assert error is None and result.as_numpy("user").tolist() == [[3, 30]]

    async def over_asyncio() -> Any:
        import tritonclient.grpc.aio as triton_aio

        async with triton_aio.InferenceServerClient(f"127.0.0.1:{toy.grpc_port}") as client:
            tensor = grpc_client.tensor("user", np.array([4]))
            return await client.infer("toy", [tensor], parameters=parameters)

    assert asyncio.run(over_asyncio()).as_numpy("user").tolist() == [[4, 40]]


def test_a_label_stands_in_place_of_a_version(serve: Serve, connect: Callable[..., Client], tmp_path: Path) -> None:
    write_toy_model(tmp_path / "labelled" / "1")
    config = tmp_path / "models.conf"
    config.write_text(
        f'model_config_list {{ config {{ name: "toy" base_path: "{tmp_path / "labelled"}" model_platform: "tensorflow" '
        'version_labels { key: "stable" value: 1 } } }'
    )
    server = serve(
        model_base_path="", model_config_file=config, allow_version_labels_for_unavailable_models="true"
    ).ready()
    for wire in WIRES:
        client = connect(server, wire)
        result = client.infer("toy", {"user": np.array([1])}, "lookup", model_version="stable")
        assert result.as_numpy("user").tolist() == [[1, 10]]


# Datatype of the open inference protocol -> (numpy's dtype, values).
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "BOOL": (np.bool_, [True, False, True]),
    **{f"UINT{bits}": (f"uint{bits}", [0, 1, 2**bits - 1]) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (f"int{bits}", [-(2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1]) for bits in (8, 16, 32, 64)},
    "FP16": (np.float16, [0.5, -65504, np.inf]),
    "BF16": (ml_dtypes.bfloat16, [0.5, -2, np.inf]),
    "FP32": (np.float32, [0.1, -1e30, np.inf]),
    "FP64": (np.float64, [0.1, -1e300, -np.inf]),
    "BYTES": (object, [b"", b"caf\xc3\xa9", b"a"]),
}


@pytest.fixture(scope="module")
def echo_server(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves a model that returns its inputs, one of each datatype, and that has an input with its own default."""
    base = tmp_path_factory.mktemp("echo")
    dtypes = {name: tf.dtypes.as_dtype("string" if name == "BYTES" else dtype) for name, (dtype, _) in VALUES.items()}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], dtype, f"in_{name}") for name, dtype in dtypes.items()])
    def echo(*tensors: Any) -> dict[str, Any]:
        return {f"out_{name}": tf.ensure_shape(tensor, [None, 3]) for name, tensor in zip(dtypes, tensors, strict=True)}

    module = tf.Module()
    tf.saved_model.save(module, str(base / "1"), {"serving_default": echo})
    with ServerProcess(model_base_path=base, model_name="echo") as server:
        yield server.ready()


def echo_inputs() -> dict[str, np.ndarray]:
    """Returns two rows of each datatype."""
    return {f"in_{name}": np.array([values, values[::-1]], dtype) for name, (dtype, values) in VALUES.items()}


@pytest.mark.tf
@each_wire
def test_every_datatype_there_and_back(echo_server: ServerProcess, wire: str) -> None:
    with closing(Client(echo_server, wire)) as client:
        result = client.infer("echo", echo_inputs(), request_id="1")
        for name, array in echo_inputs().items():
            output = result.as_numpy(name.replace("in_", "out_"))
            assert (output.dtype, output.shape) == (array.dtype, (2, 3)), name
            assert output.tolist() == array.tolist(), name
        assert client.document(result.get_response())["parameters"]["signature_name"] in (
            "serving_default",
            {"string_param": "serving_default"},
        )
        some = client.infer("echo", echo_inputs(), outputs=[client.module.InferRequestedOutput("out_INT8")])
        assert [output["name"] for output in client.document(some.get_response())["outputs"]] == ["out_INT8"]


@pytest.mark.tf
def test_every_datatype_as_json(echo_server: ServerProcess) -> None:
    with closing(Client(echo_server, "http")) as client:
        arrays = echo_inputs()
        # tritonclient refuses to send bfloat16 as JSON, so it is sent as bytes; the answer has it as JSON.
        inputs = [client.tensor(name, array, binary_data=name == "in_BF16") for name, array in arrays.items()]
        names = [name.replace("in_", "out_") for name in arrays]
        wanted = [triton_http.InferRequestedOutput(name, binary_data=False) for name in names]
        result = client.triton.infer("echo", inputs, outputs=wanted)
        for name, array in arrays.items():
            output = result.as_numpy(name.replace("in_", "out_"))
            expected = (
                [[item.decode() for item in row] for row in array.tolist()] if "BYTES" in name else array.tolist()
            )
            assert (output.dtype, output.tolist()) == (array.dtype, expected), name


@pytest.mark.tf
def test_the_graphs_refusals_are_the_requests(echo_server: ServerProcess) -> None:
    for wire in WIRES:
        with closing(Client(echo_server, wire)) as client:
            arrays = echo_inputs()
            arrays["in_INT8"] = np.zeros((2, 4), np.int8)
            status, text = refused(lambda c=client, a=arrays: c.infer("echo", a))
            assert status == ("400" if wire == "http" else "StatusCode.INVALID_ARGUMENT"), text
            del arrays["in_INT8"]
            status, text = refused(lambda c=client, a=arrays: c.infer("echo", a))
            assert "Missing but required: {in_INT8}" in text


@pytest.mark.tf
def test_tensorflow_servings_half_plus_two(tf_serving_testdata: Path) -> None:
    settings = {"model_base_path": tf_serving_testdata / "saved_model_half_plus_two_cpu", "model_name": "half"}
    with ServerProcess(**settings) as server:
        server.ready()
        for wire in WIRES:
            with closing(Client(server, wire)) as client:
                result = client.infer("half", {"x": np.array([[1.0], [2.0], [5.0]], np.float32)})
                assert result.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
