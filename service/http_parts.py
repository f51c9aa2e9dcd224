"""Holds the parts that HTTP servers need, without importing FastAPI: its import takes as long as all of a lookup's."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.access import Access
from service.configuration.monitoring_config import metrics_paths, read_monitoring_config
from service.configuration.settings import Settings
from service.core.engine import Engine
from service.core.errors import ServiceError
from service.metrics.metrics import Metrics
from service.start_error import StartError
from service.tls.wires import Wires


class Ports(NamedTuple):
    """The public ports of both wires."""

    http: int
    grpc: int


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The parts of the server that the HTTP servers use.

    access: the callers and their rights; None: everybody may do everything.
    metrics_paths: the paths that serve metrics, see monitoring_config.
    statusz: gathers the content of the status page. spans: wraps the application so that its requests are traced.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    access: Access | None
    tls: Wires
    statusz: Callable[[], Mapping[str, Any]]
    spans: Callable[[Any], Any] | None
    metrics_paths: tuple[str, ...]


def listen(host: str, port: int, flags: str = "--rest_api_port or --host", wire: str = "HTTP") -> socket.socket:
    """Returns a socket that listens; raises StartError, which names the flags to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port} for {wire}: {error.strerror}. Choose another with {flags}."
        ) from error


def metrics_paths_of(file: str) -> tuple[str, ...]:
    """Returns the paths of metrics from a --monitoring_config_file; raises StartError."""
    try:
        return metrics_paths(read_monitoring_config(Path(file)) if file else None)
    except ServiceError as error:
        raise StartError(f"--monitoring_config_file={file}: {error.message}") from error
