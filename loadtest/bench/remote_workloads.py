"""Measures workloads W2 and W3 on tables in a cluster whose nodes run on separate hosts, with caches of several sizes.

    python -m loadtest.bench.remote_workloads --rows 10000000

Three primaries and three replicas run in three network namespaces (needs root). The tables are those of
loadtest.bench.workloads, enlarged to --rows rows together. Servers with and without a cache answer lookups over real
sockets; valkey-glide and redis-py read the same distinct rows of the same keys, without a server, and join them with
numpy. A reader whose package is not installed is left out, and the output says so. At the end, the answers of a server
of remote tables and of one of mapped tables are compared byte by byte.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from loadtest.bench.artifact import prepared
from loadtest.bench.generator.load import Ask, Shot, drive
from loadtest.bench.large_model import write_checksums, write_large_model
from loadtest.bench.lookup_vs_graph import machine
from loadtest.bench.processes import Service, cpu_s, tree
from loadtest.bench.remote import CACHE_SHARES, ENTRY_BYTES, Reader, glide_reader
from loadtest.bench.workloads import FULL, LOOKUP, MODEL, Arrays, Data, Sizes
from loadtest.network_hosts import Hosts
from loadtest.remote_reads import plain_reader, server_cpu_s, used_memory
from loadtest.wire import DT_INT64, PREDICT_METHOD, message_classes
from model_export.remote.push import push
from service.artifact.crc32c import crc32c_of, masked
from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import Manifest
from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from tests.valkey_cluster import Cluster

_DATA = "variables/variables.data-00000-of-00001"
_CHUNK_ROWS = 1 << 18
_TABLE_OF = {"user": "user", "item": "item", "tags": "tag"}
# Large replication buffers, because a replica that falls behind during a push would have to copy all data again.
_NODE_FLAGS = ("--protected-mode", "no", "--client-output-buffer-limit", "replica 0 0 0", "--repl-backlog-size", "64mb")
_NUM_EQUAL_THREADS = 2
# In the table that this benchmark prints, "row" means a distinct table row that a request reads. The first "CPU us a
# row" is of the client or the server, and the columns from "Nodes" on have the figures of the nodes for a row that is
# read from them.
_HEAD = """
| Workload | Reader | Connections | ids/s | rows/s | CPU us an id | CPU us a row | p50 ms | p99 ms | Hit rate | Nodes: CPU us a row | bytes a row | Load |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""  # noqa: E501

Tables = Mapping[str, np.ndarray]


