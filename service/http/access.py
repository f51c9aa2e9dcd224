"""Finds the caller of an HTTP request before the application's routes get it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.callers import NO_NAMES, Callers, Grant, Part, names_of_transport
from service.access.sessions import COOKIE, CSRF_HEADER, Sessions
from service.control import request_context
from service.core.forwarded import NO_FORWARDING, Forwarding
from service.errors import PermissionDenied, ServiceError, Unauthenticated
from service.http.errors import CODE_HEADER, ERROR_HEADERS, HTTP_STATUS, service_error_response

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign in</title></head>
<body><h1>Sign in</h1><p>{}</p></body>
</html>
"""
_CLOSED = (
    "This server shows its pages only to callers that it knows, and its console is closed. The operator opens it with "
    "<code>open = [..., &quot;console&quot;]</code> in the file of <code>--auth_config</code>."
)


def sign_in_page(path: str, *, is_open: bool) -> Response:
    """Returns the answer 401 to a browser: a page with a link to the console, where people sign in.

    Args:
      path: of the request, from which the link leads to the console; a proxy may serve both under a prefix.
      is_open: whether --auth_config opens the console to everybody.
    """
    console = "../" * max(path.count("/") - 1, 0) + "console"
    text = (
        f'<a href="{escape(console)}">Sign in with your token</a>, then open this page again.' if is_open else _CLOSED
    )
    headers = {CODE_HEADER: Unauthenticated.code, "Vary": "Accept", "Cache-Control": "no-store"}
    headers |= ERROR_HEADERS[Unauthenticated]
    return Response(_PAGE.format(text), HTTP_STATUS[Unauthenticated], headers, media_type="text/html")


def wants_html(accept: str) -> bool:
    """Says whether an Accept header names HTML before JSON; False if it names neither.

    >>> wants_html("text/html,application/xhtml+xml,*/*;q=0.8"), wants_html("application/json, text/html")
    (True, False)
    """
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((name == "text/html" for name in named if name in ("text/html", "application/json")), False)


# HTTP paths that --auth_config may open to requests without credentials -> name of the part of the API in that file.
# The engine still hides what the caller may not see, so a request that gets in here under another path gains nothing.
_OPEN_PATHS: Mapping[str, Part] = {
    **dict.fromkeys(("/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready"), "health"),
    **dict.fromkeys(("/docs", "/openapi.json"), "docs"),
    **dict.fromkeys(("/", "/console", "/console/session"), "console"),
}
# Folder of HTTP paths -> the part of --auth_config that opens all paths below the folder. These paths serve static
# files, which are the same on every server.
_OPEN_FOLDERS: Mapping[str, Part] = {"/docs-assets/": "docs", "/console/static/": "console"}
_NAMES = "certificate_names"
_CSRF = CSRF_HEADER.lower().encode()


class AccessMiddleware:
    """ASGI middleware: runs requests with the caller's rights (a grant), or refuses them. Concurrency: event loop only.

    Args:
      sessions: the sessions of browsers; None: a request needs a token or a certificate.
      refused: counts a request of an unknown caller; it runs without rights.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        metrics_paths: tuple[str, ...] = (),
        forwarding: Forwarding = NO_FORWARDING,
        sessions: Sessions | None = None,
        refused: Callable[[Scope, ServiceError], None] = lambda scope, error: None,
    ) -> None:
        self._app = app
        self._refused = refused
        self._sessions = sessions
        self._callers = callers
        self._forwarding = forwarding
        self._open_paths: dict[str, Part] = {**_OPEN_PATHS}
        for path in metrics_paths:
            self._open_paths[path] = "metrics"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            grant = self._grant(scope)
        except (Unauthenticated, PermissionDenied) as error:
            self._refused(scope, error)
            response = service_error_response(error, scope["request_id"])
            accept = next((value for name, value in scope["headers"] if name == b"accept"), b"").decode("latin-1")
            if isinstance(error, Unauthenticated) and scope["method"] == "GET" and wants_html(accept):
                response = sign_in_page(scope["path"], is_open=self._callers.is_open("console"))
            await response(scope, receive, send)
            return
        if grant.name:
            request_context.client.set(grant.name)
        with self._callers.acting(grant):
            await self._app(scope, receive, send)

    def _grant(self, scope: Scope) -> Grant:
        try:
            authorization = authorization_of(scope["headers"])
            if authorization is None and (grant := self._grant_of_session(scope)) is not None:
                return grant
            names = names_of(scope) | self._forwarding.names(scope["headers"])
            return self._callers.authenticate(authorization, names)
        except Unauthenticated:
            path = scope["path"]
            part = self._open_paths.get(path)
            for folder, of_folder in _OPEN_FOLDERS.items():
                part = of_folder if path.startswith(folder) else part
            if part is None or not self._callers.is_open(part):
                raise
            return self._callers.nobody

    def _grant_of_session(self, scope: Scope) -> Grant | None:
        cookie = "" if self._sessions is None else session_cookie(scope["headers"])
        if self._sessions is None or not cookie:
            return None
        csrf = next((value for name, value in scope["headers"] if name == _CSRF), b"").decode("latin-1")
        is_read = scope["method"] in ("GET", "HEAD")
        grant = self._sessions.grant(cookie, csrf, is_read=is_read)
        if grant is not None and not is_read:
            self._sessions.show_core(cookie, csrf)
        return grant


def session_cookie(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the value of the console's session cookie in a request's headers; "" without one.

    >>> session_cookie([(b"cookie", b"theme=dark; embedding_console=abc")])
    'abc'
    """
    lines = [value.decode("latin-1") for name, value in headers if name == b"cookie"]
    return next((found for line in lines if (found := cookie_parser(line).get(COOKIE))), "")


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the value of a request's header Authorization; None: there is no such header; b"": there are several."""
    found = [value for name, value in headers if name == b"authorization"]
    if not found:
        return None
    return found[0] if len(found) == 1 else b""


def names_of(scope: Scope) -> frozenset[str]:
    names: frozenset[str] = scope.get("state", {}).get(_NAMES, NO_NAMES)
    return names


def state_with_names(state: Mapping[str, Any], transport: asyncio.BaseTransport) -> dict[str, Any]:
    """Returns a copy of a connection's ASGI state, with the names in the client's certificate for names_of()."""
    return {**state, _NAMES: names_of_transport(transport)}
