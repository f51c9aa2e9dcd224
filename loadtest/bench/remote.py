"""Measures reads of rows from a real cluster on loopback: the native core against valkey-glide and redis-py.

All readers read the same keys, in turn, in one run. For the core a read is a whole lookup without its socket: it parses
a gRPC Predict, reads the rows, and writes the answer. For the others it ends with the rows in one numpy array. A reader
whose package is not installed is left out, and the output says so.

    python -m loadtest.bench.remote --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from loadtest.remote_reads import fill, plain_reader, server_cpu_s, used_memory
from loadtest.wire import DT_INT64, message_classes
from service import _native
from service.artifact.manifest import TableEntry
from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from tests.valkey_cluster import Cluster

Reader = Callable[[np.ndarray], np.ndarray]

_DIM = 64
# Bytes that the native core's row cache holds for a row beside its numbers (native/src/clusters/cache.rs).
ENTRY_BYTES = 96
CACHE_SHARES = (0.0, 0.01, 0.1)
_PREDICT = "/tensorflow.serving.PredictionService/Predict"


def main() -> None:
    """Measures readers of a cluster's rows, and prints a table of their costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=1, help="of each of the three primaries")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--warm_ids", type=int, default=1_000_000, help="Zipf ids that fill the caches before")
    options = parser.parse_args()
    table = np.random.default_rng(1).normal(size=(options.rows, _DIM)).astype(np.float32)
    layout = TableLayout.of(
        "m", "t", bytes(32), TableEntry("v", options.rows, _DIM, "float32", "f", 0, table.nbytes, 0)
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(Cluster(folder / "nodes", 3, options.replicas))
        fill(cluster.client(), layout, table)
        used = used_memory(cluster) / options.rows
        _tell(f"{options.rows:,} rows of {layout.row_bytes} bytes, {used:.0f} bytes a row on all nodes together")
        address = StoreAddress.parse(cluster.address + "?timeout_ms=60000&node_timeout_ms=30000")
        uniform = Ids(options.rows, is_zipf=False)
        readers = {"core": core_reader(layout, address, 0)[0], "redis-py": plain_reader(cluster.client(), layout)}
        if (glide := glide_reader(layout, address)) is not None:
            readers["valkey-glide"] = glide
        for size in (100, 1000):
            compare(cluster, table, readers, uniform, size, options.rounds)
        zipf = Ids(options.rows, is_zipf=True)
        cached = {}
        for share in CACHE_SHARES:
            capacity = int(options.rows * share) * (layout.row_bytes + ENTRY_BYTES)
            cached[f"core, cache {share:.0%}"] = core_reader(layout, address, capacity)
        for size in (100, 1000):
            for read, _ in cached.values():
                for _ in range(options.warm_ids // 2000):
                    read(zipf.draw(1000))
            before = {name: counts() for name, (_, counts) in cached.items()}
            compare(cluster, table, {name: read for name, (read, _) in cached.items()}, zipf, size, options.rounds)
            for name, (_, counts) in cached.items():
                hits, misses = (now - then for now, then in zip(counts(), before[name], strict=True))
                if hits + misses:
                    _tell(f"{size:6,} ids  {name:16} hit rate {hits / (hits + misses):.3f}")


class Ids:
    """A source of ids of [0, rows): uniform, or by Zipf's law with exponent 1 over rows in a random order."""

    def __init__(self, rows: int, *, is_zipf: bool) -> None:
        self._rng = np.random.default_rng(7)
        self._rows = rows
        self._order = self._rng.permutation(rows)
        self._sums = np.cumsum(1 / np.arange(1, rows + 1)) if is_zipf else None

    def draw(self, size: int) -> np.ndarray:
        """Returns [size] int64."""
        if self._sums is None:
            return self._rng.integers(0, self._rows, size)
        drawn = self._rng.random(size) * self._sums[-1]
        return self._order[np.searchsorted(self._sums, drawn)].astype(np.int64)


def core_reader(
    layout: TableLayout, address: StoreAddress, cache_bytes: int
) -> tuple[Reader, Callable[[], tuple[int, int]]]:
    """Returns a function that looks up ids in the native core, and a function that counts its cache hits and misses."""
    clusters = _native.Clusters(cache_bytes)
    servable = _native.Servable(json.dumps(_description(layout, address)), (), clusters=clusters)
    forms = _native.Forms([("m", [(1, servable)], {}, 0.0, "")], as_content=True)
    request_class, response_class = message_classes()

    def read(ids: np.ndarray) -> np.ndarray:
        request = request_class()
        request.model_spec.name, request.model_spec.signature_name = "m", "lookup"
        tensor = request.inputs["ids"]
        tensor.dtype, tensor.tensor_content = DT_INT64, ids.tobytes()
        tensor.tensor_shape.dim.add().size = ids.size
        answer = response_class.FromString(forms.grpc(_PREDICT, request.SerializeToString()))
        return np.frombuffer(answer.outputs["rows"].tensor_content, np.uint8).reshape(ids.size, -1)

    def counts() -> tuple[int, int]:
        (table,), _ = json.loads(clusters.counts())
        return table["cache_hits"], table["cache_misses"]

    return read, counts


def _description(layout: TableLayout, address: StoreAddress) -> dict[str, object]:
    # A description of signature "lookup" with one feature, in the form that service/native/description.py writes.
    feature = {
        **{"name": "ids", "ids": 0, "row_splits": None, "weights": None, "table": 0, "combiner": None},
        **{"summation": "in_order", "on_bad_id": "error", "default_row": 0, "at_least_one": False},
        **{"positive_only": False, "max_ids": 0, "truncates": False, "length": 0},
    }
    ids = {
        **{"name": "ids", "dtype": "int64", "shape": [None], "is_optional": True, "vocabulary_size": None},
        **{"bounds": "both", "vocabulary": None, "takes_keys": False, "takes_strings": False},
    }
    signature = {
        **{"name": "lookup", "kind": "lookup", "inputs": [ids], "features": [feature], "max_rows": None},
        **{"outputs": [{"name": "rows", "dtype": "float32", "parts": [0], "is_flat": False}]},
        **{"row_bytes": layout.row_bytes, "graph": None},
    }
    cluster = {
        **{"nodes": address.nodes, "has_tls": False, "ca_file": "", "user": "", "password_file": ""},
        **{"timeout_ms": round(address.timeout_s * 1e3), "node_timeout_ms": round(address.node_timeout_s * 1e3)},
        "hedge_percent": address.hedge_percent,
    }
    remote = {
        **{"address": cluster, "tag": layout.tag, "block_rows": layout.block_rows},
        **{"num_shards": layout.num_shards, "row_bytes": layout.row_bytes, "default_rows": []},
        **{"serves_stale": False, "fresh_ms": None},
    }
    table = {
        **{"name": "t", "dtype": "float32", "vocabulary_size": layout.vocabulary_size, "embedding_dim": _DIM},
        "remote": remote,
    }
    return {
        **{"model": "m", "version": 1, "tables": [table], "vocabularies": [], "signatures": [signature]},
    }


def glide_reader(layout: TableLayout, address: StoreAddress) -> Reader | None:
    """Returns a function that reads rows with valkey-glide, in one batch of GETRANGE; None if it is not installed."""
    try:
        from glide_sync import ClusterBatch, GlideClusterClient, GlideClusterClientConfiguration, NodeAddress
    except ModuleNotFoundError:
        _tell("valkey-glide-sync is not installed: it was NOT MEASURED")
        return None
    nodes = [NodeAddress(host, port) for host, port in address.nodes]
    client = GlideClusterClient.create(GlideClusterClientConfiguration(nodes, request_timeout=30_000))

    def read(ids: np.ndarray) -> np.ndarray:
        batch = ClusterBatch(is_atomic=False)
        for one in ids.tolist():
            block, row = divmod(one, layout.block_rows)
            batch.getrange(layout.key(block), row * layout.row_bytes, (row + 1) * layout.row_bytes - 1)
        values = client.exec(batch, raise_on_error=True)
        return np.frombuffer(b"".join(values), np.uint8).reshape(-1, layout.row_bytes)

    return read


def compare(cluster: Cluster, table: np.ndarray, readers: dict[str, Reader], ids: Ids, size: int, rounds: int) -> None:
    """Reads the same ids with each reader in turn, compares every row, and prints a line for each reader."""
    client_us: dict[str, list[float]] = {name: [] for name in readers}
    wall_us: dict[str, list[float]] = {name: [] for name in readers}
    server_s = dict.fromkeys(readers, 0.0)
    for _ in range(rounds):
        wanted = [ids.draw(size) for _ in range(max(2000 // size, 1))]
        for name, read in readers.items():
            nodes_s, own_s, now_s = server_cpu_s(cluster), time.process_time(), time.perf_counter()
            found = [read(one) for one in wanted]
            rows = size * len(wanted)
            wall_us[name].append((time.perf_counter() - now_s) / rows * 1e6)
            client_us[name].append((time.process_time() - own_s) / rows * 1e6)
            server_s[name] += server_cpu_s(cluster) - nodes_s
            for one, got in zip(wanted, found, strict=True):
                assert (np.ascontiguousarray(got).view(np.float32) == table[one]).all(), name
    total = rounds * max(2000 // size, 1) * size
    for name in readers:
        wall = statistics.median(wall_us[name])
        _tell(
            f"{size:6,} ids  {name:16} client CPU {statistics.median(client_us[name]):6.2f} us a row, nodes "
            f"{server_s[name] / total * 1e6:5.2f}, {1e6 / wall:10,.0f} rows/s one at a time"
        )


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}  [load {os.getloadavg()[0]:.1f}]\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
