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
    assert keys == WORDS


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
        ("3 2\na 1 2\nb 3 4\n", "has 2 rows, its first line says 3: it is cut short; if its first line is a row, add"),
        ("1 2\na 1 2\nb 3 4\n", r"has 2 rows, its first line says 1: it goes on after them; .* add \?format=glove"),
        ("1 2\n1 2 3 4\n", "line 2 has 4 numbers, its first line says 2 after each key"),
        ("2 2\n1 2\n3 4 5\n", "line 3 has 3 columns, expected 2 numbers"),
        ("7 1.5\n3 4\n", r"each line begins with a number, .* add \?keys=none \(2 numbers a row, no keys\)"),
        ("a 1 2\nb 3\n", "line 2 has 2 columns, expected a key and 2 numbers"),
        ("a 1 2\nb 3.0 4.0 5.0\n", "line 2 has 4 columns, expected a key and 2 numbers"),
        ("a 1 2\nb 3 x\n", "line 2: could not convert string to float"),
        ("a 1 2\n\nb 3 4\n", "line 2 has 0 columns, expected a key and 2 numbers"),
        ("\n", "line 1 has no numbers between blanks or tabs"),
        ("0.5,1.5\n", r"line 1 has no numbers between blanks or tabs; \?format=csv reads commas"),
        ("word\n", "line 1 has no numbers between blanks or tabs"),
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
        (b"1 2\n\xff\xfe " + bytes(8), r"row 0: the key b'\\xff\\xfe' is not UTF-8"),
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
    rows, keys = read_all(f"{tmp_path}/v.txt?format=glove&keys=first")
    assert (rows.tolist(), keys) == ([[1.0], [2.0]], ["7", "8"])
    (tmp_path / "w.txt").write_text("a 1\n")
    with pytest.raises(ExportError, match="its first line is not the header of word2vec"):
        read_all(f"{tmp_path}/w.txt?format=word2vec")


@pytest.mark.parametrize(("separator", "end"), [(" ", "\n"), (" ", " \n"), ("\t", "\n"), ("\t", "\r\n"), ("  ", "\n")])
def test_a_matrix_without_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, end: str) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    np.savetxt(tmp_path / "m.txt", _ROWS, delimiter=separator, newline=end)
    with pytest.raises(
        ExportError, match=r"add \?keys=none \(3 numbers a row, no keys\) or \?keys=first \(a key and 2"
    ):
        read_all(tmp_path / "m.txt")
    rows, keys = read_all(f"{tmp_path}/m.txt?keys=none")
    assert keys is None
    np.testing.assert_array_equal(rows, _ROWS)
    rows, keys = read_all(f"{tmp_path}/m.txt?keys=first")
    assert keys == [f"{number:.18e}" for number in _ROWS[:, 0]]
    np.testing.assert_array_equal(rows, _ROWS[:, 1:])
    # A header tells how many numbers a row has, and so whether a key stands before them.
    text = (tmp_path / "m.txt").read_bytes()
    (tmp_path / "m.txt").write_bytes(b"5 3\n" + text)
    rows, keys = read_all(tmp_path / "m.txt")
    assert keys is None
    np.testing.assert_array_equal(rows, _ROWS)
    (tmp_path / "m.txt").write_bytes(b"5 2\n" + text)
    assert read_all(tmp_path / "m.txt")[1] == [f"{number:.18e}" for number in _ROWS[:, 0]]


def test_one_word_shows_that_lines_begin_with_keys(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("1 0.5 2\nnan 3 4\n1st 5 6\n")
    assert read_all(tmp_path / "v.txt")[1] == ["1", "nan", "1st"]


@pytest.mark.parametrize("word", ["\t", "a\x85b", "\u2028", "\x0b", "\x1c", "\xa0", "a\rb", " ", "a b", "\x00"])
@pytest.mark.parametrize("header", ["", "3 4\n"])
def test_a_word_may_hold_any_character_but_a_line_feed(tmp_path: Path, header: str, word: str) -> None:
    (tmp_path / "v.txt").write_bytes(f"{header}, 1.0 2 3 4.0\n{word} 5.0 6 7 8.0\nc 9 10 11 12 \n".encode())
    rows, keys = read_all(tmp_path / "v.txt")
    assert keys == [",", word, "c"]
    np.testing.assert_array_equal(rows, np.arange(1, 13).reshape(3, 4))


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.tsv"])
def test_words_that_are_not_utf_8(tmp_path: Path, name: str) -> None:
    words = [b"a", b"b\xe5\x8c", b"\r", b"c"]
    if name == "v.bin":
        numbers = np.array([0.5, 2], "<f4").tobytes()
        content = b"4 2\n" + b"".join(word + b" " + numbers for word in words)
    else:
        separator = b"\t" if name == "v.tsv" else b" "
        content = b"".join(
            b'"' * (name == "v.tsv") + word + b'"' * (name == "v.tsv") + separator + b"0.5" + separator + b"2\n"
            for word in words
        )
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        ExportError, match=r"b'b\\xe5\\x8c' is not UTF-8; add \?errors=replace or \?errors=ignore .*errors=skip"
    ):
        read_all(tmp_path / name)
    wanted = {"replace": ["a", "b\ufffd", "\r", "c"], "ignore": ["a", "b", "\r", "c"], "skip": ["a", "c"]}
    for errors, keys in wanted.items():
        rows, read = read_all(f"{tmp_path / name}?errors={errors}")
        assert (read, rows.tolist()) == (keys, [[0.5, 2.0]] * len(keys))
    with pytest.raises(ExportError, match="errors=drop; expected strict or replace or ignore or skip"):
        read_all(f"{tmp_path / name}?errors=drop")


@pytest.mark.parametrize("header", ["", "2 1\n"])
def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path: Path, header: str) -> None:
    (tmp_path / "v.txt").write_text(f"{header}a 1\nb 2\n", encoding="utf-8-sig")
    rows, keys = read_all(tmp_path / "v.txt")
    assert (rows.tolist(), keys) == ([[1.0], [2.0]], ["a", "b"])
    (tmp_path / "v.txt").write_text("1 2\n3 4\n", encoding="utf-8-sig")
    assert read_all(f"{tmp_path}/v.txt?format=glove&keys=none")[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
