"""Adds the routes that only the console uses: its files, the overview of models, and a browser's session."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.access.sessions import COOKIE, SESSION_S
from service.errors import MalformedPayload, RouteNotFound, ServiceError
from service.http.access import session_cookie
from service.http.body import read_body
from service.http.http_parts import HttpParts
from service.http.routing import add_route, raw_path

PATH = "/console"
# The console's Content-Security-Policy forbids inline scripts, inline styles, and files of other hosts.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PAGE = "index.html"


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def add_console_files(app: FastAPI) -> None:
    """Adds the console's files, and a redirect from / for browsers; does nothing if the files are not installed."""
    served = _read_files()
    if _PAGE not in served:
        return

    async def page(request: Request) -> Response:
        return _answer(request, served[_PAGE])

    async def file(request: Request) -> Response:
        found = served.get(request.path_params["file"])
        if found is None:
            raise RouteNotFound(f"Not found: {raw_path(request)}")
        return _answer(request, found)

    async def root(request: Request) -> Response:
        # Only browsers are redirected from / to the console; all other clients get the error of an unknown path.
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return RedirectResponse(PATH.lstrip("/"), headers={"Vary": "Accept"})

    add_route(app, "/", root, "GET")
    add_route(app, PATH, page, "GET")
    add_route(app, PATH + "/static/{file}", file, "GET")


def _read_files() -> dict[str, _File]:
    folder = files("service") / "console" / "static"
    if not folder.is_dir():
        return {}
    found = {}
    for one in folder.iterdir():
        media_type = _TYPES.get("." + one.name.rpartition(".")[2])
        if media_type is not None:
            content = one.read_bytes()
            found[one.name] = _File(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return found


def _answer(request: Request, file: _File) -> Response:
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


SESSION_PATH = PATH + "/session"
# Largest body of a sign-in.
_MAX_BODY_BYTES = 16 << 10


def new_csrf() -> str:
    """Makes a random token, which protects the admin listener's routes from requests of other sites' pages (CSRF)."""
    return secrets.token_urlsafe(32)


def add_console_routes(app: FastAPI, parts: HttpParts) -> None:
    engine, sources, callers, sessions = parts.engine, parts.console, parts.callers, parts.sessions
    if sources is None:
        return
    add_console_files(app)
    max_body_bytes = min(parts.max_body_bytes, _MAX_BODY_BYTES)

    async def overview(request: Request) -> Response:
        models = []
        rights = None if callers is None else callers.current.get().rights
        for name in engine.models():
            try:
                statuses = engine.statuses(name)
            except ServiceError:
                statuses = []
            models.append(
                {
                    "name": name,
                    "labels": dict(sources.labels(name)),
                    "versions": [
                        {"version": s.version, "state": s.state.name, "code": s.code, "message": s.message}
                        for s in statuses
                    ],
                    "history": sources.history(name),
                    "folders": list(sources.folders(name)),
                    "pinned": sources.pinned(name),
                    # Other callers learn no paths of this machine.
                    "base_path": sources.base_path(name) if rights is None or "admin" in rights(name) else "",
                }
            )
        server = {"version": sources.version(), "is_ready": engine.is_ready, "is_draining": engine.is_draining}
        # The names behind ":" in this server's routes, such as "neighbors": the console calls only routes with these
        # names.
        methods = sorted(
            {path.rpartition(":")[2] for route in app.routes if ":" in (path := getattr(route, "path", ""))}
        )
        return _json({"server": server, "models": models, "problems": engine.problems(), "methods": methods})

    async def traffic(request: Request) -> Response:
        return _json(sources.traffic())

    async def session(request: Request) -> Response:
        document: dict[str, Any] = {"needs_sign_in": callers is not None, "is_admin": sources.is_admin}
        found = None if sessions is None else sessions.find(session_cookie(request.scope["headers"]))
        if found is not None:
            document |= {"caller": found[1].name, "csrf": found[0].csrf, "rights": sorted(found[1].everywhere)}
        elif callers is None:
            # Another site may point its own host name at this server's address (DNS rebinding): pages of that site must
            # not get the CSRF token.
            csrf = sources.csrf if is_plain_host(request.headers.get("host", "")) else ""
            document |= {"caller": None, "csrf": csrf, "rights": ["admin", "metadata", "predict"]}
        else:
            # A browser without a session has the rights of the caller in its client certificate, if it sends one.
            grant = callers.current.get()
            document |= {"caller": grant.name or None, "csrf": "", "rights": sorted(grant.everywhere)}
        return _json(document)

    async def sign_in(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A form of another site can not send the type application/json, so it can not sign a browser in.
            raise MalformedPayload("Send the token as application/json.")
        body = await read_body(request, max_body_bytes)
        try:
            token = orjson.loads(body)["token"]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            token = None
        if sessions is None or not isinstance(token, str):
            raise MalformedPayload('Expected {"token": "<text>"}, on a server with --auth_config.')
        cookie, _ = sessions.open(token)
        return Response(status_code=204, headers={"Set-Cookie": _cookie(cookie, SESSION_S)})

    async def sign_out(request: Request) -> Response:
        if sessions is not None:
            sessions.close(session_cookie(request.scope["headers"]))
        return Response(status_code=204, headers={"Set-Cookie": _cookie("", 0)})

    def _cookie(value: str, seconds: int) -> str:
        secure = "; Secure" if sources.has_tls else ""
        return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    add_route(app, PATH + "/overview", overview, "GET")
    add_route(app, PATH + "/traffic", traffic, "GET")
    add_route(app, SESSION_PATH, session, "GET")
    add_route(app, SESSION_PATH, sign_in, "POST")
    add_route(app, SESSION_PATH, sign_out, "DELETE")


def is_plain_host(host: str) -> bool:
    """Says whether a Host header is an IP address or localhost, which nobody can point elsewhere in DNS.

    >>> [is_plain_host(host) for host in ("127.0.0.1:9000", "[::1]:9000", "localhost", "evil.example:9000", "")]
    [True, True, True, False, False]
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _json(document: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(document), headers={"Cache-Control": "no-store"}, media_type="application/json")
