"""Checkpoints of JAX: arrays in stores, and stacked tables."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

import model_export
from model_export.errors import ExportError
from model_export.importers import array_store
from model_export.importers.array_store import StackMember
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks
from tests.unit.model_export.late import late

with late():
    from jax import numpy as jnp
    from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec, table_stacking
    from orbax import checkpoint as ocp


def small_state() -> dict[str, Any]:
    """Returns arrays in folders and lists, and a number."""
    return {
        "params": {"user": jnp.array(matrix(21, 4)), "half": jnp.array(matrix(6, 2), jnp.bfloat16)},
        "layers": [jnp.array(matrix(3, 2))],
        "step": 3,
    }


def save(folder: Path, *, use_ocdbt: bool = True, use_zarr3: bool = False, state: Any = None) -> Path:
    """Saves a checkpoint with Orbax; returns its folder."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(small_state() if state is None else state))
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
        manager.save(7, args=ocp.args.StandardSave(small_state()))
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


_SIZES = {"film": (70, 12), "user": (33, 16), "tag": (5, 9), "alone": (19, 8)}


def stacked(num_shards: int) -> tuple[list[Any], dict[str, np.ndarray], dict[str, Any]]:
    """Returns specs, tables and stacked tables; tables film, user and tag share a stack, "alone" has its own."""
    specs, features = {}, {}
    for name, (rows, dim) in _SIZES.items():
        specs[name] = embedding_spec.TableSpec(
            vocabulary_size=rows,
            embedding_dim=dim,
            initializer=lambda *_: None,
            optimizer=embedding_spec.SGDOptimizerSpec(0.1),
            combiner="sum",
            name=name,
            max_ids_per_partition=8,
            max_unique_ids_per_partition=8,
        )
        features[name] = embedding_spec.FeatureSpec(
            table_spec=specs[name], input_shape=(num_shards, 1), output_shape=(num_shards, dim), name=name
        )
    for group in (["film", "user", "tag"], ["alone"]):
        table_stacking.stack_tables(features, group, global_device_count=num_shards // 2, num_sc_per_device=2)
    listed = [feature.table_spec for feature in features.values()]
    tables = {spec.name: matrix(*_SIZES[spec.name]) for spec in listed}
    by_name = {spec.name: spec for spec in listed}
    return listed, tables, table_stacking.stack_and_shard_tables(by_name, dict(tables), num_shards)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("is_flat", [False, True], ids=["shards_apart", "one_matrix"])
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_members_are_as_jax_tpu_embedding_unstacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int, is_flat: bool, is_small: bool
) -> None:
    specs, tables, stacks = stacked(num_shards)
    saved = {name: stack.reshape(-1, stack.shape[-1]) if is_flat else stack for name, stack in stacks.items()}
    # The specs give two stacks: one of three tables, with row offsets and, on more than two shards, rotations; and one
    # of one table.
    settings = [spec.setting_in_stack for spec in specs]
    assert len(saved) == 2 and len({s.row_offset_in_shard for s in settings}) > 1
    assert num_shards == 2 or any(s.shard_rotation for s in settings)
    folder = save(tmp_path / "7", state={"emb": saved})
    described = model_export.describe_stacked_tables(specs, num_shards, {name: f"emb.{name}" for name in saved})
    (tmp_path / "stacked_tables.json").write_text(json.dumps(described))
    if is_small:
        small_chunks(monkeypatch, array_store, num_bytes=640)
    theirs = table_stacking.unshard_and_unstack_tables({spec.name: spec for spec in specs}, saved, num_shards)
    for name, table in tables.items():
        read, _ = read_all(f"{folder}:{name}", tmp_path)
        np.testing.assert_array_equal(read, np.asarray(theirs[name]))
        np.testing.assert_array_equal(read, table)


def test_rows_worked_out_by_hand() -> None:
    # Two shards of 16 rows. The table begins at row 8 of each, and shard_rotation=1 puts its row 0 into shard 1.
    array = np.arange(64).reshape(32, 2)
    member = StackMember("a", 2, vocabulary_size=3, embedding_dim=1, row_offset_in_shard=8, shard_rotation=1)
    found = {r: array[where].tolist() for r, where in member.slices(0, 3, array.shape)}
    assert found == {0: [[2 * 24], [2 * 25]], 1: [[2 * 8]]}


_ENTRY = {"vocabulary_size": 10, "embedding_dim": 8, "row_offset_in_shard": 0, "shard_rotation": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "has format 2; this version reads format 1"),
        (lambda d: d.pop("stacks"), "is no description of stacked tables"),
        (lambda d: d["stacks"]["s"].pop("array"), "is no description of stacked tables: KeyError"),
        (lambda d: d["stacks"]["s"].update(num_shards=0), r"table 'user' has {'num_shards': 0}"),
        (lambda d: d["stacks"]["s"].update(num_shards=3), "which is not 3 shards of rows"),
        (lambda d: d["stacks"]["s"]["tables"]["user"].update(vocabulary_size=17), "the table needs rows 0 to 16 of 8"),
        (lambda d: d["stacks"]["s"]["tables"]["user"].update(row_offset_in_shard=8), "the table needs rows 8 to 16"),
        (lambda d: d["stacks"]["s"]["tables"]["user"].update(embedding_dim=9), "of 9"),
        (lambda d: d["stacks"]["s"]["tables"]["user"].update(rows=9), r"unknown keys \['rows'\]"),
        (lambda d: d["stacks"]["s"].update(array="other"), "has no 'other', which the stacked table is in"),
        (lambda d: d["stacks"].update(t=copy.deepcopy(d["stacks"]["s"])), "describes table 'user' twice"),
    ],
)
def test_descriptions_at_fault(tmp_path: Path, change: Any, message: str) -> None:
    folder = save(tmp_path / "c", state={"s": jnp.zeros((16, 8))})
    described = {"format": 1, "stacks": {"s": {"array": "s", "num_shards": 2, "tables": {"user": dict(_ENTRY)}}}}
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(described))
    assert read_all(f"{folder}:user?stacks={path}")[0].shape == (10, 8)
    with pytest.raises(ExportError, match=r"describes no table 'film'; its tables are \['user'\]"):
        read_all(f"{folder}:film?stacks={path}")
    change(described)
    path.write_text(json.dumps(described))
    with pytest.raises(ExportError, match=message):
        read_all(f"{folder}:user?stacks={path}")
