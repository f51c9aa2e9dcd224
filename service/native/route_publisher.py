"""Tells the native core the models and versions that requests can reach, after each change."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from service.engine.recording import Recorder
from service.engine.registry import ModelRoutes
from service.native.native_servable import CompiledServable

if TYPE_CHECKING:
    from service import _native

# A model's name, its versions, its labels, the fraction of its requests that are logged, and why no version answers.
Route = tuple[str, list[tuple[int, "_native.Servable | None"]], dict[str, int], float, str]


class TakesRoutes(Protocol):
    """The receiver of the routes of all models: the native core's server, or an object of a test."""

    def change_routes(self, models: Sequence[Route], removed: Sequence[str]) -> None: ...


class RoutePublisher:
    """The registry's callback that sends routes to the core. Concurrency: one caller at a time; attach by any thread.

    Args:
      recorders: the request recorders, by model; the core draws the requests to record.
    """

    def __init__(self, recorders: Mapping[str, Recorder]) -> None:
        self.recorders = recorders
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self._server: TakesRoutes | None = None

    def __call__(self, models: Sequence[ModelRoutes], removed: Collection[str]) -> None:
        """Publishes to the native core the versions of some models that requests can lease now; removes other models.

        Only changed models are sent: sending all of a thousand models after each load would take longer than the loads.
        """
        changed: list[Route] = [
            (
                model.model,
                [(one.version, _compiled(one.native)) for one in model.servables],
                dict(model.labels),
                self._log_rate(model.model),
                model.problem,
            )
            for model in models
        ]
        with self._lock:
            self._routes.update({route[0]: route for route in changed})
            gone = [name for name in removed if self._routes.pop(name, None) is not None]
            if self._server is not None and (changed or gone):
                self._server.change_routes(changed, gone)

    def _log_rate(self, model: str) -> float:
        recorder = self.recorders.get(model)
        return 0.0 if recorder is None else recorder.rate

    def attach(self, server: TakesRoutes) -> None:
        """Stores the native core's server as the receiver of routes, and sends it the current routes at once."""
        with self._lock:
            self._server = server
            server.change_routes(list(self._routes.values()), [])

    def detach(self) -> None:
        """Withdraws all routes from the native core's server; called after the server has answered its last request."""
        with self._lock:
            if self._server is not None:
                self._server.change_routes([], list(self._routes))
            self._server, self._routes = None, {}


def _compiled(native: object) -> _native.Servable | None:
    return native.compiled if isinstance(native, CompiledServable) else None
