"""The native kernels and indexes agree with those in numpy and Python, bit for bit; and the native guard of maps."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from service.artifact.crc32c import numpy_crc32c
from service.tables import dict_index, kernels, key_index, numpy_kernels
from service.tables.fingerprint import fingerprint64
from tests.stored_tables import DTYPES, StoredTable, store, unaligned

NATIVE = pytest.importorskip("service._native", reason="the native core is not built").tables

CASES = 400
DIMS = (1, 2, 3, 7, 8, 9, 16, 31, 32, 40, 41, 64, 73, 96, 105, 128, 135, 200)
COMBINERS = (kernels.SUM, kernels.MEAN, kernels.SQRTN)
ORDERS = (kernels.IN_ORDER, kernels.BLOCKS_OF_8, kernels.FOUR_LANES, kernels.SEGMENT_MEAN)
POLICIES = range(6)


def drawn_table(rng: np.random.Generator, dtype: str) -> StoredTable:
    numbers = rng.normal(size=(rng.integers(1, 40), rng.choice(DIMS))) * np.exp(rng.normal(size=1) * 4)
    # A row of int8 or int4 needs finite numbers for its scale. A fifth of the other tables get infinities, NaN and
    # -0.0.
    if dtype not in ("int8", "int4") and rng.random() < 0.2:
        numbers[rng.random(numbers.shape) < 0.05] = rng.choice([np.inf, -np.inf, np.nan, -0.0, 1e-41])
    with np.errstate(over="ignore"):
        return store(numbers.astype(np.float32), dtype, offset=int(rng.integers(0, 5)))


def drawn_ids(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    ids = rng.integers(0, size, count)
    if rng.random() < 0.5:
        bad = rng.random(count) < 0.1
        ids[bad] = rng.choice([-1, -size, -size - 1, size, 2**63 - 1, -(2**63)], int(bad.sum()))
    return unaligned(ids, int(rng.integers(0, 8)))


def drawn_splits(rng: np.random.Generator, longest: int) -> np.ndarray:
    lengths = rng.integers(0, longest, rng.integers(0, 8))
    return unaligned(np.cumsum([rng.integers(0, 3), *lengths], dtype=np.int64), int(rng.integers(0, 8)))


def drawn_policy(rng: np.random.Generator, table: StoredTable) -> tuple[int, int]:
    return int(rng.choice(POLICIES)), int(rng.integers(0, len(table.numbers)))


def assert_same(name: str, arguments: tuple[Any, ...], shape: tuple[int, ...], dtype: type, module: ModuleType) -> int:
    """Calls a function of both modules, which writes into its last argument, and compares them; returns its result."""
    ours, theirs = np.full(shape, 7, dtype), np.full(shape, 7, dtype)
    found = getattr(NATIVE, name)(*arguments, ours)
    expected = getattr(module, name)(*arguments, theirs)
    assert found == expected
    if module is not numpy_kernels or not kernels.MISSING < expected != kernels.OK:
        np.testing.assert_array_equal(bits(ours), bits(theirs))
    return int(found)


def bits(array: np.ndarray) -> np.ndarray:
    """Returns the bits of float32 numbers, with the same bits for every NaN; other arrays as they are."""
    if array.dtype == np.float32:
        return np.where(np.isnan(array), np.int32(-1), array.view(np.int32))
    return array


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(CASES):
        table = drawn_table(rng, dtype)
        rows, behind = int(rng.integers(0, 60)), int(rng.integers(0, 20))
        ids = drawn_ids(rng, len(table.numbers), rows + behind)
        shape = rows, table.numbers.shape[1] + int(rng.integers(0, 3))
        assert_same("gather", (*table.place, ids, *drawn_policy(rng, table)), shape, np.float32, numpy_kernels)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_combine(dtype: str, order: int) -> None:
    rng = np.random.default_rng(2)
    stopped = 0
    for _ in range(CASES):
        table = drawn_table(rng, dtype)
        splits = drawn_splits(rng, int(rng.choice([4, 30, 90])))
        count = int(splits[-1]) + int(rng.integers(0, 20))
        weights = np.empty(0, np.float32)
        if rng.random() < 0.5:
            some = rng.normal(1, 1, count).astype(np.float32)
            some[rng.random(count) < 0.1] = rng.choice([0, np.nan, -1, np.inf])
            weights = unaligned(some, int(rng.integers(0, 4)))
        arguments = (
            *(*table.place, drawn_ids(rng, len(table.numbers), count), splits, weights),
            *(bool(rng.random() < 0.3), int(rng.choice(COMBINERS)) + order, bool(rng.random() < 0.3)),
            *(int(rng.choice([0, 0, 1, 3, 20])), bool(rng.random() < 0.7), *drawn_policy(rng, table)),
        )
        shape = len(splits) - 1, table.numbers.shape[1] + int(rng.integers(0, 3))
        stopped += kernels.MISSING < assert_same("combine", arguments, shape, np.float32, numpy_kernels) != kernels.OK
    assert 0 < stopped < CASES // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequence(dtype: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(CASES):
        table, splits = drawn_table(rng, dtype), drawn_splits(rng, 9)
        ids = drawn_ids(rng, len(table.numbers), int(splits[-1]) + int(rng.integers(0, 20)))
        shape = len(splits) - 1, int(rng.integers(1, 12)), table.numbers.shape[1]
        assert_same(
            "sequence", (*table.place, ids, splits, *drawn_policy(rng, table)), shape, np.float32, numpy_kernels
        )


@pytest.mark.slow
def test_a_long_row() -> None:
    rng = np.random.default_rng(4)
    table = store(rng.normal(size=(100, 33)).astype(np.float32))
    ids = rng.integers(0, 100, 100_000)
    for order in ORDERS:
        options = (False, kernels.MEAN + order, False, 0, False, kernels.ERROR, 0)
        arguments = (*table.place, ids, np.array([0, 100_000]), np.empty(0, np.float32), *options)
        assert_same("combine", arguments, (1, 33), np.float32, numpy_kernels)


@pytest.mark.parametrize(
    "change",
    [
        {"row_splits": np.array([0, 3, 2], np.int64)},
        {"row_splits": np.array([0, 1, 9], np.int64)},
        {"row_splits": np.array([-1, 1, 2], np.int64)},
        {"row_splits": np.array([0, 2], np.int64)},
        {"out": np.empty((2, 2), np.float32)},
        {"weights": np.ones(1, np.float32)},
        {"values": np.arange(8, dtype=np.int32)},
        {"values": np.arange(16)[::2]},
        {"default_row": 4, "on_bad_id": kernels.DEFAULT_ROW},
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    table = store(np.ones((4, 3), np.float32))
    arguments = {
        **dict(zip(("dtype", "rows", "scales", "vocabulary_size", "dim"), table.place, strict=True)),
        **{"values": np.arange(4), "row_splits": np.array([0, 1, 4]), "weights": np.empty(0, np.float32)},
        **{"positive_only": False, "combiner": kernels.SUM, "at_least_one": False, "max_ids": 0, "truncates": False},
        **{"on_bad_id": kernels.ERROR, "default_row": 0, "out": np.empty((2, 3), np.float32)},
    }
    assert NATIVE.combine(**arguments) == kernels.OK
    with pytest.raises(ValueError, match=r"expected|fit|few|not in"):
        NATIVE.combine(**{**arguments, **change})


@pytest.mark.parametrize("length", [*range(70), 127, 128, 129, 191, 192, 193, 1000])
def test_fingerprint64(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length + 9, np.uint8)
    assert NATIVE.fingerprint64(data, 5, length) == fingerprint64(data[5 : 5 + length].tobytes())


@pytest.mark.parametrize("length", [*range(20), 1023, 1024, 1025, 5000])
def test_crc32c(length: int) -> None:
    octets = np.random.default_rng(length).integers(0, 256, length + 1, np.uint8)[1:]
    for before in (0, 1, 0xFFFFFFFF):
        assert NATIVE.crc32c(octets, before) == numpy_crc32c(octets, before)


def found_lines(data: np.ndarray) -> np.ndarray:
    """Returns where lines start, after checking that the native core and dict_index find the same lines."""
    count = NATIVE.count_lines(data)
    assert count == dict_index.count_lines(data)
    starts, theirs = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    NATIVE.find_lines(data, starts)
    dict_index.find_lines(data, theirs)
    np.testing.assert_array_equal(starts, theirs)
    for line in range(count):
        assert NATIVE.line_length(data, starts, line) == dict_index.line_length(data, starts, line)
    return starts


def both_indexed(name: str, arguments: tuple[Any, ...], size: int) -> tuple[np.ndarray, dict_index.Index] | None:
    """Returns the native index and the other one; None where both found a key twice."""
    ours, theirs = key_index.native_slots(size), key_index.new_dict(size)
    twice = getattr(NATIVE, name)(*arguments, ours)
    assert twice == getattr(dict_index, name)(*arguments, theirs)
    return (ours, theirs) if twice == key_index.OK else None


def assert_same_rows(name: str, vocabulary: tuple[Any, ...], indexes: Any, sent: tuple[Any, ...], count: int) -> None:
    """Looks keys up in both indexes, and checks that they find the same rows."""
    ours, theirs = np.full(count, 7), np.full(count, 7)
    found = getattr(NATIVE, name)(*vocabulary, indexes[0], *sent, ours)
    assert found == getattr(dict_index, name)(*vocabulary, indexes[1], *sent, theirs)
    np.testing.assert_array_equal(ours, theirs)


def drawn_oov(rng: np.random.Generator) -> tuple[int, int, int, int]:
    first_id, first_bucket = int(rng.integers(0, 5)), int(rng.integers(100, 105))
    return first_id, first_bucket, int(rng.integers(-1, 3)), int(rng.choice([0, 1, 7, 1000]))


def test_strings() -> None:
    rng = np.random.default_rng(5)
    searched = 0
    for _ in range(300):
        words = [rng.bytes(rng.integers(0, 6)).hex().encode() * int(rng.integers(1, 9)) for _ in range(60)]
        # In four of five cases no key occurs twice.
        known = list(dict.fromkeys(words[:30])) if rng.random() < 0.8 else words[:30]
        text = b"".join(word + [b"\n", b"\r\n"][rng.integers(0, 2)] for word in known)
        data = np.frombuffer(text[: len(text) - int(rng.integers(0, 2))], np.uint8)
        starts = found_lines(data)
        indexes = both_indexed("index_strings", (data, starts), len(starts) - 1)
        if indexes is None:
            continue
        searched += 1
        sent = [words[i] for i in rng.integers(0, 60, rng.integers(0, 50))]
        splits = np.cumsum([0, *map(len, sent)], dtype=np.int64)
        keys = np.frombuffer(b"".join(sent), np.uint8)
        empty_id = int(rng.integers(-1, 3))
        asked = keys, splits, empty_id, *drawn_oov(rng)
        assert_same_rows("find_strings", (data, starts), indexes, asked, len(sent))
    assert searched > 100


def test_integers() -> None:
    rng = np.random.default_rng(6)
    searched = 0
    for _ in range(300):
        pool = np.concatenate([rng.integers(-50, 50, 30), rng.integers(-(2**63), 2**63 - 1, 30)])
        lines = [str(key) for key in dict.fromkeys(pool[rng.permutation(60)[:30]].tolist())]
        if rng.random() < 0.3:
            lines[rng.integers(0, len(lines))] = str(rng.choice(["", "-", "+1", "1x", "00", str(2**63), str(-(2**63))]))
        data = np.frombuffer("\n".join(lines).encode(), np.uint8)
        starts = found_lines(data)
        parsed = assert_same("parse_integers", (data, starts), (len(starts) - 1,), np.int64, dict_index)
        if parsed != key_index.OK:
            continue
        keys = np.empty(len(starts) - 1, np.int64)
        dict_index.parse_integers(data, starts, keys)
        indexes = both_indexed("index_integers", (keys,), len(keys))
        if indexes is None:
            continue
        searched += 1
        sent = unaligned(pool[rng.integers(0, 60, rng.integers(0, 50))], int(rng.integers(0, 8)))
        assert_same_rows("find_integers", (keys,), indexes, (sent, *drawn_oov(rng)), sent.size)
    assert searched > 100


def test_slots_that_would_never_end_a_search_are_refused() -> None:
    for size in (0, 2, 3):
        with pytest.raises(ValueError, match="slots"):
            NATIVE.index_integers(np.arange(2), np.full(size, key_index.EMPTY, np.int32))


def test_a_guarded_map_reads_as_zeros_once_its_file_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"\x01" * 3 * mmap.PAGESIZE)
    mark = NATIVE.Mark()
    with path.open("rb") as file:
        mapped = NATIVE.Map(file.fileno(), mark)
    numbers = np.frombuffer(mapped, np.uint8)
    assert (numbers[-1], mark.is_set, mapped.is_guarded, len(mapped)) == (1, False, True, 3 * mmap.PAGESIZE)
    os.truncate(path, mmap.PAGESIZE)
    assert (numbers[-1], mark.is_set) == (0, True)


def test_a_private_map_takes_writes_and_its_file_does_not(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"\x01" * 8)
    with path.open("rb") as file:
        shared, private = (NATIVE.Map(file.fileno(), NATIVE.Mark(), is_private) for is_private in (False, True))
    octets = np.frombuffer(private, np.uint8)
    octets[3] = 7
    assert (bytes(private), bytes(shared), path.read_bytes()) == (b"\1\1\1\7\1\1\1\1", b"\1" * 8, b"\1" * 8)
    assert memoryview(shared).readonly


# Each of these calls once read or wrote memory that it was told the address of.
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("crc32c", (1, 100, 0)),
        ("crc32c", (1, 0)),
        (
            "gather",
            (kernels.FLOAT32, 4096, 0, 5, 2, np.zeros(1, np.int64), kernels.ERROR, 0, np.empty((1, 2), np.float32)),
        ),
        ("Map", (-1, NATIVE.Mark())),
        ("Map", (4096, 4096)),
    ],
)
def test_no_function_takes_an_address(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OSError)):
        getattr(NATIVE, name)(*arguments)
    assert not {"add_guard", "remove_guard"} & set(dir(NATIVE))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_refuses_rows_that_its_arrays_do_not_hold(dtype: str) -> None:
    place = store(np.ones((4, 3), np.float32), dtype).place
    arguments = np.full(1, 3), kernels.ERROR, 0, np.empty((1, 3), np.float32)
    assert NATIVE.gather(*place, *arguments) == kernels.OK
    kind, rows, scales, size, dim = place
    for change in [
        (kind, rows[:-1], scales, size, dim),
        (kind, rows, scales, size + 1, dim),
        (kind, rows, scales, size, 2**61),
    ]:
        with pytest.raises(ValueError, match="do not hold"):
            NATIVE.gather(*change, *arguments)
    if scales.size:
        with pytest.raises(ValueError, match="do not hold"):
            NATIVE.gather(kind, rows, scales[:-1], size, dim, *arguments)
