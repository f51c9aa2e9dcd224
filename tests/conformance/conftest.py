"""Fixtures of the conformance tests: one engine over two toy models, and a client for every wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.engine.engine import Engine
from service.engine.registry import Registry
from service.loading.loader import ServableLoader
from tests.conformance.contract_models import write_half, write_kinds
from tests.conformance.oip_wires import OipGrpcWire, OipHttpWire
from tests.conformance.wires import EngineWire, GrpcWire, HttpClient, HttpWire, Wire, grpc_channel, http_client
from tests.conftest import RecordingObserver, serving
from tests.integration.process import ServerProcess
from tests.toy_policies import write_policy_model


@pytest.fixture(scope="session")
def policy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a version folder of model "policies"; tests must not change it."""
    return write_policy_model(tmp_path_factory.mktemp("policies") / "1")


@pytest.fixture(scope="session")
def shared_engine(toy_model: Path, policy_model: Path) -> Engine:
    """Makes an engine of version 1 of models "toy" and "policies", with lookups only."""
    registry = serving(toy_model)
    registry.add_model("policies")
    registry.start("policies", 1)
    registry.publish(ServableLoader(frozenset({"serve"}), "off", 1)("policies", 1, policy_model))
    registry.add_model("loading")
    registry.configure({"toy": {"stable": 1, "gone": 7}, "policies": {}, "loading": {}})
    return Engine(registry, RecordingObserver())


@pytest.fixture(scope="session")
def http(shared_engine: Engine) -> Iterator[HttpClient]:
    """Makes a client of the HTTP application over shared_engine."""
    with http_client(shared_engine) as client:
        yield client


@pytest.fixture(scope="session")
def wires(shared_engine: Engine, http: HttpClient) -> Iterator[dict[str, Wire]]:
    """Makes a client for every wire, by name."""
    with grpc_channel(shared_engine) as channel:
        yield {
            "engine": EngineWire(shared_engine),
            "http :lookup": HttpWire(http, "lookup"),
            "http columns": HttpWire(http, "columns"),
            "http rows": HttpWire(http, "rows"),
            "grpc": GrpcWire(channel),
            "oip json": OipHttpWire(http, is_binary=False),
            "oip binary": OipHttpWire(http, is_binary=True),
            "oip grpc": OipGrpcWire(channel, is_raw=True),
            "oip grpc contents": OipGrpcWire(channel, is_raw=False),
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
def contract_core(contract_models: Path) -> Iterator[ServerProcess]:
    """Starts a server whose native core answers for the models of contract_engine."""
    pytest.importorskip("service._native", reason="the native core is not built")
    configs = "".join(
        f'config {{ name: "{name}" base_path: "{contract_models / name}" model_platform: "tensorflow" '
        "model_version_policy { all {} } }"
        for name in ("half", "kinds")
    )
    file = contract_models / "models.config"
    file.write_text(f"model_config_list {{ {configs} }}")
    with ServerProcess(data_plane="native", model_config_file=file, strict_readiness="true") as server:
        yield server.ready()


@pytest.fixture(scope="session")
def contract_engine(tf: Any, contract_models: Path) -> Engine:
    """Makes an engine of both versions of model "half" and of "kinds", which TensorFlow runs."""
    base = contract_models
    registry = Registry(lambda name, status: None)
    load = ServableLoader(frozenset({"serve"}), "auto", 1)
    for name, version in (("half", 1), ("half", 2), ("kinds", 1)):
        if version == 1:
            registry.add_model(name)
        registry.start(name, version)
        registry.publish(load(name, version, base / name / str(version)))
    return Engine(registry, RecordingObserver())


@pytest.fixture(scope="session")
def contract_http(contract_engine: Engine) -> Iterator[HttpClient]:
    """Makes a client of the HTTP application over contract_engine."""
    with http_client(contract_engine) as client:
        yield client


@pytest.fixture(scope="session")
def contract_channel(contract_engine: Engine) -> Iterator[grpc.Channel]:
    """Opens a channel to a gRPC server over contract_engine."""
    with grpc_channel(contract_engine) as channel:
        yield channel