def main() -> None:
    """Measures all readers of rows on all workloads, and prints a line for each pair of workload and reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables together")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--equal", type=int, default=100_000, help="answers that are compared")
    options = parser.parse_args()
    sizes = scaled(options.rows)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables = write_tables(folder / MODEL / "1", sizes)
        hosts = stack.enter_context(Hosts(3))
        cluster = stack.enter_context(Cluster(folder / "nodes", 3, 1, flags=_NODE_FLAGS, hosts=hosts.hosts))
        empty = used_memory(cluster)
        began_s = time.monotonic()
        push(folder / MODEL / "1", StoreAddress.parse(cluster.address), model=MODEL)
        table_bytes = sum(table.nbytes for table in tables.values())
        _tell(
            f"{machine()}\n{options.rows:,} rows, {table_bytes / 1e9:.2f} GB of tables, pushed in "
            f"{time.monotonic() - began_s:.0f} s; all nodes use {(used_memory(cluster) - empty) / 1e9:.2f} GB for two "
            f"copies, {(used_memory(cluster) - empty) / table_bytes / 2:.3f} of the tables' bytes a copy"
        )
        _tell(_HEAD)
        data = Data(sizes)
        asked = {"W2": data.requests("W2"), "W3": data.requests("W3"), "1,000 ids": _of_one_table(data, 1000)}
        _clients(cluster, folder / MODEL / "1", tables, asked, options)
        for share in CACHE_SHARES:
            _server(cluster, folder / MODEL, tables, asked, share, options)
        with _serving(cluster, folder / MODEL, 0) as remote, _serving(None, folder / MODEL, 0) as mapped:
            _tell(f"equal to the mapped tables: {equal_answers(remote, mapped, data, options.equal):,} answers")


def scaled(rows: int) -> Sizes:
    """Returns Sizes with `rows` rows in all tables together; requests read more rows than a small cache can hold."""
    before = sum(size for size, _ in FULL.tables.values())
    tables = {name: (size * rows // before, dim) for name, (size, dim) in FULL.tables.items()}
    return Sizes(tables, FULL.rows, {**FULL.variants, "W2": 2000, "W3": 128})


def write_tables(version: Path, sizes: Sizes) -> Tables:
    """Writes a version folder with tables of random numbers; returns the tables, mapped from it."""
    version.parent.mkdir(parents=True)
    small = prepared(version.parent.parent / "small", "tiny") / "model" / "1"
    write_large_model(small, version, sizes.tables)
    entries = _manifest(version).tables
    found = {}
    for number, (name, shape) in enumerate(sizes.tables.items()):
        where = {"filename": version / _DATA, "dtype": np.float32, "offset": entries[name].offset, "shape": shape}
        table = np.memmap(mode="r+", **where)
        generator = np.random.default_rng([1, number])
        for begin in range(0, shape[0], _CHUNK_ROWS):
            piece = table[begin : begin + _CHUNK_ROWS]
            piece[:] = generator.standard_normal(piece.shape, np.float32)
        table.flush()
        found[name] = np.memmap(mode="r", **where)
    write_checksums(version, lambda octets: masked(crc32c_of(octets)))
    return found


def _manifest(version: Path) -> Manifest:
    manifest = Manifest.read(version)
    assert manifest is not None
    return manifest


def _of_one_table(data: Data, size: int) -> list[Arrays]:
    # A request of workload W2 has 128 ids of users; they are divided into requests of `size` ids.
    users = np.concatenate([inputs["user"] for inputs in data.requests("W2")])
    return [{"user": ids} for ids in users[: users.size // size * size].reshape(-1, size)]


def num_ids(inputs: Arrays) -> int:
    """Returns the number of ids of a request."""
    return sum(ids.size for name, ids in inputs.items() if name != "tags__row_splits")


def num_distinct(inputs: Arrays) -> int:
    """Returns the number of distinct rows that a request reads, counted separately in each table."""
    return sum(np.unique(ids).size for name, ids in inputs.items() if name != "tags__row_splits")


def joined(readers: Mapping[str, Reader], inputs: Arrays, dims: Mapping[str, int]) -> Arrays:
    """Reads the distinct rows of a request, and computes the answer with numpy: vectors by feature."""
    found = {}
    for feature, table in _TABLE_OF.items():
        ids = inputs.get(feature, inputs.get(f"{feature}__values"))
        if ids is None:
            continue
        rows, places = np.unique(ids, return_inverse=True)
        vectors = np.ascontiguousarray(readers[table](rows)).view(np.float32).reshape(-1, dims[table])[places]
        if feature == "tags":
            splits = inputs["tags__row_splits"]
            vectors = np.add.reduceat(vectors, splits[:-1], axis=0) / np.diff(splits)[:, None].astype(np.float32)
        found[feature] = vectors
    return found


def _clients(
    cluster: Cluster, version: Path, tables: Tables, asked: Mapping[str, list[Arrays]], options: argparse.Namespace
) -> None:
    manifest = _manifest(version)
    layouts = {name: TableLayout.of(MODEL, name, fingerprint_of(version), manifest.tables[name]) for name in tables}
    address = StoreAddress.parse(cluster.address)
    dims = {name: table.shape[1] for name, table in tables.items()}
    kinds = {"redis-py": {name: plain_reader(cluster.client(), layout) for name, layout in layouts.items()}}
    glide = {name: glide_reader(layout, address) for name, layout in layouts.items()}
    if all(glide.values()):
        kinds["valkey-glide"] = {name: reader for name, reader in glide.items() if reader is not None}
    for workload, requests in asked.items():
        for name, readers in kinds.items():
            answer = joined(readers, requests[0], dims)
            for feature, vectors in expected(tables, requests[0]).items():
                np.testing.assert_allclose(answer[feature], vectors, rtol=1e-4, atol=1e-5)
            sizes = [(num_ids(inputs), num_distinct(inputs)) for inputs in requests]
            times = []
            own_s, nodes_s, now_s = time.process_time(), server_cpu_s(cluster), time.perf_counter()
            for number in range(10**9):
                inputs = requests[number % len(requests)]
                begin_s = time.perf_counter()
                joined(readers, inputs, dims)
                times.append(time.perf_counter() - begin_s)
                if time.perf_counter() - now_s > options.seconds * options.rounds:
                    break
            ids, distinct = (sum(sizes[n % len(sizes)][which] for n in range(len(times))) for which in (0, 1))
            own_s, nodes_s = time.process_time() - own_s, server_cpu_s(cluster) - nodes_s
            milliseconds = [float(np.quantile(times, share)) * 1e3 for share in (0.5, 0.99)]
            rates = (ids / sum(times), distinct / sum(times), own_s / ids * 1e6, own_s / distinct * 1e6)
            _line(workload, name, 1, *rates, *milliseconds, None, nodes_s / distinct * 1e6, None)


def expected(tables: Tables, inputs: Arrays) -> Arrays:
    """Returns the expected answer to a request, vectors by feature, computed from the mapped tables."""
    readers = {name: partial(_mapped, table) for name, table in tables.items()}
    return joined(readers, inputs, {name: table.shape[1] for name, table in tables.items()})


def _mapped(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.asarray(table[ids])


@contextmanager
def _serving(cluster: Cluster | None, base: Path, cache_bytes: int) -> Iterator[Service]:
    flags = [f"--model_name={MODEL}", f"--model_base_path={base}", "--graph_signatures=off", "--verify_tables=off"]
    flags += ["--data_plane=core", "--paged_tables=off", "--max_queue_ms=60000"]
    if cluster is not None:
        address = cluster.address + "?timeout_ms=60000&node_timeout_ms=30000"
        flags.append("--remote_tables=" + ";".join(f"{table}={address}" for table in _TABLE_OF.values()))
        flags.append(f"--remote_cache_bytes={cache_bytes}")
    service = Service(frozenset(os.sched_getaffinity(0)), flags)
    try:
        service.wait()
        yield service
    finally:
        service.stop()


def predict_bytes(inputs: Arrays) -> bytes:
    """Encodes a gRPC PredictRequest that calls the model's lookup signature with these ids."""
    request = message_classes()[0]()
    request.model_spec.name, request.model_spec.signature_name = MODEL, LOOKUP
    for name, ids in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype, tensor.tensor_content = DT_INT64, ids.tobytes()
        tensor.tensor_shape.dim.add().size = ids.size
    return bytes(request.SerializeToString())


