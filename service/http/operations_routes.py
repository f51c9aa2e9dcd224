"""Adds the routes for orchestrators and people: health, metrics, the status page and the page of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from service.control.engine import Engine
from service.http.middleware import page_policy
from service.http.routing import add_route, json_response

if TYPE_CHECKING:
    from service.http.openapi import Documents


def add_admin_routes(
    app: FastAPI, engine: Engine, metrics: Callable[[], tuple[bytes, str]], metrics_paths: Sequence[str]
) -> None:

    async def healthz(request: Request) -> Response:
        """Answers "ok" to every health check; an orchestrator shall restart a server that does not answer."""
        return json_response({"status": "ok"})

    async def readyz(request: Request) -> Response:
        """Says whether a load balancer shall send requests to this server, and which models can not answer and why."""
        is_ready, problems = engine.is_ready, engine.problems()
        if is_ready:
            return json_response({"status": "ready", "problems": problems})
        if engine.fault:
            problems[""] = engine.fault
        return json_response({"status": "not ready", "problems": problems or {"": "no model is configured"}}, 503)

    async def metrics_text(request: Request) -> Response:
        """Returns the metrics in Prometheus' text format."""
        # A thread writes the text of the metrics, because with many models the writing would block the event loop for
        # too long.
        data, content_type = await asyncio.to_thread(metrics)
        return Response(data, headers={"Content-Type": content_type})

    add_route(app, "/healthz", healthz, "GET", "healthz")
    add_route(app, "/readyz", readyz, "GET", "readyz")
    for number, path in enumerate(metrics_paths):
        add_route(app, path, metrics_text, "GET", None if number else "metrics")


PATH = "/v1/statusz"
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2


def add_statusz_route(app: FastAPI, read: Callable[[], Mapping[str, Any]]) -> None:
    """Adds the route of the status page. read: gathers the page's content; may take a while."""

    async def statusz(request: Request) -> Response:
        """Returns the status page: the server, its models, requests in flight, and the last errors."""
        data = await asyncio.to_thread(lambda: orjson.dumps(read(), option=_OPTIONS))
        return Response(data, headers={"Cache-Control": "no-store"}, media_type="application/json")

    add_route(app, PATH, statusz, "GET", "statusz")


# The package `fastapi_swagger` is used for its files only, never imported.
_PACKAGE, _FOLDER = "fastapi_swagger", "resources"
# Swagger UI has colours for the dark, but does not ask the browser for them. The document has up to three paths for an
# operation: of a model, of one of its versions, of a label. The checkbox shows those of versions and labels; they are
# known by the ends of their operations' ids (see service.http.openapi). A comparison has no path but of a version.
_PAGE = Path(__file__).with_name("docs.html")


def add_docs_routes(app: FastAPI, engine: Engine, *, strict_json: bool, has_console: bool) -> None:
    """Adds the OpenAPI document, the page /docs, and the files that it loads; call it after all documented routes."""
    made: list[Documents] = []

    async def document(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(copy_context().run, read))

    def read() -> dict[str, Any]:
        # The module is imported for the first reader: its classes would take the server's start tens of milliseconds.
        from service.http.openapi import Documents

        if not made:
            made.append(Documents(app.routes, engine, strict_json=strict_json))
        return made[0].read()

    add_route(app, "/openapi.json", document, "GET")
    spec = find_spec(_PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    app.mount("/docs-assets", StaticFiles(directory=Path(spec.submodule_search_locations[0]) / _FOLDER))
    console = '<a href="console">Console</a>' if has_console else ""
    text = _PAGE.read_text(encoding="utf-8").replace("CONSOLE", console)
    page = HTMLResponse(text, headers={"Content-Security-Policy": page_policy(text, "'self'")})

    async def docs(request: Request) -> Response:
        return page

    add_route(app, "/docs", docs, "GET")
