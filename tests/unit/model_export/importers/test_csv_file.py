"""Imports .csv and .tsv files as programs write them, with and without headers and keys."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

_ROWS = matrix(5, 3) / 3
_IDS = [7, -1, 2**62 + 1, 0, 12]


def write(path: Path, cells: list[list[object]], delimiter: str = ",") -> Path:
    """Writes a file with Python's csv module; returns its path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(cells)
    return path


def table(keys: list[object] | None, header: list[object] | None = None) -> list[list[object]]:
    """Returns the cells of _ROWS, with keys before them and a header above them where given."""
    rows = [[*([] if keys is None else [keys[i]]), *map(float, row)] for i, row in enumerate(_ROWS)]
    return ([] if header is None else [header]) + rows


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_what_the_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, delimiter: str) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    words = ["a", "x,y", 'say "hi"', "new\u2028line", "007"]
    path = tmp_path / f"t.{ending}"
    for header in (None, ["id", "x", "y", "z"]):
        write(path, table(words, header), delimiter)
        rows, keys = read_all(path)
        assert keys == words
        np.testing.assert_array_equal(rows, _ROWS)
    rows, keys = read_all(f"{path}?key=id&vector=z,x")
    np.testing.assert_array_equal(rows, _ROWS[:, [2, 0]])


def test_integer_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table(list(_IDS), ["id", "x", "y", "z"]))
    with pytest.raises(ExportError, match=r"add \?key=id \(keys\) or \?keys=none \(part of the vectors\)"):
        read_all(path)
    for query in ("?key=id", "?keys=first", "?key=id&key_dtype=int64"):
        rows, keys = read_all(f"{path}{query}")
        assert keys == _IDS
        np.testing.assert_array_equal(rows, _ROWS)
    assert read_all(f"{path}?key=id&key_dtype=string")[1] == [str(key) for key in _IDS]
    rows, keys = read_all(f"{path}?keys=none")
    assert keys is None and rows.shape == (5, 4)


def test_pyarrow_s_file(tmp_path: Path) -> None:
    columns = {"id": pa.array(_IDS), **{name: pa.array(_ROWS[:, i]) for i, name in enumerate("xyz")}}
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "t.csv")
    rows, keys = read_all(f"{tmp_path}/t.csv?key=id")
    assert keys == _IDS and rows.astype(np.float32).tobytes() == _ROWS.astype(np.float32).tobytes()


def test_a_matrix_of_the_projector(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "vectors.tsv", _ROWS, delimiter="\t", fmt="%.17g")
    with pytest.raises(ExportError, match=r"add \?keys=first \(keys\) or \?keys=none"):
        read_all(tmp_path / "vectors.tsv")
    rows, keys = read_all(f"{tmp_path}/vectors.tsv?keys=none")
    assert keys is None
    np.testing.assert_array_equal(rows, _ROWS)


def test_names_of_columns_that_are_numbers(tmp_path: Path) -> None:
    # pandas.DataFrame.to_csv() of a matrix: names 0, 1, 2, and an empty name above the index.
    for header in (["", 0, 1, 2], ["year", 2020, 2021, 2022]):
        path = write(tmp_path / "t.csv", table(list("abcde"), header))
        with pytest.raises(ExportError, match=r"add \?header=first \(names\) or \?header=none"):
            read_all(path)
        rows, keys = read_all(f"{path}?header=first")
        assert keys == list("abcde")
        np.testing.assert_array_equal(rows, _ROWS)
        assert len(read_all(f"{path}?header=none")[0]) == 6


@pytest.mark.parametrize("row", ["a,,2", "a,NA,null", "a,1.5,x", "a,n/a,3"])
def test_a_first_row_with_missing_numbers_is_no_header(tmp_path: Path, row: str) -> None:
    (tmp_path / "t.csv").write_text(f"{row}\nb,3,4\n")
    with pytest.raises(ExportError, match=r"add \?header=first \(names\) or \?header=none"):
        read_all(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "query", "message"),
    [
        ("", "", "t.csv is empty"),
        ("a,1.5,2\nb,3\n", "", "line 2 has 2 columns, the first line has 3"),
        ("a,1.5,2\nb,3,4\nc,5\n", "", "line 3 has 2 columns, the first line has 3"),
        ("a,1.5,2\nb,3,x\n", "", r"line 2: column 3 holds 'x', which is no number; name .* \?vector=COLUMN"),
        ("id,x\na,1\nb,\n", "", "line 3: column 'x' holds '', which is no number"),
        ("id,x\n1,1\nb,2\n", "?key=id", r"line 3: the key 'b' is no int64; add \?key_dtype=string"),
        ("id,x\n1,1\n007,2\n", "?key=id", "line 3: the key '007' is no int64"),
        ("id,x\na,1\n", "?key=user", "has no column 'user'; its columns are 'id', 'x'"),
        ("id,x,x\na,1,2\n", "?vector=x", "has more than one column 'x'"),
        ("id,x\na,1\n", "?key=id&keys=none", r"give \?key= or \?keys=, not both"),
        ("id,x\na,1\n", "?key=id&vector=id", "the vectors' columns are none, or one is named twice or holds the keys"),
        ("a,1.5\nb,2\n", "?key=id", "has no column 'id': its first line holds numbers"),
        ('a,1.5\n"b,2\n', "", "unexpected end of data"),
        ("a,1.5\nb\rc,2\n", "", "line 2: new-line character seen in unquoted field"),
        ("id,x\na,1\n", "?keys=last", "keys=last; expected none or first"),
    ],
)
def test_files_at_fault(tmp_path: Path, text: str, query: str, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(ExportError, match=message):
        read_all(f"{tmp_path}/t.csv{query}")
