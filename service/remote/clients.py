"""Makes redis-py clients, which are used for everything but the reading of rows."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.remote.address import StoreAddress

Node = tuple[str, int]


def node_client(address: StoreAddress, node: Node, timeout_s: float, *, is_text: bool = True) -> Any:
    """Returns a client of one cluster node that does not retry, because its caller can ask other nodes.

    Args:
      is_text: whether values are str, and not bytes.
    """
    retry = Retry(NoBackoff(), 0)
    return redis.Redis(*node, **_options(address, timeout_s), decode_responses=is_text, retry=retry)


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
                return redis.Redis(*node, **_options(address, timeout_s))
            raise
        except redis.RedisError as error:
            problem = error
            continue
        return redis.RedisCluster(*node, **_options(address, timeout_s))
    assert problem is not None  # each node of `address` has raised a RedisError, the last one of which is `problem`
    raise problem


def _options(address: StoreAddress, timeout_s: float) -> dict[str, Any]:
    authorities = {"ssl_ca_certs": address.ca_file} if address.ca_file else {}
    return {
        "username": address.user or None,
        "password": address.password or None,
        "ssl": address.has_tls,
        **authorities,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
    }
