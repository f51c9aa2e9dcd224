"""Adds this server's own HTTP routes, which TensorFlow Serving lacks: the list of tables; and describes those that the
native core answers: lookups by feature, and rows of a table.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.engine import Engine
from service.http import openapi
from service.http.routing import add_route, in_the_core, model_ref
from service.wire.json_table_view import encode_tables


def add_lookup_routes(app: FastAPI, engine: Engine) -> None:
    """Adds the route of the list of tables, and the descriptions of lookups and of rows of a table."""

    async def tables(request: Request) -> Response:
        """Lists, as JSON, the embedding tables of a model version."""
        return Response(encode_tables(engine.tables(model_ref(request))), media_type="application/json")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":lookup", in_the_core, "POST", openapi.lookup(path))
        add_route(app, path + "/tables", tables, "GET", openapi.tables(path))
        add_route(app, path + "/tables/{table}:rows", in_the_core, "POST", openapi.rows(path))
