"""A table that fits into memory but is not read yet: lookups of its other rows do not wait for the disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.integration.hung_disk import HungDisk, NoHungDisk
from tests.integration.process import ServerProcess, until

pytestmark = pytest.mark.slow

_DIM, _NUM_ROWS = 64, 1 << 16
_ROW_BYTES = _DIM * 4
_HANGS_FROM = 8 << 20
_CLIENTS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A folder with a model of one table of 16 MiB, which is written to the disk, and the table."""
    from model_export.importers.import_tables import import_tables

    folder = tmp_path_factory.mktemp("cold")
    source = np.random.default_rng(7).normal(size=(_NUM_ROWS, _DIM)).astype(np.float32)
    np.save(folder / "t.npy", source)
    import_tables(folder / "m", {"t": str(folder / "t.npy")})
    os.sync()
    return folder / "m", source


def test_lookups_of_hot_rows_are_answered_while_reads_of_cold_rows_hang(
    model: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    folder, source = model
    try:
        disk = HungDisk(folder, tmp_path / "disk", _HANGS_FROM)
    except NoHungDisk as error:
        pytest.skip(str(error))
    # The load reads no row: neither for its checksum nor for a warm-up request.
    settings = {"model_base_path": disk.mount, "verify_tables": "off", "enable_model_warmup": "false"}
    with disk, ServerProcess(threads=1, **settings) as server:
        try:
            server.ready()
            hot = np.arange(0, 1000, 7)
            cold = _HANGS_FROM // _ROW_BYTES + 3000 + np.arange(_CLIENTS) * 2000
            assert np.array_equal(server.predict_grpc({"t": hot}, "lookup")["t"], source[hot])
            with ThreadPoolExecutor(_CLIENTS) as pool:
                waiting = [pool.submit(server.lookup, {"t": [int(id)]}) for id in cold]
                until(lambda: _num_waiting(server) == _CLIENTS and disk.num_held > 0)
                for _ in range(50):
                    assert np.array_equal(server.predict_grpc({"t": hot}, "lookup")["t"], source[hot])
                assert not any(one.done() for one in waiting)
                disk.release()
                for id, one in zip(cold, waiting, strict=True):
                    assert np.array_equal(np.array(one.result()["t"], np.float32), source[[id]])
        finally:
            # Threads that wait for the disk can not be stopped.
            disk.release()


def _num_waiting(server: ServerProcess) -> int:
    """Returns how many threads of the pool for waiting requests wait for the disk."""
    found = 0
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        found += name.startswith("waiting") and rest.split()[0] == "D"
    return found
