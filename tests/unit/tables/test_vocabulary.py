"""Vocabularies and page tables."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange
from service.tables import huge_pages
from service.tables.guarded_files import pages_in_memory
from service.tables.huge_pages import PageTable, huge_bytes
from service.tables.vocabulary import OpenedVocabulary, open_vocabularies
from service.types import Vocabulary
from tests.large_folios import HUGE, LIBC, drop, need_large_folios, smaps_bytes, write_in_pieces

TEXTS = [b"red", b"green", b"blue"]
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder for vocabularies; mapped files must not change, so tests write each under a name of its own."""
    return tmp_path_factory.mktemp("vocabulary")


def open_one(folder: Path, data: bytes, *, size: int = 3, **fields: Any) -> OpenedVocabulary:
    """Writes a vocabulary file and opens it; returns the opened vocabulary."""
    path = folder / f"{len(list(folder.iterdir()))}v.txt"
    path.write_bytes(data)
    entry = VocabularyEntry(path.name, size, **fields)
    return open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]


def lines(keys: Iterable[object]) -> bytes:
    """Returns the bytes of a vocabulary file with these keys."""
    return "".join(f"{key}\n" for key in keys).encode()


def ids_of(vocabulary: Vocabulary, *keys: Any) -> list[int]:
    """Returns the rows to which a vocabulary maps keys."""
    dtype = object if vocabulary.key_dtype == "string" else np.int64
    found: list[int] = vocabulary.ids_of(np.array(keys, dtype), "x").tolist()
    return found


@pytest.mark.parametrize("data", [b"red\ngreen\nblue\n", b"red\ngreen\nblue", b"red\r\ngreen\r\nblue\r\n"])
def test_line_i_is_row_first_id_plus_i(tmp_path: Path, data: bytes) -> None:
    vocabulary = open_one(tmp_path, data, first_id=1)
    assert vocabulary.ids_of(np.array(TEXTS, object), "x").tolist() == [1, 2, 3]


def test_a_row_has_the_key_of_its_line_and_other_rows_have_none(tmp_path: Path) -> None:
    strings = open_one(tmp_path, b"red\r\ngreen\r\nblue", first_id=1, oov_id=0)
    assert [strings.key_of(row) for row in (-1, 0, 1, 2, 3, 4)] == [None, None, *TEXTS, None]
    integers = open_one(tmp_path, b"7\n-9\n11\n", first_id=2, key_dtype="int64")
    assert [integers.key_of(row) for row in (1, 2, 3, 4, 5)] == [None, 7, -9, 11, None]


@pytest.mark.parametrize(
    "strings", [np.array([b"red", b"x"], object), np.array(["red", "x"]), np.array([b"red", b"x"])]
)
def test_a_stranger_gets_the_oov_row(tmp_path: Path, strings: np.ndarray) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n", first_id=1, oov_id=0)
    ids = vocabulary.ids_of(strings, "x")
    assert (ids.tolist(), ids.dtype) == ([1, 0], np.int64)


def test_a_stranger_without_an_oov_row_is_named_with_its_place(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n")
    with pytest.raises(
        IdOutOfRange, match="^input \"color\": 'r\ufffdd' at position 1 is not in its vocabulary of 3 str"
    ):
        vocabulary.ids_of(np.array([b"red", b"r\xffd"], object), "color")


def test_any_shape_keeps_its_shape(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n")
    assert vocabulary.ids_of(np.array([[b"red"], [b"blue"]], object), "x").tolist() == [[0], [2]]
    assert vocabulary.ids_of(np.empty(0, object), "x").tolist() == []


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, "a b\u2028c\n\nx\x0by\n".encode())
    assert vocabulary.ids_of(np.array(["a b\u2028c", "", "x\x0by"], object), "x").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"v\.txt has 0 lines, its manifest says 3"),
        (b"red\n", r"v\.txt has 1 lines, its manifest says 3"),
        (b"red\ngreen\nblue\n\n", r"v\.txt has 4 lines, its manifest says 3"),
        (b"red\ngreen\nred\n", r"v\.txt holds 'red' twice"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_one(tmp_path, data)


@pytest.mark.parametrize("name", ["missing.txt", "nul\0", "\ud800"])
def test_a_file_that_can_not_be_read_is_an_artifact_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="cannot read vocabulary"):
        open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": VocabularyEntry(name, 1)}))


def test_a_vocabulary_of_no_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has 0 lines"):
        open_one(tmp_path, b"", size=0)


