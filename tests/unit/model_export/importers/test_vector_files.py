"""Files of vectors are read row by row: .npy, .safetensors, Parquet, CSV, and words with vectors."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from model_export.errors import ExportError
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
def test_every_dtype_byte_order_and_memory_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, order: Any
) -> None:
    small_chunks(monkeypatch)
    table = np.array(matrix(11, 3), dtype=dtype, order=order)
    np.save(tmp_path / "t.npy", table)
    rows, keys = read_all(tmp_path / "t.npy")
    np.testing.assert_array_equal(rows.astype(np.float64), np.load(tmp_path / "t.npy"))
    assert keys is None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_named_array_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    small_chunks(monkeypatch)
    save(tmp_path / "t.npz", user=matrix(9, 4), item=matrix(5, 2))
    np.testing.assert_array_equal(read_all(f"{tmp_path}/t.npz:user")[0], matrix(9, 4))
    np.testing.assert_array_equal(read_all(f"{tmp_path}/t.npz:item")[0], matrix(5, 2))
    with pytest.raises(ExportError, match=r"has no 'film'; its arrays are 'item', 'user'"):
        read_all(f"{tmp_path}/t.npz:film")
    with pytest.raises(ExportError, match=r"say which table with t.npz:NAME; its arrays are 'item', 'user'"):
        read_all(f"{tmp_path}/t.npz")


def test_fortran_order_in_an_archive(tmp_path: Path) -> None:
    table = np.asfortranarray(matrix(9, 4))
    np.savez(tmp_path / "plain.npz", user=table)
    np.testing.assert_array_equal(read_all(tmp_path / "plain.npz")[0], table)
    np.savez_compressed(tmp_path / "packed.npz", user=table)
    with pytest.raises(ExportError, match="compressed and in Fortran order; save np.ascontiguousarray"):
        read_all(tmp_path / "packed.npz")


def test_bfloat16_as_ml_dtypes_saves_it_and_as_its_bits(tmp_path: Path) -> None:
    table = matrix(6, 2).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "void.npy", table)
    np.save(tmp_path / "bits.npy", table.view(np.uint16))
    for address in ("void.npy", "bits.npy?dtype=bfloat16"):
        np.testing.assert_array_equal(read_all(f"{tmp_path}/{address}")[0], table.astype(np.float32))
    with pytest.raises(ExportError, match=r"holds uint16; .* add \?dtype=bfloat16"):
        read_all(tmp_path / "bits.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4, np.float32), r"has shape \[4\]; a table is a matrix"),
        (np.zeros((2, 2, 2), np.float32), r"has shape \[2, 2, 2\]"),
        (np.zeros((2, 2), np.int64), "holds int64; a table holds float16"),
        (np.zeros((2, 2), np.complex64), "holds complex64"),
        (np.zeros((2, 2), [("a", "f4")]), "a table holds float16"),
    ],
)
def test_arrays_that_are_no_tables(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(ExportError, match=message):
        read_all(tmp_path / "t.npy")


class _Bomb:
    """Fails the test where it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("unpickled",))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([[_Bomb()]], object), allow_pickle=True)
    np.savez(tmp_path / "t.npz", t=np.array([[_Bomb()]], object))
    for name in ("t.npy", "t.npz"):
        with pytest.raises(ExportError, match="holds Python objects .*never read"):
            read_all(tmp_path / name)


def test_a_compressed_member_that_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        np.save(tmp_path / "t.npy", matrix(50, 4))
        archive.writestr("t.npy", (tmp_path / "t.npy").read_bytes()[:-16])
    with pytest.raises(ExportError, match="is cut short after row 0 of 50"):
        read_all(tmp_path / "t.npz")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_tensors_of_every_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    small_chunks(monkeypatch)
    tensors = {"emb.weight": matrix(13, 4, dtype), "other": matrix(2, 3)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "np"})
    rows, keys = read_all(f"{tmp_path}/m.safetensors:emb.weight")
    assert rows.dtype == (np.float32 if dtype == ml_dtypes.bfloat16 else dtype) and keys is None
    np.testing.assert_array_equal(rows, tensors["emb.weight"].astype(rows.dtype))


