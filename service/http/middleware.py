"""Wraps the HTTP application: gzip, the case of paths, request ids, and headers that protect browsers.

The layers are plain ASGI, because Starlette's BaseHTTPMiddleware would cost more than a lookup.

Source: tensorflow_serving/model_servers/http_rest_api_util.cc and http_server.cc (9d981c5) for paths, of which
"/V1/Models" means "/v1/models", and names are decoded last.
"""

from __future__ import annotations

import itertools
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from re import DOTALL, findall

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.control import request_context
from service.core.forwarded import NO_FORWARDING, Forwarding
from service.http.errors import unexpected_error_response

# gzip's fastest compression level, because numbers compress badly at every level.
GZIP_LEVEL = 1


class GzipMiddleware(GZipMiddleware):
    """Starlette's middleware, which looks for "gzip" anywhere in Accept-Encoding; here its weight and case count."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
            accepted = [(b"accept-encoding", b"gzip")] if accepts_gzip(scope) else []
            scope = {**scope, "headers": headers + accepted}
        await super().__call__(scope, receive, send)


def accepts_gzip(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for choice in value.lower().split(b","):
                coding, _, weight = choice.partition(b";")
                if coding.strip() == b"gzip":
                    return weight.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.", b"q=.")
    return False


# TensorFlow Serving's pattern of HTTP paths, which ignores case. The method at the end is compared exactly, so that
# only "/metadata" in lower case asks for metadata.
_PATH = re.compile(r"(/v1)(/models)?(/[^/]+)?(/versions/|/labels/)?(.*)", re.IGNORECASE | re.DOTALL)
_METADATA = "/metadata"
# Key in the ASGI scope which says that the path's names are still percent-encoded.
IS_ENCODED = "path_is_encoded"


class PathCaseMiddleware:
    """ASGI middleware: changes the fixed parts of a path below /v1 to lower case, as the router knows them.

    Concurrency: event loop only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _hides_separators(raw):
            path = raw.partition(b"?")[0].decode("latin-1")
            scope = {**scope, "path": path, IS_ENCODED: True}
        if path != path.lower():
            # In most paths with upper case, only the model's name has upper case. lowered() returns such a path
            # unchanged.
            scope = {**scope, "path": lowered(path)}
        await self._app(scope, receive, send)


def lowered(path: str) -> str:
    """Returns a path below /v1 with its fixed parts, such as "/v1/models", in lower case, and any other path unchanged.

    "/Metadata" gives the model's status: TensorFlow Serving's expression matches it in any case, but only "/metadata"
    gives metadata.

    >>> lowered("/V1/Models/MyModel/VERSIONS/3:predict"), lowered("/Docs"), lowered("/v1/models/m/Metadata")
    ('/v1/models/MyModel/versions/3:predict', '/Docs', '/v1/models/m')
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return path
    root, models, name, kind, rest = (part or "" for part in found.groups())
    if rest.lower().endswith(_METADATA) and not rest.endswith(_METADATA):
        rest = rest[: -len(_METADATA)]
    return root.lower() + models.lower() + name + kind.lower() + rest


def _hides_separators(raw: bytes) -> bool:
    raw = raw.lower()
    return b"%2f" in raw or b"%3a" in raw


class RequestIds:
    """The source of request ids: the client's X-Request-Id, else the trace id of its traceparent, else a new id.

    Concurrency: any thread.
    """

    def __init__(self) -> None:
        # New ids are a random prefix of this process and a counter: they are unique, and cheaper than a UUID per
        # request.
        self._prefix = secrets.token_hex(6).encode() + b"-"
        self._numbers = itertools.count(1)

    def enter(self, headers: Iterable[tuple[bytes, bytes]], client: str = "") -> bytes:
        own_id = parent = b""
        for name, value in headers:
            if name == b"x-request-id":
                own_id = own_id or request_context.sane_id(value)
            elif name == b"traceparent":
                parent = value
        own_id = own_id or request_context.trace_id(parent) or self.next()
        request_context.enter(own_id, parent, client)
        return own_id

    def next(self) -> bytes:
        return b"%b%x" % (self._prefix, next(self._numbers))


class RequestIdMiddleware:
    """ASGI middleware: gives each request an id, and adds the id to the answer's headers.

    Concurrency: event loop only.
    """

    def __init__(
        self,
        app: ASGIApp,
        ids: RequestIds,
        failed: Callable[[Scope, Exception], None],
        forwarding: Forwarding = NO_FORWARDING,
    ) -> None:
        self._app = app
        self._ids = ids
        self._failed = failed
        self._forwarding = forwarding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address, _ = scope.get("client") or ("", 0)
        own_id = self._ids.enter(scope["headers"], self._forwarding.client(scope["headers"]) or address)
        request_id = own_id.decode()
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "request_id": request_id, "method": "GET" if is_head else scope["method"]}
        header = (b"x-request-id", own_id)
        is_started = False

        async def send_marked(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message["headers"] = [*message["headers"], header]
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except ClientDisconnect:
            # The client has disconnected, so no answer can be sent; this is no error of the server.
            return
        except Exception as error:
            self._failed(scope, error)
            if is_started:
                raise
            await unexpected_error_response(error, request_id)(scope, receive, send_marked)


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_POLICY = b"content-security-policy"
# The Content-Security-Policy of answers that set none: a browser must not load or run anything for them.
_NOTHING = (_POLICY, b"default-src 'none'; frame-ancestors 'none'")


class SecurityHeadersMiddleware:
    """ASGI middleware: adds security headers to the answers of GET requests, which browsers show.

    Concurrency: event loop only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], *_HEADERS]
                if not any(name == _POLICY for name, _ in headers):
                    headers.append(_NOTHING)
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_marked)


def page_policy(page: str, sources: str) -> str:
    """Returns the Content-Security-Policy of an HTML page, which allows its own inline scripts and given sources.

    >>> page_policy("<script>1</script>", "'self'").split("; ")[1]
    "script-src 'self' 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in findall(_SCRIPT, page, DOTALL)]
    scripts = " ".join([sources, *(f"'sha256-{digest}'" for digest in digests)])
    # The Content-Security-Policy of an HTML page allows inline styles and `data:` images, because Swagger UI needs
    # both.
    return (
        f"default-src 'none'; script-src {scripts}; style-src {sources} 'unsafe-inline'; "
        f"img-src {sources} data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


_SCRIPT = r"<script>(.*?)</script>"
