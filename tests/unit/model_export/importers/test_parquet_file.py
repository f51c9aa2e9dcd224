"""Reads Parquet files of pyarrow: every type of key and vector column, part files, and files with faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

_KEYS = ["a", "b", "c", "d", "e", "f", "g"]


def write(path: Path, vectors: Any, keys: Any = None, **options: Any) -> Path:
    """Writes columns `v` and `k`."""
    columns = {"v": vectors} | ({} if keys is None else {"k": keys})
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("numbers", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("make", [lambda t: pa.list_(t, 3), pa.list_, pa.large_list], ids=["fixed", "list", "large"])
def test_vectors_of_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, numbers: Any) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    rows = matrix(7, 3)
    vectors = pa.array([row.astype(numbers.to_pandas_dtype()) for row in rows], make(numbers))
    path = write(tmp_path / "t.parquet", vectors, _KEYS, row_group_size=3)
    read, keys = read_all(f"{path}?key=k&vector=v")
    np.testing.assert_array_equal(read, rows)
    assert keys == _KEYS
    assert read_all(path)[1] is None


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(_KEYS, pa.large_string()),
        pa.array(_KEYS).dictionary_encode(),
        pa.array(range(2**62, 2**62 + 7), pa.int64()),
        pa.array(range(7), pa.uint32()),
    ],
    ids=lambda keys: str(keys.type),
)
def test_keys_of_every_type(tmp_path: Path, keys: Any) -> None:
    path = write(tmp_path / "t.parquet", pa.array(list(matrix(7, 2))), keys)
    assert read_all(f"{path}?key=k")[1] == keys.to_pylist()


def test_several_columns_are_one_vector(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [3, 4], "z": [5.0, 6.0]}), tmp_path / "t.parquet")
    assert read_all(f"{tmp_path}/t.parquet?vector=z,y")[0].tolist() == [[5.0, 3.0], [6.0, 4.0]]
    assert read_all(f"{tmp_path}/t.parquet?vector=x&key=y")[1] == [3, 4]


def test_part_files_follow_each_other_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in (1, 0, 2):
        rows = matrix(6, 2)[2 * number : 2 * number + 2]
        write(folder / f"part-{number}.parquet", pa.array(list(rows)), [f"k{2 * number}", f"k{2 * number + 1}"])
    pq.write_table(pq.read_table(folder / "part-0.parquet").slice(0, 0), folder / "part-3.parquet")
    rows, keys = read_all(f"{folder}?key=k")
    np.testing.assert_array_equal(rows, matrix(6, 2))
    assert keys == [f"k{i}" for i in range(6)]
    write(folder / "part-4.parquet", pa.array([1.0]))
    with pytest.raises(
        ExportError, match=r"part-4.parquet has other columns or types than part-0.parquet: v \(double\)"
    ):
        read_all(f"{folder}?key=k")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?key=user&vector=v", r"has no column 'user'; its columns are v \(list<.*>\), k \(string\)"),
        ("?vector=k", "column 'k' is string; vectors are a list of float16"),
        ("?key=v&vector=v", "key column 'v' is list<.*keys are strings or whole numbers"),
        ("?vector=v,v", "names a column twice"),
        ("?vector=v,k", "column 'v' is list<.*several columns of numbers"),
        ("?columns=v", "parquet has no option 'columns'; there are key, vector, key_dtype, duplicates, format"),
    ],
)
def test_columns_that_are_not_there_or_not_fit(tmp_path: Path, query: str, message: str) -> None:
    path = write(tmp_path / "t.parquet", pa.array(list(matrix(7, 2))), _KEYS)
    with pytest.raises(ExportError, match=message):
        read_all(f"{path}{query}")


def test_a_vector_column_must_be_said_where_there_is_no_one_list(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "t.parquet")
    with pytest.raises(ExportError, match=r"say the vectors' column with \?vector=COLUMN; there are a \(double\), b"):
        read_all(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("vectors", "keys", "message"),
    [
        ([[1.0, 2.0], [3.0]], None, "row 1: 'v' has 1 numbers, expected 2 as in row 0"),
        ([[1.0, 2.0], None], None, "row 1: 'v' is null"),
        ([[1.0, 2.0], [3.0, None]], None, "row 1: 'v' is null"),
        ([[1.0], [2.0]], ["a", None], "row 1: 'k' is null"),
    ],
)
def test_rows_at_fault(tmp_path: Path, vectors: Any, keys: Any, message: str) -> None:
    path = write(tmp_path / "t.parquet", vectors, keys)
    with pytest.raises(ExportError, match=message):
        read_all(f"{path}?vector=v{'' if keys is None else '&key=k'}")


def test_a_file_without_rows_has_no_chunks(tmp_path: Path) -> None:
    from model_export.importers.formats import open_table

    path = write(tmp_path / "t.parquet", pa.array([], pa.list_(pa.float32(), 2)))
    assert list(open_table(str(path)).chunks()) == []


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.array(list(matrix(7, 2))))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ExportError, match="is no Parquet file, or is cut short"):
        read_all(path)
