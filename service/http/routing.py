"""Adds HTTP routes that skip FastAPI's processing, reads the model's name and version from paths, and counts requests.

Searches count themselves when they have run, and the native core counts what it answers.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import InvalidRequest, did_you_mean
from service.http.middleware import IS_ENCODED
from service.types import ModelRef
from service.wire.api import HTTP_API

_MAX_VERSION = 2**63 - 1


# The verbs at the end of paths of a model; and the ends of paths that only the admin port has.
_VERBS = ("predict", "lookup", "classify", "regress")
_ADMIN = ("/config:reload", ":pin", ":upsert")
# Paths of pages that name no model.
_PAGES = ("/console", "/docs", "/healthz", "/metrics", "/readyz", "/v1/models", "/v1/statusz", "/openapi.json")

# Method, path of another server's API or of a wrong guess -> path here. A group of the pattern is the model's name or
# path, where the path has it.
_FOREIGN = tuple(
    (method, re.compile(pattern, re.IGNORECASE), path)
    for method, pattern, path in (
        # SageMaker and MLflow; TorchServe; SageMaker's servers of several models.
        ("POST", "/invocations", "/v1/models/MODEL:predict"),
        ("POST", "/predictions/([^/:]+)(?:/[^/]+)?", r"/v1/models/\1:predict"),
        ("POST", "/models/([^/:]+)/invoke", r"/v1/models/\1:predict"),
        # BentoML and other frameworks; Azure ML; Seldon; Vertex AI.
        ("POST", r"(?:/api)?(?:/v\d+)?/predict|/score", "/v1/models/MODEL:predict"),
        ("POST", r"(?:/seldon/[^/]+/[^/]+)?/api/v[\d.]+/predictions", "/v1/models/MODEL:predict"),
        ("POST", "/v1/(?:projects|endpoints)/.+:predict", "/v1/models/MODEL:predict"),
        # Triton; its generate extension, and a path without a model.
        (
            "POST",
            r"/v2/models/([^/:]+(?:/versions/\d+)?)/(?:generate|generate_stream|infer_stream)",
            r"/v2/models/\1/infer",
        ),
        ("POST", "/v2/infer", "/v2/models/MODEL/infer"),
        # Servers of text embeddings.
        ("POST", r"(?:/v1)?/(?:embed|embeddings|encode)", "/v1/models/MODEL:lookup"),
        # Probes and pages.
        ("GET", "/ping|/livez|/live", "/healthz"),
        ("GET", "/swagger|/redoc", "/docs"),
        # What a model has.
        ("GET", "(/v1/models/[^/:]+)/(?:labels|versions|status|state|ready)", r"\1"),
        ("GET", "(/v1/models/[^/:]+)/(?:signatures?|schema|inputs|config)", r"\1/metadata"),
        ("GET", "(/v1/models/[^/:]+/tables)/[^/:]+", r"\1"),
    )
)
# Paths that take GET, at which clients post what another path takes.
_POSTED = tuple(
    (re.compile(pattern), path)
    for pattern, path in (
        (f"/v1/models/({'|'.join(_VERBS)})", r"/v1/models/MODEL:\1"),
        ("(/v1/models/[^/:]+(?:/(?:versions|labels)/[^/:]+)?)", r"\1:predict or :lookup"),
        ("/v1/models", "/v1/models/MODEL:predict"),
        ("/v2/models/infer", "/v2/models/MODEL/infer"),
        ("(/v2/models/[^/:]+(?:/versions/[^/:]+)?)", r"\1/infer"),
    )
)

Endpoint = Callable[[Request], Awaitable[Response]]


class RawRoute(Route):
    """A route that calls its endpoint directly with the request, without FastAPI's processing.

    A route of FastAPI opens exit stacks, solves dependencies and validates the body, which would cost more than a
    lookup. Making FastAPI's routes and their document would also take a tenth of the server's start.

    Args:
      operation: the route's name in service.http.operations; None: the OpenAPI document leaves the route out.
    """

    def __init__(self, path: str, endpoint: Endpoint, method: str, operation: str | None) -> None:
        super().__init__(path, endpoint)
        # Starlette would also answer HEAD requests with the endpoint of GET requests.
        self.methods = {method}
        self.method, self.operation = method, operation

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

        self.app = call

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Adds the route to the scope of a request that it matches: spans get the route's path as their name."""
        match, child_scope = super().matches(scope)
        if match != Match.NONE:
            child_scope["route"] = self
        return match, child_scope


def add_route(app: FastAPI, path: str, endpoint: Endpoint, method: str, operation: str | None = None) -> None:
    """Adds a RawRoute to the application's own router: an included router would be searched for every request."""
    app.router.routes.append(RawRoute(path, endpoint, method, operation))


