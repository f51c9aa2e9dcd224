"""TensorFlow Serving's own models, config file and flags, asked by the stock stubs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.versions.model_config import UNTOLD
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until

pytestmark = pytest.mark.tf

TWO = "saved_model_half_plus_two_2_versions"


class Stubs:
    """The stock stubs over one channel. Each call returns the answer, or the error's code and text."""

    def __init__(self, channel: grpc.Channel) -> None:
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        self._models = model_service_pb2_grpc.ModelServiceStub(channel)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def predict(self, name: str, **choice: Any) -> Any:
        """Sends x = 1 to a model; returns the version that answered and y, or the error's code and text."""
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        if "version" in choice:
            request.model_spec.version.value = choice["version"]
        if "label" in choice:
            request.model_spec.version_label = choice["label"]
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0]))
        return told(
            lambda: self._predictions.Predict(request, timeout=60),
            lambda r: (r.model_spec.version.value, tf.make_ndarray(r.outputs["y"]).tolist()),
        )

    def status(self, name: str) -> Any:
        """Returns the states of a model's versions, {version: (state, error code)}, or the error's code and text."""
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = name
        states = get_model_status_pb2.ModelVersionStatus.State
        return told(
            lambda: self._models.GetModelStatus(request, timeout=60),
            lambda r: {s.version: (states.Name(s.state), s.status.error_code) for s in r.model_version_status},
        )

    def reload(self, *configs: dict[str, Any]) -> Any:
        """Asks the server to serve this list of models; returns the answer's error code and text."""
        from tensorflow_serving.apis import model_management_pb2

        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.SetInParent()
        for config in configs:
            labels = config.pop("labels", {})
            added = request.config.model_config_list.config.add(model_platform="tensorflow", name=config.pop("name"))
            added.base_path = str(config.pop("base_path"))
            added.version_labels.update(labels)
            for version in config.pop("versions", ()):
                added.model_version_policy.specific.versions.append(version)
            assert not config
        return told(
            lambda: self._models.HandleReloadConfigRequest(request, timeout=60),
            lambda r: (r.status.error_code, r.status.error_message),
        )


def told(call: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
    """Returns what `read` finds in the answer of a gRPC call, or the error's code and text."""
    try:
        response = call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return read(response)


@pytest.fixture
def server(serve: Serve, tf_serving_testdata: Path, tmp_path: Path) -> ServerProcess:
    """Starts a server with good_model_config.txt and two versions of half_plus_two."""
    two, three = tmp_path / "half_plus_two", tmp_path / "half_plus_three"
    shutil.copytree(tf_serving_testdata / TWO, two)
    shutil.copytree(tf_serving_testdata / "saved_model_half_plus_three", three)
    text = (tf_serving_testdata / "good_model_config.txt").read_text()
    text = text.replace("${TEST_HALF_PLUS_TWO_DIR}", str(two)).replace("${TEST_HALF_PLUS_THREE_DIR}", str(three))
    config = tmp_path / "models.conf"
    config.write_text(text)
    flags = ("--tensorflow_session_parallelism=1", "--enable_model_warmup", "--max_num_load_retries=0")
    # The copies are seconds old: without this, the older version can count as complete a moment before the newer one.
    flags += (f"--model_root={tf_serving_testdata}", "--version_settle_s=0")
    server = serve(*flags, model_base_path="", model_config_file=config, graph_signatures="auto").answering()
    until(lambda: server.http.get("/readyz").status_code == 200)
    return server


def test_models_labels_and_reloads_by_the_stock_stubs(
    server: ServerProcess, tf_serving_testdata: Path, tmp_path: Path
) -> None:
    stubs = Stubs(server.channel)
    two = {"name": "half_plus_two", "base_path": tmp_path / "half_plus_two"}
    three = {"name": "half_plus_three", "base_path": tmp_path / "half_plus_three"}
    assert stubs.status("half_plus_two") == {124: ("AVAILABLE", 0)}
    assert stubs.predict("half_plus_two") == (124, [2.5])
    assert stubs.predict("half_plus_three") == (123, [3.5])
    assert stubs.predict("half_plus_two", version=123) == (
        "NOT_FOUND",
        "Servable not found for request: Specific(half_plus_two, 123); versions served: 124",
    )
    # The first new list also loads the old version 123, the second one labels both versions.
    assert stubs.reload(two | {"versions": [123, 124]}, three.copy()) == (0, "")
    until(lambda: stubs.status("half_plus_two") == {124: ("AVAILABLE", 0), 123: ("AVAILABLE", 0)})
    labels = {"stable": 123, "canary": 124}
    assert stubs.reload(two | {"versions": [123, 124], "labels": labels}) == (0, "")
    assert stubs.predict("half_plus_two", label="stable") == (123, [2.5])
    assert stubs.predict("half_plus_two", label="canary") == (124, [2.5])
    assert stubs.predict("half_plus_two", label="x") == (
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: x; labels: canary, stable",
    )
    assert stubs.predict("half_plus_three") == (
        "NOT_FOUND",
        "Servable not found for request: Latest(half_plus_three); models: half_plus_two",
    )
    until(lambda: stubs.status("half_plus_three") == {123: ("END", 0)})
    assert server.http.get("/v1/models/half_plus_two/labels/stable/metadata").json()["model_spec"] == {
        "name": "half_plus_two",
        "signature_name": "",
        "version": "123",
    }

    # Models that TensorFlow Serving's own tests load, and one that they expect to fail.
    configs = {
        name: {"name": name, "base_path": tf_serving_testdata / name}
        for name in (
            "saved_model_half_plus_two_cpu_with_saved_model_config",
            "saved_model_half_plus_two_cpu_with_empty_saved_model_config",
            "bad_half_plus_two",
        )
    }
    code, text = stubs.reload(*(config.copy() for config in configs.values()))
    assert code == "UNKNOWN"
    assert text == f"1 model(s) did not become available: {{{{{{name: bad_half_plus_two}} due to error: {UNTOLD}}}, }}"
    assert stubs.predict("half_plus_two", label="stable") == (123, [2.5])
    text = "Could not find any versions of model bad_half_plus_two; models: half_plus_two"
    assert stubs.status("bad_half_plus_two") == ("NOT_FOUND", text)
    del configs["bad_half_plus_two"]
    assert stubs.reload(*(config.copy() for config in configs.values())) == (0, "")
    for name in configs:
        assert stubs.predict(name) == (123, [2.5])
