"""Measures the CPU time of reading a row from a real cluster on loopback, in client and server, by reader and batch.

  python -m loadtest.remote_reads --rows 1000000 --dim 64

The oracle is redis-py: one GETRANGE a row on the same keys, in a pipeline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import redis

from service.artifact.manifest import TableEntry
from service.native.clusters import Clusters
from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from tests.valkey_cluster import Cluster

_REPEATS = 30


def main() -> None:
    """Measures each reader of rows with each batch size, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--primaries", type=int, default=3)
    options = parser.parse_args()
    table = np.random.default_rng(1).normal(size=(options.rows, options.dim)).astype(np.float32)
    entry = TableEntry("v", options.rows, options.dim, "float32", "f", 0, table.nbytes, 0)
    layout = TableLayout.of("m", "t", bytes(32), entry)
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "nodes", options.primaries) as cluster:
        client = cluster.client()
        before = used_memory(cluster)
        fill(client, layout, table)
        used = (used_memory(cluster) - before) / options.rows
        sys.stdout.write(f"{options.rows:,} rows of {layout.row_bytes} bytes: {used:.0f} bytes of the cluster a row\n")
        address = StoreAddress.parse(cluster.address + "?timeout_ms=60000&node_timeout_ms=30000")
        core = Clusters(0).open(("m", 1, "t"), layout, address, ())
        for size in (100, 1000, 10_000):
            _compare(
                cluster,
                layout,
                table,
                size,
                {"core": lambda ids: core.read(ids, None).rows, "redis-py": plain_reader(client, layout)},
            )


def fill(client: redis.Redis, layout: TableLayout, table: np.ndarray) -> None:
    """Writes the rows of a table into a cluster, one block under each key."""
    for begin in range(0, layout.num_blocks, 256):
        with client.pipeline(transaction=False) as pipe:
            for block in range(begin, min(begin + 256, layout.num_blocks)):
                first, last = layout.rows(block)
                pipe.set(layout.key(block), table[first:last].tobytes())
            pipe.execute()


def plain_reader(client: redis.Redis, layout: TableLayout) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reads rows with redis-py, by a pipeline of one GETRANGE for each row."""
    client = redis.RedisCluster(*_place(client), protocol=2) if isinstance(client, redis.RedisCluster) else client

    def read(ids: np.ndarray) -> np.ndarray:
        with client.pipeline(transaction=False) as pipe:
            for one in ids.tolist():
                block, row = divmod(one, layout.block_rows)
                pipe.getrange(layout.key(block), row * layout.row_bytes, (row + 1) * layout.row_bytes - 1)
            return np.frombuffer(b"".join(pipe.execute()), np.uint8).reshape(-1, layout.row_bytes)

    return read


def _place(client: redis.RedisCluster) -> tuple[str, int]:
    node = client.get_primaries()[0]
    return node.host, node.port


def _compare(
    cluster: Cluster,
    layout: TableLayout,
    table: np.ndarray,
    size: int,
    readers: dict[str, Callable[[np.ndarray], np.ndarray]],
) -> None:
    rng = np.random.default_rng(size)
    for name, read in readers.items():
        client_us, server_us, wall_ms = [], [], []
        read(np.arange(size))
        for _ in range(_REPEATS):
            ids = np.unique(rng.integers(0, layout.vocabulary_size, size))
            nodes_s, own_s, now_s = server_cpu_s(cluster), time.process_time(), time.perf_counter()
            rows = read(ids)
            wall_ms.append((time.perf_counter() - now_s) * 1e3)
            client_us.append((time.process_time() - own_s) / ids.size * 1e6)
            server_us.append((server_cpu_s(cluster) - nodes_s) / ids.size * 1e6)
            assert (np.ascontiguousarray(rows).view(np.float32) == table[ids]).all()
        sys.stdout.write(
            f"{size:6,} ids  {name:9} client {statistics.median(client_us):6.2f} us a row, server "
            f"{statistics.mean(server_us):5.2f} us a row, median {statistics.median(wall_ms):8.2f} ms\n"
        )


def server_cpu_s(cluster: Cluster) -> float:
    """Returns the CPU seconds that all nodes of the cluster have used so far."""
    return sum(sum(map(int, _stat(node.process.pid)[11:13])) for node in cluster.nodes) / 100


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def used_memory(cluster: Cluster) -> int:
    """Returns the bytes of memory that all nodes of the cluster use."""
    return sum(node.ask("INFO", "memory")["used_memory"] for node in cluster.nodes)


if __name__ == "__main__":
    main()
