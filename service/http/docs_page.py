"""Adds the page /docs. It uses locally installed files of Swagger UI if possible, because files from a CDN need
internet access.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from service.http.routing import add_route
from service.http.security_headers import page_policy

_ASSETS_URL = "/docs-assets"
# The package fastapi-swagger holds Swagger UI's files; it is never imported.
_PACKAGE, _FOLDER = "fastapi_swagger", "resources"


def installed_assets() -> Path | None:
    """Returns the folder with Swagger UI's files; None if the package fastapi-swagger is not installed."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / _FOLDER


def add_docs_page(app: FastAPI, assets: Path | None) -> None:
    """Adds the page /docs; without a folder of assets, the page loads Swagger UI from FastAPI's CDN."""
    urls: dict[str, Any] = {}
    if assets is not None:
        app.mount(_ASSETS_URL, StaticFiles(directory=assets))
        urls = {
            "swagger_js_url": f"{_ASSETS_URL}/swagger-ui-bundle.js",
            "swagger_css_url": f"{_ASSETS_URL}/swagger-ui.css",
            "swagger_favicon_url": f"{_ASSETS_URL}/favicon-32x32.png",
        }
    page = get_swagger_ui_html(openapi_url="/openapi.json", title=app.title, **urls)
    sources = "'self'" if urls else "https://cdn.jsdelivr.net https://fastapi.tiangolo.com"
    page.headers["Content-Security-Policy"] = page_policy(bytes(page.body).decode(), sources)

    async def docs(request: Request) -> Response:
        return page

    add_route(app, "/docs", docs, "GET")
