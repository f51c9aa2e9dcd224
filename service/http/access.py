"""Finds the caller of an HTTP request before the application's routes get it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.callers import Callers, Grant, Part
from service.access.peer import NO_NAMES, names_of_transport
from service.errors import Unauthenticated
from service.http.errors import service_error_response
from service.native.forwarded import NO_FORWARDING, Forwarding

# HTTP paths that --auth_config may open to requests without credentials -> the name of the part there. The engine still
# hides what the caller may not see, so a request that gets in here under another path gains nothing.
_OPEN_PATHS: Mapping[str, Part] = {
    **dict.fromkeys(("/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready"), "health"),
    **dict.fromkeys(("/docs", "/openapi.json"), "docs"),
}
_ASSETS = "/docs-assets/"
_NAMES = "certificate_names"


class AccessMiddleware:
    """ASGI middleware: runs requests with the caller's grant, or refuses them. Concurrency: event loop only.

    Args:
      metrics_paths: paths of the metrics.
      forwarding: reads the names in client certificates from the native core's headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        metrics_paths: tuple[str, ...] = (),
        forwarding: Forwarding = NO_FORWARDING,
    ) -> None:
        self._app = app
        self._callers = callers
        self._forwarding = forwarding
        self._open_paths: dict[str, Part] = {**_OPEN_PATHS}
        for path in metrics_paths:
            self._open_paths[path] = "metrics"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticates the caller of a request, and runs the application with the caller's grant."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            grant = self._grant(scope)
        except Unauthenticated as error:
            await service_error_response(error, scope["request_id"])(scope, receive, send)
            return
        with self._callers.acting(grant):
            await self._app(scope, receive, send)

    def _grant(self, scope: Scope) -> Grant:
        try:
            names = names_of(scope) | self._forwarding.read(scope["headers"]).names
            return self._callers.authenticate(authorization_of(scope["headers"]), names)
        except Unauthenticated:
            path = scope["path"]
            part = "docs" if path.startswith(_ASSETS) else self._open_paths.get(path)
            if part is None or not self._callers.is_open(part):
                raise
            return self._callers.nobody


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the value of a request's header Authorization; None: there is no such header; b"": there are several."""
    found = [value for name, value in headers if name == b"authorization"]
    if not found:
        return None
    return found[0] if len(found) == 1 else b""


def names_of(scope: Scope) -> frozenset[str]:
    """Returns the names in the verified client certificate of a request's connection; none without a certificate."""
    names: frozenset[str] = scope.get("state", {}).get(_NAMES, NO_NAMES)
    return names


def state_with_names(state: Mapping[str, Any], transport: asyncio.BaseTransport) -> dict[str, Any]:
    """Returns the ASGI state of a connection, to which it adds the names in the client's certificate for names_of()."""
    return {**state, _NAMES: names_of_transport(transport)}
