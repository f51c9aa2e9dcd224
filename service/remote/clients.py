"""Makes redis-py clients, which are used for everything but the reading of rows, and TLS contexts of connections."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from service.remote.address import StoreAddress

Node = tuple[str, int]
# The name and version that a client tells a node. redis-py would look its version up for each client, which takes 4 ms.
_DRIVER = DriverInfo(lib_version=redis.__version__)


class _TlsConnection(redis.SSLConnection):
    """A TLS connection that trusts the authorities of its ca_file alone, or the system's if it has no ca_file.

    redis-py's own class always trusts the system's, too, and reads them for each connection, which takes 17 ms.
    """

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return tls_context(self.ca_certs or "").wrap_socket(sock, server_hostname=self.host)


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Returns the TLS context of a new connection, with the authorities of a PEM file; "": the system's authorities.

    The file is read for each connection, because it may change; the system's authorities are read once. Raises OSError.
    """
    return ssl.create_default_context(cafile=ca_file) if ca_file else _system_context()


@cache
def _system_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def node_client(address: StoreAddress, node: Node, timeout_s: float, *, is_text: bool = True) -> Any:
    """Returns a client of one cluster node that does not retry, because its caller can ask other nodes.

    Args:
      is_text: whether values are str, and not bytes.
    """
    retry = Retry(NoBackoff(), 0)
    return _server_client(node, {**_options(address, timeout_s), "decode_responses": is_text, "retry": retry})


def store_client(address: StoreAddress, timeout_s: float) -> Any:
    """Returns a client of a whole cluster, or of a single Valkey or Redis server; it returns values as bytes.

    Raises:
      redis.RedisError: no node answers.
    """
    problem: redis.RedisError | None = None
    for node in address.nodes:
        try:
            with node_client(address, node, timeout_s) as client:
                client.execute_command("CLUSTER MYID")
        except redis.ResponseError as error:
            if "cluster support disabled" in str(error):
                return _server_client(node, _options(address, timeout_s))
            raise
        except redis.RedisError as error:
            problem = error
            continue
        # Only a client that is made from a URL lets us choose the class of its connections. The scheme "rediss" would
        # replace the class by redis-py's own.
        host = f"[{node[0]}]" if ":" in node[0] else node[0]
        return redis.RedisCluster.from_url(f"redis://{host}:{node[1]}", **_options(address, timeout_s))
    assert problem is not None  # each node of `address` has raised a RedisError, the last one of which is `problem`
    raise problem


def _server_client(node: Node, options: Mapping[str, Any]) -> Any:
    return redis.Redis.from_pool(redis.ConnectionPool(host=node[0], port=node[1], **options))


def _options(address: StoreAddress, timeout_s: float) -> dict[str, Any]:
    authorities = {"ssl_ca_certs": address.ca_file} if address.ca_file else {}
    return {
        "connection_class": _TlsConnection if address.has_tls else redis.Connection,
        "username": address.user or None,
        "password": address.password or None,
        **authorities,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": _DRIVER,
    }