def _server(
    cluster: Cluster,
    base: Path,
    tables: Tables,
    asked: Mapping[str, list[Arrays]],
    share: float,
    options: argparse.Namespace,
) -> None:
    entry_bytes = [table.nbytes + len(table) * ENTRY_BYTES for table in tables.values()]
    with _serving(cluster, base, int(sum(entry_bytes) * share)) as service:
        pids = tree(service.pid)
        for workload, requests in asked.items():
            ask = _ask(service, tables, requests)
            ids = sum(num_ids(inputs) for inputs in requests) / len(requests)
            distinct = sum(num_distinct(inputs) for inputs in requests) / len(requests)
            if share:
                # The same requests fill the server's row cache before the measurement.
                drive(
                    ask,
                    service.port(is_grpc=True),
                    connections=4,
                    seconds=1,
                    warm_s=options.seconds * 3,
                    server_cpu_s=float,
                )
            for connections in (1, 8):
                before, nodes_s, sent = _hits(service), server_cpu_s(cluster), sent_bytes(cluster)
                shots = [
                    drive(
                        ask,
                        service.port(is_grpc=True),
                        connections=connections,
                        seconds=options.seconds,
                        warm_s=0.2,
                        server_cpu_s=lambda: cpu_s(pids),
                    )
                    for _ in range(options.rounds)
                ]
                hits, read = (now - then for now, then in zip(_hits(service), before, strict=True))
                nodes_s, sent = server_cpu_s(cluster) - nodes_s, sent_bytes(cluster) - sent
                per_s = _median(shots, lambda shot: shot.requests_per_s)
                used = _median(shots, lambda shot: shot.server_cpu_us)
                rates = (per_s * ids, per_s * distinct, used / ids, used / distinct)
                milliseconds = [_median(shots, lambda shot: shot.p50_ms), _median(shots, lambda shot: shot.p99_ms)]
                of_nodes = (nodes_s / max(read, 1) * 1e6, sent / max(read, 1))
                name = f"server, cache of {share:.0%}" if share else "server"
                _line(workload, name, connections, *rates, *milliseconds, hits / max(hits + read, 1), *of_nodes)


def _ask(service: Service, tables: Tables, requests: list[Arrays]) -> Ask:
    bodies = [predict_bytes(inputs) for inputs in requests]
    sizes = {}
    with grpc.insecure_channel(f"127.0.0.1:{service.port(is_grpc=True)}", options=_NO_LIMIT) as channel:
        call = channel.unary_unary(PREDICT_METHOD)
        for inputs, body in zip(requests, bodies, strict=True):
            # Answers to requests of the same shape have the same size, so one request of each shape is sent to learn
            # the size.
            shape = (inputs["user"].size, len(inputs))
            if shape not in sizes:
                answer = call(body, timeout=60)
                sizes[shape] = len(answer)
                _check(answer, expected(tables, inputs))
    expected_sizes = [sizes[inputs["user"].size, len(inputs)] for inputs in requests]
    return Ask(True, PREDICT_METHOD, bodies, expected_sizes, [()] * len(bodies))


