"""Runs `model-export push` into real nodes: which keys they then have, and how a stopped run is continued."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from model_export.__main__ import main
from model_export.errors import ExportError
from model_export.remote.push import push
from service.remote.address import StoreAddress
from service.remote.layout import Pointer, TableLayout
from tests.integration.remote_tables import large, layout_of
from tests.toy_model import SHARD, toy_tables, write_toy_model
from tests.valkey_cluster import Cluster, needs_program

pytestmark = needs_program


@pytest.fixture(scope="module", params=[0, 3], ids=["one server", "three primaries"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Starts a single server, or a cluster of three primaries."""
    with Cluster(tmp_path_factory.mktemp("cluster"), request.param) as started:
        yield started


@pytest.fixture
def artifact(tmp_path: Path, cluster: Cluster) -> Path:
    """Writes version 1 of a model, and empties the cluster."""
    for node in cluster.nodes:
        node.ask("FLUSHALL")
    return write_toy_model(tmp_path / "toy" / "1")


def _raw(cluster: Cluster, key: str) -> bytes:
    for node in cluster.nodes:
        with redis.Redis("127.0.0.1", node.port, protocol=2) as client:
            try:
                value = client.get(key)
            except redis.exceptions.MovedError:
                continue
            if value is not None:
                return bytes(value)
    raise AssertionError(key)


def stored(cluster: Cluster, layout: TableLayout) -> bytes:
    """Returns all bytes of a table in the cluster, in the order of its blocks."""
    by_key = {}
    for node in cluster.nodes:
        with redis.Redis("127.0.0.1", node.port, protocol=2) as client:
            keys = [key for key in client.keys() if key.startswith(layout.tag.encode())]
            by_key |= {key.decode(): client.get(key) for key in keys}
    assert len(by_key) == layout.num_blocks
    return b"".join(by_key[layout.key(block)] for block in range(layout.num_blocks))


def test_a_table_lies_in_its_blocks_and_the_pointer_names_it(artifact: Path, cluster: Cluster) -> None:
    found = push(artifact, StoreAddress.parse(cluster.address))
    assert [(one.table, one.blocks, one.written, one.removed) for one in found] == [("user", 1, 1, 0), ("tag", 1, 1, 0)]
    for name, table in toy_tables().items():
        layout = layout_of(artifact, name)
        assert stored(cluster, layout) == table.tobytes()
        pointer = Pointer.of(_raw(cluster, layout.pointer).decode())
        assert pointer == Pointer((layout.fingerprint,))
        layout.check_record(_raw(cluster, layout.record).decode(), pointer.text)


def test_the_command_pushes_without_a_terminal(
    artifact: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(artifact), f"--to={cluster.address}"]) == 0
    told = capsys.readouterr().out
    assert "user: 1 blocks, 1 of them written now" in told and "tag: 1 blocks" in told


def test_a_scale_stands_behind_its_row(tmp_path: Path, artifact: Path, cluster: Cluster) -> None:
    int8 = write_toy_model(tmp_path / "toy" / "2", dtype="int8", scale=3)
    push(int8, StoreAddress.parse(cluster.address), tables=["user"])
    rows = np.frombuffer(stored(cluster, layout_of(int8, "user")), np.uint8).reshape(5, 6)
    assert (rows[:, :2].view(np.int8) == toy_tables()["user"].astype(np.int8)).all()
    assert rows[:, 2:].copy().view(np.float32).ravel().tolist() == [3.0] * 5


def test_many_blocks_spread_and_a_stopped_run_goes_on(tmp_path: Path, artifact: Path, cluster: Cluster) -> None:
    folder, table = large(tmp_path / "toy" / "2", 700_000)
    layout = layout_of(folder, "user")
    assert (layout.block_rows, layout.num_blocks) == (2016, 348)
    address = StoreAddress.parse(cluster.address)
    seen = []

    class Stopped(Exception):
        pass

    def stop(step: str, done: int, total: int) -> None:
        seen.append((step, done, total))
        if done > total / 2:
            raise Stopped

    with pytest.raises(Stopped):
        push(folder, address, tables=["user"], progress=stop)
    # The pointer names no version whose rows are complete: the pushed one is there only in part.
    assert Pointer.of(_raw(cluster, layout.pointer).decode()) == Pointer((), (layout.fingerprint,))
    with pytest.raises(Exception, match="in part only"):
        layout.check_record(_raw(cluster, layout.record).decode(), _raw(cluster, layout.pointer).decode())
    (again,) = push(folder, address, tables=["user"])
    assert 0 < again.written < layout.num_blocks
    assert stored(cluster, layout) == table.tobytes()
    assert len(set(layout.slots.tolist())) > 300


def test_other_bytes_under_a_key_are_found_and_repaired(artifact: Path, cluster: Cluster) -> None:
    address = StoreAddress.parse(cluster.address)
    push(artifact, address)
    layout = layout_of(artifact, "user")
    cluster.client().set(layout.key(0), b"x" * layout.nbytes)
    assert [one.written for one in push(artifact, address)] == [1, 0]
    assert stored(cluster, layout) == toy_tables()["user"].tobytes()


def test_versions_beyond_those_to_keep_are_removed(tmp_path: Path, artifact: Path, cluster: Cluster) -> None:
    address = StoreAddress.parse(cluster.address)
    versions = [artifact, *(write_toy_model(tmp_path / "toy" / str(n), scale=n) for n in (2, 3))]
    removed = [[one.removed for one in push(version, address)] for version in versions]
    assert removed == [[0, 0], [0, 0], [1, 1]]
    names = [layout_of(version, "user").fingerprint for version in versions]
    pointer = Pointer.of(_raw(cluster, layout_of(artifact, "user").pointer).decode())
    assert pointer == Pointer((names[2], names[1]))
    assert not [key for key in cluster.keys() if names[0] in key]
    assert stored(cluster, layout_of(versions[1], "user")) == (2 * toy_tables()["user"]).tobytes()


def test_a_rate_is_kept(tmp_path: Path, artifact: Path, cluster: Cluster) -> None:
    folder, _ = large(tmp_path / "toy" / "2", 130_000)
    begin_s = time.monotonic()
    push(folder, StoreAddress.parse(cluster.address), tables=["user"], max_mb_per_s=2)
    # At 2 MB a second, 1.04 MB that are written and read back take at least 1 s.
    assert time.monotonic() - begin_s >= 1.0


def test_a_damaged_file_and_an_absent_cluster_are_refused(artifact: Path, cluster: Cluster) -> None:
    with pytest.raises(ExportError, match=r"valkey|run the command again"):
        push(artifact, StoreAddress.parse("valkey://127.0.0.1:1"))
    with pytest.raises(ExportError, match="no table 'users'; did you mean 'user'|no table 'users'"):
        push(artifact, StoreAddress.parse(cluster.address), tables=["users"])
    shard = artifact / SHARD
    octets = bytearray(shard.read_bytes())
    octets[-1] ^= 1
    shard.write_bytes(octets)
    with pytest.raises(ExportError, match="do not fit their checksum"):
        push(artifact, StoreAddress.parse(cluster.address))
    assert not cluster.keys()
