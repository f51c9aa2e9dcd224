"""Fixtures of the HTTP tests: an engine over a model without files, and a client of the HTTP application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from service.configuration.config_files import metrics_paths
from service.control.engine import Engine
from service.errors import IdOutOfRange, ServiceError
from service.http.http_app import create_http_app
from service.http.http_parts import HttpParts
from service.types import Array, SignatureSpec, TableInfo, TensorSpec, ragged_features
from service.versions.neighbors import Nearest, NeighborLimits, RowSearch
from service.versions.registry import Registry
from service.versions.servable import Servable
from tests.conftest import RecordingObserver
from tests.unit.versions.fakes import FakeBackend

MAX_BODY_BYTES = 4096
SEARCH = "/v1/models/m/tables/t:neighbors"
# A request that SEARCH answers, for the one nearest row.
QUERY = {"ids": [1], "k": 1}
TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


@dataclass
class NumpyTable:
    """The array TABLE behind the interface SearchedTable, whose searches tests can make fail or wait."""

    info = TableInfo("t", 4, 2, "float32", TABLE.nbytes, ("tags", "user"))
    failure: Exception | None = None
    gate: threading.Event | None = None
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    num_searches: int = 0

    def rows(self, ids: Array) -> Array:
        """See service.types.Table."""
        if ((ids < 0) | (ids >= 4)).any():
            raise IdOutOfRange("no such row")
        return TABLE[ids]

    def nearest(self, search: RowSearch) -> Nearest:
        """Returns the other rows with the largest dot products, after the gate is open."""
        self.num_searches += 1
        self.entered.release()
        if self.gate is not None:
            self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        scores = search.queries @ TABLE.T
        own = search.own >= 0
        scores[own, search.own[own]] = -np.inf
        ids = np.argsort(-scores)[:, : search.k]
        return Nearest(ids, np.take_along_axis(scores, ids, 1))


def specs() -> dict[str, SignatureSpec]:
    """Returns the signatures of model "m", by name."""

    def tensors(**shapes: tuple[str, tuple[int | None, ...]]) -> dict[str, TensorSpec]:
        return {name: TensorSpec(name, dtype, shape, f"{name}:0") for name, (dtype, shape) in shapes.items()}

    ids = tensors(user=("int64", (None,)), tags__values=("int64", (None,)), tags__row_splits=("int64", (None,)))
    ids = {name: TensorSpec(name, t.dtype, t.shape, t.tensor_name, is_optional=True) for name, t in ids.items()}
    vectors = tensors(user=("float32", (None, 2)), tags=("float32", (None, 2)))
    numbers = tensors(y=("float32", (None,)), z=("int64", (None,)))
    examples, values = tensors(inputs=("string", (None,))), tensors(outputs=("float32", (None, 1)))
    method = "tensorflow/serving/predict"
    return {
        "serving_default": SignatureSpec(
            "serving_default", "predict", method, tensors(x=("float32", (None,))), numbers
        ),
        "lookup": SignatureSpec("lookup", "lookup", method, ids, vectors, ragged_features(ids)),
        "regress": SignatureSpec("regress", "predict", "tensorflow/serving/regress", examples, values),
    }


@pytest.fixture
def table() -> NumpyTable:
    """Makes the table "t" of model "m", whose searches tests can make fail or wait."""
    return NumpyTable()


@pytest.fixture
def registry(table: NumpyTable) -> Registry:
    """Makes a registry of version 3 of model "m"."""
    registry = Registry(lambda name, status: None)
    registry.add_model("m")
    registry.start("m", 3)
    registry.publish(Servable("m", 3, specs(), dict.fromkeys(specs(), FakeBackend()), {"t": table}))
    return registry


@pytest.fixture
def engine(registry: Registry, observer: RecordingObserver) -> Engine:
    """Makes the engine over the registry, with the real clock and two threads for searches."""
    return Engine(registry, observer, neighbor_limits=NeighborLimits(threads=2))


@dataclass
class Http:
    """Sends requests to an application in this process, each on its own event loop unless sent together."""

    app: FastAPI

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends one request."""
        return self.together([lambda client: client.request(method, path, **options)])[0]

    def together(self, sends: list[Callable[[httpx.AsyncClient], Any]]) -> list[httpx.Response]:
        """Sends several requests concurrently; returns the answers in the requests' order."""

        async def run() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return list(await asyncio.gather(*(send(client) for send in sends)))

        return asyncio.run(run())

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Sends one POST."""
        return self("POST", path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Sends one GET."""
        return self("GET", path, **options)


@pytest.fixture
def make_http(engine: Engine) -> Iterator[Callable[..., Http]]:
    """Returns a function that builds applications with given settings; stops their threads after the test."""
    apps: list[FastAPI] = []

    def make(**settings: Any) -> Http:
        defaults: dict[str, Any] = {
            "metrics": lambda: (b"requests 1\n", "text/plain; version=0.0.4"),
            "metrics_paths": metrics_paths(None),
            "max_body_bytes": MAX_BODY_BYTES,
            "rest_api_timeout_s": 20,
        }
        apps.append(create_http_app(HttpParts(engine=engine, **(defaults | settings))))
        return Http(apps[-1])

    yield make
    for app in apps:
        asyncio.run(_shut_down(app))


async def _shut_down(app: FastAPI) -> None:
    async with app.router.lifespan_context(app):
        pass


@pytest.fixture
def http(make_http: Callable[..., Http]) -> Http:
    """Makes a client of the application with default settings."""
    return make_http()


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yields the pieces of a request body that has no declared length."""
    for piece in pieces:
        yield piece


def error_text(response: httpx.Response) -> str:
    """Returns an error answer's text, and checks that the answer has no other key."""
    document = response.json()
    assert response.headers["content-type"] == "application/json"
    assert list(document)[0] == "error" and set(document) <= {"error", "models"} and isinstance(document["error"], str)
    return str(document["error"])


def all_errors(base: type[ServiceError] = ServiceError) -> list[type[ServiceError]]:
    """Returns ServiceError and all its subclasses in the service."""
    classes = [base]
    for cls in base.__subclasses__():
        if cls.__module__.startswith("service."):
            classes += all_errors(cls)
    return classes
