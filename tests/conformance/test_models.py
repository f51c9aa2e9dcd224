"""Lists of models, policies, labels and reloads follow TensorFlow Serving's rules, each case through both wires.

A case has folders (`add`: "model/version", then "broken", "half", ... for what is wrong with it), a first list, and
steps: `add` and `remove` folders, `reload` by request, `ask` (who answers?) and `status`. What loads in the background
is waited for, unless a step says `now`. Every version answers with its own number.

Source: tensorflow_serving/model_servers/{server_core,model_service_impl,get_model_status_impl}.cc,
sources/storage_path/file_system_storage_path_source.cc, and their tests (9d981c5).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from service.artifact.protos import message_class
from service.types import State
from tests.conformance.wires import HTTP_STATUS_OF_CODE, HttpClient
from tests.integration.process import ServerProcess
from tests.toy_model import SHARD, write_toy_model
from tests.unit.artifact.test_encodings import record

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "models.json").read_text())
WARMUP = Path("assets.extra/tf_serving_warmup_requests")
PATIENCE_S = 60
CODE_NAMES = message_class("tensorflow.serving.GetModelStatusResponse").DESCRIPTOR.file.pool.FindEnumTypeByName(
    "tensorflow.error.Code"
)

Told = tuple[Any, ...]


class World:
    """Folders, and a server of the models in them.

    base: the folder of all models; half: where the rest of a half copy waits.
    """

    def __init__(self, base: Path, case: dict[str, Any]) -> None:
        self.base = base
        for name in case["add"]:
            self.add(name)
        self.file = base / "models.config"
        self.file.write_text(self.text(case["list"]))
        flags = {
            "model_config_file": self.file,
            "model_root": base,
            "graph_signatures": "off",
            "max_num_load_retries": 0,
            "version_settle_s": case.get("settle_s", 0.0),
            "file_system_poll_wait_seconds": 0.02,
            "model_reload_timeout_s": case.get("timeout_s", PATIENCE_S),
            "first_loads_timeout_s": 0,
            "allow_version_labels_for_unavailable_models": str(case.get("allow", False)).lower(),
        }
        self.server = ServerProcess(**flags)

    def text(self, models: list[Any]) -> str:
        """Returns a model config file's text; a model in the list is an object, or its part of the text."""
        return f"model_config_list {{ {self.filled(' '.join(map(_entry, models)))} }}"

    def filled(self, text: str) -> str:
        """Replaces {base} in a text by the folder of the models."""
        return text.replace("{base}", str(self.base))

    def add(self, name: str) -> None:
        """Adds a version's folder, or repairs it, in one step; a name may end with a fault."""
        name, _, fault = name.partition(" ")
        folder, draft = self.base / name, self.base / "draft"
        digits = "".join(filter(str.isdigit, folder.name))
        write_toy_model(draft, scale=int(digits))
        if fault == "broken":
            (draft / "saved_model.pb").write_bytes(b"")
            shutil.rmtree(draft / "assets.extra")
        elif fault == "half":
            (draft / SHARD).unlink()
        elif fault == "torn":
            (draft / WARMUP).write_bytes(b"x")
        elif fault == "cold":
            log = message_class("tensorflow.serving.PredictionLog")()
            log.predict_log.request.model_spec.signature_name = "nope"
            (draft / WARMUP).write_bytes(record(log.SerializeToString()))
        folder.parent.mkdir(exist_ok=True)
        self.remove(name)
        os.rename(draft, folder)

    def remove(self, name: str) -> None:
        """Removes a version folder."""
        if (self.base / name).exists():
            gone = self.base / "gone"
            os.rename(self.base / name, gone)
            shutil.rmtree(gone)


def _entry(model: Any) -> str:
    if isinstance(model, str):
        return model
    lines = [f'name: "{model["name"]}" base_path: "{{base}}/{model["name"]}" model_platform: "tensorflow"']
    lines += [f"model_version_policy {{ {model['policy']} }}"] if "policy" in model else []
    lines += [
        f'version_labels {{ key: "{label}" value: {version} }}' for label, version in model.get("labels", {}).items()
    ]
    return f"config {{ {' '.join(lines)} {model.get('settings', '')} }}"


