"""Sends small requests that claim a billion rows: by a shape, by row splits, or by one value that is repeated."""

from __future__ import annotations

import grpc
import httpx

from service.artifact.protos import message_class
from tests.integration.process import PATIENCE_S, ServerProcess

ROWS = 1_000_000_000
_INT64 = 9


def refusals(server: ServerProcess) -> list[tuple[str, object]]:
    """Sends four requests of a billion rows or ids; returns the wire and the status of each."""
    return [
        ("HTTP", _infer(server, [ROWS], [1])),
        ("HTTP", _infer(server, [ROWS, ROWS], [])),
        ("gRPC", _predict(server, {"user": ROWS})),
        ("gRPC", _predict(server, {"tags__values": 1, "tags__row_splits": ROWS})),
    ]


def _infer(server: ServerProcess, shape: list[int], data: list[int]) -> int:
    tensor = {"name": "user", "datatype": "INT64", "shape": shape, "data": data}
    body = {"inputs": [tensor], "parameters": {"signature_name": "lookup"}}
    # Sends the request on a new connection, because this server closes idle ones after tenths of a second.
    url = f"http://127.0.0.1:{server.http_port}/v2/models/default/infer"
    return httpx.post(url, json=body, timeout=PATIENCE_S).status_code


def _predict(server: ServerProcess, sizes: dict[str, int]) -> str:
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "default"
    request.model_spec.signature_name = "lookup"
    for name, size in sizes.items():
        tensor = request.inputs[name]
        tensor.dtype = _INT64
        tensor.tensor_shape.dim.add().size = size
        # A TensorProto with fewer values than elements repeats its last value.
        tensor.int64_val.append(0)
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    try:
        call(request.SerializeToString(), timeout=PATIENCE_S)
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"
