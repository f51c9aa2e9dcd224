"""Each flag of a wire has its effect in a running server."""

from __future__ import annotations

import gzip
import json

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import fill_tensor
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S

PREDICT = "/tensorflow.serving.PredictionService/Predict"


def test_flags_of_the_wires(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> None:
    socket = tmp_path_factory.mktemp("s") / "grpc"
    flags = ("--rest_api_enable_cors_support", "--enable_serialization_as_tensor_content", "--rest_api_strict_json")
    settings = {
        "grpc_socket_path": socket,
        "grpc_channel_arguments": "grpc.max_receive_message_length=2000",
        "rest_api_gzip_min_bytes": 1000,
    }
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    fill_tensor(request.inputs["user"], np.array([1, 4]))
    server = serve(*flags, **settings).ready()
    with grpc.insecure_channel(f"unix:{socket}") as local:
        for channel in (server.channel, local):
            data = channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
            (output,) = message_class("tensorflow.serving.PredictResponse").FromString(data).outputs.values()
            assert np.frombuffer(output.tensor_content, "<f4").tolist() == [1.0, 10.0, 4.0, 40.0]
    request.inputs["user"].Clear()
    fill_tensor(request.inputs["user"], np.ones(4000, np.int64))
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    path = "/V1/MODELS/default:lookup"
    response = server.http.post(path, json={"features": {"user": [1] * 1000}}, headers={"Origin": "http://a"})
    assert response.json()["embeddings"]["user"] == [[1.0, 10.0]] * 1000
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["access-control-allow-origin"] == "*"
    response = server.http.post(path, content=b'{"features": {"user": [NaN]}}')
    assert response.status_code == 400 and "NaN" in json.loads(response.content)["error"]


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "compressed"])
def test_a_limit_below_the_size_of_small_requests_holds(serve: Serve, *, is_packed: bool) -> None:
    server = serve(max_request_bytes=1024).ready()
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    call = server.channel.unary_unary(PREDICT)
    compression = grpc.Compression.Gzip if is_packed else grpc.Compression.NoCompression
    for ids, is_fitting in ((500, True), (4000, False)):
        request.inputs["user"].Clear()
        fill_tensor(request.inputs["user"], np.ones(ids, np.int64))
        try:
            call(request.SerializeToString(), timeout=PATIENCE_S, compression=compression)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        assert code is (grpc.StatusCode.OK if is_fitting else grpc.StatusCode.RESOURCE_EXHAUSTED)
        body = b'{"features": {"user": [%s]}}' % b",".join([b"1"] * (ids // 2))
        headers = {"content-encoding": "gzip"} if is_packed else {}
        response = server.http.post(
            "/v1/models/default:lookup", content=gzip.compress(body) if is_packed else body, headers=headers
        )
        assert response.status_code == (200 if is_fitting else 413)
