"""Clusters that lose nodes, give slots away or forget keys: never a wrong row, no error where another node answers."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
from pathlib import Path
from urllib.parse import unquote

import grpc
import httpx
import numpy as np
import pytest

from model_export.remote.push import push
from service.artifact.manifest import Manifest
from service.artifact.protos import message_class
from service.errors import TableUnreachable
from service.loading.remote_tables import RemoteTables
from service.native.clusters import Clusters
from service.remote.address import StoreAddress
from service.tables.remote_table import RemoteTable
from tests.conformance.wires import fill_tensor
from tests.integration.h2_client import H2Client
from tests.integration.process import ServerProcess
from tests.integration.remote_readers import Readers
from tests.integration.remote_tables import layout_of
from tests.toy_model import write_toy_model
from tests.valkey_cluster import Cluster, needs_program, until

pytestmark = needs_program

ROWS = 100_000
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
    manifest = Manifest.read(folder)
    assert manifest is not None
    return tables.open("toy", int(folder.name), folder, manifest)["user"]


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_no_read_fails_while_primaries_die_and_replicas_take_over(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    table, tables, clusters = opened(cluster, folder, "?timeout_ms=60000&node_timeout_ms=1000")
    with Readers(table.rows, rows) as readers:
        cluster.nodes[0].kill()
        readers.more()
        # The replica of the killed node becomes a primary.
        until(lambda: cluster.nodes[3].ask("INFO", "replication")["role"] == "master")
        readers.more()
        # A frozen node sends no answer and closes no connection, so a read asks another node after node_timeout_ms.
        cluster.nodes[1].freeze()
        readers.more()
        cluster.nodes[1].thaw()
        readers.more()
    assert (readers.wrong, readers.failures) == (0, [])
    (counts,) = clusters.counts().tables.values()
    assert counts.retries > 0 and counts.errors == 0


def test_rows_of_a_dead_node_are_refused_or_default_and_all_others_read(
    cluster: Cluster, written: tuple[Path, np.ndarray]
) -> None:
    folder, rows = written
    table, tables, clusters = opened(cluster, folder, "?timeout_ms=3000&node_timeout_ms=1000")
    gentle, gentle_tables, clusters = opened(
        cluster, folder, "?timeout_ms=3000&node_timeout_ms=1000&on_unavailable=default_row"
    )
    layout = layout_of(folder, "user")
    # True for each row whose slot belongs to the first primary.
    is_lost = layout.slots[np.arange(ROWS) // layout.block_rows % layout.num_shards] < 16384 // 3
    assert tables.problem("toy") == ""
    cluster.nodes[0].kill()
    tables.look()
    assert "table 'user' of version 1 can not be reached" in tables.problem("toy")
    assert tables.problem("other") == ""
    lost, kept = np.flatnonzero(is_lost)[:300], np.flatnonzero(~is_lost)[:300]
    # By default, a cluster without a node for some slots refuses reads of all slots.
    for node in cluster.nodes[1:]:
        node.ask("CONFIG SET", "cluster-require-full-coverage", "no")
    until(lambda: _reads(table, kept))
    assert (table.rows(kept) == rows[kept]).all()
    with pytest.raises(TableUnreachable, match='Rows of table "user" can not be read now'):
        table.rows(np.concatenate([kept, lost]))
    ids = np.concatenate([kept, lost])
    assert (gentle.stored_rows(ids) == np.concatenate([rows[kept], np.repeat(rows[:1], lost.size, 0)])).all()
    gentle_tables.look()
    assert gentle_tables.problem("toy") == ""
    (counts,) = clusters.counts().tables.values()
    assert counts.default_rows == lost.size
    # A node that restarts without its keys has no rows, and the table refuses reads of them instead of inventing
    # values.
    cluster.nodes[0].start()
    until(cluster.is_whole)
    until(lambda: "not in the cluster" in _refusal(table, lost))
    push(folder, StoreAddress.parse(cluster.address), tables=["user"])
    until(lambda: _reads(table, lost))
    assert (table.rows(lost) == rows[lost]).all()
    tables.look()
    assert tables.problem("toy") == ""


def _reads(table: RemoteTable, ids: np.ndarray) -> bool:
    return not _refusal(table, ids)


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
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "toy", "lookup"
    fill_tensor(request.inputs["user"], ids)
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
                late = client.call(request.SerializeToString(), grpc_timeout="500m")
        finally:
            cluster.nodes[1].thaw()
        assert late.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert 'before rows of table "user" were read' in unquote(late.headers["grpc-message"])
        # A read must not get an answer that the node sends late to an earlier read.
        found = server.predict_grpc({"user": ids[::-1]}, "lookup", model="toy")
        assert (found["user"] == rows[ids[::-1]]).all()


def test_reads_go_on_while_slots_move_and_the_log_tells_it(
    cluster: Cluster, written: tuple[Path, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    folder, rows = written
    table, tables, _ = opened(cluster, folder)
    caplog.set_level(logging.INFO, "service.loading.remote_tables")
    layout = layout_of(folder, "user")
    old, new = cluster.nodes[:2]
    names = [node.ask("CLUSTER MYID") for node in (old, new)]
    slots = sorted({slot for slot in layout.slots.tolist() if slot < 16384 // 3})
    with Readers(table.rows, rows) as readers:
        for slot in slots[:8]:
            new.ask("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
            old.ask("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
            for key in old.ask("CLUSTER GETKEYSINSLOT", slot, 1000):
                old.ask("MIGRATE", "127.0.0.1", new.port, key, 0, 5000)
            # The old node still owns the slot, whose keys have moved: it answers reads with the redirection ASK.
            readers.more(2)
            for node in (new, old, cluster.nodes[2]):
                node.ask("CLUSTER SETSLOT", slot, "NODE", names[1])
        readers.more()
    assert (readers.wrong, readers.failures) == (0, [])
    until(lambda: (tables.look(), "hash slots have another primary" in caplog.messages)[1])
    (told,) = [record for record in caplog.records if record.message == "hash slots have another primary"]
    assert re.fullmatch(rf"\d slots: \d from 127.0.0.1:{old.port} to 127.0.0.1:{new.port}", vars(told)["moved"])


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
