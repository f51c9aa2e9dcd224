"""Rows that a cluster lost or changed are seen by an operator: readiness, attention, log, metrics, refused requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import redis

from model_export.errors import ExportError
from model_export.remote.push import push
from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.remote_tables import large, layout_of
from tests.valkey_cluster import Cluster, Node, needs_program

pytestmark = needs_program

ROWS = 20_000


@contextmanager
def serving(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[ServerProcess, TableLayout, np.ndarray]]:
    """Serves a table of many blocks in a cluster; yields the server, the layout of the blocks, and the rows."""
    folder, rows = large(tmp_path / "toy" / "1", ROWS)
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    with ServerProcess(
        model_name="toy",
        model_base_path=folder.parent,
        graph_signatures="off",
        remote_tables=f"user={cluster.address}",
    ) as server:
        yield server.ready(), layout_of(folder, "user"), rows


@pytest.fixture
def served(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[ServerProcess, TableLayout, np.ndarray]]:
    with serving(cluster, tmp_path) as found:
        yield found


def node_of(cluster: Cluster, layout: TableLayout, block: int) -> Node:
    slot = int(layout.slots[block % layout.num_shards])
    return cluster.nodes[next(n for n in range(3) if slot < (n + 1) * 16384 / 3 or n == 2)]


def flush(cluster: Cluster, layout: TableLayout) -> None:
    for node in cluster.nodes:
        node.ask("FLUSHALL")


def empty_one(cluster: Cluster, layout: TableLayout) -> None:
    cluster.nodes[0].kill()
    cluster.nodes[0].start()
    until(cluster.is_whole)


def each_block(change: Callable[[Node, str], object]) -> Callable[[Cluster, TableLayout], None]:
    def spoil(cluster: Cluster, layout: TableLayout) -> None:
        for block in range(layout.num_blocks):
            change(node_of(cluster, layout, block), layout.key(block))

    return spoil


def cut(node: Node, key: str) -> None:
    node.ask("EVAL", "local v = redis.call('GET', KEYS[1]); redis.call('SET', KEYS[1], string.sub(v, 1, 7))", 1, key)


def retype(node: Node, key: str) -> None:
    # In one step, so that no check of the server sees a missing key between both.
    node.ask("EVAL", "redis.call('DEL', KEYS[1]); redis.call('RPUSH', KEYS[1], 'a')", 1, key)


def refusal(server: ServerProcess) -> str:
    answer = server.http.post("/v1/models/toy:lookup", json={"features": {"user": list(range(0, ROWS, 100))}})
    return "" if answer.status_code == 200 else answer.text


def notices(server: ServerProcess) -> list[dict[str, str]]:
    found = server.http.get("/v1/statusz").json()["attention"]
    return [one for one in found if one["alert"] == "EmbeddingRemoteRowsLost"]


def faulty(server: ServerProcess, fault: str) -> float:
    family = read_exposition(server.http.get("/metrics").text)["embedding_server_remote_table_faulty_blocks"]
    return family.value(model="toy", version="1", table="user", fault=fault)


@pytest.mark.parametrize(
    ("spoil", "fault", "told"),
    [
        (flush, "missing", "is not in the cluster, or ends before the row"),
        (empty_one, "missing", "is not in the cluster, or ends before the row"),
        (each_block(lambda node, key: node.ask("DEL", key)), "missing", "is not in the cluster"),
        (each_block(cut), "cut short", 'run \\"model-export push\\"'),
        (each_block(retype), "of another type", "is of another type"),
    ],
    ids=["flushall", "a-node-restarts-empty", "deleted", "cut-short", "wrong-type"],
)
def test_lost_rows_are_seen_and_a_push_mends_them(
    served: tuple[ServerProcess, TableLayout, np.ndarray],
    cluster: Cluster,
    tmp_path: Path,
    spoil: Callable[[Cluster, TableLayout], None],
    fault: str,
    told: str,
) -> None:
    server, layout, _ = served
    assert refusal(server) == "" and notices(server) == []
    spoil(cluster, layout)
    until(lambda: told in refusal(server))
    assert 'of table \\"user\\" (slot ' in refusal(server)
    until(lambda: notices(server))
    (notice,) = notices(server)
    assert f"blocks are {fault}, in slots " in notice["message"] and "run `model-export push`" in notice["message"]
    until(lambda: server.http.get("/readyz").status_code == 503)
    assert "rows of table 'user' of version 1 are lost" in server.http.get("/readyz").text
    assert faulty(server, fault) > 0
    (line,) = [line for line in server.text().splitlines() if "rows of a remote table are lost" in line]
    assert f"blocks are {fault}, in slots" in line
    push(tmp_path / "toy" / "1", StoreAddress.parse(cluster.address), tables=["user"])
    until(lambda: refusal(server) == "" and server.http.get("/readyz").status_code == 200)
    until(lambda: notices(server) == [] and faulty(server, fault) == 0)
    until(lambda: "rows of a remote table are whole again" in server.text())


def test_a_flipped_bit_is_found_while_upserted_rows_are_no_fault(
    served: tuple[ServerProcess, TableLayout, np.ndarray], cluster: Cluster
) -> None:
    server, layout, rows = served
    key = layout.key(1)
    node = node_of(cluster, layout, 1)
    # What an upsert leaves: the changed row, and its order in the shard's hash.
    row = layout.block_rows + 2
    node.ask("HSET", layout.orders(1 % layout.num_shards), row, 1)
    node.ask("SETRANGE", key, 2 * layout.row_bytes, "new")
    passes = server.http.get("/v1/statusz").json()["clusters"][0]["tables"][0]["passes"]
    until(lambda: server.http.get("/v1/statusz").json()["clusters"][0]["tables"][0]["passes"] >= passes + 2)
    assert notices(server) == []
    node.ask("SETRANGE", key, 5, "flip")
    until(lambda: notices(server))
    (notice,) = notices(server)
    slot = layout.slots[1 % layout.num_shards]
    assert f"1 blocks hold other bytes than the version's files, in slots {slot}: run" in notice["message"]
    assert faulty(server, "differs") == 1
    assert server.http.get("/readyz").status_code == 200


def test_rows_behind_a_long_script_are_not_lost(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "nodes", 0) as single,
        serving(single, tmp_path) as (server, _, _),
        ThreadPoolExecutor(1) as pool,
    ):
        (node,) = single.nodes
        node.ask("CONFIG", "SET", "busy-reply-threshold", 50)
        # Longer than the second between two comparisons of the table with its file.
        script = "local t = redis.call('TIME')[1]; while redis.call('TIME')[1] - t < 3 do end"
        other = redis.Redis(port=node.port, socket_timeout=PATIENCE_S)
        ran = pool.submit(other.execute_command, "EVAL", script, 0)
        until(lambda: is_busy(node))
        told = refusal(server)
        assert "BUSY" in told and "push" not in told
        ran.result()
        until(lambda: refusal(server) == "")
        assert notices(server) == [] and "rows of a remote table are lost" not in server.text()
        other.close()


def is_busy(node: Node) -> bool:
    try:
        node.ask("PING")
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_push_refuses_a_cluster_that_evicts_keys(cluster: Cluster, tmp_path: Path) -> None:
    folder, _ = large(tmp_path / "toy" / "1", 100)
    cluster.nodes[1].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(ExportError, match="maxmemory-policy allkeys-lru.*set maxmemory-policy noeviction"):
        push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    cluster.nodes[1].ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