def add_model_route(app: FastAPI, end: str, endpoint: Endpoint, method: str, operation: str | None = None) -> None:
    for where in ("", "/versions/{version}", "/labels/{label}"):
        add_route(app, "/v1/models/{model}" + where + end, endpoint, method, operation)


async def in_the_core(request: Request) -> Response:
    """Sends a browser to the native core again, which answers such requests: the core forwards only those of a session
    that it does not know, and AccessMiddleware has told it of this one. The OpenAPI document has the route, too.
    """
    return Response(status_code=307, headers={"Location": raw_path(request)})


def model_ref(request: Request) -> ModelRef:
    """Returns the model, and its version or label, that a request's path names.

    Raises:
      InvalidRequest: the version is not a number, or the model's name or the label has a colon.
    """
    params: dict[str, Any] = request.path_params
    name, version, label = params["model"], params.get("version"), params.get("label")
    if ":" in name or ":" in (label or ""):
        raise malformed(request)
    if IS_ENCODED in request.scope:
        name, label = unquote(name), label and unquote(label)
    if label is not None:
        return ModelRef(name, label=label)
    if version is None:
        return ModelRef(name)
    if not (version.isascii() and version.isdigit()):
        raise malformed(request)
    return ModelRef(name, version_number(version))


def version_number(text: str) -> int:
    is_number = text.isascii() and text.isdigit()
    if not is_number or len(text) > 19 + text.count("0") or int(text) > _MAX_VERSION:
        raise InvalidRequest(f"Failed to convert version: {text} to numeric.")
    return int(text)


def malformed(request: Request, allowed: str = "") -> InvalidRequest:
    """Returns the error with TensorFlow Serving's text for an unknown path under /v1, and what was probably meant.

    allowed: the methods that the path takes, if only the request's method is wrong.
    """
    path = raw_path(request)
    # A colon in front of the verb that was percent-encoded is part of the model's name.
    with_colon = re.sub(f"%3A(?=({'|'.join(_VERBS)})$)", ":", path, flags=re.IGNORECASE)
    if with_colon != path:
        hint = f"; did you mean {with_colon}?"
    else:
        hint = takes(path, request.method, allowed) if allowed else meant_by(request)
    return InvalidRequest(f"Malformed request: {request.method} {path}{hint}")


def takes(path: str, method: str, allowed: str) -> str:
    """Returns the end of an error text about a wrong method, which says where to send such a request.

    >>> takes("/v2/models/infer", "POST", "GET"), takes("/v1/models/films", "DELETE", "GET")
    ('; this path takes GET; did you mean /v2/models/MODEL/infer?', '; this path takes GET')
    """
    found = (pattern.fullmatch(path) for pattern, _ in _POSTED)
    meant = (match.expand(here) for match, (_, here) in zip(found, _POSTED, strict=True) if match)
    hint = next((f"; did you mean {here}?" for here in meant if method == "POST"), "")
    return f"; this path takes {allowed}{hint}"


def meant_by(request: Request) -> str:
    routes: dict[str, str] = {}
    for route in request.app.router.routes:
        if isinstance(route, RawRoute) and "{model}" in route.path:
            routes.setdefault(re.split("[:/]", route.path)[-1], f"{route.method} {route.path}")
    return meant(raw_path(request), request.method, routes)


