"""Finds the caller of a gRPC call, and the engine that checks this caller's rights."""

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
    """The check of credentials of gRPC calls. Concurrency: any thread.

    engine_of: returns the engine with one caller's rights.
    """

    callers: Callers
    engine_of: Callable[[Grant], Engine]

    def grant(self, path: str, authorizations: Collection[bytes], names: Collection[str]) -> Grant:
        """Returns the rights (the grant) of a gRPC call's caller: those of nobody for an open path without valid
        credentials; else raises Unauthenticated.

        Args:
          authorizations: all values of the metadata key "authorization".
          names: names in the verified client certificate.
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
    """The health service for one caller: a model on which the caller has no right looks like an unknown service."""

    def __init__(self, all_health: health.Health, grant: Grant) -> None:
        self._health = all_health
        self._grant = grant

    def check(self, service: str) -> object:
        """Returns a HealthCheckResponse with a service's status.

        Raises NotFound for an unknown service, or a model that the caller may not see.
        """
        if not sees(self._grant, service):
            raise NotFound(f"Unknown service: {service[:100]}")
        return self._health.check(service)

    def watch(self, service: str, send: Callable[[object], None]) -> Callable[[], None]:
        """Sends a service's status now and at each change, until the returned function is called; a hidden model looks
        unknown.
        """
        return self._health.watch(shown_service(self._grant, service), send)


def sees(grant: Grant, service: str) -> bool:
    """Says whether a caller may see a service's health: all see the server's services, but models only with a right."""
    return service in HEALTH_NAMES or bool(grant.rights(service))


def shown_service(grant: Grant, service: str) -> str:
    """Returns the name under which Health watches a service for a caller.

    For a model that the caller may not see, this is a name that no service ever has.
    """
    # Health has no service whose name begins with "/", because names of gRPC services and of models hold no slashes.
    return service if sees(grant, service) else f"/{service}"