def test_a_stranger_is_minus_one_where_it_is_to_be_dropped(tmp_path: Path) -> None:
    assert ids_of(open_one(tmp_path, b"red\ngreen\nblue\n", on_oov="drop"), b"x", b"blue", "grün") == [-1, 2, -1]
    assert ids_of(open_one(tmp_path, b"1\n2\n3\n", on_oov="drop", key_dtype="int64"), 0, 3, -3) == [-1, 2, -1]


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), unique=True, min_size=1),
    st.data(),
)
def test_strings_are_found_and_no_others(scratch: Path, keys: list[str], data: st.DataObject) -> None:
    vocabulary = open_one(scratch, lines(keys), size=len(keys), first_id=7, on_oov="drop")
    rows = {key: 7 + i for i, key in enumerate(keys)}
    sent = data.draw(st.lists(st.sampled_from(keys) | st.text(max_size=3)))
    assert ids_of(vocabulary, *(key.encode() for key in sent)) == [rows.get(key, -1) for key in sent]
    assert vocabulary.example_key == keys[0].encode()


@given(st.lists(INT64 | st.integers(-5, 5), unique=True, min_size=1), st.data())
def test_integers_are_found_and_no_others(scratch: Path, keys: list[int], data: st.DataObject) -> None:
    vocabulary = open_one(scratch, lines(keys), size=len(keys), first_id=7, on_oov="drop", key_dtype="int64")
    rows = {key: 7 + i for i, key in enumerate(keys)}
    sent = data.draw(st.lists(st.sampled_from(keys) | INT64 | st.integers(-5, 5)))
    assert ids_of(vocabulary, *sent) == [rows.get(key, -1) for key in sent]
    assert vocabulary.example_key == keys[0]


def test_a_large_vocabulary_is_found_whole(tmp_path: Path) -> None:
    keys = range(-50_000, 50_000)
    strings = open_one(tmp_path, lines(keys), size=len(keys))
    integers = open_one(tmp_path, lines(keys), size=len(keys), key_dtype="int64")
    assert strings.ids_of(np.array([str(key).encode() for key in keys], object), "x").tolist() == list(range(100_000))
    assert integers.ids_of(np.array(keys, np.int64), "x").tolist() == list(range(100_000))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_of_both_widths_strided_and_of_any_shape(tmp_path: Path, dtype: str) -> None:
    vocabulary = open_one(tmp_path, b"100\n-5\n7\n", key_dtype="int64")
    keys = np.array([[100, 0, 7, 0], [-5, 0, 100, 0]], dtype)[:, ::2]
    assert vocabulary.ids_of(keys, "x").tolist() == [[0, 2], [1, 0]]
    assert vocabulary.ids_of(np.empty(0, dtype), "x").tolist() == []


def test_an_integer_stranger_is_named_with_its_place(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, b"100\n-5\n7\n", key_dtype="int64")
    message = '^input "code": -7 at position 2 is not in its vocabulary of 3 integers.$'
    with pytest.raises(IdOutOfRange, match=message):
        vocabulary.ids_of(np.array([7, 100, -7, 8]), "code")


def test_integers_are_what_their_lines_say(tmp_path: Path) -> None:
    data = b"9223372036854775807\r\n-9223372036854775808\n007\n0"
    vocabulary = open_one(tmp_path, data, size=4, key_dtype="int64")
    assert ids_of(vocabulary, 2**63 - 1, -(2**63), 7, 0) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("", "''"),
        ("-", "'-'"),
        ("x", "'x'"),
        (" 1", "' 1'"),
        ("+1", "'\\+1'"),
        ("1.0", "'1.0'"),
        ("1-", "'1-'"),
        ("9223372036854775808", "'9223372036854775808'"),
        ("-9223372036854775809", "'-9223372036854775809'"),
        ("99999999999999999999999", "'99999999999999999999999'"),
    ],
)
def test_a_line_that_is_no_int64_is_named(tmp_path: Path, line: str, shown: str) -> None:
    with pytest.raises(ArtifactError, match=rf"v\.txt: line 2 is {shown}, expected an int64"):
        open_one(tmp_path, f"1\n{line}\n2\n".encode(), key_dtype="int64")


def test_an_integer_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"v\.txt holds '007' twice"):
        open_one(tmp_path, b"7\n1\n007\n", key_dtype="int64")


