"""Tables give rows and nearest rows, and are verified."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.bundle import slice_key
from service.artifact.hashes import crc32c, masked
from service.artifact.manifest import LookupFeature, Manifest
from service.errors import ArtifactError, DeadlineExceeded, IdOutOfRange, NotReady, Unimplemented
from service.process.trial import lookup_of
from service.tables.guarded_files import GuardedFiles, Stored, Verifier
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable, open_tables
from service.types import TABLE_DTYPES, Array, TableInfo, TensorSpec
from service.versions.neighbors import METRICS, Metric, RowSearch
from tests.conftest import Clock
from tests.stored_tables import DTYPES, store
from tests.toy_model import (
    INDEX,
    SHARD,
    manifest_of,
    masked_crc32c,
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
    manifest = manifest_of(artifact)
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


MIB = 1 << 20


class Written:
    """A file of two tables that begin at an odd address, because one byte precedes them."""

    def __init__(self, folder: Path, num_bytes: int = 3 * MIB // 2) -> None:
        self.path = folder / "variables.data"
        random = np.random.default_rng(3)
        parts = [random.bytes(num_bytes), random.bytes(1000)]
        self.path.write_bytes(b"x" + b"".join(parts))
        self.stored = []
        begin = 1
        for name, data in zip("ab", parts, strict=True):
            # masked_crc32c() takes seconds for megabytes, so the long table's checksum is computed by the function that
            # test_crc32c.py checks.
            octets = np.frombuffer(data, np.uint8)
            quick = masked(int(crc32c(octets, 0)))
            crc = masked_crc32c(data) if name == "b" else quick
            self.stored.append(Stored(f"table '{name}'", self.path, begin, len(data), crc))
            begin += len(data)
        self.files = GuardedFiles()
        self.octets = np.frombuffer(self.files.map(self.path), np.uint8)

    def flip(self, at: int) -> None:
        """Changes one byte of the file, and restores the file's times, so that they do not show the change."""
        was = os.stat(self.path)
        with self.path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 4]))
        os.utime(self.path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes tables that agree with their checksums."""
    return Written(tmp_path)


def test_tables_that_are_right_are_verified(written: Written) -> None:
    Verifier(0).verify(written.files, written.stored)
    assert (written.files.is_verified, written.files.look()) == (True, "")


@pytest.mark.parametrize("at", [1, MIB, 3 * MIB // 2, 3 * MIB // 2 + 1000])
def test_one_bit_is_enough(written: Written, at: int) -> None:
    written.flip(at)
    Verifier(0).verify(written.files, written.stored)
    assert not written.files.is_verified
    name = "b" if at > 3 * MIB // 2 else "a"
    assert f"table '{name}': bytes" in written.files.look() and "its index says" in written.files.look()


def test_a_byte_that_is_no_tables_may_be_anything(written: Written) -> None:
    written.flip(0)
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified


def test_a_checksum_that_was_left_out_is_none(written: Written) -> None:
    left_out = [Stored(part.what, part.file, part.offset, part.nbytes, 0) for part in written.stored]
    written.flip(5)
    Verifier(0).verify(written.files, left_out)
    assert written.files.look() == ""


def test_a_file_that_ends_early_is_damaged(written: Written) -> None:
    os.truncate(written.path, MIB + 5)
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_damaged
    assert "ends within it" in written.files.look()


def test_the_rate_is_held(written: Written, clock: Clock) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    Verifier(MIB / 4, clock=clock, sleep=sleep).verify(written.files, written.stored)
    # The tables have 1.5 MiB and 1,000 bytes, and are read in chunks of 1/8 MiB.
    assert (sum(slept), max(slept)) == pytest.approx(((3 * MIB // 2 + 1000) * 4 / MIB, 0.5))


def test_no_processor_is_kept_for_long(written: Written) -> None:
    # Each look at this clock comes 0.06 ms after the one before.
    ticks, slept = itertools.count(), list[float]()
    Verifier(0, clock=lambda: next(ticks) * 60e-6, sleep=slept.append).verify(written.files, written.stored)
    # The tables have 14 chunks, with a look after each, and one after each pause.
    assert slept == [50e-6] * 7


def test_reading_leaves_the_page_cache_as_it_was_and_nothing_in_this_process(tmp_path: Path) -> None:
    written = Written(tmp_path, 4 * MIB)
    os.sync()
    descriptor = os.open(written.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    # Another reader has read one page in the third MiB of the file, so it is in the page cache.
    os.pread(descriptor, 1, 2 * MIB + MIB // 2)
    os.close(descriptor)
    before = cached(written.octets)
    if not 0 < before.sum() < before.size // 2:
        pytest.skip("this file system keeps what it was asked to let go of")
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified
    after = cached(written.octets)
    assert (after[before]).all()
    # The chunk of 1 MiB that has the other reader's page stays in the page cache as a whole; no other chunk does.
    (chunk,) = {page * mmap.PAGESIZE // MIB for page in np.flatnonzero(before)}
    assert {page * mmap.PAGESIZE // MIB for page in np.flatnonzero(after)} == {chunk}
    assert resident_kib(written.octets) == 0


def test_reading_fills_the_page_cache_if_the_files_fit_into_memory(tmp_path: Path) -> None:
    written = Written(tmp_path, 4 * MIB)
    os.sync()
    descriptor = os.open(written.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    written.files.is_kept = True
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified and cached(written.octets).all()


def cached(octets: np.ndarray) -> np.ndarray:
    """Returns for each page of a map whether it is in the page cache."""
    pages = np.zeros(-(-octets.size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert libc.mincore(octets.ctypes.data, octets.size, pages.ctypes.data) == 0
    return (pages & 1).astype(bool)


def resident_kib(octets: np.ndarray) -> int:
    """Returns how many KiB of an array's map this process holds in memory."""
    text = Path("/proc/self/smaps").read_text().partition(f"{octets.ctypes.data:x}-")[2]
    return int(text.partition("Rss:")[2].split()[0])


def test_later_means_in_another_thread_and_damage_is_told(written: Written) -> None:
    written.flip(7)
    told = threading.Event()
    verifier = Verifier(0)
    verifier.verify_later(written.files, written.stored, told.set)
    assert told.wait(60)
    assert written.files.is_damaged
    verifier.stop()


def test_what_is_right_tells_nobody(written: Written) -> None:
    verified = threading.Event()
    verifier = Verifier(0)
    files = GuardedFiles()
    verifier.verify_later(written.files, written.stored, verified.set)
    # Verifications run one after another, so when the second one ends, the first one has ended.
    files.damaged("something")
    last = threading.Event()
    verifier.verify_later(files, [], last.set)
    assert last.wait(60)
    assert written.files.is_verified and not verified.is_set()
    assert not written.files.is_verification_due
    verifier.stop()


def test_an_idle_thread_keeps_nothing_of_the_files_that_it_verified() -> None:
    verifier, files, freed = Verifier(0), GuardedFiles(), threading.Event()
    weakref.finalize(files, freed.set)
    verifier.verify_later(files, [], lambda: None)
    del files
    assert freed.wait(60)
    verifier.stop()


def test_what_could_not_be_verified_stays_due(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    verifier = Verifier(0)
    unknown = [Stored("table 'c'", written.path.with_name("elsewhere"), 0, 1, 1)]
    verifier.verify_later(written.files, unknown, lambda: None)
    another = GuardedFiles()
    another.damaged("something")
    last = threading.Event()
    verifier.verify_later(another, [], last.set)
    assert last.wait(60)
    assert (written.files.is_verification_due, written.files.is_verified) == (True, False)
    assert [record.message for record in caplog.records] == ["tables could not be verified"]
    verifier.stop()


def test_it_ends_with_the_version_and_with_the_server(written: Written) -> None:
    verifier = Verifier(0)
    verifier.stop()
    with pytest.raises(NotReady):
        verifier.verify(written.files, written.stored)
    another = Written(written.path.parent)
    another.files.is_closed = True
    with pytest.raises(NotReady):
        Verifier(0).verify(another.files, another.stored)


NATIVE = pytest.importorskip("service._native", reason="the native core is not built").tables
NONE = np.empty(0, np.int64)


def search(queries: Any, k: int, metric: Metric = "dot", **more: Any) -> RowSearch:
    """Returns a RowSearch of all rows of a table, on one thread."""
    vectors = np.asarray(queries, np.float32)
    defaults: dict[str, Any] = {"own": np.full(len(vectors), -1), "allowed": None, "denied": NONE, "seconds": 20.0}
    return RowSearch(**{"queries": vectors, "k": k, "metric": metric, "threads": 1} | defaults | more)


def table(numbers: Any, dtype: str = "float32") -> MappedTable:
    """Returns a mapped table of these numbers."""
    return store(np.asarray(numbers, np.float32), dtype).mapped


def slow_scores(numbers: Array, queries: Array, metric: Metric) -> Array:
    """Returns [Q, V] scores in float64, by the definitions."""
    rows, vectors = numbers.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        return np.square(rows[None] - vectors[:, None]).sum(axis=2)
    products = vectors @ rows.T
    if metric == "dot":
        return products
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(rows, axis=1)[None]
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 13, 64])
def test_neighbors_are_numpys(metric: Metric, dtype: str, dim: int) -> None:
    random = np.random.default_rng(dim)
    stored = store(random.normal(size=(5000, dim)).astype(np.float32), dtype)
    queries = random.normal(size=(7, dim)).astype(np.float32)
    ids, scores = np.empty((7, 20), np.int64), np.empty((7, 20), np.float32)
    number = METRICS.index(metric)
    own = np.arange(7)
    denied = np.arange(100, 2000)
    assert NATIVE.neighbors(*stored.place, queries, own, number, None, denied, 2, 20.0, ids, scores)
    expected = slow_scores(stored.numbers, queries, metric)
    sign = 1 if metric == "l2" else -1
    for query in range(7):
        allowed = np.setdiff1d(np.arange(5000), [*denied, query])
        best = allowed[np.argsort(sign * expected[query, allowed], kind="stable")][:20]
        # Scores are compared, not rows: two rows whose float32 scores differ by a rounding may swap.
        np.testing.assert_allclose(scores[query], expected[query, best], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(expected[query, ids[query]], expected[query, best], rtol=1e-4, atol=1e-4)
        assert len(set(ids[query])) == 20 and set(ids[query]) <= set(allowed)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize(
    ("metric", "ids", "scores"),
    [
        # Rows 0 and 3 are equal, so the smaller id precedes the larger one.
        ("dot", [2, 0, 3, 1], [35, 28, 28, 7]),
        ("l2", [0, 3, 2, 1], [10, 10, 45, 52]),
    ],
)
def test_small_integers_by_hand(dtype: str, metric: Metric, ids: list[int], scores: list[float]) -> None:
    rows = np.array([[7, 0], [0, 7], [7, 7], [7, 0]], np.float32)
    if dtype == "float64":
        info = TableInfo("t", 4, 2, "float64", 64, ())
        found = MappedTable(info, rows.astype(np.float64)).nearest(search([[4, 1]], 9, metric))
    else:
        found = table(rows, dtype).nearest(search([[4, 1]], 9, metric))
    assert found.ids.tolist() == [[*ids, -1, -1, -1, -1, -1]]
    np.testing.assert_allclose(found.scores[0, :4], scores, rtol=1e-6)
    assert np.isnan(found.scores[0, 4:]).all()


def test_a_row_is_left_out_of_its_own_neighbors() -> None:
    rows = table([[1, 0], [2, 0], [3, 0]])
    assert rows.nearest(search([[1, 0], [1, 0]], 2, own=np.array([2, -1]))).ids.tolist() == [[1, 0], [2, 1]]


def test_only_allowed_rows_are_neighbors_and_denied_ones_are_not() -> None:
    rows = table([[float(i), 1.0] for i in range(100)])
    allowed = search([[1, 0]], 3, allowed=np.array([3, 5, 90]))
    assert rows.nearest(allowed).ids.tolist() == [[90, 5, 3]]
    denied = search([[1, 0]], 3, denied=np.array([98, 99]))
    assert rows.nearest(denied).ids.tolist() == [[97, 96, 95]]
    nothing = search([[1, 0]], 2, allowed=NONE)
    assert rows.nearest(nothing).ids.tolist() == [[-1, -1]]


@pytest.mark.parametrize("metric", METRICS)
def test_rows_with_nan_are_no_neighbors(metric: Metric) -> None:
    stored = store(np.array([[np.nan, 1], [1, 1], [1, np.nan]], np.float32))
    ids, scores = np.empty((1, 3), np.int64), np.empty((1, 3), np.float32)
    queries, own = np.ones((1, 2), np.float32), np.array([-1])
    number = METRICS.index(metric)
    assert NATIVE.neighbors(*stored.place, queries, own, number, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[1, -1, -1]]


def test_a_row_of_zeros_has_the_cosine_0() -> None:
    stored = store(np.array([[0, 0], [3, 4], [-3, -4]], np.float32))
    ids, scores = np.empty((2, 3), np.int64), np.empty((2, 3), np.float32)
    queries = np.array([[3, 4], [0, 0]], np.float32)
    assert NATIVE.neighbors(*stored.place, queries, np.array([-1, -1]), 1, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[1, 0, 2], [0, 1, 2]]
    np.testing.assert_allclose(scores, [[1, 0, -1], [0, 0, 0]], atol=1e-6)


def test_an_empty_table_has_no_neighbors() -> None:
    ids, scores = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    none = np.empty(0, np.uint8)
    place = (0, none, none, 0, 2)
    queries = np.ones((1, 2), np.float32)
    assert NATIVE.neighbors(*place, queries, np.array([-1]), 0, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[-1, -1]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_scores_are_ordered_by_id_whatever_the_number_of_threads(threads: int) -> None:
    rows = table(np.arange(200_000)[:, None] % 3)
    found = rows.nearest(search([[1], [-1]], 4, own=np.array([5, -1]), denied=np.array([2, 8]), threads=threads))
    assert found.ids.tolist() == [[11, 14, 17, 20], [0, 3, 6, 9]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_search_without_time_is_given_up(dtype: str) -> None:
    info = TableInfo("t", 4, 2, dtype, 64, ())
    with pytest.raises(DeadlineExceeded, match='search in table "t" did not end in time'):
        MappedTable(info, np.ones((4, 2), dtype)).nearest(search([[1, 1]], 1, seconds=0.0))


def test_chunks_of_a_float64_table_are_searched_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.tables.table._CHUNK_ROWS", 7)
    rows = np.random.default_rng(4).integers(-3, 4, (40, 3)).astype(np.float64)
    rows[5] = np.nan
    wide = MappedTable(TableInfo("t", 40, 3, "float64", rows.nbytes, ()), rows)
    queries, own = rows[[0, 8, 39]].astype(np.float32), np.array([0, 8, -1])
    for metric in METRICS:
        for allowed in (None, np.array([1, 6, 7, 8, 20, 39]), NONE):
            asked = search(queries, 9, metric, own=own, allowed=allowed, denied=np.array([2, 6, 30]))
            found, wanted = wide.nearest(asked), table(rows).nearest(asked)
            assert found.ids.tolist() == wanted.ids.tolist()
            np.testing.assert_array_equal(found.scores, wanted.scores)


def test_a_remote_table_can_not_be_searched() -> None:
    remote = object.__new__(RemoteTable)
    remote.info = TableInfo("far", 4, 2, "float32", 32, ())
    with pytest.raises(Unimplemented, match='rows of table "far" lie in a cluster'):
        remote.nearest(search([[1, 1]], 1))


def test_the_kernel_refuses_arrays_that_do_not_fit() -> None:
    stored = store(np.ones((4, 2), np.float32))
    ids, scores = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    queries, own = np.ones((1, 2), np.float32), np.array([-1])
    for arguments in (
        (np.ones((1, 3), np.float32), own, 0, None, NONE, 1, 1.0, ids, scores),
        (queries, np.array([-1, -1]), 0, None, NONE, 1, 1.0, ids, scores),
        (queries, own, 0, np.array([4]), NONE, 1, 1.0, ids, scores),
        (queries, own, 3, None, NONE, 1, 1.0, ids, scores),
        (queries, own, 0, None, NONE, 1, 1.0, ids, np.empty((1, 3), np.float32)),
    ):
        with pytest.raises(ValueError, match=r"do not fit|there is no metric"):
            NATIVE.neighbors(*stored.place, *arguments)
