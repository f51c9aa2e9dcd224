"""Maps tables shared and read-only; a disagreement of manifest, index and files refuses the version."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.bundle import slice_key
from service.artifact.manifest import LookupFeature, Manifest
from service.errors import ArtifactError, IdOutOfRange
from service.process.trial import lookup_of
from service.tables.table import MappedTable, open_tables
from service.types import TABLE_DTYPES, TableInfo, TensorSpec
from tests.stored_tables import DTYPES, store
from tests.toy_model import (
    INDEX,
    SHARD,
    proto_field,
    rewrite_manifest,
    toy_tables,
    toy_tables_as,
    variable_name,
    write_bundle,
    write_toy_model,
)
from tests.toy_policies import policy_tables, write_policy_model
from tests.unit.artifact.test_bundle import table_of


def open_toy(artifact: Path) -> dict[str, MappedTable]:
    """Opens the tables that an artifact's manifest names."""
    manifest = Manifest.read(artifact)
    assert manifest is not None
    return open_tables(artifact, manifest)


@pytest.mark.parametrize("padding", [0, 1, 2, 3, 4, 64])
def test_maps_what_was_written_wherever_it_lies(tmp_path: Path, padding: int) -> None:
    tables = open_toy(write_toy_model(tmp_path / "1", padding=padding))
    for name, expected in toy_tables().items():
        assert np.array_equal(tables[name].weights, expected)
        assert tables[name].weights.flags.aligned == (padding % 4 == 0)


@pytest.mark.parametrize("padding", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_float32_whatever_the_table_is_stored_as(tmp_path: Path, dtype: str, padding: int) -> None:
    tables = open_toy(write_toy_model(tmp_path / "1", scale=3, padding=padding, dtype=dtype))
    for name, expected in toy_tables_as(dtype, 3).items():
        rows = tables[name].rows(np.array([3, 0, 3, 1]))
        assert rows.dtype == np.float32
        assert np.array_equal(rows, expected[[3, 0, 3, 1]])
        info, itemsize = tables[name].info, {"float32": 4, "int8": 1, "int4": 0.5}.get(dtype, 2)
        assert (info.dtype, info.embedding_dim) == (dtype, expected.shape[1])
        # An int4 row of an odd dimension ends with a byte of which half is unused.
        row_bytes = math.ceil(itemsize * expected.shape[1])
        scale_bytes = 4 if dtype in ("int8", "int4") else 0
        assert info.nbytes == (row_bytes + scale_bytes) * len(expected)
        assert tables[name].row_bytes == row_bytes + scale_bytes


SCALE_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no scale": (
        lambda table: table.pop("scale"),
        r"tables\.tag is int8; int8 and int4 tables have a scale, and no other",
    ),
    "a scale of float16": (
        lambda table: table.update(dtype="float16"),
        r"tables\.tag is float16; int8 and int4 tables have a",
    ),
    "another variable": (
        lambda table: table["scale"].update(variable="scales/x"),
        r"scale of table 'tag': variable 'scales/x' is not in variables/variables\.index",
    ),
    "another offset": (
        lambda table: table["scale"].update(offset=1),
        r"scale of table 'tag': offset is \d+ in the index and 1 in the manifest",
    ),
    "of another length": (
        lambda table: table["scale"].update(variable=variable_name("user", "scales")),
        r"scale of table 'tag': shape is \(5,\) in the index and \(4,\) in the manifest",
    ),
    "of another kind": (
        lambda table: table["scale"].update(variable=variable_name("tag")),
        r"scale of table 'tag': shape is \(4, 3\) in the index",
    ),
    "a field that nobody knows": (
        lambda table: table["scale"].update(zero_point=3),
        r"unknown fields \['zero_point'\]",
    ),
    "outside": (lambda table: table["scale"].update(file="../x"), r"'../x' lies outside the artifact"),
}


@pytest.mark.parametrize(("edit", "message"), SCALE_FAULTS.values(), ids=SCALE_FAULTS.keys())
def test_a_scale_that_does_not_fit_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    artifact = write_toy_model(
        tmp_path / "1", dtype="int8", edit_manifest=lambda data: edit(data["tables"]["tag"]) and None
    )
    with pytest.raises(ArtifactError, match=message):
        open_toy(artifact)


def test_a_table_is_a_view_of_the_file_and_can_not_be_written(toy_model: Path) -> None:
    weights = open_toy(toy_model / "1")["tag"].weights
    root: Any = weights
    while isinstance(root, np.ndarray):
        root = root.base
    assert isinstance(root, memoryview) and root.readonly and len(root) > weights.nbytes
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1


