"""Serves the console's page, scripts and styles, which hold no data of a model."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.errors import RouteNotFound
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
            raise RouteNotFound(f"Not found: {raw_path(request)}")
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