class Rest:
    """Asks the HTTP API, and reads error codes from statuses."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def told(self, code: str, text: str) -> Told:
        return HTTP_STATUS_OF_CODE[code], text

    def ask(self, where: str) -> Told:
        body = json.dumps({"signature_name": "lookup", "inputs": {"user": [1]}})
        status, answer = self._client.post(f"/v1/models/{where}:predict", body)
        return (int(answer["outputs"][0][0]),) if status == 200 else (status, answer["error"])

    def status(self, where: str) -> Told:
        status, answer = self._client.request("GET", f"/v1/models/{where}")
        if status != 200:
            return status, answer["error"]
        return tuple(
            (int(s["version"]), s["state"], s["status"]["error_code"], s["status"]["error_message"])
            for s in answer["model_version_status"]
        )


class Grpc:
    """Asks the gRPC API."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def told(self, code: str, text: str) -> Told:
        return code, text

    def ask(self, where: str) -> Told:
        request = message_class("tensorflow.serving.PredictRequest")()
        self._fill(request.model_spec, where)
        request.model_spec.signature_name = "lookup"
        request.inputs["user"].dtype = 9
        request.inputs["user"].tensor_shape.dim.add(size=1)
        request.inputs["user"].int64_val.append(1)
        answer = self._call("PredictionService/Predict", request, "PredictResponse")
        if isinstance(answer, tuple):
            return answer
        version = answer.model_spec.version.value
        assert answer.outputs["user"].float_val[0] == version
        return (version,)

    def status(self, where: str) -> Told:
        request = message_class("tensorflow.serving.GetModelStatusRequest")()
        self._fill(request.model_spec, where)
        answer = self._call("ModelService/GetModelStatus", request, "GetModelStatusResponse")
        if isinstance(answer, tuple):
            return answer
        return tuple(
            (
                s.version,
                State(s.state).name,
                CODE_NAMES.values_by_number[s.status.error_code].name,
                s.status.error_message,
            )
            for s in answer.model_version_status
        )

    def reload(self, text: str) -> Told:
        """Asks the server for a list of models; returns the status and the text of its answer."""
        request = message_class("tensorflow.serving.ReloadConfigRequest")()
        text_format.Parse(text, request.config)
        answer = self._call("ModelService/HandleReloadConfigRequest", request, "ReloadConfigResponse")
        return answer if isinstance(answer, tuple) else (answer.status.error_code, answer.status.error_message)

    def _fill(self, spec: Any, where: str) -> None:
        spec.name, *choice = where.split("/")
        if choice and choice[0] == "versions":
            spec.version.value = int(choice[1])
        elif choice:
            spec.version_label = choice[1]

    def _call(self, method: str, request: Any, response: str) -> Any:
        call = self._channel.unary_unary(f"/tensorflow.serving.{method}")
        try:
            data = call(request.SerializeToString(), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            # Only gRPC's text ends with the names of the models.
            return error.code().name, re.sub("; (models: .*|no model is served here)$", "", error.details())
        return message_class(f"tensorflow.serving.{response}").FromString(data)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """The models and the server of one case of the contract."""
    world = World(tmp_path, request.param)
    with world.server:
        yield world


@pytest.mark.parametrize(("world", "case"), [(c, c) for c in CASES], indirect=["world"], ids=[c["name"] for c in CASES])
def test_case(world: World, case: dict[str, Any]) -> None:
    if "refused" in case:
        assert world.server.exit_code() == 2
        _, text = case["refused"]
        assert text in world.server.text()
        return
    server = world.server.answering()
    for number, step in enumerate(case["steps"]):
        run(world, step, [Rest(HttpClient(server.http)), Grpc(server.channel)], f"step {number} {step}")


def run(world: World, step: dict[str, Any], wires: list[Any], what: str) -> None:
    """Does one step."""
    if "add" in step:
        world.add(step["add"])
    elif "remove" in step:
        world.remove(step["remove"])
    elif "reload" in step:
        told = (step["code"], world.filled(step["text"])) if "code" in step else (0, "")
        assert wires[-1].reload(world.text(step["reload"])) == told, what
    else:
        (method,) = {"ask", "status"} & step.keys()
        for wire in wires:
            look = lambda wire=wire: getattr(wire, method)(step[method])  # noqa: E731
            assert settled(look, expected(world, step, wire), is_now=step.get("now", False)) is None, what


def expected(world: World, step: dict[str, Any], wire: Any) -> Told:
    """Returns what a wire must answer in a step of a case: code and text, a version, or the states of all versions."""
    if "code" in step:
        return tuple(wire.told(step["code"], world.filled(step["text"])))
    if "version" in step:
        return (step["version"],)
    return tuple((v, state, *map(world.filled, rest or ("OK", ""))) for v, state, *rest in step["versions"])


def settled(look: Callable[[], Told], wanted: Told, *, is_now: bool) -> Told | None:
    """Looks until the answer is the wanted one and returns None; returns the last answer if it never comes."""
    end_s = time.monotonic() + (0 if is_now else PATIENCE_S)
    while (seen := look()) != wanted:
        if time.monotonic() >= end_s:
            return seen
        time.sleep(0.01)
    return None
