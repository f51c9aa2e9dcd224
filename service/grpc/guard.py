"""Finds the caller of a gRPC call, and the engine that this caller may use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from service.access.callers import Callers, Grant, Part
from service.engine.engine import Engine
from service.errors import NotFound, Unauthenticated
from service.grpc import health
from service.grpc.inference_v2_methods import INFERENCE_SERVICE
from service.grpc.served import HEALTH_NAMES
from service.grpc.server_reflection import REFLECTION_NAMES

_OPEN_PATHS: dict[str, Part] = {
    **{f"/{health.SERVICE_NAME}/{method}": "health" for method in ("Check", "Watch")},
    **{f"/{INFERENCE_SERVICE}/{method}": "health" for method in ("ServerLive", "ServerReady", "ServerMetadata")},
    **{f"/{name}/ServerReflectionInfo": "reflection" for name in REFLECTION_NAMES},
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Authenticates calls. Concurrency: any thread.

    engine_of: the engine as one caller sees it.
    """

    callers: Callers
    engine_of: Callable[[Grant], Engine]

    def grant(self, path: str, authorizations: Collection[bytes], names: Collection[str]) -> Grant:
        """Returns what the caller of a method may do; raises Unauthenticated.

        Args:
          authorizations: all values of that key.
          names: of the verified client certificate.
        """
        value = None if not authorizations else next(iter(authorizations)) if len(authorizations) == 1 else b""
        try:
            return self.callers.authenticate(value, names)
        except Unauthenticated:
            part = _OPEN_PATHS.get(path)
            if part is None or not self.callers.is_open(part):
                raise
            return self.callers.nobody


class HealthFor:
    """Health as one caller sees it: a model that it may not see is a service that nobody has."""

    def __init__(self, all_health: health.Health, grant: Grant) -> None:
        self._health = all_health
        self._grant = grant

    def check(self, service: str) -> object:
        """See Health."""
        if not sees(self._grant, service):
            raise NotFound(f"Unknown service: {service[:100]}")
        return self._health.check(service)

    def watch(self, service: str, send: Callable[[object], None]) -> Callable[[], None]:
        """See Health."""
        return self._health.watch(shown_service(self._grant, service), send)


def sees(grant: Grant, service: str) -> bool:
    """Whether a caller may know of a service that health tells of: one of the server's, or a model."""
    return service in HEALTH_NAMES or bool(grant.rights(service))


def shown_service(grant: Grant, service: str) -> str:
    """Returns the service to watch for a caller: what it may not see is one that will never be there."""
    # No model's name holds a slash.
    return service if sees(grant, service) else f"/{service}"
