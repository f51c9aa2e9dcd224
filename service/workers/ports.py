"""The sockets that all workers share: made once, before any of them, and kept open while one is replaced."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from service.configuration.settings import Settings

_BACKLOG = 2048


class PortError(Exception):
    """A port or path can not be listened on; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What a server listens on.

    admin: the admin routes' listener, where there is one.
    grpc: the port's listener and that of the Unix socket, where there is one; empty where the transport opens its own.
    reserved: keeps the gRPC port, without listening, for a transport that is given a number and shares it.
    """

    http: socket.socket
    admin: socket.socket | None
    grpc: tuple[socket.socket, ...]
    reserved: socket.socket | None
    unix_path: str

    @property
    def http_port(self) -> int:
        """The port's number."""
        return int(self.http.getsockname()[1])

    @property
    def grpc_port(self) -> int:
        """The port's number."""
        return int((self.reserved or self.grpc[0]).getsockname()[1])

    def close(self) -> None:
        """Lets go; the file of the Unix socket goes with it."""
        for one in (self.http, self.admin, *self.grpc, self.reserved):
            if one is not None:
                one.close()
        if self.unix_path:
            Path(self.unix_path).unlink(missing_ok=True)


def open_ports(settings: Settings, *, grpc_takes_sockets: bool) -> Ports:
    """Listens on what the settings say; raises PortError.

    Args:
      grpc_takes_sockets: the gRPC transport can be given listeners; else it is given a port and SO_REUSEPORT.
    """
    opened: list[socket.socket] = []
    try:
        http = _listen(settings.host, settings.rest_api_port, "HTTP", "--rest_api_port or --host")
        opened.append(http)
        admin = None
        if settings.admin_port >= 0:
            admin = _listen(settings.admin_host, settings.admin_port, "HTTP", "--admin_port or --admin_host")
            opened.append(admin)
        first = len(opened)
        if not grpc_takes_sockets:
            reserved = _reserve(settings.host, settings.port)
            return Ports(http, admin, (), reserved, "")
        opened.append(_listen(settings.host, settings.port, "gRPC", "--port or --host"))
        if settings.grpc_socket_path:
            opened.append(_listen_on_path(settings.grpc_socket_path))
        return Ports(http, admin, tuple(opened[first:]), None, settings.grpc_socket_path)
    except PortError:
        for one in opened:
            one.close()
        raise


def _listen(host: str, port: int, wire: str, flags: str) -> socket.socket:
    try:
        return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except OSError as error:
        raise PortError(
            f"cannot listen on {host}:{port} for {wire}: {error.strerror}. Choose another with {flags}."
        ) from error


def _reserve(host: str, port: int) -> socket.socket:
    # Somebody who listens without SO_REUSEPORT is found by the first, somebody who has set it by the second.
    _listen(host, port, "gRPC", "--port or --host").close()
    reserved = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise PortError(
            f"cannot listen on {host}:{port} for gRPC: {error.strerror}. Choose another with --port or --host."
        ) from error
    return reserved


def _listen_on_path(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # What a server that was killed left behind is in nobody's way.
        if _is_left_over(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PortError(f"cannot listen on {path}: {error.strerror}. Choose another --grpc_socket_path.") from error
    return listener


def _is_left_over(path: str) -> bool:
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) != 0


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
