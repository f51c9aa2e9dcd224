"""Reads files of word2vec and GloVe, which the test writes byte by byte as these tools do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

WORDS = ["the", "naïve", "中文", ", ", "a\xa0b"]
_ROWS = matrix(5, 3) / 4


def text_lines(end: str) -> str:
    """Returns a line per word, as word2vec.c (a blank before the newline) or GloVe (none) ends them."""
    return "".join(
        f"{word} {' '.join(str(float(x)) for x in row)}{end}" for word, row in zip(WORDS, _ROWS, strict=True)
    )


@pytest.mark.parametrize("end", ["\n", " \n"])
@pytest.mark.parametrize("header", ["", "5 3\n"])
def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, end: str) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    (tmp_path / "v.txt").write_text(header + text_lines(end), encoding="utf-8")
    rows, keys = read_all(tmp_path / "v.txt")
    np.testing.assert_array_equal(rows, _ROWS)
    assert keys == [word.strip(" ") for word in WORDS]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    words = [word for word in WORDS if " " not in word]
    content = b"".join(
        word.encode() + b" " + row.astype("<f4").tobytes() + end for word, row in zip(words, _ROWS[:4], strict=True)
    )
    (tmp_path / "v.bin").write_bytes(b"4 3\n" + content)
    rows, keys = read_all(tmp_path / "v.bin")
    np.testing.assert_array_equal(rows, _ROWS[:4])
    assert keys == words


def test_a_vector_may_hold_any_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Bytes of the numbers may be spaces or newlines, which do not end a word here, and blocks of 1 MB end inside words.
    rng = np.random.default_rng(1)
    rows = np.frombuffer(rng.choice(np.frombuffer(b" \n\0a", np.uint8), 9000 * 40).tobytes(), "<f4").reshape(9000, 10)
    content = b"".join(f"w{i} ".encode() + row.tobytes() for i, row in enumerate(np.tile(rows, (4, 1))))
    (tmp_path / "v.bin").write_bytes(b"36000 10\n" + content)
    read, keys = read_all(tmp_path / "v.bin")
    assert read.tobytes() == np.tile(rows, (4, 1)).tobytes()
    assert keys == [f"w{i}" for i in range(36000)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 2\na 1 2\nb 3 4\n", "has 2 words, its first line says 3: it is cut short"),
        ("a 1 2\nb 3\n", "line 2: 1 numbers, expected 2 as in the first row"),
        ("a 1 2\nb 3.0 4.0 5.0\n", "line 2: 3 numbers, expected 2"),
        ("a 1 2\nb 3 x\n", "line 2: could not convert string to float"),
        ("a 1 2\n\nb 3 4\n", "line 2: 0 numbers, expected 2"),
        ("\n", "line 1 has no word with numbers behind it"),
        ("word\n", "line 1 has no word with numbers behind it"),
    ],
)
def test_text_at_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(ExportError, match=message):
        read_all(tmp_path / "v.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"2 2\na " + bytes(8) + b"b " + bytes(5), "is cut short: it ends in row 1, its first line says 2"),
        (b"1 2\na " + bytes(8) + b"b " + bytes(8), "goes on after the 1 words"),
        (b"1 2\n\xff\xfe " + bytes(8), r"row 0: the word b'\\xff\\xfe' is not UTF-8"),
        (b"1 2\n" + bytes(70000), "no end of a word"),
        (b"hello\n", "no first line such as"),
    ],
)
def test_binary_at_fault(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(ExportError, match=message):
        read_all(tmp_path / "v.bin")


def test_the_format_can_be_said(tmp_path: Path) -> None:
    # A GloVe file whose first line could be a header of word2vec: key "7", then a vector of one number.
    (tmp_path / "v.txt").write_text("7 1\n8 2\n")
    rows, keys = read_all(f"{tmp_path}/v.txt?format=glove")
    assert (rows.tolist(), keys) == ([[1.0], [2.0]], ["7", "8"])
    (tmp_path / "w.txt").write_text("a 1\n")
    with pytest.raises(ExportError, match="its first line is not the header of word2vec"):
        read_all(f"{tmp_path}/w.txt?format=word2vec")
