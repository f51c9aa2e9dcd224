"""Finds up to which moment each replica has all changes of its primary, so that its rows are not old.

The server compares how far a primary and its replica are in the stream of their replication. A primary that refuses
connections takes no changes: a replica that had all shortly before stays so. If a primary does not answer this server,
its replica counts for as long as it gets more of the stream, and never gets none of it for FRESH_S.

A node that starts again may have old rows, so a replica is read for at most _REPORTED_S after its newest report: a
node takes longer to start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import redis

from service.remote.core_clusters import FRESH_S
from service.remote.topology import Node, Topology, Unreachable, node_client

# _REPORT_S: longest wait, in seconds, for one node's reply to INFO replication. _MOST_THREADS: largest number of
# primaries whose replicas are compared at the same time. _GONE_S: a replica that had all changes less than this many
# seconds before its primary refused a connection counts as complete. It may lack what the primary took meanwhile, if it
# was cut off. _REPORTED_S: longest time, in seconds, for which a replica is read after it was asked for a report.
# Replicas are compared each 0.3 s, and later only if nodes are silent or this server lacks processor time.
_REPORT_S = 0.3
_MOST_THREADS = 16
_GONE_S = 1.0
_REPORTED_S = 0.9


class Report(NamedTuple):
    """A node's reply to INFO replication: its role, and how far it is in the replication stream.

    asked_s: when the server asked, on time.monotonic(). history: name of the sequence of changes that the node follows
    or makes; a primary that takes over gives it a new name. offset: how far the node is in it, in bytes.
    """

    asked_s: float
    is_primary: bool
    history: str
    offset: int

    @staticmethod
    def of(found: Mapping[str, Any], asked_s: float) -> Report:
        is_primary = found["role"] == "master"
        # A replica that was never in sync reports no offset, which is stored as -1.
        offset = int(found.get("master_repl_offset" if is_primary else "slave_repl_offset", -1))
        return Report(asked_s, is_primary, str(found["master_replid"]), offset)


class Found(NamedTuple):
    """The result of comparing replicas with their primaries. until_s: replica that answered -> the moment on
    time.monotonic() until which its rows may be read.

    is_map_old: whether a node reports another role than the map of slots has for it.
    """

    until_s: dict[Node, float]
    is_map_old: bool


class Replicas:
    """The finder of one cluster's replicas in sync with their primaries. Concurrency: one caller at a time.

    Args:
      on_lost: told at once of a replica that has started again; compare() returns later if other nodes are silent.
    """

    def __init__(
        self, topology: Topology, on_lost: Callable[[Mapping[Node, float]], object] = lambda until_s: None
    ) -> None:
        self._topology = topology
        self._on_lost = on_lost
        # Each client has one connection, because one caller at a time asks a node.
        self._clients: dict[Node, Any] = {}
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "replicas")
        # The newest report of each node, and of each primary the newest one in which it says that it is a primary.
        self._reports: dict[Node, Report] = {}
        self._primaries: dict[Node, Report] = {}
        # Primary on whose port no process listens -> since when.
        self._gone_s: dict[Node, float] = {}

    def compare(self) -> Found:
        groups = [group for group in self._topology.groups() if group[1]]
        found = list(self._threads.map(self._of_group, groups))
        until_s = {node: moment_s for moments_s, _ in found for node, moment_s in moments_s.items()}
        is_map_old = any(is_old for _, is_old in found)
        if is_map_old:
            with suppress(Unreachable):
                self._topology.refresh(time.monotonic() + self._topology.address.timeout_s)
        return Found(until_s, is_map_old)

    def _of_group(self, group: tuple[Node, list[Node]]) -> tuple[dict[Node, float], bool]:
        """Returns the moments until which a primary's replicas may be read, and whether one of these nodes has another
        role than in the map of hash slots.
        """
        # The primary is asked before its replicas, so that a replica that is as far has all changes that the primary
        # had made when it was asked.
        primary, gone_s = None, None
        try:
            primary = self._report(group[0])
        except (OSError, redis.RedisError) as error:
            # Without a process on the node's port, redis-py raises its own error in place of the socket's.
            if isinstance(error.__context__, ConnectionRefusedError):
                gone_s = self._gone_s.get(group[0], time.monotonic())
        if gone_s is None:
            self._gone_s.pop(group[0], None)
        else:
            self._gone_s[group[0]] = gone_s
        is_answered = primary is not None and primary.is_primary
        is_old = primary is not None and not primary.is_primary
        if primary is not None and primary.is_primary:
            self._primaries[group[0]] = primary
        known, until_s = self._primaries.get(group[0]), {}
        for node in group[1]:
            before, known_s = self._reports.get(node), self._topology.as_of_s(node)
            try:
                own = self._reports[node] = self._report(node)
            except (OSError, redis.RedisError):
                continue
            is_old |= own.is_primary
            if own.is_primary:
                # The node took over, which gives its changes a new history, or has not heard yet that another one did.
                former = self._primaries.get(node)
                is_former = is_answered or (former is not None and former.history == own.history)
                moment_s = known_s if is_former else max(known_s, own.asked_s)
            else:
                moment_s = has_all_s(own, before, known, gone_s=gone_s, as_of_s=known_s)
            until_s[node] = min(moment_s + FRESH_S, own.asked_s + _REPORTED_S)
            self._topology.set_as_of_s(node, moment_s, until_s[node])
            if moment_s < known_s:
                self._on_lost({node: until_s[node]})
        return until_s, is_old

    def _report(self, node: Node) -> Report:
        kept = self._clients.pop(node, None)
        if kept is not None:
            try:
                return self._ask(node, kept)
            except redis.ConnectionError:
                # The node ended or closed this connection; a new connection shows whether the node is up.
                pass
        return self._ask(node, node_client(self._topology.address, node, _REPORT_S))

    def _ask(self, node: Node, client: Any) -> Report:
        asked_s = time.monotonic()
        try:
            report = Report.of(client.info("replication"), asked_s)
        except BaseException:
            client.close()
            raise
        self._clients[node] = client
        return report


def has_all_s(
    own: Report, before: Report | None, known: Report | None, *, gone_s: float | None, as_of_s: float
) -> float:
    """Returns the moment up to which a replica has all changes of its primary, as far as its reports show it.

    Args:
      own, before: its newest report, and the one before.
      known: the primary's newest report.
      gone_s: since when no process listens on the primary's port; None: a process may listen.
      as_of_s: what is known of the replica already.
    """
    if before is not None and own.offset < before.offset:
        # The node has started again with what it had saved, or copies another primary.
        as_of_s = float("-inf")
    if known is None or own.history != known.history or own.offset < known.offset:
        return as_of_s
    if as_of_s < known.asked_s or own.asked_s >= as_of_s + FRESH_S:
        # The primary answers, or the replica was behind: what it gets now may be late, as networks hold changes back.
        return max(as_of_s, known.asked_s)
    if gone_s is not None and gone_s < as_of_s + _GONE_S:
        return own.asked_s
    if before is not None and before.history == own.history and before.offset < own.offset:
        # The primary does not answer this server. What the replica got between both reports, the primary sent after
        # the first one, unless the network held it back for less than FRESH_S.
        return max(as_of_s, before.asked_s)
    return as_of_s
