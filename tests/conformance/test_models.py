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
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from service.artifact.protos import message_class
from service.engine.engine import Engine
from service.engine.load_rules import LoadRules
from service.engine.model_set import ModelSet
from service.engine.registry import Registry
from service.errors import ServiceError
from service.loading.loader import ServableLoader
from service.native.choice import has_core
from service.native.native_servable import compile_native
from service.types import State
from service.wire.model_config_proto import parse_config_text
from tests.conformance.wires import HTTP_STATUS_OF_CODE, HttpClient, grpc_channel, http_client
from tests.conftest import RecordingObserver
from tests.toy_model import SHARD, write_toy_model
from tests.unit.artifact.test_tf_record import record

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "models.json").read_text())
WARMUP = Path("assets.extra/tf_serving_warmup_requests")
PATIENCE_S = 60
CODE_NAMES = message_class("tensorflow.serving.GetModelStatusResponse").DESCRIPTOR.file.pool.FindEnumTypeByName(
    "tensorflow.error.Code"
)

Told = tuple[Any, ...]


class World:
    """Folders, a set of models over them, and both wires.

    base: the folder of all models; half: where the rest of a half copy waits.
    """

    def __init__(self, base: Path, case: dict[str, Any]) -> None:
        self.base = base
        for name in case["add"]:
            self.add(name)
        registry = Registry(lambda model, status: None)
        rules = LoadRules(
            load=ServableLoader(frozenset({"serve"}), "off", 1, compile_native=compile_native if has_core() else None),
            max_retries=0,
            retry_interval_s=PATIENCE_S,
            settle_s=case.get("settle_s", 0.0),
        )
        self.models = ModelSet(
            registry,
            rules,
            poll_interval_s=0.02,
            reload_timeout_s=case.get("timeout_s", PATIENCE_S),
            allow_labels_for_unavailable=case.get("allow", False),
        )
        self.engine = Engine(
            registry, RecordingObserver(), reload=lambda new, deadline_s, origin: self.models.reload(new, deadline_s)
        )

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
            return error.code().name, error.details()
        return message_class(f"tensorflow.serving.{response}").FromString(data)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """The models and the server of one case of the contract, not started yet."""
    world = World(tmp_path, request.param)
    yield world
    assert world.models.stop(PATIENCE_S) == []


@pytest.mark.parametrize(("world", "case"), [(c, c) for c in CASES], indirect=["world"], ids=[c["name"] for c in CASES])
def test_case(world: World, case: dict[str, Any]) -> None:
    if "recorded" in case["name"] and not has_core():
        pytest.skip("the native core, which runs recorded requests, is not built")
    configs = parse_config_text(world.text(case["list"]), "models.conf")
    assert configs is not None
    if "refused" in case:
        with pytest.raises(ServiceError) as caught:
            world.models.start(configs)
        assert [caught.value.code, caught.value.message] == case["refused"]
        return
    world.models.start(configs)
    with http_client(world.engine) as http, grpc_channel(world.engine) as channel:
        for number, step in enumerate(case["steps"]):
            run(world, step, [Rest(http), Grpc(channel)], f"step {number} {step}")


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


def test_names_are_used_once() -> None:
    names = [case["name"] for case in CASES]
    assert sorted(names) == sorted(set(names))