def test_tables_of_one_file_share_one_map(toy_model: Path) -> None:
    tables = open_toy(toy_model / "1")
    starts = {name: table.weights.__array_interface__["data"][0] for name, table in tables.items()}
    assert starts["user"] - starts["tag"] == toy_tables()["tag"].nbytes


def test_tells_what_it_is(toy_model: Path) -> None:
    info = open_toy(toy_model / "1")["tag"].info
    assert (info.vocabulary_size, info.embedding_dim, info.dtype, info.nbytes) == (4, 3, "float32", 48)
    assert info.features == ("tags", "tags_sqrtn", "tags_sum")


def test_rows_come_as_stored(toy_model: Path) -> None:
    table = open_toy(toy_model / "1")["tag"]
    assert table.rows(np.array([3, 0, 3])).tolist() == [[3, 9, 1], [0, 0, 1], [3, 9, 1]]
    assert table.rows(np.array([3, 9, 1])[::2] % 3).tolist() == [[0, 0, 1], [1, 1, 1]], "strided ids"
    assert table.rows(np.empty(0, np.int64)).shape == (0, 3)


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63), 2**63 - 1])
def test_a_row_outside_the_table_is_refused(toy_model: Path, bad: int) -> None:
    with pytest.raises(IdOutOfRange, match=rf'^input "ids": id {bad} at position 1 is out of range, .* ids 0 to 3\.$'):
        open_toy(toy_model / "1")["tag"].rows(np.array([0, bad]))


