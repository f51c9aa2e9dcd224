"""Holds the parts that all HTTP servers need, without importing FastAPI, whose import takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.access.access import Access
from service.access.tls import Wires
from service.configuration.config_files import metrics_paths, read_monitoring_config
from service.configuration.settings import Settings, StartError
from service.control.engine import Engine
from service.errors import ServiceError


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The parts of the server, such as callers and metrics, from which the HTTP servers are built.

    seen: the engine that checks the caller's rights; render, statusz, traffic: metrics, status page and traffic, which
      check them too.
    access: the callers and their rights; None: everybody may do everything.
    metrics_paths: the paths that serve metrics, see monitoring_config.
    spans: wraps the application so that its requests are traced.
    version: returns the server's version. labels, history, folders, base_path: of a model; see ConsoleSources.
    """

    settings: Settings
    seen: Engine
    render: Callable[[], tuple[bytes, str]]
    access: Access | None
    tls: Wires
    statusz: Callable[[], Mapping[str, Any]]
    spans: Callable[[Any], Any] | None
    metrics_paths: tuple[str, ...]
    version: Callable[[], str]
    labels: Callable[[str], Mapping[str, int]]
    history: Callable[[str], Sequence[Mapping[str, Any]]]
    traffic: Callable[[], Mapping[str, Any]]
    folders: Callable[[str], Sequence[int]]
    base_path: Callable[[str], str]


def metrics_paths_of(file: str) -> tuple[str, ...]:
    """Returns the HTTP paths of the metrics, from the --monitoring_config_file if there is one; raises StartError."""
    try:
        return metrics_paths(read_monitoring_config(Path(file)) if file else None)
    except ServiceError as error:
        raise StartError(f"--monitoring_config_file={file}: {error.message}") from error
