"""The contract of TensorFlow Serving, case by case: a client written for it must not notice the difference.

Source: tensorflow_serving/model_servers/{http_rest_api_handler,get_model_status_impl,server_core}.cc and their tests,
servables/tensorflow/{predict_util,get_model_metadata_impl}.cc (9d981c5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from service.artifact.protos import message_class
from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess

CASES = json.loads((Path(__file__).parent / "cases" / "tfs_contract.json").read_text())


@pytest.fixture(scope="module")
def channel(shared_core: ServerProcess) -> grpc.Channel:
    """Returns a channel to a server of the toy model."""
    return shared_core.channel


@pytest.mark.parametrize("case", [c for c in CASES if "path" in c], ids=lambda c: c["name"])
def test_rest(http: HttpClient, case: dict[str, Any]) -> None:
    body = case.get("body", "")
    status, answer = http.request(case["method"], case["path"], body if isinstance(body, str) else json.dumps(body))
    # The error for an unknown model has a field of ours beside TensorFlow Serving's.
    answer.pop("models", None)
    assert (status, answer) == (case["status"], case["answer"])


@pytest.mark.parametrize("case", [c for c in CASES if "rpc" in c], ids=lambda c: c["name"])
def test_grpc(channel: grpc.Channel, case: dict[str, Any]) -> None:
    service, method = case["rpc"].split("/")
    request = json_format.ParseDict(case["message"], request_class(method)())
    call = channel.unary_unary(f"/tensorflow.serving.{service}/{method}")
    try:
        data = call(request.SerializeToString(), timeout=60)
    except grpc.RpcError as error:
        assert (error.code().name, error.details()) == (case["code"], case["text"])
        return
    assert "code" not in case
    response = message_class(f"tensorflow.serving.{method}Response").FromString(data)
    assert plain(response) == case["answer"]


def request_class(method: str) -> Any:
    """Returns the class of the request message of a gRPC method."""
    names = {"HandleReloadConfigRequest": "ReloadConfigRequest"}
    return message_class(f"tensorflow.serving.{names.get(method, method + 'Request')}")


def plain(message: Any) -> Any:
    """Returns the fields of a message that are set, as JSON values; 64-bit integers stay numbers."""
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            result[field.name] = value if not field.is_repeated else list(value)
        elif field.message_type.GetOptions().map_entry:
            result[field.name] = {key: plain(value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [plain(item) for item in value]
        else:
            result[field.name] = plain(value)
    return result


def test_metadata_over_both_wires_tells_the_same(http: HttpClient, channel: grpc.Channel) -> None:
    status, answer = http.request("GET", "/v1/models/toy/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    over_http = answer["metadata"]["signature_def"]["signature_def"]
    request = message_class("tensorflow.serving.GetModelMetadataRequest")()
    request.model_spec.name = "toy"
    request.metadata_field.append("signature_def")
    data = channel.unary_unary("/tensorflow.serving.PredictionService/GetModelMetadata")(request.SerializeToString())
    response = message_class("tensorflow.serving.GetModelMetadataResponse").FromString(data)
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    over_grpc = message_class("tensorflow.serving.SignatureDefMap").FromString(packed.value).signature_def
    assert sorted(over_grpc) == sorted(over_http) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]
    for name, signature in over_grpc.items():
        for key, info in signature.inputs.items():
            assert over_http[name]["inputs"][key] == {
                "dtype": {1: "DT_FLOAT", 3: "DT_INT32", 9: "DT_INT64"}[info.dtype],
                "tensor_shape": {
                    "dim": [{"size": str(dim.size), "name": ""} for dim in info.tensor_shape.dim],
                    "unknown_rank": False,
                },
                "name": info.name,
            }
    assert over_grpc["lookup"].outputs["tags"].tensor_shape.dim[1].size == 3
