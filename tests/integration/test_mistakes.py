"""Typical wrong requests, each over HTTP and gRPC: its status, its code, and a text that says what to change.

tests/mistakes.toml has the requests and the answers; docs/mistakes.md is generated from the same file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import PREDICT, fill_tensor
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, until

pytestmark = pytest.mark.tf

MISTAKES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mistakes.toml").read_text())["mistake"]


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[ServerProcess]:
    """Serves the model of `make demo`, trained on synthetic data."""
    with ServerProcess(models=demo_model, model_name="movielens") as server:
        server.ready()
        until(lambda: server.http.get("/v1/models/movielens").json()["model_version_status"][0]["state"] == "AVAILABLE")
        yield server


def ask_http(http: httpx.Client, mistake: dict[str, Any]) -> dict[str, Any]:
    """Sends the request of a mistake over HTTP; returns its status with the canonical code, and its text."""
    method, path = mistake["call"].split()
    answer = http.request(method, path, content=mistake.get("body", "").encode())
    told = {"status": f"{answer.status_code} {answer.headers.get('x-error-code', '')}".rstrip(), **answer.json()}
    return told | ({"allow": answer.headers["allow"]} if "allow" in answer.headers else {})


def ask_grpc(channel: grpc.Channel, mistake: dict[str, Any]) -> tuple[str, str]:
    """Sends the request of a mistake over gRPC; returns its code and its text.

    A name of an input may end in ":" and the name of numpy's dtype; else integers are int64, and other numbers float32.
    """
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = mistake.get("model", "movielens")
    request.model_spec.signature_name = {"predict": ""}.get(mistake["grpc"], mistake["grpc"])
    if "version" in mistake:
        request.model_spec.version.value = mistake["version"]
    if "label" in mistake:
        request.model_spec.version_label = mistake["label"]
    request.output_filter.extend(mistake.get("outputs", ()))
    for name, value in mistake["inputs"].items():
        name, _, dtype = name.partition(":")
        array = np.array(value, dtype or None)
        if array.dtype.kind == "U":
            array = np.char.encode(array, "utf-8").astype(object)
        elif array.dtype.kind == "f" and not dtype:
            array = array.astype(np.float32)
        fill_tensor(request.inputs[name], array)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
    return caught.value.code().name, caught.value.details()


@pytest.mark.parametrize("mistake", [one for one in MISTAKES if "call" in one], ids=lambda one: one["name"])
def test_a_mistake_over_http_says_what_to_change(server: ServerProcess, mistake: dict[str, Any]) -> None:
    told = {"status": mistake["status"], "error": mistake["text"]}
    told |= {name: mistake[name] for name in ("allow", "models") if name in mistake}
    assert ask_http(server.http, mistake) == told


@pytest.mark.parametrize("mistake", [one for one in MISTAKES if "grpc" in one], ids=lambda one: one["name"])
def test_a_mistake_over_grpc_says_what_to_change(server: ServerProcess, mistake: dict[str, Any]) -> None:
    assert ask_grpc(server.channel, mistake) == (mistake["code"], mistake.get("grpc_text", mistake.get("text")))


def test_the_table_has_a_hundred_mistakes_with_names_of_their_own() -> None:
    assert len({(one["group"], one["name"]) for one in MISTAKES}) == len(MISTAKES) >= 100


def test_an_empty_list_of_a_ragged_feature_is_no_rows_on_both_wires(server: ServerProcess) -> None:
    assert server.lookup({"genres": []}, model="movielens") == {"genres": []}
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "movielens", "lookup"
    fill_tensor(request.inputs["genres"], np.empty(0, np.int64))
    data = server.channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
    answer = message_class("tensorflow.serving.PredictResponse").FromString(data)
    assert [dim.size for dim in answer.outputs["genres"].tensor_shape.dim] == [0, 8]


def test_get_v1_models_lists_the_models(server: ServerProcess) -> None:
    (model,) = server.http.get("/v1/models").json()["models"]
    assert model["name"] == "movielens"
    assert [(one["version"], one["state"]) for one in model["model_version_status"]] == [("1", "AVAILABLE")]
