"""Deltas and upserts of tables in a cluster are written once, reach every server, and change one version only."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from model_export.remote.push import push
from service.artifact.delta_file import Delta, DeltaFault, encode, fingerprint_of
from service.errors import TableUnreachable
from service.loading.remote_tables import RemoteTables
from service.remote.address import StoreAddress
from service.remote.core_clusters import Clusters
from service.remote.layout import slot_of
from service.remote.topology import Refused
from service.tables.remote_table import RemoteTable
from service.types import Array
from tests.deltas import delta_bytes, drop
from tests.integration.process import ServerProcess, until
from tests.integration.remote_tables import layout_of
from tests.integration.test_remote_faults import reopened
from tests.toy_model import write_toy_model
from tests.valkey_cluster import Cluster, needs_program

pytestmark = needs_program
ROWS = 100_000
_OPTIONS = "?timeout_ms=3000&node_timeout_ms=1000"


class Server:
    """A server's part for one remote table: the table, and the rows that the server was told have changed."""

    def __init__(self, cluster: Cluster, folder: Path, options: str = _OPTIONS) -> None:
        self.tables = RemoteTables({"user": StoreAddress.parse(cluster.address + options)}, lambda: None, Clusters(0))
        self.table: RemoteTable = reopened(self.tables, folder)
        self.heard: list[Array | None] = []
        self.table.changes.listeners.append(self.heard.append)
        self._fingerprint = fingerprint_of(folder)

    def upsert(self, ids: list[int], rows: list[list[float]]) -> tuple[int, bool]:
        """Upserts rows; returns the upsert's number, and whether it was written into the table's blocks."""

        def make(sequence: int) -> tuple[Delta, bytes]:
            delta = self.delta(sequence, ids, rows)
            return delta, encode(delta)

        delta, is_visible = self.table.changes.upsert(make, 0)
        return delta.sequence, is_visible

    def delta(self, sequence: int, ids: list[int], rows: list[list[float]], checksum: int = 0) -> Delta:
        """Returns a delta of table "user" for this version."""
        return Delta(sequence, "user", np.array(ids), np.array(rows, np.float32), self._fingerprint, 0, False, checksum)

    def take_file(self, delta: Delta) -> list[DeltaFault]:
        """Writes a delta as if it came from a file; returns the faults for which it was refused."""
        refused: list[DeltaFault] = []
        self.table.changes.queue_file(delta, refused.append)
        self.table.changes.follow()
        return refused

    def heard_rows(self) -> set[int | None]:
        """Returns all rows that the server was told have changed; None in the set: any row."""
        self.table.changes.follow()
        return {row for ids in self.heard for row in ([None] if ids is None else ids.tolist())}


