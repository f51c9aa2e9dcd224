"""The core's key indexes find what a dict finds, its checksums are numpy's, and wrong arguments are refused."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact import dict_vocabulary
from service.artifact.hashes import numpy_crc32c
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ServiceError
from service.tables.vocabulary import open_vocabularies
from service.types import Array, Vocabulary
from tests.stored_tables import DTYPES, store

NATIVE = pytest.importorskip("service._native", reason="the native core is not built").tables


@pytest.mark.parametrize("length", [*range(20), 1023, 1024, 1025, 5000])
def test_crc32c(length: int) -> None:
    octets = np.random.default_rng(length).integers(0, 256, length + 1, np.uint8)[1:]
    for before in (0, 1, 0xFFFFFFFF):
        assert NATIVE.crc32c(octets, before) == numpy_crc32c(octets, before)


def opened(open_all: Callable[[Path, Manifest], Any], folder: Path, entry: VocabularyEntry) -> Vocabulary | None:
    """Returns the vocabulary in a folder; None if its file is refused."""
    try:
        found: Vocabulary = open_all(folder, Manifest({}, {}, {}, {"v": entry}))["v"]
    except ServiceError:
        return None
    return found


def assert_same(folder: Path, rng: np.random.Generator, data: bytes, sent: Array, **fields: Any) -> bool:
    """Opens a file's keys in the core and in a dict, and compares what both find; returns whether both were opened."""
    (folder / "v.txt").write_bytes(data)
    size = len(data.removesuffix(b"\n").split(b"\n")) if data else 0
    first_id, buckets, oov = int(rng.integers(0, 5)), int(rng.choice([0, 1, 7, 1000])), int(rng.integers(-1, 3))
    entry = VocabularyEntry(
        "v.txt",
        size,
        first_id,
        num_oov_buckets=buckets,
        oov_id=None if oov < 0 or buckets else oov,
        on_oov="drop",
        **fields,
    )
    core, plain = (opened(one, folder, entry) for one in (open_vocabularies, dict_vocabulary.open_vocabularies))
    assert (core is None) == (plain is None)
    if core is None or plain is None:
        return False
    np.testing.assert_array_equal(core.ids_of(sent, "x"), plain.ids_of(sent, "x"))
    rows = range(first_id - 1, first_id + size + 1)
    assert [core.key_of(row) for row in rows] == [plain.key_of(row) for row in rows]
    return True


def test_strings(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    num_opened = 0
    for _ in range(200):
        words = [rng.bytes(rng.integers(0, 6)).hex().encode() * int(rng.integers(1, 9)) for _ in range(60)]
        # In four of five cases no key occurs twice.
        known = list(dict.fromkeys(words[:30])) if rng.random() < 0.8 else words[:30]
        text = b"".join(word + [b"\n", b"\r\n"][rng.integers(0, 2)] for word in known)
        sent = [words[i] for i in rng.integers(0, 60, rng.integers(0, 50))]
        empty_id = int(rng.integers(-1, 3))
        num_opened += assert_same(
            tmp_path,
            rng,
            text[: len(text) - int(rng.integers(0, 2))],
            np.array([*sent, None], object)[:-1],
            empty_key_id=None if empty_id < 0 else empty_id,
        )
    assert num_opened > 100


def test_integers(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    num_opened = 0
    for _ in range(200):
        pool = np.concatenate([rng.integers(-50, 50, 30), rng.integers(-(2**63), 2**63 - 1, 30)])
        lines = [str(key) for key in dict.fromkeys(pool[rng.permutation(60)[:30]].tolist())]
        if rng.random() < 0.3:
            lines[rng.integers(0, len(lines))] = str(rng.choice(["", "-", "+1", "1x", "00", str(2**63), str(-(2**63))]))
        sent = pool[rng.integers(0, 60, rng.integers(0, 50))]
        num_opened += assert_same(tmp_path, rng, "\n".join(lines).encode(), sent, key_dtype="int64")
    assert num_opened > 100


def test_slots_that_would_never_end_a_search_are_refused() -> None:
    for size in (0, 2, 3):
        with pytest.raises(ValueError, match="slots"):
            NATIVE.index_integers(np.arange(2), np.full(size, -1, np.int32))


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
            (0, 4096, 0, 5, 2, np.zeros(1, np.int64), np.empty((1, 2), np.float32)),
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
def test_rows_that_the_arrays_do_not_hold_are_refused(dtype: str) -> None:
    place = store(np.ones((4, 3), np.float32), dtype).place
    arguments = np.full(1, 3), np.empty((1, 3), np.float32)
    NATIVE.gather(*place, *arguments)
    with pytest.raises(ValueError, match="not in the table"):
        NATIVE.gather(*place, np.full(1, 4), arguments[1])
    for wrong in ((arguments[0][:0], arguments[1]), (arguments[0], np.empty((1, 2), np.float32))):
        with pytest.raises(ValueError, match="fewer ids than rows"):
            NATIVE.gather(*place, *wrong)
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
