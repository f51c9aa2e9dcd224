"""Cuts replicas off from their primaries: their rows are not read, and the entries that they lack are told again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.remote.push import push
from service.errors import TableUnreachable
from service.remote.address import StoreAddress
from service.remote.layout import slot_of
from tests.integration.process import until
from tests.integration.remote_tables import layout_of
from tests.integration.test_remote_changes import Server
from tests.integration.test_remote_faults import ROWS
from tests.valkey_cluster import Cluster, Node, needs_program

pytestmark = needs_program
_IMPATIENT = "?timeout_ms=1000&node_timeout_ms=300"


class Stage:
    """A cluster with a table. primary: has the table's stream; replica: of this primary.

    own: rows that the primary has. others: rows that another primary has.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        push(folder, StoreAddress.parse(cluster.address), tables=["user"])
        layout = layout_of(folder, "user")
        per_node = 16384 // 3 + 1
        number = slot_of(layout.record) // per_node
        of_node = layout.slots[np.arange(ROWS) // layout.block_rows % layout.num_shards] // per_node
        self.primary, self.replica = cluster.nodes[number], cluster.nodes[number + 3]
        self.own, self.others = (np.flatnonzero((of_node == number) == is_own).tolist() for is_own in (True, False))

    def cut(self) -> None:
        """Cuts the replica off from its primary, while all others still reach the primary."""
        self.primary.ask("ACL SETUSER", "default", "-psync", "-sync")
        self.primary.ask("CLIENT KILL", "TYPE", "replica")
        until(lambda: self.replica.ask("INFO", "replication")["master_link_status"] == "down")

    def forbid_takeover(self) -> None:
        """Keeps the replica from becoming a primary, and lets the nodes answer while slots have no primary."""
        self.replica.ask("CONFIG SET", "cluster-replica-no-failover", "yes")
        for node in self.cluster.nodes:
            node.ask("CONFIG SET", "cluster-require-full-coverage", "no")

    def mend(self) -> None:
        """Lets the replica follow its primary again."""
        # After a refused PSYNC, a replica sends SYNC, which would leave it with an offset that can not be compared with
        # the primary's. So SYNC is allowed only after PSYNC has worked.
        self.primary.ask("ACL SETUSER", "default", "+psync")
        until(lambda: self.replica.ask("INFO", "replication")["master_link_status"] == "up")
        self.primary.ask("ACL SETUSER", "default", "+sync")
        until(self.cluster.is_whole)

    def take_over(self) -> None:
        """Makes the replica a primary, although it lacks writes of the old primary, which then follows it."""
        self.replica.ask("CLUSTER FAILOVER", "TAKEOVER")
        until(lambda: _role(self.replica) == "master" and _role(self.primary) == "slave")
        until(self.cluster.is_whole)


def _role(node: Node) -> str:
    return str(node.ask("INFO", "replication")["role"])


@pytest.fixture
def stage(tmp_path: Path, written: tuple[Path, np.ndarray]) -> Iterator[Stage]:
    """Starts three primaries with a replica each; the cluster holds the table."""
    with Cluster(tmp_path / "nodes", 3, 1) as cluster:
        yield Stage(cluster, written[0])


def test_entries_that_a_failover_lost_are_told_again_and_their_numbers_are_not_mistaken(stage: Stage) -> None:
    writer, heard, unheard = (Server(stage.cluster, stage.folder) for _ in range(3))
    lost, new = stage.others[:2]
    stage.cut()
    # Only the primary has the stream entry of this upsert. Server `heard` reads the entry there; `unheard` may have
    # cached the row before.
    assert writer.upsert([lost], [[1, 1]])[0] == 1
    assert heard.heard_rows() == {lost}
    stage.take_over()
    assert Server(stage.cluster, stage.folder).upsert([new], [[2, 2]])[0] == 1, "the number is given again"
    heard.heard.clear()
    assert heard.heard_rows() == {None}, "all cached rows of the table are dropped"
    until(lambda: (writer.table.changes.follow(), unheard.heard_rows() >= {lost, new})[1])
    for server in (heard, unheard):
        assert server.table.rows(np.array([lost, new])).tolist() == [[1, 1], [2, 2]]


def test_rows_of_a_replica_that_is_cut_off_are_not_read(stage: Stage, written: tuple[Path, np.ndarray]) -> None:
    _, rows = written
    server, (row,) = Server(stage.cluster, stage.folder, _IMPATIENT), stage.own[:1]
    heard: list[bool] = []
    server.table.changes.on_heard = lambda: heard.append(True)
    stage.forbid_takeover()
    until(partial(_is_in_sync, server, stage.replica))
    assert _reads(server, row) == [rows[row].tolist()]
    stage.cut()
    assert server.upsert([row], [[7, 7]])[0] == 1
    until(lambda: not _is_in_sync(server, stage.replica))
    stage.primary.freeze()
    for is_held_for_dead in (False, True):
        # After the other nodes declare the primary dead, the cluster's map of slots names only the replica.
        until(lambda dead=is_held_for_dead: not dead or _status(server, stage.primary)["num_slots"] == 0)
        server.tables.compare()
        assert _reads(server, row) == "unreachable"
        heard.clear()
        server.table.changes.follow()
        assert heard == [], "the replica lacks an entry, so it does not tell that there was no change"
    stage.primary.thaw()
    until(lambda: _reads(server, row) == [[7, 7]])
    stage.mend()
    until(partial(_is_in_sync, server, stage.replica))
    # A dead primary changes no rows, so its replica stays in sync.
    stage.primary.kill()
    for is_held_for_dead in (False, True):
        until(lambda dead=is_held_for_dead: not dead or _status(server, stage.primary)["num_slots"] == 0)
        until(lambda: _is_in_sync(server, stage.replica) and _reads(server, row) == [[7, 7]])


def _status(server: Server, node: Node) -> dict[str, Any]:
    server.tables.look()
    server.tables.compare()
    return of_node(server.tables.clusters(), node)


def of_node(clusters: Any, node: Node) -> dict[str, Any]:
    """Returns the status of a node of the only cluster."""
    (cluster,) = clusters
    (found,) = (dict(one) for one in cluster["nodes"] if one["node"] == f"127.0.0.1:{node.port}")
    return found


def _is_in_sync(server: Server, node: Node) -> bool:
    return bool(_status(server, node)["is_in_sync"])


def _reads(server: Server, row: int) -> list[list[float]] | str:
    try:
        return list(server.table.rows(np.array([row])).tolist())
    except TableUnreachable:
        return "unreachable"
