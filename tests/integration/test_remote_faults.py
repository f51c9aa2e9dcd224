"""Clusters that lose nodes, give slots away or forget keys: never a wrong row, no error where another node answers."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import grpc
import httpx
import numpy as np
import pytest

from model_export.remote.push import push
from service.artifact.manifest import Manifest
from service.errors import ArtifactError, TableUnreachable
from service.loading.remote_tables import RemoteTables
from service.remote.address import StoreAddress
from service.remote.core_clusters import FRESH_S, Clusters
from service.remote.layout import slot_of
from service.tables.remote_table import RemoteTable
from tests.conformance.wires import PREDICT, predict_outputs, predict_request
from tests.integration.h2_client import H2Client
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.remote_readers import Readers
from tests.integration.remote_tables import large, layout_of
from tests.toy_model import manifest_of, write_toy_model
from tests.valkey_cluster import Cluster, needs_program

pytestmark = needs_program

ROWS = 20_000
# Long timeouts: on a busy machine, only the nodes that a test freezes must look like dead ones.
_PATIENT = "?timeout_ms=60000&node_timeout_ms=20000"


def opened(cluster: Cluster, folder: Path, options: str = _PATIENT) -> tuple[RemoteTable, RemoteTables, Clusters]:
    """Writes the table "user" into a cluster, and opens it as a server does."""
    address = StoreAddress.parse(cluster.address + options)
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    clusters = Clusters(0)
    tables = RemoteTables({"user": address}, lambda: None, clusters)
    return reopened(tables, folder), tables, clusters


def reopened(tables: RemoteTables, folder: Path) -> RemoteTable:
    """Opens the remote table "user" of a version."""
    manifest = manifest_of(folder)
    return tables.open("toy", int(folder.name), folder, manifest)["user"]


def test_stored_rows_of_a_dead_node_are_the_default_row(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    table, tables, clusters = opened(
        cluster, folder, "?timeout_ms=3000&node_timeout_ms=1000&on_unavailable=default_row"
    )
    layout = layout_of(folder, "user")
    # True for each row whose slot belongs to the first primary.
    is_lost = layout.slots[np.arange(ROWS) // layout.block_rows % layout.num_shards] < 16384 // 3
    lost, kept = np.flatnonzero(is_lost)[:100], np.flatnonzero(~is_lost)[:100]
    for node in cluster.nodes:
        node.ask("CONFIG SET", "cluster-require-full-coverage", "no")
    cluster.nodes[0].kill()
    until(lambda: not _refusal(table, kept))
    found = table.stored_rows(np.concatenate([kept, lost]))
    assert (found == np.concatenate([rows[kept], np.repeat(rows[:1], lost.size, 0)])).all()
    tables.look()
    assert tables.problem("toy") == ""
    (counts,) = clusters.counts().tables.values()
    assert counts.default_rows == lost.size


def _refusal(table: RemoteTable, ids: np.ndarray) -> str:
    try:
        table.rows(ids)
    except TableUnreachable as error:
        return str(error)
    return ""


def test_a_deadline_ends_a_read_of_a_frozen_node(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    ids = np.arange(0, ROWS, 100)
    with ServerProcess(
        model_name="toy",
        model_base_path=folder.parent,
        graph_signatures="off",
        remote_tables=f"user={cluster.address}{_PATIENT}",
    ) as server:
        server.ready()
        cluster.nodes[1].freeze()
        try:
            # This client does not end its calls at the deadline, so the answer is the server's.
            with H2Client(server.grpc_port) as client:
                late = client.call(predict_request("toy", {"user": ids}), grpc_timeout="500m")
        finally:
            cluster.nodes[1].thaw()
        assert late.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert 'before rows of table "user" were read' in unquote(late.headers["grpc-message"])
        # A read must not get an answer that the node sends late to an earlier read.
        found = server.predict_grpc({"user": ids[::-1]}, "lookup", model="toy")
        assert (found["user"] == rows[ids[::-1]]).all()


def test_a_version_that_is_pushed_after_many_failed_loads_is_served(cluster: Cluster, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    with ServerProcess(
        model_name="toy",
        model_base_path=folder.parent,
        remote_tables=f"user={cluster.address}",
        max_num_load_retries=0,
        load_retry_interval_micros=1,
        first_loads_timeout_s=0.5,
        graph_signatures="off",
    ) as server:
        server.answering()
        until(lambda: server.text().count("load failed") >= 3)
        (status,) = server.http.get("/v1/models/toy").json()["model_version_status"]
        assert "is not in the cluster; write it with `model-export push`" in status["status"]["error_message"]
        push(folder, StoreAddress.parse(cluster.address), tables=["user"])
        until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}, model="toy"))


def test_a_version_is_opened_only_when_it_is_whole(cluster: Cluster, tmp_path: Path) -> None:
    first, second = (write_toy_model(tmp_path / "toy" / str(n), scale=n) for n in (1, 2))
    table, tables, clusters = opened(cluster, first)
    with pytest.raises(TableUnreachable, match="is not in the cluster; write it with `model-export push`"):
        reopened(tables, second)
    push(second, StoreAddress.parse(cluster.address))
    newer = reopened(tables, second)
    ids = np.arange(5)
    assert (newer.rows(ids) == 2 * table.rows(ids)).all()
    # The push with keep=1 deletes the rows of the first version: reads of it are refused, and not answered with rows of
    # the second.
    push(second, StoreAddress.parse(cluster.address), keep=1)
    assert "not in the cluster" in _refusal(table, ids)
    with pytest.raises(TableUnreachable, match="is not in the cluster|not in use any more"):
        reopened(tables, first)


def test_a_node_that_answers_nothing_stops_no_lookup_of_other_tables_and_no_shutdown(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(cluster.address))
    with ServerProcess(
        model_name="toy",
        model_base_path=tmp_path / "toy",
        graph_signatures="off",
        drain_timeout_s=2,
        remote_tables=f"user={cluster.address}?timeout_ms=60000&node_timeout_ms=60000",
    ) as server:
        server.ready()
        url = f"http://127.0.0.1:{server.http_port}/v1/models/toy:lookup"

        def ask() -> None:
            # The shutdown cuts the request, or answers that the row can not be read.
            with contextlib.suppress(httpx.TransportError):
                httpx.post(url, json={"features": {"user": [1, 2, 3, 4]}}, timeout=60)

        for node in cluster.nodes:
            node.freeze()
        try:
            waiting = [threading.Thread(target=ask) for _ in range(20)]
            for thread in waiting:
                thread.start()
            for _ in range(50):
                tags = server.http.post(url, json={"features": {"tags": [[1]]}})
                assert tags.json()["embeddings"] == {"tags": [[1, 1, 1]]}
                assert server.http.get("/healthz").status_code == server.http.get("/metrics").status_code == 200
            server.signal(signal.SIGTERM)
            assert server.exit_code() == 0
        finally:
            for node in cluster.nodes:
                node.thaw()
        for thread in waiting:
            thread.join(60)


def test_readiness_names_the_table_and_requests_for_it_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(cluster.address))
    with ServerProcess(
        model_name="toy",
        model_base_path=tmp_path / "toy",
        graph_signatures="off",
        remote_tables=f"user={cluster.address}?timeout_ms=1000&node_timeout_ms=500",
    ) as server:
        server.ready()
        body = {"features": {"user": [1, 2]}}
        assert server.http.post("/v1/models/toy:lookup", json=body).json()["embeddings"]["user"] == [[1, 10], [2, 20]]
        for node in cluster.nodes:
            node.kill()
        until(lambda: server.http.get("/readyz").status_code == 503)
        assert "table 'user' of version 1 can not be reached" in server.http.get("/readyz").text
        refused = server.http.post("/v1/models/toy:lookup", json=body)
        assert refused.status_code == 503 and 'Rows of table "user" can not' in refused.json()["error"]
        with pytest.raises(grpc.RpcError) as told:
            server.predict_grpc({"user": np.array([1, 2])}, "lookup", model="toy")
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE and 'Rows of table "user"' in told.value.details()
        # Lookups of features over mapped tables are still answered.
        tags = server.http.post("/v1/models/toy:lookup", json={"features": {"tags": [[1]]}})
        assert tags.status_code == 200
        metrics = server.http.get("/metrics").text
        assert 'embedding_server_remote_table_errors_total{model="toy",version="1",table="user"} 2' in metrics


def test_a_misspelt_name_fails_the_load_and_says_the_near_one(cluster: Cluster, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    models = tmp_path / "models.config"
    models.write_text(
        f"""model_config_list {{ config {{
    name: "toy" base_path: "{folder.parent}" model_platform: "tensorflow"
    #@ remote_tables: "usr={cluster.address}{_PATIENT}"
}} }}
"""
    )
    with ServerProcess(
        model_config_file=models, graph_signatures="off", model_config_file_poll_wait_seconds=0.1
    ) as server:
        server.answering()
        until(lambda: server.http.get("/readyz").status_code == 503 and "usr" in server.http.get("/readyz").text)
        assert "did you mean user?" in server.http.get("/readyz").text
        assert "'usr', which model 'toy' does not have" in server.http.get("/v1/models/toy").text
        # The user corrects the misspelt name while the server runs.
        models.write_text(models.read_text().replace("usr", "user"))
        until(lambda: server.http.get("/readyz").status_code == 200)
        body = {"features": {"user": [1, 2]}}
        assert server.http.post("/v1/models/toy:lookup", json=body).json()["embeddings"]["user"] == [[1, 10], [2, 20]]
        metrics = server.http.get("/metrics").text
        assert 'embedding_server_remote_table_rows_total{model="toy",version="1",table="user"} 2' in metrics


def test_a_version_flips_under_load_and_each_answer_is_of_one_version(cluster: Cluster, tmp_path: Path) -> None:
    models = tmp_path / "toy"
    address = StoreAddress.parse(cluster.address)
    push(write_toy_model(models / "1"), address)
    newer = write_toy_model(tmp_path / "toy.new" / "2", scale=2)
    rows = np.array([[i, 10 * i] for i in range(5)], np.float32)
    seen: set[str] = set()
    with ServerProcess(
        model_name="toy",
        model_base_path=models,
        graph_signatures="off",
        file_system_poll_wait_seconds=0.1,
        remote_tables=f"user={cluster.address}{_PATIENT};tag={cluster.address}{_PATIENT}",
    ) as server:
        server.ready()

        def ask() -> None:
            body = {"features": {"user": [4, 1, 4, 3], "tags_sum": [[1, 2], [3], [0], []]}}
            answer = server.http.post("/v1/models/toy:lookup", json=body)
            assert answer.status_code == 200, answer.text
            version = answer.headers["X-Model-Version"]
            found = answer.json()["embeddings"]
            scale = int(version)
            assert found["user"] == (scale * rows[[4, 1, 4, 3]]).tolist()
            assert found["tags_sum"] == [
                [3 * scale, 5 * scale, 2 * scale],
                [3 * scale, 9 * scale, scale],
                [0, 0, scale],
                [0, 0, 0],
            ]
            seen.add(version)

        for _ in range(20):
            ask()
        push(newer, address, model="toy")
        newer.rename(models / "2")
        until(lambda: ask() or "2" in seen)
        for _ in range(20):
            ask()
    assert seen == {"1", "2"}


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_status_names_the_node_that_is_missing_and_a_slot_without_one_is_not_ready(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(cluster.address))
    first, replica = cluster.nodes[0], cluster.nodes[3]
    tables = RemoteTables({"user": StoreAddress.parse(cluster.address)}, lambda: None, Clusters(0))
    # RemoteTables watches the cluster only while a version holds the table, so the test holds it.
    table = reopened(tables, folder)

    def silent() -> list[object]:
        tables.look()
        return [node["node"] for one in tables.clusters() for node in one["nodes"] if not node["answers"]]

    assert silent() == []
    first.kill()
    until(lambda: silent() == [f"127.0.0.1:{first.port}"])
    # The replica becomes a primary: all slots have a node again, and the status still lists the dead node.
    until(lambda: replica.ask("INFO", "replication")["role"] == "master")
    until(lambda: tables.problem("toy") == "" and silent() == [f"127.0.0.1:{first.port}"])
    replica.kill()
    until(lambda: (tables.look(), f"127.0.0.1:{replica.port}" in tables.problem("toy"))[1])
    # A server that starts while slots have no node opens its version, and reports the table's problem before its first
    # look at the cluster.
    for node in cluster.nodes:
        if node.process.poll() is None:
            node.ask("CONFIG SET", "cluster-require-full-coverage", "no")
    late = RemoteTables({"user": StoreAddress.parse(cluster.address)}, lambda: None, Clusters(0))
    late_table = reopened(late, folder)
    assert "table 'user' of version 1 can not be reached" in late.problem("toy")
    assert (table.info, late_table.info.name) == (late_table.info, "user")


def serving(cluster: Cluster, folder: Path, options: str = _PATIENT, **flags: object) -> ServerProcess:
    """Writes the table "user" into a cluster, and starts a server that reads it there."""
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    return ServerProcess(
        model_name="toy",
        model_base_path=folder.parent,
        graph_signatures="off",
        remote_tables=f"user={cluster.address}{options}",
        **flags,
    )


def read(server: ServerProcess, ids: np.ndarray, timeout_s: float = PATIENCE_S) -> np.ndarray:
    """Returns [N, 2] float32 rows of the table, over gRPC."""
    return server.predict_grpc({"user": ids}, "lookup", model="toy", timeout_s=timeout_s)["user"]


def plane(server: ServerProcess) -> dict:
    """Returns the status page's section about the data plane."""
    return server.http.get("/v1/statusz").json()["data_plane"]


