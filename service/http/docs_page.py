"""Adds the page /docs: Swagger UI, from the files of the package fastapi-swagger, which need no internet access."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from service.http.routing import add_route
from service.http.security_headers import page_policy

# The package is never imported.
_PACKAGE, _FOLDER = "fastapi_swagger", "resources"
# Swagger UI has colours for the dark, but does not ask the browser for them. The document has up to three paths for an
# operation: of a model, of one of its versions, of a label. The checkbox shows those of versions and labels; they are
# known by the ends of their operations' ids (see service.http.openapi). A comparison has no path but of a version.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Embedding server: HTTP API</title>
<link rel="stylesheet" href="/docs-assets/swagger-ui.css">
<link rel="icon" href="/docs-assets/favicon-32x32.png">
<style>
  body { margin: 0 }
  #which { display: block; max-width: 1420px; margin: auto; padding: 1rem 20px 0; font: 14px sans-serif }
  html.dark-mode #which { color: #e4e6e6 }
  body:not(:has(#all:checked)) .opblock:is([id$="Version"], [id$="Label"]):not([id$="-diffVersion"]) { display: none }
  .swagger-ui .info { margin: 1rem 0 }
</style>
<script>
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", paint);
  paint();
</script>
</head>
<body>
<main>
<label id="which"><input type="checkbox" id="all"> Show the paths of single versions and labels, too</label>
<div id="swagger-ui"></div>
</main>
<script src="/docs-assets/swagger-ui-bundle.js"></script>
<script>
  SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, defaultModelsExpandDepth: 0 });
</script>
</body>
</html>
"""


def add_docs_page(app: FastAPI) -> None:
    """Adds the page /docs, and the files that it loads."""
    spec = find_spec(_PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    app.mount("/docs-assets", StaticFiles(directory=Path(spec.submodule_search_locations[0]) / _FOLDER))
    page = HTMLResponse(_PAGE, headers={"Content-Security-Policy": page_policy(_PAGE, "'self'")})

    async def docs(request: Request) -> Response:
        return page

    add_route(app, "/docs", docs, "GET")
