"""Holds the parts that all HTTP servers need, without importing FastAPI, whose import takes long."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.access.access import Access
from service.access.tls_ports import Wires
from service.configuration.monitoring_config import metrics_paths, read_monitoring_config
from service.configuration.settings import Settings
from service.configuration.start_error import StartError
from service.engine.engine import Engine
from service.errors import ServiceError
from service.observe.metrics import Metrics

# Number of connections that wait in the system's queue until the server accepts them.
BACKLOG = 2048


class Ports(NamedTuple):
    """The numbers of the public HTTP port and of the public gRPC port."""

    http: int
    grpc: int


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The parts of the server, such as callers and metrics, from which the HTTP servers are built.

    access: the callers and their rights; None: everybody may do everything.
    metrics_paths: the paths that serve metrics, see monitoring_config.
    statusz: gathers the content of the status page. spans: wraps the application so that its requests are traced.
    version: returns the server's version. labels, history: of a model; see observe.version_history.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    access: Access | None
    tls: Wires
    statusz: Callable[[], Mapping[str, Any]]
    spans: Callable[[Any], Any] | None
    metrics_paths: tuple[str, ...]
    version: Callable[[], str]
    labels: Callable[[str], Mapping[str, int]]
    history: Callable[[str], Sequence[Mapping[str, Any]]]


class BoundPort:
    """A TCP port that this process has bound; the system refuses connections until listen() is called.

    Args:
      flags, wire: names for the text of a StartError.

    Raises:
      StartError: the port is in use.
    """

    def __init__(self, host: str, port: int, flags: str = "--rest_api_port or --host", wire: str = "HTTP") -> None:
        self._named = f"{host}:{port} for {wire}", flags
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        # SO_REUSEADDR is set by hand: socket.create_server would set it too, but would also listen at once.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._call(lambda: self._socket.bind((host, port)))

    @property
    def number(self) -> int:
        """The number of the bound port, which the system chose if the configured port is 0."""
        return int(self._socket.getsockname()[1])

    def listen(self) -> socket.socket:
        """Listens on the port, and returns the socket; raises StartError if another process listens there already."""
        self._call(lambda: self._socket.listen(BACKLOG))
        return self._socket

    def close(self) -> None:
        """Closes the socket of the port; does nothing if another object has taken it over by detach()."""
        self._socket.close()

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError as error:
            self._socket.close()
            place, flags = self._named
            raise StartError(f"cannot listen on {place}: {error.strerror}. Choose another with {flags}.") from error


def http_port(settings: Settings) -> BoundPort:
    """Returns the HTTP port of the settings, bound but not listening yet; raises StartError."""
    return BoundPort(settings.host, settings.rest_api_port)


def grpc_port(settings: Settings) -> BoundPort:
    """Returns the gRPC port of the settings, bound but not listening yet; raises StartError."""
    return BoundPort(settings.host, settings.port, "--port or --host", "gRPC")


def check_socket_path(path: str) -> None:
    """Raises StartError if a server listens on the Unix socket at `path`, or if another file is there.

    gRPC would replace the socket, and the other server would get no more connections. The socket that a killed server
    has left behind refuses connections, and is replaced.
    """
    if not path or not os.path.lexists(path):
        return
    flag = f"--grpc_socket_path={path}"
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise StartError(f"{flag}: there is a file that is no socket. Remove it, or choose another path.")
    with socket.socket(socket.AF_UNIX) as probe:
        # The queue of a server that accepts no connections may be full: it listens nevertheless.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise StartError(f"{flag}: {error.strerror}. Choose another path.") from error
    raise StartError(f"{flag}: another server listens there. Stop it, or choose another path.")


def metrics_paths_of(file: str) -> tuple[str, ...]:
    """Returns the HTTP paths of the metrics, from the --monitoring_config_file if there is one; raises StartError."""
    try:
        return metrics_paths(read_monitoring_config(Path(file)) if file else None)
    except ServiceError as error:
        raise StartError(f"--monitoring_config_file={file}: {error.message}") from error
