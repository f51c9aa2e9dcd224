"""Imports checkpoints in each layout that Orbax writes, and zarr folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore

from model_export.errors import ExportError
from model_export.importers import array_store
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

_STATE = {
    "params": {"user": jnp.array(matrix(21, 4)), "half": jnp.array(matrix(6, 2), jnp.bfloat16)},
    "layers": [jnp.array(matrix(3, 2))],
    "step": 3,
}


def save(folder: Path, *, use_ocdbt: bool = True, use_zarr3: bool = False, state: Any = None) -> Path:
    """Saves a checkpoint with Orbax; returns its folder."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(_STATE if state is None else state))
    return folder


@pytest.mark.parametrize("use_zarr3", [False, True])
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_every_layout_of_orbax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_ocdbt: bool, use_zarr3: bool
) -> None:
    folder = save(tmp_path / "c", use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    for is_small in (False, True):
        if is_small:
            # The chunks are now smaller than the stored block, so the importer decompresses the block into a temporary
            # file.
            small_chunks(monkeypatch, array_store)
        for name, rows in (("params.user", matrix(21, 4)), ("params.half", matrix(6, 2)), ("layers.0", matrix(3, 2))):
            read, keys = read_all(f"{folder}:{name}", tmp_path)
            np.testing.assert_array_equal(read, rows)
            assert keys is None
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_managers_step(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(7, args=ocp.args.StandardSave(_STATE))
        manager.wait_until_finished()
    np.testing.assert_array_equal(read_all(f"{tmp_path}/run/7:params.user")[0], matrix(21, 4))
    with pytest.raises(ExportError, match="of a CheckpointManager's folder, name a step's"):
        read_all(f"{tmp_path}/run:params.user")


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("block", [[3, 4], [2, 3], [64, 64]])
def test_zarr_folders_of_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, block: list[int]
) -> None:
    metadata = (
        {"chunks": block}
        if driver == "zarr"
        else {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": block}}}
    )
    store = tensorstore.open(
        {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/z/"}, "metadata": metadata},
        create=True,
        dtype=tensorstore.float32,
        shape=[11, 5],
    ).result()
    store.write(matrix(11, 5)).result()
    np.testing.assert_array_equal(read_all(tmp_path / "z")[0], matrix(11, 5))
    small_chunks(monkeypatch, array_store)
    np.testing.assert_array_equal(read_all(tmp_path / "z", tmp_path)[0], matrix(11, 5))


def test_names_and_types_that_are_no_tables(tmp_path: Path) -> None:
    folder = save(tmp_path / "c")
    names = r"its arrays are 'layers.0', 'params.half', 'params.user', 'step'"
    with pytest.raises(ExportError, match=f"has no 'user'; {names}"):
        read_all(f"{folder}:user")
    with pytest.raises(ExportError, match=f"say which table with c:NAME; {names}"):
        read_all(folder)
    with pytest.raises(ExportError, match="c:step holds int64; a table holds float16"):
        read_all(f"{folder}:step")
    with pytest.raises(ExportError, match="orbax has no option 'key'"):
        read_all(f"{folder}:user?key=a")


def test_a_damaged_block_is_no_traceback(tmp_path: Path) -> None:
    folder = save(tmp_path / "c", use_ocdbt=False)
    (folder / "params.user" / "0.0").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="params.user"):  # TableCopy turns this ValueError into a message
        read_all(f"{folder}:params.user")
    (folder / "params.user" / ".zarray").write_text("{")
    with pytest.raises(ExportError, match="cannot read .*params.user"):
        read_all(f"{folder}:params.user")
