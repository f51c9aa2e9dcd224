"""Adds the HTTP routes of health (/healthz), readiness (/readyz) and metrics (by default /metrics)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.engine import Engine
from service.http import openapi
from service.http.routing import add_route


def add_admin_routes(
    app: FastAPI, engine: Engine, metrics: Callable[[], tuple[bytes, str]], metrics_paths: Sequence[str]
) -> None:
    """Adds the routes of health and readiness, for orchestrators, and of metrics, for monitoring.

    Args:
      metrics: returns the metrics' text and content type; metrics_paths: their paths, of which OpenAPI has the first.
    """

    async def healthz(request: Request) -> Response:
        """Answers "ok" to every health check; an orchestrator shall restart a server that does not answer."""
        return _json({"status": "ok"})

    async def readyz(request: Request) -> Response:
        """Says whether a load balancer shall send requests to this server, and which models can not answer and why."""
        is_ready, problems = engine.is_ready, engine.problems()
        if is_ready:
            return _json({"status": "ready", "problems": problems})
        if engine.fault:
            problems[""] = engine.fault
        return _json({"status": "not ready", "problems": problems or {"": "no model is configured"}}, 503)

    async def metrics_text(request: Request) -> Response:
        """Returns the metrics in Prometheus' text format."""
        # A thread writes the text of the metrics, because with many models the writing would block the event loop for
        # too long.
        data, content_type = await asyncio.to_thread(metrics)
        return Response(data, headers={"Content-Type": content_type})

    add_route(app, "/healthz", healthz, "GET", openapi.healthz())
    add_route(app, "/readyz", readyz, "GET", openapi.readyz())
    for path in metrics_paths[:1]:
        add_route(app, path, metrics_text, "GET", openapi.metrics())
    for path in metrics_paths[1:]:
        add_route(app, path, metrics_text, "GET")


def _json(document: dict[str, object], status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
