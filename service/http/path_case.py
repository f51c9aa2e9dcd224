"""Normalizes request paths as TensorFlow Serving does: "/V1/Models" means "/v1/models", and names are decoded last.

Source: tensorflow_serving/model_servers/http_rest_api_util.cc (9d981c5).
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

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
        """Runs the application with a path whose fixed parts are in lower case; a path with an escaped "/" or ":" stays
        percent-encoded.
        """
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
