"""A server answers lookups from a table that is larger than the memory of the server's control group."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from loadtest.bench.models import write_large_model
from tests.integration.control_groups import ControlGroup, memory_group
from tests.integration.process import PACE_S, PATIENCE_S, ServerProcess, until
from tests.tower_model import TAGS, USERS

pytestmark = [pytest.mark.tf, pytest.mark.slow]

_LIMIT_MIB = 256
# Number of rows of 64 float32 whose table is twice as large as the memory limit: 2,097,152.
_NUM_ROWS = 2 * _LIMIT_MIB * 4096
_DIM, _CHUNK_ROWS = 64, 1 << 18


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a model with one large table; returns its folder."""
    from model_export.importers.import_tables import import_tables

    folder = tmp_path_factory.mktemp("larger")
    scratch = tmp_path_factory.mktemp("small")
    np.save(scratch / "row.npy", rows_of(np.arange(4)))
    import_tables(scratch / "m", {"row": str(scratch / "row.npy")})
    write_large_model(scratch / "m" / "1", folder / "1", {"row": (_NUM_ROWS, _DIM)})
    with (folder / "1" / "variables" / "variables.data-00000-of-00001").open("r+b") as file:
        for begin in range(0, _NUM_ROWS, _CHUNK_ROWS):
            file.write(rows_of(np.arange(begin, begin + _CHUNK_ROWS)).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return folder


def rows_of(ids: np.ndarray) -> np.ndarray:
    """Computes the table's rows of [N] int64 ids by a formula; returns [N, D] float32."""
    return ((ids[:, None] * 31 + np.arange(_DIM) * 7) & ((1 << 20) - 1)).astype(np.float32)


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    """Yields a memory control group, or skips the test with the reason why there is none."""
    with memory_group(_LIMIT_MIB << 20) as made:
        yield made


def _started(group: ControlGroup, model: Path, **settings: object) -> ServerProcess:
    server = ServerProcess(model_base_path=model, graph_signatures="off", **settings)
    group.add(server.pid)
    return server


def _metric(server: ServerProcess, name: str) -> float:
    found = re.search(rf"^embedding_server_{name}{{}} (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _is_right(server: ServerProcess, ids: np.ndarray) -> bool:
    inputs = {"row": ids}
    return np.array_equal(server.predict_grpc(inputs, "lookup")["row"], rows_of(ids))


def test_a_table_of_twice_the_memory_is_read_within_the_bound(group: ControlGroup, model: Path) -> None:
    rng = np.random.default_rng(3)
    with _started(group, model, paged_tables_mib=120) as server:
        server.ready()
        told = server.wait_for_log("tables are larger than memory: their pages are read when lookups need them")
        assert (told["table_bytes"], told["max_bytes"]) == (_NUM_ROWS * 256, 120 << 20)
        for _ in range(150):
            assert _is_right(server, rng.integers(0, _NUM_ROWS, 1000))
        # 150,000 random rows are in about 89,000 of the table's 131,072 pages; some pages are read again after they
        # were dropped.
        assert 80_000 < _metric(server, "paged_reads_total") <= _metric(server, "paged_cold_rows_total") + 1000
        assert _metric(server, "paged_drops_total") > 40_000
        assert 115 << 20 < _metric(server, "paged_resident_bytes") <= 120 << 20
        assert group.used <= _LIMIT_MIB << 20
        # Lookups over JSON and the route for rows of a table read their rows from pages, too.
        ids = rng.integers(0, _NUM_ROWS, 50)
        assert np.array_equal(np.array(server.lookup({"row": ids.tolist()})["row"]), rows_of(ids))
        ids = rng.integers(0, _NUM_ROWS, 50)
        answer = server.http.post("/v1/models/default/tables/row:rows", json={"ids": ids.tolist()})
        assert np.array_equal(np.array(answer.json()["rows"]), rows_of(ids))
        bad = server.http.post("/v1/models/default:lookup", json={"features": {"row": [_NUM_ROWS]}})
        assert bad.status_code == 400 and str(_NUM_ROWS) in bad.json()["error"]


def test_threads_of_connections_do_not_wait_for_the_disk(group: ControlGroup, model: Path) -> None:
    rng = np.random.default_rng(4)
    hot = np.arange(0, _NUM_ROWS, _NUM_ROWS // 500)
    with _started(group, model, paged_tables_mib=120) as server:
        server.ready()
        assert all(_is_right(server, hot) for _ in range(3))
        before = _waits(server)
        is_over = threading.Event()
        wrong = []

        def read_cold_rows() -> None:
            while not is_over.wait(PACE_S):
                ids = rng.integers(0, _NUM_ROWS, 500)
                if not _is_right(server, ids):
                    wrong.append(ids)

        thread = threading.Thread(target=read_cold_rows)
        thread.start()
        try:
            assert all(_is_right(server, hot[n : n + 5]) for n in range(300))
            # A slow disk reads for some 20 of these lookups a second.
            until(lambda: _is_right(server, hot[:5]) and _metric(server, "paged_cold_rows_total") > 10_000)
        finally:
            is_over.set()
            thread.join()
        assert not wrong
        # Rarely, a page is dropped between the check and the read, and the thread of the connection has to wait for it.
        assert _waits(server) - before < 50


def _waits(server: ServerProcess) -> int:
    """Returns how often threads of connections waited for a page."""
    total = 0
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        total += int(rest.split()[9]) if name.startswith("edge") else 0
    return total


def test_a_table_that_fits_is_warmed_and_no_page_is_dropped(model: Path) -> None:
    rng = np.random.default_rng(6)
    with ServerProcess(model_base_path=model, graph_signatures="off") as server:
        server.ready()
        num_bytes = _NUM_ROWS * _DIM * 4

        def is_warm() -> bool:
            assert _is_right(server, rng.integers(0, _NUM_ROWS, 100))
            return _metric(server, "paged_resident_bytes") == num_bytes

        until(is_warm)
        assert _metric(server, "paged_drops_total") == 0
        reads = _metric(server, "paged_reads_total")
        assert _is_right(server, rng.integers(0, _NUM_ROWS, 1000)) and _metric(server, "paged_reads_total") == reads


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A folder with the models `float32` and `int8` of one table, and the table: [5000, 24] float32."""
    from model_export.importers.import_tables import import_tables

    folder = tmp_path_factory.mktemp("small")
    source = np.random.default_rng(5).normal(size=(5000, 24)).astype(np.float32)
    np.save(folder / "t.npy", source)
    for dtype in ("float32", "int8"):
        import_tables(folder / dtype, {"t": str(folder / "t.npy")}, table_dtype={"t": dtype})
    return folder, source


def _paged(base: Path, rule: str = "on", **settings: object) -> ServerProcess:
    flags = {"paged_tables": rule, "paged_tables_mib": 1, "graph_signatures": "off"}
    return ServerProcess(model_base_path=base, **(flags | settings))


def test_paged_tables_of_fewer_bits(small_models: tuple[Path, np.ndarray]) -> None:
    answers = {}
    for rule in ("on", "off"):
        with _paged(small_models[0] / "int8", rule) as server:
            server.ready()
            answers[rule] = server.lookup({"t": list(range(0, 5000, 7))})
            assert (_metric(server, "paged_cold_rows_total") > 0) is (rule == "on")
    assert answers["on"] == answers["off"]


def test_changed_rows_of_a_paged_table_stay_changed(small_models: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    folder, source = small_models
    expected = source.copy()
    everything = np.arange(5000)
    with _paged(folder / "float32", admin_port="auto", delta_journal_dir=tmp_path) as server:
        server.ready()
        assert np.array_equal(_rows(server, everything), expected)
        url = f"http://127.0.0.1:{server.admin_port}/v1/models/default/tables/t:upsert"
        for id in range(0, 5000, 500):
            expected[id] = id
            answer = httpx.post(url, json={"ids": [id], "rows": [[float(id)] * 24]}, timeout=PATIENCE_S)
            assert answer.status_code == 200 and answer.json()["is_visible"], answer.text
            # Each lookup reads all rows, so its pages displace others; rows that were changed must stay changed.
            assert np.array_equal(_rows(server, everything), expected)


def test_predicts_read_pages_of_their_features(tower_version: Path) -> None:
    ids = np.array([3, 0, 2])
    inputs = {"user": ids, "tags__values": ids % 3, "tags__row_splits": np.arange(4)}
    wanted = np.concatenate([np.array(USERS)[ids], np.array(TAGS)[ids % 3]], 1) @ [1, 10, 100, 1000] + 0.5
    with _paged(tower_version.parent, graph_signatures="auto") as server:
        server.ready()
        got = server.predict_grpc(inputs, "serving_default")["score"].ravel()
        assert got.tolist() == wanted.tolist()
        # Both tables are in the same page of the file; the server reads this page once for each table, and the load has
        # done so before, as it compares the core's lookups with the graph.
        assert _metric(server, "paged_reads_total") == 4


def _rows(server: ServerProcess, ids: np.ndarray) -> np.ndarray:
    return server.predict_grpc({"t": ids}, "lookup")["t"]