def test_a_server_that_dies_under_reads_and_comes_back_without_rows_gives_no_wrong_row(
    written: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    folder, rows = written
    with (
        Cluster(tmp_path / "one", 0) as one,
        serving(one, folder, "?timeout_ms=1000&node_timeout_ms=300") as server,
    ):
        server.ready()
        with Readers(partial(read, server), rows) as readers:
            for _ in range(3):
                one.nodes[0].kill()
                enough = len(readers.failures) + 5
                until(lambda enough=enough: len(readers.failures) >= enough)
                one.nodes[0].start()
                push(folder, StoreAddress.parse(one.address), tables=["user"])
                readers.more()
        assert readers.wrong == 0 and all("UNAVAILABLE" in failure for failure in readers.failures)


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_no_answer_fails_while_primaries_die_and_replicas_take_over(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    with serving(cluster, folder, "?timeout_ms=60000&node_timeout_ms=1000") as server:
        server.ready()
        with Readers(partial(read, server), rows) as readers:
            cluster.nodes[0].kill()
            readers.more()
            until(lambda: cluster.nodes[3].ask("INFO", "replication")["role"] == "master")
            readers.more()
            cluster.nodes[1].freeze()
            readers.more()
            cluster.nodes[1].thaw()
            readers.more()
        assert (readers.wrong, readers.failures) == (0, [])
        assert plane(server)["forwarded"]["grpc"] == 0
        remote = server.http.get("/v1/statusz").json()["remote"]
        (counts,) = remote["tables"]
        assert counts["retries"] > 0 and counts["errors"] == 0 and remote["cache"] is None


def test_answers_go_on_while_slots_move_and_the_log_tells_it(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    slots = sorted({slot for slot in layout_of(folder, "user").slots.tolist() if slot < 16384 // 3})
    old, new = cluster.nodes[:2]
    names = [node.ask("CLUSTER MYID") for node in (old, new)]
    with serving(cluster, folder) as server:
        server.ready()
        with Readers(partial(read, server), rows) as readers:
            for slot in slots[:4]:
                new.ask("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
                old.ask("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
                for key in old.ask("CLUSTER GETKEYSINSLOT", slot, 1000):
                    old.ask("MIGRATE", "127.0.0.1", new.port, key, 0, 5000)
                # The slot's keys are at the new node, but the old node still owns the slot, so it answers a read with a
                # redirection, ASK.
                readers.more(2)
                for node in (new, old, cluster.nodes[2]):
                    node.ask("CLUSTER SETSLOT", slot, "NODE", names[1])
            readers.more()
        assert (readers.wrong, readers.failures) == (0, [])
        assert plane(server)["forwarded"]["grpc"] == 0
        told = server.wait_for_log("hash slots have another primary")
        assert re.fullmatch(rf"\d slots: \d from 127.0.0.1:{old.port} to 127.0.0.1:{new.port}", told["moved"])


def test_rows_of_a_dead_node_are_refused_or_default_in_the_words_of_the_reference(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    options = "?timeout_ms=3000&node_timeout_ms=1000"
    layout = layout_of(folder, "user")
    is_lost = layout.slots[np.arange(ROWS) // layout.block_rows % layout.num_shards] < 16384 // 3
    lost, kept = np.flatnonzero(is_lost)[:100], np.flatnonzero(~is_lost)[:100]
    for node in cluster.nodes:
        node.ask("CONFIG SET", "cluster-require-full-coverage", "no")
    with (
        serving(cluster, folder, options) as strict,
        serving(cluster, folder, options + "&on_unavailable=default_row") as gentle,
    ):
        strict.ready()
        gentle.ready()
        cluster.nodes[0].kill()
        assert (read(strict, kept) == rows[kept]).all()
        text = 'Rows of table "user" can not be read now: '
        with pytest.raises(grpc.RpcError) as told:
            read(strict, np.concatenate([kept, lost]))
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE and told.value.details().startswith(text)
        refused = strict.http.post("/v1/models/toy:lookup", json={"features": {"user": lost.tolist()}})
        assert refused.status_code == 503 and refused.json()["error"].startswith(text)
        assert (refused.headers["X-Error-Code"], "Retry-After" in refused.headers) == ("UNAVAILABLE", False)
        found = read(gentle, np.concatenate([kept, lost]))
        assert (found == np.concatenate([rows[kept], np.repeat(rows[:1], lost.size, 0)])).all()
        metrics = gentle.http.get("/metrics").text
        (count,) = re.findall(r"remote_table_default_rows_total{.*} (.*)", metrics)
        assert float(count) == lost.size
        assert [plane(server)["forwarded"]["grpc"] for server in (strict, gentle)] == [0, 0]


def test_hot_rows_come_from_the_cache_and_metrics_count_them(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    with serving(cluster, folder, remote_cache_bytes=1 << 20) as server:
        server.ready()
        hot = np.arange(50)
        for _ in range(5):
            assert (read(server, hot) == rows[hot]).all()
        cold = np.arange(100, ROWS)
        assert (read(server, cold) == rows[cold]).all()
        assert (read(server, hot[:10]) == rows[:10]).all()
        metrics = server.http.get("/metrics").text

        def value(name: str) -> float:
            (found,) = re.findall(rf"^embedding_server_remote_{name}{{.*}} (.*)$", metrics, re.MULTILINE)
            return float(found)

        hits, misses = value("table_cache_hits_total"), value("table_cache_misses_total")
        assert hits + misses == 5 * 50 + cold.size + 10 and hits >= 4 * 50
        assert value("table_rows_total") == misses
        assert value("cache_rows") > 0 and value("cache_bytes") <= 1 << 20 and value("cache_evictions_total") > 0
        cache = server.http.get("/v1/statusz").json()["remote"]["cache"]
        assert cache.keys() == {"rows", "bytes", "evictions"}


def read_with_notes(server: ServerProcess, ids: np.ndarray) -> tuple[np.ndarray, dict[str, str]]:
    """Returns [N, 2] float32 rows, and the trailing metadata that name rows which could not be read."""
    call = server.channel.unary_unary(PREDICT)
    data, told = call.with_call(predict_request("toy", {"user": ids}), timeout=PATIENCE_S)
    notes = {key: str(value) for key, value in told.trailing_metadata() if key.endswith("-rows")}
    return predict_outputs(data)["user"], notes


def test_without_nodes_cached_rows_are_answered_and_named_only_with_stale(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    hot, options = np.arange(50), "?timeout_ms=2000&node_timeout_ms=500"
    with (
        serving(cluster, folder, options, remote_cache_bytes=1 << 20) as strict,
        serving(cluster, folder, options + "&on_unavailable=stale", remote_cache_bytes=1 << 20) as stale,
        serving(cluster, folder, options + "&on_unavailable=default_row") as default,
    ):
        for server in (strict, stale, default):
            server.ready()
            found, notes = read_with_notes(server, hot)
            assert (found == rows[hot]).all() and notes == {}
        for node in cluster.nodes:
            node.kill()
        # The nodes are dead, so the server does not hear of changes, and marks cached rows as possibly old.
        until(lambda: read_with_notes(stale, hot)[1] == {"x-stale-rows": "user=50"})
        assert (read(stale, hot) == rows[hot]).all()
        until(lambda: not _answers(strict, hot))
        found, notes = read_with_notes(default, hot)
        assert (found == rows[:1]).all() and notes == {"x-default-rows": "user=50"}
        with pytest.raises(grpc.RpcError) as told:
            read(stale, np.array([1, 15_000]))
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE
        body = {"features": {"user": [3, 4, 3]}}
        looked_up = stale.http.post("/v1/models/toy:lookup", json=body)
        assert (np.array(looked_up.json()["embeddings"]["user"], np.float32) == rows[[3, 4, 3]]).all()
        assert looked_up.headers["X-Stale-Rows"] == "user=2"
        by_id = stale.http.post("/v1/models/toy/tables/user:rows", json={"ids": [3, 4, 3]})
        assert (by_id.status_code, by_id.headers.get("X-Stale-Rows")) == (200, "user=2"), by_id.text
        assert (np.array(by_id.json()["rows"], np.float32) == rows[[3, 4, 3]]).all()
        (counts,) = stale.http.get("/v1/statusz").json()["remote"]["tables"]
        assert counts["stale_rows"] >= 50 + 50 + 2 + 2
        # The table of server `stale` has on_unavailable=stale, so this server stays ready without nodes.
        until(lambda: strict.http.get("/readyz").status_code == 503)
        assert stale.http.get("/readyz").status_code == 200


def _answers(server: ServerProcess, ids: np.ndarray) -> bool:
    try:
        read(server, ids)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False
    return True


def test_stale_without_a_cache_is_refused(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, _ = written
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    address = StoreAddress.parse(cluster.address + "?on_unavailable=stale")
    with pytest.raises(ArtifactError, match="give --remote_cache_bytes"):
        RemoteTables({"user": address}, lambda: None, Clusters(0)).open("toy", 1, folder, Manifest.read(folder))


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_rows_of_a_frozen_primary_come_from_its_replica_before_the_node_is_given_up(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    with serving(cluster, folder) as server:
        server.ready()
        rng = np.random.default_rng(3)
        for _ in range(200):
            ids = rng.integers(0, ROWS, 30)
            assert (read(server, ids) == rows[ids]).all()
        cluster.nodes[1].freeze()
        for _ in range(3):
            ids = rng.integers(0, ROWS, 30)
            # The server waits up to 20 s for a node, so an answer within 10 s came from another node than the frozen
            # one.
            assert (read(server, ids, timeout_s=10) == rows[ids]).all()
        cluster.nodes[1].thaw()
        (counts,) = server.http.get("/v1/statusz").json()["remote"]["tables"]
        assert counts["hedge_wins"] >= 3 and counts["errors"] == 0
        assert counts["hedges"] <= 0.05 * 3 * counts["reads"]


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_cached_rows_hold_while_a_replica_tells_the_changes(cluster: Cluster, written: tuple[Path, np.ndarray]) -> None:
    folder, rows = written
    slot = slot_of(layout_of(folder, "user").record)
    options = "?timeout_ms=20000&node_timeout_ms=500"
    with serving(cluster, folder, options, remote_cache_bytes=1 << 20) as server:
        server.ready()
        hot = np.arange(50)
        assert (read(server, hot) == rows[hot]).all()

        def is_cached() -> bool:
            before = hits()
            assert (read(server, hot) == rows[hot]).all()
            return hits() - before == hot.size

        def hits() -> int:
            (found,) = server.http.get("/v1/statusz").json()["remote"]["tables"]
            return int(found["cache_hits"])

        cluster.nodes[slot * 3 // 16384].freeze()
        time.sleep(4 * FRESH_S)
        # On a busy machine, the row may leave the cache before the server reads the changes again.
        until(is_cached)
        cluster.nodes[slot * 3 // 16384].thaw()


def test_a_version_has_its_hot_rows_in_the_cache_before_it_is_available(
    cluster: Cluster, written: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    folder, rows = written
    models = tmp_path / "models" / "toy"
    shutil.copytree(folder, models / "1")
    newer, newer_rows = large(tmp_path / "newer" / "2", ROWS, seed=4)
    push(newer, StoreAddress.parse(cluster.address), model="toy", tables=["user"])
    with serving(cluster, models / "1", remote_cache_bytes=1 << 20, file_system_poll_wait_seconds=0.2) as server:
        server.ready()
        hot = np.arange(300, 320)
        for _ in range(200):
            assert (read(server, hot) == rows[hot]).all()
        newer.rename(models / "2")
        until(lambda: server.http.get("/v1/models/toy").json()["model_version_status"][0]["version"] == "2")
        until(lambda: server.http.get("/v1/models/toy").json()["model_version_status"][0]["state"] == "AVAILABLE")
        for node in cluster.nodes:
            node.kill()
        # No node runs, so each row comes from the cache; the cache has the rows of the newer version.
        assert (read(server, hot) == newer_rows[hot]).all()