def meant(path: str, method: str = "POST", routes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the end of an error text, which names the path that was probably meant by an unknown one, or its port.

    routes: methods and paths of a model's routes, by the last word of the path.

    >>> meant("/v1/models/films/lookup"), meant("/v1/models/films:pin")
    ('; did you mean /v1/models/films:lookup?', "; the server's admin port (--admin_port) serves this path")
    >>> meant("/health"), meant("/v1/models/films/lookup", "GET")
    ('; did you mean /healthz?', '; did you mean POST /v1/models/films:lookup?')
    >>> meant("/v1/models/films:train")
    '; there is no verb "train": POST to :predict, :lookup, :classify or :regress'
    >>> meant("/v1/models/films:rows", routes={"rows": "POST /v1/models/{model}/tables/{table}:rows"})
    '; did you mean POST /v1/models/films/tables/TABLE:rows?'
    >>> meant("/v1//models/films:lookup"), meant("/v2/")
    ('; did you mean /v1/models/films:lookup?', '; did you mean /v2?')
    >>> meant("/v1/model/films"), meant("/models/films/versions/2")
    ('; did you mean /v1/models/films?', '; did you mean /v1/models/films/versions/2?')
    >>> meant("/predictions/films"), meant("/invocations", "GET")
    ('; did you mean /v1/models/films:predict?', '; did you mean POST /v1/models/MODEL:predict?')
    >>> meant("/v1/config/reload")
    "; did you mean /v1/config:reload? the server's admin port (--admin_port) serves that path"
    >>> meant("/v1/models/films/signatures", "GET"), meant("/ping")
    ('; did you mean /v1/models/films/metadata?', '; did you mean GET /healthz?')
    >>> meant("/v1/models/films/metdata", "GET", {"metadata": "GET /v1/models/{model}/metadata"})
    '; did you mean GET /v1/models/films/metadata?'
    >>> meant("/")
    '; /docs lists the paths, /v1/models the models'
    """
    known = re.sub("/{2,}", "/", path).rstrip("/")
    if not known:
        return "; /docs lists the paths, /v1/models the models"
    for wanted, pattern, here in _FOREIGN:
        if found := pattern.fullmatch(known):
            return f"; did you mean {'' if method == wanted else f'{wanted} '}{found.expand(here)}?"
    known = re.sub("^(/v1)?/models?/", "/v1/models/", known)
    known = re.sub("^/v2/models/", "/v2/models/", known, flags=re.IGNORECASE)
    if known.endswith("/config/reload"):
        return "; did you mean /v1/config:reload? the server's admin port (--admin_port) serves that path"
    if known.endswith(_ADMIN):
        return "; the server's admin port (--admin_port) serves this path"
    begin, separator, verb = known.rpartition(":")
    if not separator:
        begin, _, verb = known.rpartition("/")
        near = verb if verb in _VERBS else ""
    elif verb in _VERBS:
        near = verb
    else:
        near = did_you_mean(verb, _VERBS).removeprefix("; did you mean ").removesuffix("?")
    known = f"{begin}:{near}" if near else known
    if near and not begin.startswith("/v1/models/"):
        known = f"/v1/models/{begin.rpartition('/')[2] or 'MODEL'}:{near}"
    if known not in (path, "", "/v1"):
        return f"; did you mean {'POST ' if near and method != 'POST' else ''}{known}?"
    model = re.search("/models/([^/:]+)", path)
    # A version or label that can not be read is no wrong path.
    end = verb if verb in routes else did_you_mean(verb, routes).removeprefix("; did you mean ").removesuffix("?")
    if model and end and not re.search("/(versions|labels)/", path):
        wanted = routes[end].replace("{model}", model[1])
        return f"; did you mean {re.sub('{(.*?)}', lambda one: one[1].upper(), wanted)}?"
    if not path.startswith("/v1/models/"):
        return did_you_mean(path, _PAGES)
    if separator and not near:
        *others, last = (f":{known}" for known in _VERBS)
        return f'; there is no verb "{verb}": POST to {", ".join(others)} or {last}'
    return ""


def json_response(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def raw_path(request: Request) -> str:
    """Returns a request's path as the client sent it, percent-encoded and so without line breaks."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode("utf-8", "replace")
    return str(raw.partition(b"?")[0], "latin-1")


_MODEL = re.compile(r"/v[12]/models/([^/:]+)")
# Operations that are not counted here: searches, and the probes of orchestrators, most of which the core answers.
_UNCOUNTED = ("findNeighbors", "healthz", "readyz", "isLive", "isReady", "isModelReady")


class RequestCounts:
    """Counts the requests of one application. Concurrency: event loop only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def failed(self, scope: Scope, error: Exception) -> None:
        if (call := _call(scope)) is not None:
            self._engine.reject(error, call, model=named_model(scope))

    def answered(self, scope: Scope) -> None:
        """Counts a request that succeeded, unless its path is one of the core's, which the client asks again."""
        if (call := _call(scope)) is not None and call.is_control:
            self._engine.answered(call, model=named_model(scope))


class CountingMiddleware:
    """ASGI middleware: counts requests that succeed. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, counts: RequestCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._counts.answered(scope)
            await send(message)

        await self._app(scope, receive, send_counted)


def _call(scope: Scope) -> Call | None:
    route = scope.get("route")
    # A path may be one of a route with another HTTP method.
    if not isinstance(route, RawRoute) or route.method != scope["method"] or route.endpoint is in_the_core:
        return Call(HTTP_API)
    if route.operation in _UNCOUNTED:
        return None
    return Call(HTTP_API, f"{route.method} {route.path}", is_control=True)


def named_model(scope: Scope) -> str:
    """Returns the name of a model in a request's path, which the server need not know; "" if the path names none.

    >>> named_model({"path": "/v1/models/films:lookp"}), named_model({"path": "/v2/models/films/ready"})
    ('films', 'films')
    """
    found = _MODEL.match(scope["path"])
    name = found[1] if found else ""
    return unquote(name) if IS_ENCODED in scope else name
