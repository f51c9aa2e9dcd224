"""Binds the TCP ports of the settings, each on all addresses of its host setting."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from service.configuration.server_settings import Port
from service.configuration.settings import Settings, StartError

logger = logging.getLogger(__name__)

# Number of connections that wait in the system's queue until the server accepts them.
BACKLOG = 2048


class Ports(NamedTuple):
    """The numbers of the public HTTP port and of the public gRPC port; None for a port that is off."""

    http: int | None
    grpc: int | None


class BoundPort:
    """A TCP port that this process has bound; the system refuses connections until listen() is called.

    Args:
      hosts: addresses or names; the port has the same number on all of them.
      port: 0: the port is off, and no socket is bound.

    Raises:
      StartError: the port is in use, or this machine lacks an address.
    """

    def __init__(
        self, hosts: Sequence[str], port: Port, flags: str = "--rest_api_port or --host", wire: str = "HTTP"
    ) -> None:
        self._wire, self._flags = wire, flags
        self._sockets: list[tuple[str, socket.socket]] = []
        self.number: int | None = None
        if port == 0:
            return
        number = 0 if port == "auto" else port
        for host in hosts:
            with self._naming(f"{bracketed(host)}:{number}"):
                family, address = _resolved(host, number)
                one = socket.socket(family)
                self._sockets.append((host, one))
                # SO_REUSEADDR is set by hand: socket.create_server would set it too, but would also listen at once.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # The address :: means all addresses, also those of IPv4, whatever net.ipv6.bindv6only says.
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
                one.bind(address)
                self.number = number = int(one.getsockname()[1])

    def listen(self) -> list[socket.socket]:
        for host, one in self._sockets:
            with self._naming(f"{bracketed(host)}:{self.number}"):
                one.listen(BACKLOG)
        return [one for _, one in self._sockets]

    def close(self) -> None:
        """Closes the sockets of the port; does nothing to those that another object has taken over by detach()."""
        for _, one in self._sockets:
            one.close()

    @contextmanager
    def _naming(self, place: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise StartError(
                f"cannot listen on {place} for {self._wire}: {error.strerror}. Choose another with {self._flags}."
            ) from error


def http_port(settings: Settings) -> BoundPort:
    return BoundPort(settings.hosts, settings.rest_api_port)


def grpc_port(settings: Settings) -> BoundPort:
    return BoundPort(settings.hosts, settings.port, "--port or --host", "gRPC")


def check_socket_path(path: str) -> None:
    """Raises StartError if no Unix socket can be made at `path`, or a server listens there, or another file is there.

    gRPC would replace the socket, and the other server would get no more connections. The socket that a killed server
    has left behind refuses connections, and is replaced.
    """
    if not path:
        return
    flag = f"--grpc_socket_path={path}"
    if not os.path.lexists(path):
        # The core makes the socket when the models are loaded. This one shows at once whether the core can.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.bind(path)
            except OSError as error:
                raise StartError(f"{flag}: {error.strerror or error}. Choose another path.") from error
        os.unlink(path)
        return
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


def bracketed(host: str) -> str:
    """Returns a host as it stands before a port.

    >>> bracketed("::1"), bracketed("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Returns the family and the address of a host; of a name, an IPv4 address if it has one. Raises OSError."""
    if host == "::" and not _has_ipv6():
        host = "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return False
    return True


def log_listening(settings: Settings, ports: Ports, admin_port: int | None, *, has_console: bool = True) -> None:
    told = []
    host = bracketed(settings.local_host)
    scheme = "https" if settings.rest_api_ssl_config_file else "http"
    if ports.http is not None:
        pages = ("console", "docs") if has_console else ("docs",)
        told += [f"{page} {scheme}://{host}:{ports.http}/{page}" for page in pages]
    if ports.grpc is not None:
        told.append(f"gRPC {host}:{ports.grpc}")
    if admin_port is not None:
        told.append(f"admin port {admin_port}")
    extra = {"hosts": settings.hosts, "http_port": ports.http, "grpc_port": ports.grpc, "admin_port": admin_port}
    logger.info("listening", extra=extra | {"told": "  ".join(told) or None})
