"""Fixtures of the conformance tests: servers with the models that several files ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conformance.contract_models import write_half, write_kinds
from tests.conformance.oip_wires import OipGrpcWire, OipHttpWire
from tests.conformance.wires import GrpcWire, HttpClient, HttpWire, Wire
from tests.integration.process import ServerProcess, server_of, until, write_models
from tests.toy_described import write_described_model
from tests.toy_model import write_toy_model
from tests.toy_policies import write_policy_model

# A model without a version, and the labels of the toy model; version 7 does not exist.
_MORE = """
config {{ name: "loading" base_path: "{folder}/loading" model_platform: "tensorflow" }}
config {{ name: "toy" base_path: "{toy}" model_platform: "tensorflow"
  version_labels {{ key: "stable" value: 1 }} version_labels {{ key: "gone" value: 7 }} }}
"""


@pytest.fixture(scope="session")
def shared_core(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of version 1 of models "toy" and "policies", with lookups only."""
    folder = tmp_path_factory.mktemp("shared")
    write_policy_model(folder / "policies" / "1")
    (folder / "loading").mkdir()
    with server_of(
        {"policies": folder / "policies"},
        folder,
        "--allow_version_labels_for_unavailable_models",
        more=_MORE.format(folder=folder, toy=toy_model),
        graph_signatures="off",
    ) as server:
        until(lambda: server.http.get("/v2/models/toy/ready").status_code == 200)
        yield server


# The models of toy_repository -> how they are written.
TOY_MODELS = {"toy": write_toy_model, "policies": write_policy_model, "described": write_described_model}


@pytest.fixture(scope="session")
def toy_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder with one version of each of TOY_MODELS, and "models.config", which lists them."""
    folder = tmp_path_factory.mktemp("toys")
    for name, write in TOY_MODELS.items():
        write(folder / name / "1")
    write_models(folder, {name: folder / name for name in TOY_MODELS})
    return folder


@pytest.fixture(scope="session")
def http(shared_core: ServerProcess) -> HttpClient:
    """Makes a client of shared_core."""
    return HttpClient(shared_core.http)


@pytest.fixture(scope="session")
def wires(shared_core: ServerProcess) -> dict[str, Wire]:
    """Makes a client of shared_core for every wire, by name."""
    return wires_of_server(shared_core)


def wires_of_server(server: ServerProcess) -> dict[str, Wire]:
    """Returns a client of a server for every wire, by name."""
    http = HttpClient(server.http)
    return {
        "http :lookup": HttpWire(http, "lookup"),
        "http columns": HttpWire(http, "columns"),
        "http rows": HttpWire(http, "rows"),
        "grpc": GrpcWire(server.channel),
        "oip json": OipHttpWire(http, is_binary=False),
        "oip binary": OipHttpWire(http, is_binary=True),
        "oip grpc": OipGrpcWire(server.channel, is_raw=True),
        "oip grpc contents": OipGrpcWire(server.channel, is_raw=False),
    }


@pytest.fixture(scope="session")
def contract_models(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes both versions of model "half", and model "kinds"; tests must not change them."""
    base = tmp_path_factory.mktemp("contract")
    write_half(tf, base / "half" / "1", added=100.0)
    write_half(tf, base / "half" / "2")
    write_kinds(tf, base / "kinds" / "1")
    return base


@pytest.fixture(scope="session")
def contract_core(contract_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of both versions of model "half" and of "kinds", which TensorFlow runs."""
    models = {name: contract_models / name for name in ("half", "kinds")}
    with server_of(models, tmp_path_factory.mktemp("contract-core")) as server:
        yield server


@pytest.fixture(scope="session")
def contract_http(contract_core: ServerProcess) -> HttpClient:
    """Makes a client of contract_core."""
    return HttpClient(contract_core.http)


@pytest.fixture(scope="session")
def contract_channel(contract_core: ServerProcess) -> grpc.Channel:
    """Returns a channel to contract_core."""
    return contract_core.channel
