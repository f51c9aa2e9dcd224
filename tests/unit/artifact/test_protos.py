"""The private pool of messages is complete, does without TensorFlow, and is not harmed by it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from service.artifact.protos import message_class, new_pool

_ROUND_TRIP = """
from service.artifact.protos import message_class
request = message_class("tensorflow.serving.PredictRequest")()
request.inputs["x"].float_val.append(1.5)
assert message_class("tensorflow.TensorProto").FromString(request.inputs["x"].SerializeToString()).float_val == [1.5]
"""
_TENSORFLOW = """
from service.graph.library import import_tensorflow
import_tensorflow()
from tensorflow_serving.apis import predict_pb2
theirs = predict_pb2.PredictRequest()
theirs.inputs["x"].float_val.append(2.5)
"""
_EXCHANGE = """
request = message_class("tensorflow.serving.PredictRequest").FromString(theirs.SerializeToString())
assert request.inputs["x"].float_val == [2.5]
"""


def _run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_an_unknown_message_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        message_class("tensorflow.serving.NoSuchMessage")


def test_nested_messages_are_of_the_classes_that_message_class_gives() -> None:
    request = message_class("tensorflow.serving.PredictRequest")()
    assert type(request.inputs["x"]) is message_class("tensorflow.TensorProto")


@pytest.mark.parametrize(
    "name",
    [
        "tensorflow.SavedModel",
        "tensorflow.serving.GetModelMetadataResponse",
        "tensorflow.serving.GetModelStatusResponse",
        "tensorflow.serving.ReloadConfigRequest",
        "tensorflow.serving.SignatureDefMap",
        "tensorflow.serving.PredictionLog",
    ],
)
def test_every_message_of_the_api_is_there(name: str) -> None:
    assert message_class(name).DESCRIPTOR.full_name == name


def test_a_new_pool_takes_more_files() -> None:
    extra = descriptor_pb2.FileDescriptorProto(name="extra.proto")
    extra.message_type.add().name = "Extra"
    pool = new_pool([extra.SerializeToString()])
    assert pool.FindMessageTypeByName("Extra").name == "Extra"
    assert "Predict" in pool.FindServiceByName("tensorflow.serving.PredictionService").methods_by_name


def test_no_tensorflow_is_imported() -> None:
    assert _run(_ROUND_TRIP + "import sys; print('tensorflow' in sys.modules)").strip() == "False"


@pytest.mark.tf
@pytest.mark.parametrize(
    "program",
    [_ROUND_TRIP + _TENSORFLOW + _EXCHANGE + _ROUND_TRIP, _TENSORFLOW + _ROUND_TRIP + _EXCHANGE],
    ids=["before TensorFlow", "after TensorFlow"],
)
def test_tensorflow_in_the_same_process_changes_nothing(program: str) -> None:
    _run(program)


@pytest.mark.tf
def test_the_shipped_descriptors_are_those_of_the_installed_package() -> None:
    root = Path(__file__).parents[3]
    script = runpy.run_path(str(root / ".ci" / "make_serving_protos.py"))
    assert script["TARGET"].read_bytes() == script["descriptor_set"]()
