"""Checks that the metadata of servers and models is the same in JSON and in protobuf."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from service.artifact.protos import message_class
from service.types import SignatureSpec, State, TensorSpec, VersionStatus
from service.wire import oip_models
from service.wire.oip_models import encode_document, model_config, model_metadata, repository_index, server_metadata


def signature() -> SignatureSpec:
    """Returns a signature with a tensor of each kind that model metadata must describe."""
    inputs = {
        "i": TensorSpec("i", "int64", (None, 2)),
        "s": TensorSpec("s", "string", (), is_optional=True),
        "b": TensorSpec("b", "bfloat16", None),
        "c": TensorSpec("c", "complex64", (3,)),
    }
    return SignatureSpec("lookup", "predict", "m", inputs, {"y": TensorSpec("y", "float32", (None,))})


STATUSES = [
    VersionStatus(4, State.LOADING),
    VersionStatus(3, State.AVAILABLE),
    VersionStatus(2, State.END, "NOT_FOUND", "no file"),
    VersionStatus(1, State.END),
]


def test_model_metadata() -> None:
    document = model_metadata("m", STATUSES, signature())
    assert document == {
        "name": "m",
        "versions": ["3"],
        "platform": "tensorflow_savedmodel",
        "inputs": [
            {"name": "i", "datatype": "INT64", "shape": [-1, 2]},
            {"name": "s", "datatype": "BYTES", "shape": []},
            {"name": "b", "datatype": "BF16", "shape": [-1]},
            {"name": "c", "datatype": "DT_COMPLEX64", "shape": [3]},
        ],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
    message = message_class("inference.ModelMetadataResponse").FromString(
        encode_document("inference.ModelMetadataResponse", document)
    )
    assert list(message.inputs[0].shape) == [-1, 2]
    assert [tensor.datatype for tensor in message.inputs] == ["INT64", "BYTES", "BF16", "DT_COMPLEX64"]


def test_model_config() -> None:
    document = model_config("m", signature())
    assert (document["max_batch_size"], document["platform"]) == (0, "tensorflow_savedmodel")
    assert document["input"] == [
        {"name": "i", "data_type": "TYPE_INT64", "dims": [-1, 2]},
        {"name": "s", "data_type": "TYPE_STRING", "dims": [], "optional": True},
        {"name": "b", "data_type": "TYPE_BF16", "dims": [-1]},
        {"name": "c", "data_type": "TYPE_INVALID", "dims": [3]},
    ]
    encoded = encode_document("inference.ModelConfigResponse", {"config": document})
    message = message_class("inference.ModelConfigResponse").FromString(encoded)
    assert [tensor.data_type for tensor in message.config.input] == [9, 13, 14, 0]
    assert [tensor.optional for tensor in message.config.input] == [False, True, False, False]
    assert message.config.output[0].name == "y"


def test_repository_index() -> None:
    statuses = {"m": STATUSES, "none": []}
    entries = repository_index(statuses, {"none": "no version folder"}, only_ready=False)
    assert [(e["name"], e["version"], e["state"], e["reason"]) for e in entries] == [
        ("m", "4", "LOADING", ""),
        ("m", "3", "READY", ""),
        ("m", "2", "UNAVAILABLE", "no file"),
        ("m", "1", "UNAVAILABLE", "unloaded"),
        ("none", "", "UNAVAILABLE", "no version folder"),
    ]
    assert [e["version"] for e in repository_index(statuses, {}, only_ready=True)] == ["3"]
    encoded = encode_document("inference.RepositoryIndexResponse", {"models": entries})
    message = message_class("inference.RepositoryIndexResponse").FromString(encoded)
    assert json_format.MessageToDict(message.models[1]) == {"name": "m", "version": "3", "state": "READY"}


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_name(state: State) -> None:
    (entry,) = repository_index({"m": [VersionStatus(1, state)]}, {}, only_ready=False)
    assert entry["state"] in ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


def test_server_metadata() -> None:
    document = server_metadata()
    assert document["name"] == "embedding-server" and document["version"]
    assert "binary_tensor_data" in document["extensions"]
    assert oip_models.encode_document("inference.ServerMetadataResponse", document)
