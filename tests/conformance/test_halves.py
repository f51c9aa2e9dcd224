"""Answers of 16 bits, on every wire and of both data planes, are the float32 ones as numpy and ml_dtypes round them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from embedding_client.client import EmbeddingClient
from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor
from service.types import Array
from tests.conformance.oip_wires import INFER
from tests.conformance.wires import PREDICT, fill_tensor
from tests.integration.process import ServerProcess, write_models
from tests.toy_model import toy_tables, write_toy_model

ml_dtypes = pytest.importorskip("ml_dtypes")

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
DATATYPES = {"float16": "FP16", "bfloat16": "BF16"}
PLANES = ("core", "reference")
# The lower bits of float32 that decide how either half rounds: ties, and their neighbours.
_LOWER = np.uint32([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
_RAGGED = {"tags__values": [1, 2, 3, 3, 1, 1], "tags__row_splits": [0, 3, 3, 6]}
_WEIGHTS = [0.3, 1e-8, -1.7, 65519.0, 7e4, 1.0]


def edges() -> Array:
    """Returns float32 of every sign and exponent, as [V, 2]."""
    bits: Array = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | _LOWER
    # numpy's conversion keeps a NaN signalling, and that of processors makes it quiet.
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    quiet: Array = np.where(is_nan, bits | 0x400000, bits)
    return quiet.view(np.float32).reshape(-1, 2)


def stored(dtype: str) -> Array:
    """Returns all numbers of a half, and NaN, as float32 [V, 2]."""
    numbers: Array = np.arange(1 << 16, dtype=np.uint16).view(HALVES[dtype]).astype(np.float32)
    return np.where(np.isnan(numbers), np.float32(np.nan), numbers).reshape(-1, 2)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server of each data plane over the toy model with other tables: "float32" and the halves."""
    folder = tmp_path_factory.mktemp("halves")
    for dtype in ("float32", *HALVES):
        user = edges() if dtype == "float32" else stored(dtype)
        tables = {**toy_tables(), "user": user}

        def set_size(manifest: dict[str, Any], size: int = len(user)) -> None:
            manifest["tables"]["user"]["vocabulary_size"] = size

        write_toy_model(folder / dtype / "1", dtype=dtype, tables=tables, edit_manifest=set_size)
    listed = write_models(folder, {dtype: folder / dtype for dtype in ("float32", *HALVES)})
    with ExitStack() as stack:
        started = {
            plane: stack.enter_context(
                ServerProcess(data_plane=plane, model_config_file=listed, graph_signatures="off")
            )
            for plane in PLANES
        }
        yield {plane: server.ready() for plane, server in started.items()}


def predict(server: ServerProcess, model: str, encoding: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a gRPC Predict."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = model, "lookup"
    for name, values in inputs.items():
        fill_tensor(request.inputs[name], np.asarray(values, np.float32 if name.endswith("weights") else np.int64))
    answer: bytes = server.channel.unary_unary(PREDICT)(
        request.SerializeToString(), timeout=60, metadata=(("x-tensor-encoding", encoding),)
    )
    response = message_class("tensorflow.serving.PredictResponse").FromString(answer)
    assert all(tensor.tensor_content or encoding == "values" for tensor in response.outputs.values())
    return {name: decode_tensor(name, tensor, 1 << 22) for name, tensor in response.outputs.items()}


def infer(server: ServerProcess, model: str, datatype: str, ids: Array) -> Array:
    """Returns the bytes of the output "user" of a gRPC ModelInfer."""
    request = message_class("inference.ModelInferRequest")(model_name=model)
    request.parameters["signature_name"].string_param = "lookup"
    request.parameters["output_datatype"].string_param = datatype
    request.inputs.add(name="user", datatype="INT64", shape=[len(ids)])
    request.raw_input_contents.append(ids.tobytes())
    answer: bytes = server.channel.unary_unary(INFER)(request.SerializeToString(), timeout=60)
    response = message_class("inference.ModelInferResponse").FromString(answer)
    assert [output.datatype for output in response.outputs] == [datatype]
    return np.frombuffer(response.raw_output_contents[0], np.uint16)


def rounded(array: Array, half: str) -> Array:
    """Returns the bits of the nearest halves."""
    with np.errstate(over="ignore"):
        bits: Array = array.astype(HALVES[half]).view(np.uint16)
    return bits


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", ["float32", *HALVES])
def test_rows_of_every_table_on_every_wire(servers: dict[str, ServerProcess], model: str, half: str) -> None:
    table = edges() if model == "float32" else stored(model)
    ids = np.arange(len(table))
    expected = rounded(table, half)
    for plane in PLANES:
        found = predict(servers[plane], model, half, {"user": ids})["user"]
        assert found.dtype == HALVES[half]
        np.testing.assert_array_equal(found.view(np.uint16), expected)
    core = servers["core"]
    np.testing.assert_array_equal(infer(core, model, DATATYPES[half], ids), expected.reshape(-1))
    client = partial(EmbeddingClient, model=model, timeout_s=60, float_dtype=half)
    for target in (f"127.0.0.1:{core.grpc_port}", f"http://127.0.0.1:{core.http_port}"):
        with client(target) as connected:
            got = connected.lookup({"user": ids})["user"]
            assert got.dtype == HALVES[half]
            np.testing.assert_array_equal(got.view(np.uint16), expected)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", ["float32", *HALVES])
def test_sums_are_rounded_once(servers: dict[str, ServerProcess], model: str, half: str) -> None:
    inputs = {**_RAGGED, "tags__weights": _WEIGHTS, "user": [0, 1, 2]}
    exact = predict(servers["core"], model, "content", inputs)
    for plane in PLANES:
        found = predict(servers[plane], model, half, inputs)
        assert found.keys() == exact.keys()
        for name, array in exact.items():
            np.testing.assert_array_equal(found[name].view(np.uint16), rounded(array, half), err_msg=f"{plane} {name}")


@pytest.mark.parametrize("plane", PLANES)
def test_other_encodings(servers: dict[str, ServerProcess], plane: str) -> None:
    for encoding in ("values", "content"):
        assert predict(servers[plane], "float16", encoding, {"user": [1]})["user"].dtype == np.float32
    for encoding in ("FP16", "int8", "nothing"):
        with pytest.raises(grpc.RpcError) as caught:
            predict(servers[plane], "float16", encoding, {"user": [1]})
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            f'The metadata "x-tensor-encoding" is "{encoding}"; expected one of values, content, float16, bfloat16.',
        )