def test_an_upsert_is_written_once_and_heard_by_each_server(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    first, second = Server(cluster, folder), Server(cluster, folder)
    ids = [7, ROWS - 1, 40_000, 2016]
    new = [[float(n), -float(n)] for n in range(4)]
    assert first.upsert(ids, new) == (1, True)
    expected = rows.copy()
    expected[ids] = new
    for server in (first, second):
        assert (server.table.rows(np.arange(ROWS)) == expected).all()
        assert server.heard_rows() == set(ids)
    second.heard.clear()
    # No change is pending, and server `second` does not hear of the changes again that it has heard of.
    assert second.heard_rows() == set() and second.table.changes.num_pending == 0
    assert second.upsert([7], [[5, 5]]) == (2, True)
    assert first.table.rows(np.array([7])).tolist() == [[5, 5]]
    # The changes are already in the rows that a server reads when it starts, so it hears of none.
    assert Server(cluster, folder).heard_rows() == set()


def test_the_higher_number_counts_whichever_server_writes_it_and_when(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    first, second = Server(cluster, folder), Server(cluster, folder)
    late = first.delta(3, [1, 2], [[3, 3], [3, 3]], checksum=33)
    newer = first.delta(9, [2, 4], [[9, 9], [9, 9]], checksum=99)
    assert first.take_file(newer) == second.take_file(newer) == []
    assert second.take_file(late) == first.take_file(late) == []
    for server in (first, second):
        assert server.table.rows(np.array([1, 2, 4])).tolist() == [[3, 3], [9, 9], [9, 9]]
    # Each server wrote one of the two delta files to the cluster, and found the other one written.
    assert [server.table.changes.applied for server in (first, second)] == [1, 1]
    # An upsert gets a higher number than each delta file, and a second file with a known number and other content is
    # refused.
    assert second.upsert([2], [[1, 1]]) == (10, True)
    assert first.table.rows(np.array([2])).tolist() == [[1, 1]]
    (fault,) = first.take_file(first.delta(9, [5], [[0, 0]], checksum=98))
    assert fault.reason == "repeated"
    assert (first.table.rows(np.array([5])) == rows[5]).all()


def test_an_upsert_that_a_server_left_is_finished_by_another(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    first, second = Server(cluster, folder), Server(cluster, folder)
    layout = layout_of(folder, "user")
    record = slot_of(layout.record) // (16384 // 3 + 1)
    other = (record + 1) % 3
    of_node = layout.slots[np.arange(ROWS) // layout.block_rows % layout.num_shards] // (16384 // 3 + 1)
    ids = [int(np.flatnonzero(of_node == node)[0]) for node in (record, other)]
    cluster.nodes[other].freeze()
    # The upsert is pending, because one of its rows belongs to the frozen node.
    assert first.upsert(ids, [[1, 2], [3, 4]]) == (1, False)
    cluster.nodes[other].thaw()
    until(lambda: second.heard_rows() >= set(ids))
    assert second.table.rows(np.array(ids)).tolist() == [[1, 2], [3, 4]]
    until(lambda: (second.table.changes.follow(), second.table.changes.num_pending == 0)[1])
    assert first.table.rows(np.array(ids)).tolist() == [[1, 2], [3, 4]]


def test_blocks_that_are_gone_get_no_rows_and_push_keeps_changed_ones(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    address = StoreAddress.parse(cluster.address)
    push(folder, address, tables=["user"])
    server, layout = Server(cluster, folder), layout_of(folder, "user")
    assert server.upsert([5, 3000], [[1, 1], [2, 2]]) == (1, True)
    # The block of rows that has row 5 is deleted; a write of row 5 alone would set its neighbours in the block to
    # zeros.
    cluster.client().delete(layout.key(0))
    assert server.upsert([5], [[8, 8]]) == (2, False)
    assert cluster.client().exists(layout.key(0)) == 0
    with pytest.raises(TableUnreachable, match="not in the cluster"):
        server.table.rows(np.array([5]))
    (pushed,) = push(folder, address, tables=["user"])
    assert pushed.written == 1
    # The push restores the block with the version's own rows, and then the server writes the pending upsert into it.
    time.sleep(1)
    until(lambda: (server.table.changes.follow(), server.table.changes.num_pending == 0)[1])
    expected = rows.copy()
    expected[[5, 3000]] = [[8, 8], [2, 2]]
    assert (server.table.rows(np.arange(ROWS)) == expected).all()
    # A second push writes no block: the blocks differ from the version's rows only by upserts.
    (pushed,) = push(folder, address, tables=["user"])
    assert pushed.written == 0
    assert (server.table.rows(np.arange(ROWS)) == expected).all()


def test_a_full_cluster_refuses_changes_and_answers_reads(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    server = Server(cluster, folder)
    for node in cluster.nodes:
        node.ask("CONFIG SET", "maxmemory", "1")
    with pytest.raises(Refused, match="maxmemory"):
        server.upsert([5], [[1, 1]])
    assert (server.table.rows(np.arange(100)) == rows[:100]).all()
    assert "maxmemory" in _refusal(server)
    assert server.tables.state().refused == {("toy", 1, "user"): 1}
    for node in cluster.nodes:
        node.ask("CONFIG SET", "maxmemory", "0")
    assert server.upsert([5], [[1, 1]])[1]
    assert _refusal(server) == "" and server.tables.state().refused == {("toy", 1, "user"): 1}


def _refusal(server: Server) -> str:
    (cluster,) = server.tables.clusters()
    (table,) = cluster["tables"]
    return str(table["refusal"])


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_an_upsert_outlives_its_primaries(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    server = Server(cluster, folder, "?timeout_ms=60000&node_timeout_ms=1000")
    ids = list(range(0, ROWS, 500))
    new = np.arange(2.0 * len(ids)).reshape(-1, 2)
    assert server.upsert(ids, new.tolist()) == (1, True)
    assert server.heard_rows() == set(ids) and server.table.changes.num_pending == 0
    cluster.nodes[0].kill()
    assert (server.table.rows(np.array(ids)) == new).all()
    until(lambda: cluster.nodes[3].ask("INFO", "replication")["role"] == "master")
    assert (server.table.rows(np.array(ids)) == new).all()
    # The promoted replica accepts writes.
    until(lambda: _upserts(server, ids))
    assert (server.table.rows(np.array(ids)) == 3).all()


def _upserts(server: Server, ids: list[int]) -> bool:
    try:
        return server.upsert(ids, [[3, 3]] * len(ids))[1]
    except Exception as error:
        assert "Unreachable" in type(error).__name__, error
        return False


def test_versions_keep_apart_and_leave_nothing(cluster: Cluster, tmp_path: Path) -> None:
    address = StoreAddress.parse(cluster.address)
    first, second = (write_toy_model(tmp_path / "toy" / str(n), scale=n) for n in (1, 2))
    for folder in (first, second):
        push(folder, address, tables=["user"])
    old, new = Server(cluster, first), Server(cluster, second, f"{_OPTIONS}&on_unavailable=default_row")
    old.upsert([1], [[7, 7]])
    assert new.table.rows(np.array([1])).tolist() == [[2, 20]]
    assert new.heard_rows() == set()
    # An upsert of the default row also replaces the copy of it that the table serves if the cluster is unavailable.
    new.upsert([0], [[4, 4]])
    default_row = new.table.core.default_row(0, 0)
    assert default_row is not None and default_row.view(np.float32).tolist() == [4, 4]
    push(second, address, tables=["user"], keep=1)
    assert not [key for key in cluster.keys() if layout_of(first, "user").fingerprint in key]
    with pytest.raises(Refused, match="not in the cluster any more"):
        old.upsert([1], [[7, 7]])
    assert new.table.rows(np.array([0, 1])).tolist() == [[4, 4], [2, 20]]


def test_servers_share_upserts_and_files_within_a_second(cluster: Cluster, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(cluster.address))
    settings = {
        "model_name": "toy",
        "model_base_path": folder.parent,
        "graph_signatures": "off",
        "remote_tables": f"user={cluster.address}{_OPTIONS}",
        "admin_port": "auto",
    }
    with ServerProcess(**settings) as first, ServerProcess(**settings) as second:
        for server in (first, second):
            server.ready()

        def rows(server: ServerProcess) -> list[list[float]]:
            answer = server.http.post("/v1/models/toy:lookup", json={"features": {"user": [1, 2, 3]}})
            assert answer.status_code == 200, answer.text
            return list(answer.json()["embeddings"]["user"])

        with httpx.Client(base_url=f"http://127.0.0.1:{first.admin_port}", timeout=60) as admin:
            told = admin.post("/v1/models/toy/tables/user:upsert", json={"ids": [2], "rows": [[5, 6]]})
            assert (told.status_code, told.json()["is_visible"], told.json()["sequence"]) == (200, True, 1)
            until(lambda: rows(first) == rows(second) == [[1, 10], [5, 6], [3, 30]])
            drop(folder, 7, delta_bytes(folder, 7, "user", [3], [[7, 8]]))
            until(lambda: rows(first) == rows(second) == [[1, 10], [5, 6], [7, 8]])
            # A replica takes over that has the mark of the file, but not its rows, nor the note that they are written.
            layout, lost = layout_of(folder, "user"), cluster.client()
            until(lambda: lost.hget(layout.note("files"), 7) and not lost.hlen(layout.note("held")))
            lost.setrange(layout.key(0), 3 * layout.row_bytes, bytes(layout.row_bytes))
            lost.hset(layout.note("held"), "-7", np.array([3], "<i8").tobytes())
            lost.hdel(layout.note("files"), 7)
            until(lambda: rows(first) == rows(second) == [[1, 10], [5, 6], [7, 8]])
            until(lambda: lost.hget(layout.note("files"), 7) and not lost.hlen(layout.note("held")))
            told = admin.post("/v1/models/toy/tables/user:upsert", json={"ids": [99], "rows": [[5, 6]]})
            assert told.status_code == 400 and "table 'user'" in told.json()["error"]
            for node in cluster.nodes:
                node.kill()
            told = admin.post("/v1/models/toy/tables/user:upsert", json={"ids": [2], "rows": [[0, 0]]})
            assert told.status_code == 503 and "can not be changed now" in told.json()["error"]
