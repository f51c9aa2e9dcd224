"""Clusters with TLS, ACL users and passwords: each part authenticates, and a changed password is read from its file."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.remote.push import push
from service.errors import TableUnreachable
from service.loading import remote_tables
from service.loading.remote_tables import RemoteTables
from service.remote.address import StoreAddress
from service.remote.core_clusters import Clusters
from service.remote.topology import node_client, store_client
from tests.certificates import Authority
from tests.integration.process import ServerProcess, until
from tests.integration.remote_readers import Readers
from tests.integration.remote_tables import large
from tests.integration.test_remote_changes import Server
from tests.integration.test_remote_faults import reopened
from tests.toy_model import write_toy_model
from tests.valkey_cluster import Cluster, Security, needs_program

pytestmark = needs_program
_PASSWORD = "first/pass@word;?"
_ESCAPED = "first%2Fpass%40word%3B%3F"
# The commands that docs/scaling.md names for the user of a server without upserts. Without CLUSTER INFO, it reads, too.
_READ_COMMANDS = "+getrange +get +xrange +xrevrange +hkeys +cluster|shards +info +ping +readonly".split()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder with an authority's certificate, and the certificate and key of nodes at 127.0.0.1."""
    folder, made = tmp_path_factory.mktemp("tls"), Authority()
    issued = made.issue()
    for name, text in (("ca.pem", made.pem), ("node.pem", issued.cert), ("node.key", issued.key)):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def cluster(authority: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three primaries with a replica each, with TLS and a password."""
    with Cluster(tmp_path / "nodes", 3, 1, security=Security(authority, _PASSWORD)) as started:
        yield started


def test_rows_are_written_read_and_changed_over_tls_by_an_acl_user(
    cluster: Cluster, authority: Path, tmp_path: Path
) -> None:
    for node in cluster.nodes:
        node.ask("ACL SETUSER", "writer", "reset", "on", f">{_PASSWORD}", "~{es:*", "+@all", "-@dangerous", "+info")
    nodes = cluster.address.removeprefix("valkeys://")
    options = f"?ca_file={authority / 'ca.pem'}"
    folder = write_toy_model(tmp_path / "toy" / "1")
    push(folder, StoreAddress.parse(f"valkeys://writer:{_ESCAPED}@{nodes}{options}"), tables=["user"])
    secret = tmp_path / "password"
    secret.write_text(f"{_PASSWORD}\n")
    server = Server(cluster, folder, f"{options}&user=writer&password_file={secret}")
    assert server.table.rows(np.array([4, 1])).tolist() == [[4, 40], [1, 10]]
    assert server.upsert([1], [[5, 6]]) == (1, True)
    assert server.table.rows(np.array([4, 1])).tolist() == [[4, 40], [5, 6]]
    server.tables.look()
    assert server.tables.problem("toy") == ""
    assert [node["answers"] for node in server.tables.clusters()[0]["nodes"]] == [True] * 6
    # redis-py's own connections would trust the system's authorities besides ca_file.
    address = StoreAddress.parse(f"valkeys://writer:{_ESCAPED}@{nodes}{options}")
    with store_client(address, 5.0) as store, node_client(address, address.nodes[0], 5.0) as client:
        of_store = [each.redis_connection for each in store.get_nodes() if each.redis_connection is not None]
        assert of_store
        for pool in (each.connection_pool for each in (client, *of_store)):
            context = pool.get_connection()._sock.context
            assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
            assert len(context.get_ca_certs()) == 1


def test_wrong_credentials_and_an_unknown_authority_are_named(
    cluster: Cluster, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A load tries again for so many seconds: the password may be about to change. On a busy machine a node with TLS
    # gave its first answer after more than a second.
    monkeypatch.setattr(remote_tables, "_OPEN_S", 3.0)
    folder = write_toy_model(tmp_path / "toy" / "1")
    nodes = cluster.address.removeprefix("valkeys://")
    good = f"?ca_file={authority / 'ca.pem'}"
    push(folder, StoreAddress.parse(f"valkeys://:{_ESCAPED}@{nodes}{good}"))
    for address, text in (
        (f"valkeys://:wrong@{nodes}{good}", "invalid username-password|WRONGPASS"),
        (f"valkeys://{nodes}{good}", "Authentication required|NOAUTH"),
        (f"valkeys://:{_ESCAPED}@{nodes}", "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
    ):
        with pytest.raises(ExportError, match=text):
            push(folder, StoreAddress.parse(address))
        with pytest.raises(TableUnreachable, match=text):
            reopened(RemoteTables({"user": StoreAddress.parse(address)}, lambda: None, Clusters(0)), folder)
    # The system trusts the nodes' authority, but ca_file has another one.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    (tmp_path / "other.pem").write_text(Authority().pem)
    other = StoreAddress.parse(f"valkeys://:{_ESCAPED}@{nodes}?ca_file={tmp_path / 'other.pem'}")
    with pytest.raises(ExportError, match="certificate verify failed"):
        push(folder, other)
    with pytest.raises(TableUnreachable, match="certificate verify failed"):
        reopened(RemoteTables({"user": other}, lambda: None, Clusters(0)), folder)


def test_a_password_is_changed_while_rows_are_read(cluster: Cluster, authority: Path, tmp_path: Path) -> None:
    folder, rows = large(tmp_path / "toy" / "1", 100_000)
    secret = tmp_path / "password"
    secret.write_text(_PASSWORD)
    options = f"?ca_file={authority / 'ca.pem'}&password_file={secret}"
    push(folder, StoreAddress.parse(cluster.address + options), tables=["user"])
    server = Server(cluster, folder, f"{options}&timeout_ms=60000&node_timeout_ms=20000")

    def disconnect() -> None:
        # Open connections stay authenticated, so they are closed: only a new one shows which password the server uses.
        for node in cluster.nodes:
            node.ask("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")

    with Readers(server.table.rows, rows) as readers:
        # As an operator changes a password without a gap: add the new one at the nodes, write it to the server's file,
        # remove the old one.
        for node in cluster.nodes:
            node.ask("ACL SETUSER", "default", ">second")
            node.ask("CONFIG SET", "masterauth", "second")
        secret.write_text("second\n")
        for node in cluster.nodes:
            node.ask("ACL SETUSER", "default", f"<{_PASSWORD}")
        readers.more()
    # No thread reads now: a read on a new connection may fail if the node closes that connection, too.
    disconnect()
    with Readers(server.table.rows, rows) as later:
        assert server.upsert([5], rows[[5]].tolist())[1]
        later.more()
    for each in (readers, later):
        assert (each.wrong, each.failures) == (0, [])
    # The nodes get a new password at once, so they refuse reads until the server's file has it.
    quick = Server(cluster, folder, f"{options}&timeout_ms=5000&node_timeout_ms=5000")
    for node in cluster.nodes:
        node.ask("ACL SETUSER", "default", "resetpass", ">third")
    disconnect()
    assert "invalid username-password" in _refusal(quick)
    secret.write_text("third")
    until(lambda: _reads(quick))
    assert (quick.table.rows(np.arange(100)) == rows[:100]).all()


def _refusal(server: Server) -> str:
    with pytest.raises(TableUnreachable) as caught:
        server.table.rows(np.arange(100))
    return str(caught.value)


def _reads(server: Server) -> bool:
    try:
        server.table.rows(np.arange(100))
    except TableUnreachable:
        return False
    return True


def core(folder: Path, address: str) -> ServerProcess:
    """Returns a server whose native core reads the table "user" from a cluster."""
    names = {"model_name": "toy", "model_base_path": folder.parent, "graph_signatures": "off"}
    return ServerProcess(**names, remote_tables=f"user={address}", file_system_poll_wait_seconds=0.2)


def lookup(server: ServerProcess, ids: np.ndarray) -> np.ndarray:
    """Returns [N, 2] float32 rows of the table, over gRPC."""
    return server.predict_grpc({"user": ids}, "lookup", model="toy")["user"]


def forwarded(server: ServerProcess) -> int:
    """Returns how many gRPC calls the core forwarded to the reference server."""
    return server.http.get("/v1/statusz").json()["data_plane"]["forwarded"]["grpc"]


def test_the_core_reads_over_tls_as_an_acl_user_that_may_only_read(
    cluster: Cluster, authority: Path, tmp_path: Path
) -> None:
    folder, rows = large(tmp_path / "toy" / "1", 20_000)
    nodes, options = cluster.address.removeprefix("valkeys://"), f"?ca_file={authority / 'ca.pem'}"
    push(folder, StoreAddress.parse(f"valkeys://:{_ESCAPED}@{nodes}{options}"), tables=["user"])
    for node in cluster.nodes:
        node.ask("ACL SETUSER", "reader", "reset", "on", f">{_PASSWORD}", "~{es:*", *_READ_COMMANDS)
    patient = "&timeout_ms=60000&node_timeout_ms=5000"
    with core(folder, f"valkeys://reader:{_ESCAPED}@{nodes}{options}{patient}") as server:
        server.ready()
        ids = np.arange(20_000)
        assert (lookup(server, ids) == rows).all()
        with Readers(partial(lookup, server), rows) as readers:
            cluster.nodes[0].kill()
            readers.more()
        assert (readers.wrong, readers.failures, forwarded(server)) == (0, [], 0)


def test_the_core_takes_a_changed_password_from_its_file(cluster: Cluster, authority: Path, tmp_path: Path) -> None:
    folder, rows = large(tmp_path / "toy" / "1", 20_000)
    secret = tmp_path / "password"
    secret.write_text(_PASSWORD)
    options = f"?ca_file={authority / 'ca.pem'}&password_file={secret}"
    push(folder, StoreAddress.parse(cluster.address + options), tables=["user"])
    with core(folder, f"{cluster.address}{options}&timeout_ms=60000&node_timeout_ms=20000") as server:
        server.ready()
        with Readers(partial(lookup, server), rows) as readers:
            for node in cluster.nodes:
                node.ask("ACL SETUSER", "default", ">second")
                node.ask("CONFIG SET", "masterauth", "second")
            secret.write_text("second\n")
            for node in cluster.nodes:
                node.ask("ACL SETUSER", "default", f"<{_PASSWORD}")
                node.ask("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            readers.more()
        assert (readers.wrong, readers.failures, forwarded(server)) == (0, [], 0)
        assert "second" not in str(server.wait_for_log("new connections use another password"))


def test_the_core_names_credentials_and_authorities_that_are_refused(
    cluster: Cluster, authority: Path, tmp_path: Path
) -> None:
    folder, rows = large(tmp_path / "toy" / "1", 2000)
    secret, trusted = tmp_path / "password", tmp_path / "ca.pem"
    secret.write_text(_PASSWORD)
    trusted.write_text((authority / "ca.pem").read_text())
    options = f"?ca_file={trusted}&password_file={secret}"
    push(folder, StoreAddress.parse(cluster.address + options), tables=["user"])
    with core(folder, f"{cluster.address}{options}&timeout_ms=1500&node_timeout_ms=500") as server:
        server.ready()
        ids = np.arange(2000)
        assert (lookup(server, ids) == rows).all()

        def refused(words: str) -> None:
            for node in cluster.nodes:
                node.ask("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            with pytest.raises(grpc.RpcError) as told:
                lookup(server, ids)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE and words in told.value.details()

        def answers() -> bool:
            try:
                return bool((lookup(server, ids) == rows).all())
            except grpc.RpcError:
                return False

        secret.write_text("wrong")
        refused("WRONGPASS")
        secret.write_text(_PASSWORD)
        until(answers)
        trusted.write_text(Authority().pem)
        refused("certificate")
        trusted.write_text((authority / "ca.pem").read_text())
        until(answers)
        assert forwarded(server) == 0
