"""Checkpoints of TensorFlow: variables and hash tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.errors import ExportError
from tests.toy_model import write_toy_model
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

pytestmark = pytest.mark.tf


def save(prefix: Path, **variables: object) -> None:
    """Saves arrays as an object-based checkpoint of TensorFlow."""
    tf.train.Checkpoint(**{k: tf.Variable(v) for k, v in variables.items()}).write(str(prefix))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_whole_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    small_chunks(monkeypatch)
    save(tmp_path / "ckpt", user=tf.cast(matrix(13, 3), dtype), bias=np.zeros(3, np.float32))
    rows, keys = read_all(f"{tmp_path}/ckpt:user")
    assert keys is None
    np.testing.assert_array_equal(rows, matrix(13, 3))
    np.testing.assert_array_equal(read_all(tmp_path / "ckpt.index")[0], matrix(13, 3))


@pytest.mark.parametrize("parts", [(4, 1), (1, 3), (3, 2)])
def test_partitioned_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[int, int]) -> None:
    small_chunks(monkeypatch)
    table = matrix(10, 6)
    rows, columns = (np.array_split(np.arange(n), count) for n, count in zip(table.shape, parts, strict=True))
    pieces = [(table[np.ix_(r, c)], f"10 6 {r[0]},{len(r)}:{c[0]},{len(c)}") for r in reversed(rows) for c in columns]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"),
        tensor_names=["user"] * len(pieces),
        shape_and_slices=[spec for _, spec in pieces],
        tensors=[piece for piece, _ in pieces],
    )
    np.testing.assert_array_equal(read_all(f"{tmp_path}/ckpt:user")[0], table)


def test_a_saved_model(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "1")
    assert read_all(f"{folder}:user")[0].tolist() == [[i, 10 * i] for i in range(5)]


def test_names_that_are_not_there_and_checksums_that_differ(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", user=matrix(4, 2) + 100, item=matrix(5, 2), step=np.int64(3))
    with pytest.raises(ExportError, match=r"variable 'film' is not there\nCandidates:\n.*item.*\n.*user"):
        read_all(f"{tmp_path}/ckpt:film")
    with pytest.raises(ExportError, match=r"say which variable with ckpt:VARIABLE"):
        read_all(f"{tmp_path}/ckpt")
    with pytest.raises(ExportError, match=r"variable 'step' is int64 \[\]; a table is a matrix of float16 or float32"):
        read_all(f"{tmp_path}/ckpt:step")
    shard = tmp_path / "ckpt.data-00000-of-00001"
    data = bytearray(shard.read_bytes())
    position = data.find((matrix(4, 2) + 100).tobytes())
    data[position] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ExportError, match="is damaged: its numbers do not have the checksum"):
        read_all(f"{tmp_path}/ckpt:user")
    shard.write_bytes(data[: position + 3])
    with pytest.raises(ExportError, match="is cut short"):
        read_all(f"{tmp_path}/ckpt:user")
    shard.unlink()
    with pytest.raises(ExportError, match="is missing: it holds a part of 'user'"):
        read_all(f"{tmp_path}/ckpt:user")


_KEYS = {
    "int64": [2**40 + 7, 5, -9, 2**62 + 1, 11, 3],
    "int32": [2**30, 5, -9, 0, 11, 3],
    "string": ["the", "naïve", "\u2028", "b", "a", "new\nline"],
}
_ROWS = np.random.default_rng(5).standard_normal((6, 4)).astype(np.float32)


def hash_table(keys: list[Any], rows: np.ndarray, dtype: str) -> Any:
    """Returns a MutableHashTable of rows."""
    table = tf.lookup.experimental.MutableHashTable(tf.as_dtype(dtype), tf.as_dtype(rows.dtype), [0.0] * rows.shape[1])
    table.insert(tf.constant(keys, dtype), rows)
    return table


@pytest.mark.parametrize("dtype", list(_KEYS))
def test_mutable_hash_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    keys = _KEYS[dtype]
    table = hash_table(keys, _ROWS, dtype)
    prefix = tf.train.Checkpoint(user=table, bias=tf.Variable([1.0])).write(str(tmp_path / "ckpt"))
    order = np.argsort([key.encode() for key in keys] if dtype == "string" else keys)
    for name in ("", ":user", ":user/.ATTRIBUTES/table-values", ":user/.ATTRIBUTES/table-keys"):
        rows, read = read_all(f"{prefix}{name}")
        assert read == [keys[i] for i in order]
        assert rows.tobytes() == _ROWS[order].tobytes()


def test_a_hash_table_beside_variables(tmp_path: Path) -> None:
    table = hash_table(_KEYS["int64"], _ROWS, "int64")
    prefix = tf.train.Checkpoint(user=table, item=tf.Variable(_ROWS)).write(str(tmp_path / "ckpt"))
    with pytest.raises(ExportError, match=r"say which variable .*(?s:.*)item(?s:.*)table\? user  \[6, 4\] hash table"):
        read_all(prefix)
    with pytest.raises(ExportError, match=r"variable 'usr' is not there(?s:.*)table\? user  \[6, 4\] hash table"):
        read_all(f"{prefix}:usr")
    assert read_all(f"{prefix}:item")[1] is None
    with pytest.raises(ExportError, match="empty_key= is for hash tables, and this is a variable"):
        read_all(f"{prefix}:item?empty_key=0")


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_dense_hash_tables(tmp_path: Path, dtype: str) -> None:
    keys, unused = _KEYS[dtype], ([0, -1] if dtype == "int64" else ["", "gone"])
    table = tf.lookup.experimental.DenseHashTable(tf.as_dtype(dtype), tf.float32, [0.0] * 4, *unused)
    table.insert(tf.constant(keys, dtype), _ROWS)
    table.erase(tf.constant(keys[:1], dtype))
    prefix = tf.train.Checkpoint(user=table).write(str(tmp_path / "ckpt"))
    left = sorted(range(1, 6), key=lambda i: keys[i].encode() if dtype == "string" else keys[i])
    rows, read = read_all(f"{prefix}:user?empty_key={unused[0]}&deleted_key={unused[1]}")
    assert read == [keys[i] for i in left]
    assert rows.tobytes() == _ROWS[left].tobytes()
    with pytest.raises(ExportError, match="buckets have the key .*, so it is the empty key"):
        read_all(f"{prefix}:user?empty_key=7&deleted_key={unused[1]}")
    if dtype == "int64":
        with pytest.raises(ExportError, match="empty_key=x; the table's keys are integers"):
            read_all(f"{prefix}:user?empty_key=x&deleted_key=-1")
    with pytest.raises(ExportError, match=r"is a DenseHashTable, .* of 131,072 have the key .*empty_key is missing"):
        read_all(f"{prefix}:user")


@pytest.mark.parametrize("dtype", ["int64", "string"])
@pytest.mark.parametrize("is_by_name", [False, True])
def test_tables_of_recommenders_addons_in_parts(tmp_path: Path, dtype: str, is_by_name: bool) -> None:
    # TensorFlow Recommenders Addons is not installed: the checkpoint has the names that its Variable gives to the
    # tables of two devices (_make_name, _track_trackable), and the tensors that TensorFlow's own hash table saves.
    keys = _KEYS[dtype]
    halves = [hash_table(keys[:2], _ROWS[:2], dtype), hash_table(keys[2:], _ROWS[2:], dtype)]
    stems = ["user_mht_1of2", "user_mht_2of2"]
    if not is_by_name:
        stems = [f"model/user/tables_of_user/{i}/.ATTRIBUTES/table" for i in range(2)]
    named = [
        (f"{stem}-{end}", tensor)
        for stem, half in zip(stems, halves, strict=True)
        for end, tensor in zip(("keys", "values"), half.export(), strict=True)
    ]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"),
        tensor_names=[name for name, _ in named],
        shape_and_slices=[""] * 4,
        tensors=[tensor for _, tensor in named],
    )
    order = np.argsort([key.encode() for key in keys] if dtype == "string" else keys)
    for name in ("", f":{stems[0]}-values", f":{stems[1]}"):
        rows, read = read_all(f"{tmp_path}/ckpt{name}")
        assert read == [keys[i] for i in order]
        assert rows.tobytes() == _ROWS[order].tobytes()


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    keys, values = hash_table(_KEYS["int64"], _ROWS, "int64").export()
    names = ["user_mht_2of3-keys", "user_mht_2of3-values"]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"), tensor_names=names, shape_and_slices=["", ""], tensors=[keys, values]
    )
    with pytest.raises(ExportError, match="hash table user_mht_Iof3 has 1 of its 3 parts in the checkpoint"):
        read_all(f"{tmp_path}/ckpt:user_mht_2of3-values")


def test_keys_that_are_not_utf_8(tmp_path: Path) -> None:
    table = hash_table([b"a", b"\xff", b"b"], _ROWS[:3], "string")
    prefix = tf.train.Checkpoint(user=table).write(str(tmp_path / "ckpt"))
    with pytest.raises(ExportError, match=r"ckpt:user: the key b'\\xff' is not UTF-8"):
        read_all(prefix)
    rows, keys = read_all(f"{prefix}?errors=skip")
    assert keys == ["a", "b"] and rows.tobytes() == _ROWS[[0, 2]].tobytes()


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_damaged_keys(tmp_path: Path, dtype: str) -> None:
    prefix = Path(tf.train.Checkpoint(user=hash_table(_KEYS[dtype], _ROWS, dtype)).write(str(tmp_path / "ckpt")))
    shard = prefix.with_name(prefix.name + ".data-00000-of-00001")
    data = shard.read_bytes()
    at = data.find("naïve".encode() if dtype == "string" else np.int64(2**62 + 1).tobytes())
    shard.write_bytes(data[:at] + b"\x7f" + data[at + 1 :])
    with pytest.raises(ExportError, match="is damaged: .*table-keys does not have the checksum that was saved with it"):
        read_all(prefix)
    shard.write_bytes(data[: at + 1])
    with pytest.raises(ExportError, match="is cut short"):
        read_all(prefix)
    shard.unlink()
    with pytest.raises(ExportError, match="is missing: it holds"):
        read_all(prefix)


def test_tables_that_are_no_matrix(tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    table.insert(tf.constant([1, 2], tf.int64), tf.constant([1.0, 2.0]))
    prefix = tf.train.Checkpoint(user=table).write(str(tmp_path / "ckpt"))
    with pytest.raises(
        ExportError, match=r"table-values is float32 \[2\]; a hash table is imported if its values are a"
    ):
        read_all(prefix)
