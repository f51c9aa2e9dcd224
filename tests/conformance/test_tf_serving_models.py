"""TensorFlow Serving's own test models, answered over both wires as its tests expect it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.core.native_servable import compile_native
from service.errors import ArtifactError
from service.loading.loader import ServableLoader
from tests.conformance.contract_calls import Case, send_grpc, send_rest
from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess, server_of

pytestmark = pytest.mark.tf

# Model name -> the folder in TensorFlow Serving's test data, and its versions. A test that asks for the latest version
# gets the last one.
MODELS = {
    "half": ("saved_model_half_plus_two_2_versions", (123, 124)),
    "half_cpu": ("saved_model_half_plus_two_cpu", (123,)),
    "half_tf2": ("saved_model_half_plus_two_tf2_cpu", (123,)),
    "half_mlmd": ("saved_model_half_plus_two_mlmd", (123,)),
    "half_empty_config": ("saved_model_half_plus_two_cpu_with_empty_saved_model_config", (123,)),
    "half_config": ("saved_model_half_plus_two_cpu_with_saved_model_config", (123,)),
    "three": ("saved_model_half_plus_three", (123,)),
    "matrix": ("matrix_half_plus_two", (1,)),
    "counter": ("saved_model_counter", (123,)),
}
HALVES = [name for name in MODELS if name.startswith("half")]


@pytest.fixture(scope="module")
def server(tf_serving_testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of those models of TensorFlow Serving's tests that TensorFlow can load."""
    folder = tmp_path_factory.mktemp("models")
    for name, (source, versions) in MODELS.items():
        (folder / name).mkdir()
        for version in versions:
            digits = "1" if source.startswith("matrix") else f"{version:08}"
            (folder / name / str(version)).symlink_to(tf_serving_testdata / source / digits)
    with server_of({name: folder / name for name in MODELS}, folder) as started:
        yield started


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> HttpClient:
    """Returns a client of the HTTP port."""
    return HttpClient(server.http)


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> grpc.Channel:
    """Returns a channel to the gRPC port."""
    return server.channel


def latest(name: str) -> dict[str, Any]:
    """Returns a model's spec with its latest version, which the answer must also name."""
    return {"name": name, "version": MODELS[name][1][-1]}


def both(http: HttpClient, channel: grpc.Channel, case: Case) -> list[Any]:
    """Returns the answers of each form of each wire to a case."""
    layouts = ("columns", "rows") if case["call"] == "predict" else ("",)
    return [send_grpc(channel, case), *(send_rest(http, case, layout) for layout in layouts)]


@pytest.mark.parametrize("name", HALVES)
def test_half_plus_two(http: HttpClient, channel: grpc.Channel, name: str) -> None:
    case = {
        "call": "predict",
        "spec": latest(name),
        "inputs": {"x": [[1.0], [2.0], [5.0]]},
        "outputs": {"y": [[2.5], [3.0], [4.5]]},
    }
    assert both(http, channel, case) == [case["outputs"]] * 3


@pytest.mark.parametrize("name", HALVES)
def test_classify_and_regress(http: HttpClient, channel: grpc.Channel, name: str) -> None:
    examples = [{"x": 80.0}, {"x": 90.0}]
    for call, signature, answer in (
        ("classify", "classify_x_to_y", [[["", 42.0]], [["", 47.0]]]),
        ("regress", "regress_x_to_y", [42.0, 47.0]),
        ("regress", "regress_x_to_y2", [43.0, 48.0]),
    ):
        case = {"call": call, "spec": {**latest(name), "signature": signature}, "examples": examples}
        assert both(http, channel, case) == [answer] * 2


def test_multi_inference(channel: grpc.Channel) -> None:
    spec = latest("half")
    tasks = [
        {"spec": {**spec, "signature": "regress_x_to_y"}},
        {"spec": {**spec, "signature": "classify_x_to_y"}, "method": "classify"},
    ]
    case = {"call": "multi", "tasks": tasks, "examples": [{"x": 80.0}]}
    assert send_grpc(channel, case) == [["regress_x_to_y", [42.0]], ["classify_x_to_y", [[["", 42.0]]]]]


def test_shapes_are_not_held_against_the_signature(http: HttpClient, channel: grpc.Channel) -> None:
    case = {"call": "predict", "spec": latest("half"), "inputs": {"x": [2.0, 3.0]}, "outputs": {"y": [3.0, 3.5]}}
    assert both(http, channel, case) == [case["outputs"]] * 3


def test_three_and_a_matrix(http: HttpClient, channel: grpc.Channel) -> None:
    case = {"call": "predict", "spec": latest("three"), "inputs": {"x": [2.0]}, "outputs": {"y": [4.0]}}
    assert both(http, channel, case) == [case["outputs"]] * 3
    ones, answer = [[[2.0] * 3] * 3], [[[3.0] * 3] * 3]
    case = {"call": "predict", "spec": latest("matrix"), "inputs": {"x": ones}, "outputs": {"y": answer}}
    assert both(http, channel, case) == [case["outputs"]] * 3


def test_signatures_without_inputs_work_over_grpc(http: HttpClient, channel: grpc.Channel) -> None:
    def call(signature: str, inputs: Any = None) -> Any:
        spec = {**latest("counter"), "signature": signature}
        return send_grpc(channel, {"call": "predict", "spec": spec, "inputs": inputs or {}})

    assert call("reset_counter") == {"output": 0.0}
    assert call("incr_counter") == {"output": 1.0}
    assert call("incr_counter_by", {"delta": 2.5}) == {"output": 3.5}
    assert call("get_counter") == {"output": 3.5}
    status, answer = http.post("/v1/models/counter:predict", '{"signature_name": "get_counter", "inputs": {}}')
    assert (status, answer["error"]) == (400, "Failed to get input map for signature: get_counter")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("half_cpu", "half_plus_two_model_metadata.json"),
        ("half", "saved_model_half_plus_two_2_versions_metadata.json"),
    ],
)
def test_metadata(http: HttpClient, tf_serving_testdata: Path, name: str, file: str) -> None:
    expected = json.loads((tf_serving_testdata / file).read_text())
    # The files of TensorFlow Serving have the name that its tests give to the model.
    expected["model_spec"]["name"] = name
    status, answer = http.request("GET", f"/v1/models/{name}/versions/123/metadata")
    assert (status, answer) == (200, expected)


def test_the_initialiser_of_tensorflow_2_is_listed_and_can_not_be_called(
    http: HttpClient, channel: grpc.Channel
) -> None:
    _, answer = http.request("GET", "/v1/models/half_tf2/metadata")
    assert "__saved_model_init_op" in answer["metadata"]["signature_def"]["signature_def"]
    spec = {**latest("half_tf2"), "signature": "__saved_model_init_op"}
    refused = send_grpc(channel, {"call": "predict", "spec": spec, "inputs": {}})
    assert refused.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("folder", ["bad_half_plus_two/00000123", "saved_model_half_plus_two_tflite/00000123"])
def test_what_is_no_saved_model(tf_serving_testdata: Path, folder: str) -> None:
    with pytest.raises(ArtifactError, match="saved_model.pb"):
        ServableLoader(frozenset({"serve"}), "auto", compile_native)("bad", 123, tf_serving_testdata / folder)