# A key outside the vocabulary gets bucket tf.strings.to_hash_bucket_fast(key, number of buckets); an integer is first
# made a string.
def test_strangers_go_to_buckets_behind_the_keys(tmp_path: Path) -> None:
    strings = open_one(tmp_path, b"red\ngreen\nblue\n", first_id=10, num_oov_buckets=3)
    assert ids_of(strings, b"blue", b"purple", b"teal", b"lime", "日本".encode(), b"") == [12, 13, 14, 15, 15, 15]
    integers = open_one(tmp_path, b"100\n-5\n7\n", first_id=10, num_oov_buckets=2, key_dtype="int64")
    assert ids_of(integers, 7, -40, -2, 2**63 - 1, -(2**63), 0) == [12, 13, 14, 14, 13, 14]


@pytest.mark.parametrize("options", [{"oov_id": 0}, {"num_oov_buckets": 5}, {"on_oov": "drop"}])
def test_only_keys_of_the_file_have_rows_of_their_own(tmp_path: Path, options: dict[str, Any]) -> None:
    strings = open_one(tmp_path, b"red\n\nblue\n", first_id=1, empty_key_id=0, **options)
    asked = np.array([b"x", b"blue", b""], object)
    assert strings.known_ids(asked).tolist() == [-1, 3, 0]
    assert strings.rows_of(asked).tolist() == [-1, 3, 2]
    assert strings.keys_at(np.array(strings.lines)).tolist() == [b"red", b"", b"blue"]
    integers = open_one(tmp_path, b"1\n2\n3\n", first_id=1, key_dtype="int64", **options)
    assert integers.known_ids(np.array([0, 2])).tolist() == integers.rows_of(np.array([0, 2])).tolist() == [-1, 2]
    assert integers.keys_at(np.array(integers.lines)).tolist() == [1, 2, 3]


PAGE = mmap.PAGESIZE


def mapped(path: Path) -> np.ndarray:
    """Returns a file's octets."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def test_huge_pages_are_told_from_small_ones(tmp_path: Path) -> None:
    need_large_folios(tmp_path)
    write_in_pieces(tmp_path / "file", 8 * HUGE)
    drop(tmp_path / "file")
    octets = mapped(tmp_path / "file")
    assert huge_bytes(octets) == 0
    # Every other stretch of 2 MiB becomes a huge page, so the ranges of huge pages do not touch.
    LIBC.madvise(octets.ctypes.data, octets.nbytes, 14)
    for begin in range(0, 8 * HUGE, 2 * HUGE):
        LIBC.madvise(octets.ctypes.data + begin, HUGE, 22)
    told = smaps_bytes(octets, "FilePmdMapped")
    assert huge_bytes(octets) == told
    if told < 4 * HUGE:
        pytest.skip("other programs have taken the free huge pages since they were counted")
    # A slice that begins and ends inside a huge page: its two pages count as parts of it.
    assert huge_bytes(octets[PAGE + 1 : 2 * PAGE + 1]) == 2 * PAGE


def test_more_ranges_than_one_call_tells_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_NUM_RANGES", 1)
    test_huge_pages_are_told_from_small_ones(tmp_path)


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    # No kernel knows this ioctl number, so it stands for a kernel before Linux 6.7, which lacks PAGEMAP_SCAN.
    monkeypatch.setattr(huge_pages, "_PAGEMAP_SCAN", 3 << 30 | 96 << 16 | ord("f") << 8 | 99)
    assert huge_bytes(np.zeros(PAGE, np.uint8)) is None
    with PageTable() as table, pytest.raises(OSError):
        table.huge_bytes(0, PAGE)


def test_pages_in_memory_are_those_that_were_read(tmp_path: Path) -> None:
    write_in_pieces(tmp_path / "file", 64 * PAGE + 1)
    assert pages_in_memory((octets := mapped(tmp_path / "file")).ctypes.data, octets.nbytes).tolist() == [True] * 65
    del octets
    drop(tmp_path / "file")
    octets = mapped(tmp_path / "file")
    if pages_in_memory(octets.ctypes.data, octets.nbytes).any():
        pytest.skip("this file system keeps pages that it was told to drop")
    LIBC.madvise(octets.ctypes.data, octets.nbytes, mmap.MADV_RANDOM)
    int(octets[7 * PAGE])
    assert np.flatnonzero(pages_in_memory(octets.ctypes.data, octets.nbytes)).tolist() == [7]


def test_a_kernel_that_does_not_tell_what_is_in_memory_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages.LIBC, "mincore", lambda *_: -1)
    assert pages_in_memory(0, 3 * PAGE).all()
