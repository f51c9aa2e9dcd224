"""Finds the replicas that have all changes of their primaries, so that their rows are not old.

The server compares how far a primary and its replica are in the stream of their replication. A primary that refuses
connections takes no changes: a replica that was in sync until then stays so. If a primary does not answer this server,
a replica counts that says itself that it heard from this primary a second ago.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import redis

from service.remote.topology import Node, Topology, Unreachable, node_client

# For how many seconds the rows of a replica may be read after the server began to compare it with its primary.
SYNC_S = 1.0
# _REPORT_S: longest wait, in seconds, for one node's reply to INFO replication. _MOST_THREADS: largest number of
# primaries whose replicas are compared at the same time.
_REPORT_S = 0.3
_MOST_THREADS = 16
# If the primary does not answer this server, a replica that heard from the primary at most this many whole seconds ago
# counts as in sync.
_HEARD_S = 1


class Report(NamedTuple):
    """A node's reply to INFO replication: its role, and how far it is in the replication stream.

    history: name of the sequence of changes that the node follows or makes; a primary that takes over gives it a new
    name. offset: how far the node is in it, in bytes. heard_s: seconds since a replica heard from its primary; None
    for a replica that is cut from it.
    """

    is_primary: bool
    history: str
    offset: int
    heard_s: int | None

    @staticmethod
    def of(found: Mapping[str, Any]) -> Report:
        is_primary, is_linked = found["role"] == "master", found.get("master_link_status") == "up"
        # A replica that was never in sync reports no offset, which is stored as -1.
        offset = int(found.get("master_repl_offset" if is_primary else "slave_repl_offset", -1))
        heard_s = int(found["master_last_io_seconds_ago"]) if is_linked else None
        return Report(is_primary, str(found["master_replid"]), offset, heard_s)


class Found(NamedTuple):
    """The result of comparing replicas with their primaries. in_sync: replicas that may be read for `seconds` from now.

    is_map_old: whether a node reports another role than the map of slots has for it.
    """

    in_sync: list[Node]
    seconds: float
    is_map_old: bool


class Replicas:
    """The finder of one cluster's replicas in sync with their primaries. Concurrency: one caller at a time."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        # Each client has one connection, because one caller at a time asks a node.
        self._clients: dict[Node, Any] = {}
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "replicas")
        # Replica -> whether it was in sync when it was last compared with its primary.
        self._was_in_sync: dict[Node, bool] = {}

    def compare(self) -> Found:
        """Compares each replica with its primary; returns the replicas that are in sync, and notes them in the
        topology.
        """
        until_s = time.monotonic() + SYNC_S
        groups = [group for group in self._topology.groups() if group[1]]
        found = list(self._threads.map(self._of_group, groups))
        in_sync = [node for nodes, _ in found for node in nodes]
        self._topology.set_in_sync(in_sync, until_s)
        seconds, is_map_old = max(until_s - time.monotonic(), 0.0), any(is_old for _, is_old in found)
        if is_map_old:
            with suppress(Unreachable):
                self._topology.refresh(time.monotonic() + self._topology.address.timeout_s)
        return Found(in_sync, seconds, is_map_old)

    def _of_group(self, group: tuple[Node, list[Node]]) -> tuple[list[Node], bool]:
        """Returns a primary's replicas that are in sync, and whether one of these nodes has another role than in the
        map of hash slots.
        """
        # The primary is asked before its replicas, so that a replica in sync has all changes that the primary had made
        # when it replied.
        primary, is_gone = None, False
        try:
            primary = self._report(group[0])
        except (OSError, redis.RedisError) as error:
            # Unless it is gone, the primary is frozen, or the network between it and this server is down: a replica
            # counts as in sync if it has itself heard from this primary within _HEARD_S seconds.
            is_gone = _is_refused(error)
        in_sync, is_old = [], primary is not None and not primary.is_primary
        for node in group[1]:
            try:
                own = self._report(node)
            except (OSError, redis.RedisError):
                continue
            is_old |= own.is_primary
            if not is_gone:
                self._was_in_sync[node] = _is_in_sync(own, primary)
            if own.is_primary or self._was_in_sync.get(node, False):
                in_sync.append(node)
        return in_sync, is_old

    def _report(self, node: Node) -> Report:
        """Returns a node's reply to INFO replication; raises OSError, redis.RedisError."""
        kept = self._clients.pop(node, None)
        if kept is not None:
            try:
                return self._ask(node, kept)
            except redis.ConnectionError:
                # The node ended or closed this connection; a new connection shows whether the node is up.
                pass
        return self._ask(node, node_client(self._topology.address, node, _REPORT_S))

    def _ask(self, node: Node, client: Any) -> Report:
        try:
            report = Report.of(client.info("replication"))
        except BaseException:
            client.close()
            raise
        self._clients[node] = client
        return report


def _is_refused(error: Exception) -> bool:
    """Says whether no process listens on a node's port; redis-py raises its own error in place of the socket's."""
    return isinstance(error.__context__, ConnectionRefusedError)


def _is_in_sync(replica: Report, primary: Report | None) -> bool:
    if primary is not None and primary.is_primary:
        return replica.history == primary.history and replica.offset >= primary.offset
    return replica.heard_s is not None and replica.heard_s <= _HEARD_S