_NO_LIMIT = [("grpc.max_receive_message_length", -1)]


def _check(answer: bytes, vectors: Arrays) -> None:
    outputs = message_classes()[1].FromString(answer).outputs
    for feature, wanted in vectors.items():
        tensor = outputs[feature]
        found = np.frombuffer(tensor.tensor_content, np.float32) if tensor.tensor_content else tensor.float_val
        np.testing.assert_allclose(np.array(found, np.float32).reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def _hits(service: Service) -> tuple[int, int]:
    """Returns how many rows the server found in its cache, and how many it read from the nodes, since its start."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port(is_grpc=False), timeout=60)
    connection.request("GET", "/v1/statusz")
    tables = json.loads(connection.getresponse().read())["remote"]["tables"]
    connection.close()
    return sum(table["cache_hits"] for table in tables), sum(table["rows"] for table in tables)


def sent_bytes(cluster: Cluster) -> int:
    """Returns the bytes that all nodes sent and received so far, for clients and for each other."""
    stats = [node.ask("INFO", "stats") for node in cluster.nodes]
    return sum(one["total_net_output_bytes"] + one["total_net_input_bytes"] for one in stats)


def _median(shots: list[Shot], figure: Callable[[Shot], float]) -> float:
    return statistics.median(figure(shot) for shot in shots)


def equal_answers(remote: Service, mapped: Service, data: Data, count: int) -> int:
    """Compares two servers' answers to requests of 1 to 32 rows; every tenth is JSON. Returns how many it compared."""
    each = count // _NUM_EQUAL_THREADS
    with ThreadPoolExecutor(_NUM_EQUAL_THREADS) as pool:
        runs = [pool.submit(_equal, remote, mapped, data, each, seed) for seed in range(_NUM_EQUAL_THREADS)]
    return sum(run.result() for run in runs)


def _equal(remote: Service, mapped: Service, data: Data, count: int, seed: int) -> int:
    random = np.random.default_rng([9, seed])
    requests = data.requests("W2")
    services = (remote, mapped)
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{service.port(is_grpc=True)}"))
            for service in services
        ]
        calls = [channel.unary_unary(PREDICT_METHOD) for channel in channels]
        connections = [http.client.HTTPConnection("127.0.0.1", s.port(is_grpc=False), timeout=60) for s in services]
        for number in range(count):
            inputs = _some_rows(requests[random.integers(len(requests))], random)
            if number % 10:
                body = predict_bytes(inputs)
                one, other = (call(body, timeout=60) for call in calls)
            else:
                values, splits = inputs["tags__values"].tolist(), inputs["tags__row_splits"].tolist()
                tags = [values[a:b] for a, b in zip(splits[:-1], splits[1:], strict=True)]
                features = {"user": inputs["user"].tolist(), "item": inputs["item"].tolist(), "tags": tags}
                body = json.dumps({"features": features}).encode()
                one, other = (_post(connection, body) for connection in connections)
            if one != other:
                raise RuntimeError(f"another answer than from the mapped tables: {inputs}")
        for connection in connections:
            connection.close()
    return count


def _some_rows(inputs: Arrays, random: np.random.Generator) -> Arrays:
    begin = int(random.integers(96))
    end = begin + int(random.integers(1, 33))
    splits = inputs["tags__row_splits"][begin : end + 1]
    rows = {name: inputs[name][begin:end] for name in ("user", "item")}
    return {
        **rows,
        "tags__values": inputs["tags__values"][splits[0] : splits[-1]],
        "tags__row_splits": splits - splits[0],
    }


def _post(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", f"/v1/models/{MODEL}:lookup", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    found = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {found[:200]!r}")
    return found


def _line(
    workload: str,
    reader: str,
    connections: int,
    ids_per_s: float,
    rows_per_s: float,
    id_us: float,
    row_us: float,
    p50_ms: float,
    p99_ms: float,
    hit_rate: float | None,
    node_us: float,
    sent: float | None,
) -> None:
    figures = f"{ids_per_s:,.0f} | {rows_per_s:,.0f} | {id_us:.2f} | {row_us:.2f} | {p50_ms:.1f} | {p99_ms:.1f}"
    hits = f"{hit_rate:.2f}" if hit_rate else ""
    of_nodes = f"{node_us:.2f} | " + ("" if sent is None else f"{sent:.0f}")
    _tell(f"| {workload} | {reader} | {connections} | {figures} | {hits} | {of_nodes} | {os.getloadavg()[0]:.0f} |")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