def test_a_sharded_file(tmp_path: Path) -> None:
    save_file({"a": matrix(3, 2)}, tmp_path / "m-1.safetensors")
    save_file({"b": matrix(4, 2)}, tmp_path / "m-2.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    shards = {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors", "d": "m-3.safetensors"}
    index.write_text(json.dumps({"weight_map": shards}))
    np.testing.assert_array_equal(read_all(f"{index}:b")[0], matrix(4, 2))
    with pytest.raises(ExportError, match="has no 'c', although"):
        read_all(f"{index}:c")
    with pytest.raises(ExportError, match="in 'm-3.safetensors', which is not beside it"):
        read_all(f"{index}:d")
    index.write_text("[]")
    with pytest.raises(ExportError, match="it has no weight_map"):
        read_all(f"{index}:b")


def test_what_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"ids": np.arange(4), "bias": np.zeros(3, np.float32)}, file)
    with pytest.raises(ExportError, match="m.safetensors:ids holds I64; a table holds F16, F32, F64, BF16"):
        read_all(f"{file}:ids")
    with pytest.raises(ExportError, match=r"bias has shape \[3\]"):
        read_all(f"{file}:bias")
    with pytest.raises(ExportError, match="has no 'emb'; its tensors are 'bias', 'ids'"):
        read_all(f"{file}:emb")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no safetensors file, or is cut short"),
        (b"\xff" * 20, "is no safetensors file, or is cut short"),
        ((100).to_bytes(8, "little") + b"{}", "is no safetensors file, or is cut short"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        ((3).to_bytes(8, "little") + b"{a}", "its header is not JSON"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ExportError, match=message):
        read_all(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "is cut short: 2 rows of 2 numbers"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}, r"8 bytes can not hold \[2, 2\] of F32"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}, "can not hold"),
        ({"dtype": "F32", "shape": [2, 2]}, "its header entry is malformed"),
        ({"dtype": "F32", "shape": "xy", "data_offsets": [0, 8]}, "its header entry is malformed"),
    ],
)
def test_headers_that_promise_other_bytes(tmp_path: Path, entry: object, message: str) -> None:
    header = json.dumps({"t": entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(ExportError, match=message):
        read_all(f"{tmp_path}/m.safetensors:t")


_KEYS = ["a", "b", "c", "d", "e", "f", "g"]


def write_parquet(path: Path, vectors: Any, keys: Any = None, **options: Any) -> Path:
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
    path = write_parquet(tmp_path / "t.parquet", vectors, _KEYS, row_group_size=3)
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
    path = write_parquet(tmp_path / "t.parquet", pa.array(list(matrix(7, 2))), keys)
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
        write_parquet(folder / f"part-{number}.parquet", pa.array(list(rows)), [f"k{2 * number}", f"k{2 * number + 1}"])
    pq.write_table(pq.read_table(folder / "part-0.parquet").slice(0, 0), folder / "part-3.parquet")
    rows, keys = read_all(f"{folder}?key=k")
    np.testing.assert_array_equal(rows, matrix(6, 2))
    assert keys == [f"k{i}" for i in range(6)]
    write_parquet(folder / "part-4.parquet", pa.array([1.0]))
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
    path = write_parquet(tmp_path / "t.parquet", pa.array(list(matrix(7, 2))), _KEYS)
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
    path = write_parquet(tmp_path / "t.parquet", vectors, keys)
    with pytest.raises(ExportError, match=message):
        read_all(f"{path}?vector=v{'' if keys is None else '&key=k'}")


def test_a_file_without_rows_has_no_chunks(tmp_path: Path) -> None:
    from model_export.importers.formats import open_table

    path = write_parquet(tmp_path / "t.parquet", pa.array([], pa.list_(pa.float32(), 2)))
    assert list(open_table(str(path)).chunks()) == []


_CSV_ROWS = matrix(5, 3) / 3
_IDS = [7, -1, 2**62 + 1, 0, 12]


def write_csv(path: Path, cells: list[list[object]], delimiter: str = ",") -> Path:
    """Writes a file with Python's csv module; returns its path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(cells)
    return path


def table(keys: list[object] | None, header: list[object] | None = None) -> list[list[object]]:
    """Returns the cells of _ROWS, with keys before them and a header above them where given."""
    rows = [[*([] if keys is None else [keys[i]]), *map(float, row)] for i, row in enumerate(_CSV_ROWS)]
    return ([] if header is None else [header]) + rows


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_what_the_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, delimiter: str) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    words = ["a", "x,y", 'say "hi"', "new\u2028line", "007"]
    path = tmp_path / f"t.{ending}"
    for header in (None, ["id", "x", "y", "z"]):
        write_csv(path, table(words, header), delimiter)
        rows, keys = read_all(path)
        assert keys == words
        np.testing.assert_array_equal(rows, _CSV_ROWS)
    rows, keys = read_all(f"{path}?key=id&vector=z,x")
    np.testing.assert_array_equal(rows, _CSV_ROWS[:, [2, 0]])


def test_integer_keys(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", table(list(_IDS), ["id", "x", "y", "z"]))
    with pytest.raises(ExportError, match=r"add \?key=id \(keys\) or \?keys=none \(part of the vectors\)"):
        read_all(path)
    for query in ("?key=id", "?keys=first", "?key=id&key_dtype=int64"):
        rows, keys = read_all(f"{path}{query}")
        assert keys == _IDS
        np.testing.assert_array_equal(rows, _CSV_ROWS)
    assert read_all(f"{path}?key=id&key_dtype=string")[1] == [str(key) for key in _IDS]
    rows, keys = read_all(f"{path}?keys=none")
    assert keys is None and rows.shape == (5, 4)


def test_pyarrow_s_file(tmp_path: Path) -> None:
    columns = {"id": pa.array(_IDS), **{name: pa.array(_CSV_ROWS[:, i]) for i, name in enumerate("xyz")}}
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "t.csv")
    rows, keys = read_all(f"{tmp_path}/t.csv?key=id")
    assert keys == _IDS and rows.astype(np.float32).tobytes() == _CSV_ROWS.astype(np.float32).tobytes()


def test_a_matrix_of_the_projector(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "vectors.tsv", _CSV_ROWS, delimiter="\t", fmt="%.17g")
    with pytest.raises(ExportError, match=r"add \?keys=first \(keys\) or \?keys=none"):
        read_all(tmp_path / "vectors.tsv")
    rows, keys = read_all(f"{tmp_path}/vectors.tsv?keys=none")
    assert keys is None
    np.testing.assert_array_equal(rows, _CSV_ROWS)


def test_names_of_columns_that_are_numbers(tmp_path: Path) -> None:
    # pandas.DataFrame.to_csv() of a matrix: names 0, 1, 2, and an empty name above the index.
    for header in (["", 0, 1, 2], ["year", 2020, 2021, 2022]):
        path = write_csv(tmp_path / "t.csv", table(list("abcde"), header))
        with pytest.raises(ExportError, match=r"add \?header=first \(names\) or \?header=none"):
            read_all(path)
        rows, keys = read_all(f"{path}?header=first")
        assert keys == list("abcde")
        np.testing.assert_array_equal(rows, _CSV_ROWS)
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
        ("a,1.5,2\nb,3,x\n", "", r"line 2: column 3 holds 'x', which is no number; name .* \?vector=COLUMN"),
        ("id,x\na,1\nb,\n", "", "line 3: column 'x' holds '', which is no number"),
        ("id,x\n1,1\nb,2\n", "?key=id", r"line 3: the key 'b' is no int64; add \?key_dtype=string"),
        ("id,x\n1,1\n007,2\n", "?key=id", "line 3: the key '007' is no int64"),
        ("id,x\na,1\n", "?key=user", "has no column 'user'; its columns are 'id', 'x'"),
        ("id,x,x\na,1,2\n", "?vector=x", "has more than one column 'x'"),
        ("id,x\na,1\n", "?key=id&keys=none", r"give \?key= or \?keys=, not both"),
        ("id,x\na,1\n", "?key=id&vector=id", "the vectors' columns are none, or one is named twice or holds the keys"),
        ("a,1.5\nb,2\n", "?key=id", "has no column 'id': its first line holds numbers"),
        ("a,1.5\nb\rc,2\n", "", "line 2: new-line character seen in unquoted field"),
        ("id,x\na,1\n", "?keys=last", "keys=last; expected none or first"),
    ],
)
def test_files_at_fault(tmp_path: Path, text: str, query: str, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(ExportError, match=message):
        read_all(f"{tmp_path}/t.csv{query}")


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