def test_the_map_outlives_the_folder(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    table = open_toy(artifact)["tag"]
    (artifact / SHARD).unlink()
    assert table.rows(np.array([2])).tolist() == [[2, 4, 1]]


def tag_entry(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Returns an edit that sets fields of table "tag" in the manifest."""
    return lambda data: data["tables"]["tag"].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (tag_entry(variable="x"), "table 'tag': variable 'x' is not in variables/variables.index"),
        (tag_entry(vocabulary_size=3), r"table 'tag': shape is \(4, 3\) in the index and \(3, 3\) in the manifest"),
        (tag_entry(embedding_dim=4), r"table 'tag': shape is \(4, 3\) in the index and \(4, 4\) in the manifest"),
        (tag_entry(dtype="float16"), "table 'tag': dtype is float32 in the index and float16 in the manifest"),
        (tag_entry(file="variables/other"), "variables/other is not named as a data file of a checkpoint"),
        (tag_entry(file="variables/variables.data-00001-of-00002"), "table 'tag': file is .* in the manifest"),
        (tag_entry(file="assets/x.data-00000-of-00001"), r"cannot read .*assets/x\.index: No such file"),
        (tag_entry(offset=4), "table 'tag': offset is 3 in the index and 4 in the manifest"),
        (tag_entry(nbytes=44), "table 'tag': nbytes is 48 in the index and 44 in the manifest"),
        (tag_entry(crc32c=7), r"table 'tag': crc32c is \d+ in the index and 7 in the manifest"),
        (lambda data: data["files"].update({"assets/more": 1}), "file 'assets/more' of .* can not be read: .*No such"),
        (lambda data: data["files"].update({"nul\0": 1}), "file .*nul.* lies outside the artifact"),
        (lambda data: data["files"].update({"\ud800": 1}), "can not be read"),
        (lambda data: data["files"].update({"saved_model.pb": 1}), r"saved_model.pb of .* has \d+ bytes, .* says 1$"),
    ],
)
def test_each_disagreement_is_named(tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_toy(write_toy_model(tmp_path / "1", edit_manifest=edit))


@pytest.mark.parametrize("kept", [0, 3, 10, 90])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_half_copied_file_is_refused(tmp_path: Path, kept: int, is_listed: bool) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=None if is_listed else lambda data: data.pop("files"))
    shard = artifact / SHARD
    assert shard.stat().st_size == 91
    shard.write_bytes(shard.read_bytes()[:kept])
    message = rf"has {kept} bytes" if is_listed else r"ends at byte \d+, its file has|cannot map"
    with pytest.raises(ArtifactError, match=message):
        open_toy(artifact)


@pytest.mark.parametrize("name", [INDEX, SHARD])
def test_a_missing_file_is_refused(tmp_path: Path, name: Path) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=r"No such file"):
        open_toy(artifact)


def test_only_numbers_that_the_kernels_read_are_mapped(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    entries = write_bundle(artifact / "variables" / "variables", {variable_name("tag"): np.ones((4, 3), np.int64)})

    def edit(data: dict[str, Any]) -> None:
        del data["files"], data["tables"]["user"], data["features"]["user"]
        for signature in data["signatures"].values():
            del signature["features"]["user"]
        data["tables"]["tag"].update(dtype="int64", **entries[variable_name("tag")])

    write_toy_model(tmp_path / "2", edit_manifest=edit)
    (tmp_path / "2" / INDEX).write_bytes((artifact / INDEX).read_bytes())
    with pytest.raises(ArtifactError, match=f"table 'tag' is int64; only {', '.join(TABLE_DTYPES)} can be mapped"):
        open_toy(tmp_path / "2")


def test_a_sliced_table_is_refused(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    names = sorted(variable_name(name).encode() for name in toy_tables())
    # The variables have no dimension, so the only slice of each is the whole variable.
    slices = [(slice_key(name.decode(), ()), proto_field(1, 1)) for name in names]
    whole = [(name, proto_field(1, 1) + proto_field(7, b"")) for name in names]
    (artifact / INDEX).write_bytes(table_of((b"", proto_field(1, 1)), *slices, *whole))
    with pytest.raises(ArtifactError, match="is saved in 1 slices; only a whole one can be mapped"):
        open_toy(artifact)


def test_an_artifact_without_tables_opens_nothing(tmp_path: Path) -> None:
    assert open_tables(tmp_path, Manifest({}, {}, {})) == {}


def test_tables_lie_in_any_data_file_with_an_index_beside_it(tmp_path: Path) -> None:
    artifact = write_policy_model(tmp_path / "1")
    tables = open_toy(artifact)
    for name, expected in policy_tables().items():
        assert np.array_equal(tables[name].weights, expected)
    (artifact / "assets.extra" / "tables.index").unlink()
    with pytest.raises(ArtifactError, match=r"file 'assets\.extra/tables\.index' of .* can not be read"):
        open_toy(artifact)


def test_a_variable_is_looked_for_in_the_index_of_its_own_file(tmp_path: Path) -> None:
    artifact = write_policy_model(tmp_path / "1")
    rewrite_manifest(artifact, lambda data: data["tables"]["item"].update(variable=variable_name("tag")))
    with pytest.raises(
        ArtifactError, match=r"table 'item': variable 'tables/tag/.*' is not in assets\.extra/tables\.index"
    ):
        open_toy(artifact)


def test_rows_beyond_two_to_the_31st_number_are_found(tmp_path: Path) -> None:
    # A sparse file: the table has 10 GB, of which only the last row takes space on disk.
    vocabulary_size, dim = 40_000_000, 64
    file = tmp_path / "variables.data-00000-of-00001"
    last = np.arange(dim, dtype=np.float32)
    with file.open("wb") as handle:
        handle.truncate(3 + vocabulary_size * dim * 4)
        handle.seek(3 + (vocabulary_size - 1) * dim * 4)
        handle.write(last.tobytes())
    weights = np.memmap(file, "<f4", "r", 3, (vocabulary_size, dim))
    info = TableInfo("t", vocabulary_size, dim, "float32", weights.nbytes, ())
    table = MappedTable(info, weights)
    assert table.rows(np.array([vocabulary_size - 1, 0])).tolist() == [last.tolist(), [0] * dim]
    feature = LookupFeature("ids", "splits", combiner="sum")
    inputs = {"ids": np.array([vocabulary_size - 1] * 2), "splits": np.array([0, 2])}
    specs = {name: TensorSpec(name, "int64", (None,)) for name in inputs}
    assert np.array_equal(lookup_of(feature, table, specs)(inputs), 2 * last[None])


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_rows_are_read_alike_with_and_without_the_core(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(3).normal(size=(9, 5)).astype(np.float32)
    if dtype == "float64":
        table = MappedTable(TableInfo("t", 9, 5, dtype, 360, ()), numbers.astype(np.float64) + 1e-9)
    else:
        table = store(numbers, dtype).mapped
    ids = np.array([8, 0, 3, 3])
    found = table.rows(ids)
    monkeypatch.setattr("service.tables.table.NATIVE_TABLES", None)
    assert table.rows(ids).tobytes() == found.tobytes()
    assert table.rows(ids[:0]).shape == (0, 5)
    for wrong in (-1, 9):
        with pytest.raises(IdOutOfRange, match=f"id {wrong} at position 1"):
            table.rows(np.array([0, wrong]))
