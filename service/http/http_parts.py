"""Holds what the HTTP applications are built from, without importing FastAPI, whose import takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.access.callers import Callers
    from service.access.sessions import Sessions
    from service.control.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSources:
    """The functions and values from which the console's own routes make their answers.

    version: returns the server's version. labels: returns a model's labels. history: returns the last changes of state
    of a model's versions. has_tls: browsers may send the session's cookie over TLS only. is_admin: the application is
    the admin listener's. csrf: token of requests from the admin listener's pages if callers need no credentials.
    traffic: returns the rates of all models' requests since the server's start. folders: returns the numbers of a
    model's version folders, served or not. base_path: returns the folder or URI of a model's versions.
    pinned: returns the version that a model is rolled back to, or None.
    """

    version: Callable[[], str]
    labels: Callable[[str], Mapping[str, int]]
    history: Callable[[str], Sequence[Mapping[str, Any]]]
    traffic: Callable[[], Mapping[str, Any]]
    folders: Callable[[str], Sequence[int]]
    base_path: Callable[[str], str]
    pinned: Callable[[str], int | None]
    has_tls: bool = False
    is_admin: bool = False
    csrf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpParts:
    """The parts of the server, such as callers and metrics, from which its HTTP applications are built.

    engine: checks the caller's rights; metrics, statusz: see that the caller may read them.
    metrics: returns the metrics' text and content type; metrics_paths: their paths on the public port.
    max_body_bytes: largest body, before and after decompression.
    gzip_min_bytes: size from which answers are compressed for clients that accept it; 0 is never.
    strict_json: the native core writes null for numbers that are not finite, which the documentation says.
    spans: wraps the application so that its requests are traced; None: they are not.
    """

    engine: Engine
    metrics: Callable[[], tuple[bytes, str]]
    metrics_paths: tuple[str, ...]
    max_body_bytes: int
    rest_api_timeout_s: float
    gzip_min_bytes: int = 0
    strict_json: bool = False
    callers: Callers | None = None
    sessions: Sessions | None = None
    console: ConsoleSources | None = None
    spans: Callable[[Any], Any] | None = None
    statusz: Callable[[], Mapping[str, Any]] | None = None
