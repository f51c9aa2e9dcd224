"""Imports files that the libraries wrote whose formats they are; every number comes back bit for bit.

Files of gensim, fastText and PyTorch lie in tests/data/imports, with the program that wrote them.
"""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from model_export.errors import ExportError
from tests.source_files import ROOT
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks
from tests.unit.model_export.late import late

with late():
    import keras

pytestmark = pytest.mark.tf

_DATA = ROOT / "tests/data/imports"
# The words and rows of tests/data/imports/write_files.py.
_WORDS = ["the", "naïve", "中文", "new\u0085line", "\u2028", "x"]
_ROWS = (np.arange(24, dtype=np.float32).reshape(6, 4) / 3 - 4).astype(np.float32)


@pytest.mark.parametrize("name", ["gensim.vec", "gensim.vec.gz", "gensim.bin"])
def test_gensim(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    rows, keys = read_all(_DATA / name)
    assert keys == _WORDS
    assert rows.astype(np.float32).tobytes() == _ROWS.tobytes()


def test_archives_of_word_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    with zipfile.ZipFile(tmp_path / "one.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(_DATA / "gensim.vec", "gensim.vec")
        archive.writestr("__MACOSX/._gensim.vec", b"\0")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.write(_DATA / "gensim.vec", "words/gensim.vec")
        archive.write(_DATA / "gensim.bin", "gensim.bin")
    with gzip.open(tmp_path / "gensim.bin.gz", "wb") as packed:
        packed.write((_DATA / "gensim.bin").read_bytes())
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,1.5\nb,2\n"))
    for address in ("one.zip", "one.zip:gensim.vec", "two.zip:words/gensim.vec", "two.zip:gensim.bin", "gensim.bin.gz"):
        rows, keys = read_all(f"{tmp_path}/{address}")
        assert keys == _WORDS
        assert rows.astype(np.float32).tobytes() == _ROWS.tobytes()
    assert read_all(tmp_path / "t.csv.gz")[1] == ["a", "b"]
    with pytest.raises(ExportError, match="with two.zip:NAME; its files are 'gensim.bin', 'words/gensim.vec'"):
        read_all(tmp_path / "two.zip")


def test_pytorch_state_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    for address in ("state_dict.pt", "state_dict.pt:model.user.weight", "tensor.pt"):
        rows, keys = read_all(f"{_DATA}/{address}")
        assert keys is None
        assert rows.tobytes() == _ROWS.tobytes()


def test_pytorch_tensors_of_every_kind() -> None:
    import ml_dtypes

    path = f"{_DATA}/several.pt"
    wanted: dict[str, Any] = {
        "half": _ROWS.astype(np.float16),
        "bfloat16": _ROWS.astype(ml_dtypes.bfloat16).astype(np.float32),
        "double": _ROWS.astype(np.float64),
        "turned": _ROWS.T,
        "part": _ROWS[2:5],
    }
    for name, rows in wanted.items():
        assert read_all(f"{path}:{name}")[0].tobytes() == rows.tobytes(), name
    for name, message in {
        "every_other": "every_other is a view of every n-th number of another tensor; save tensor.contiguous",
        "integers": "integers holds int of little-endian bytes; a table holds half, float, double or bfloat16",
        "vector": "has no 'vector'; its matrices are 'bfloat16', 'double', 'every_other', 'half', 'integers', 'part'",
    }.items():
        with pytest.raises(ExportError, match=message):
            read_all(f"{path}:{name}")


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    # The pickle of a call of os.system, by its opcodes: GLOBAL, BINUNICODE, TUPLE1, REDUCE, STOP.
    command = f"touch {tmp_path}/ran".encode()
    call = b"\x80\x02cos\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R."
    for name, data in (("call.pt", call), ("damaged.pt", b"\x80\x02}q\0(X"), ("twice.pt", b"\x80\x02))R.")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("archive/data.pkl", data)
    with pytest.raises(
        ExportError, match=r"call.pt can not be read without running code: it holds os.system; save its"
    ):
        read_all(tmp_path / "call.pt")
    for name in ("damaged.pt", "twice.pt"):
        with pytest.raises(ExportError, match=f"{name} is damaged: "):
            read_all(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("ending", ["keras", "weights.h5"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_keras_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, dtype: str) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    assert keras.version().startswith("3")
    layer = keras.layers.Embedding(6, 4, name="user", dtype=dtype)
    model = keras.Sequential([keras.Input((2,), dtype="int32"), layer, keras.layers.Flatten(), keras.layers.Dense(3)])
    layer.set_weights([_ROWS])
    path = tmp_path / f"model.{ending}"
    if ending == "keras":
        model.save(path)
    else:
        model.save_weights(path)
    with pytest.raises(ExportError, match="say which table .*; its matrices of floats are .*'layers/") as error:
        read_all(path)
    name = next(part for part in str(error.value).split("'") if "embedding/vars/0" in part or "user/vars/0" in part)
    rows, keys = read_all(f"{path}:{name}")
    assert keys is None
    wanted = np.asarray(layer.get_weights()[0])
    assert rows.astype(np.float32).tobytes() == wanted.astype(np.float32).tobytes()


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_keras_2(tmp_path: Path) -> None:
    import tf_keras

    layer = tf_keras.layers.Embedding(6, 4, name="user")
    model = tf_keras.Sequential([tf_keras.Input((2,)), layer])
    layer.set_weights([_ROWS])
    model.save_weights(tmp_path / "weights.h5")
    model.save(tmp_path / "model.h5")
    for address in ("weights.h5", "weights.h5:embeddings:0", "model.h5", "model.h5:embeddings:0"):
        assert read_all(f"{tmp_path}/{address}")[0].tobytes() == _ROWS.tobytes(), address


def test_hdf5_of_other_programs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        file.create_dataset("a/user", data=matrix(50, 4), chunks=(7, 4), compression="gzip")
        file.create_dataset("b/user", data=matrix(3, 4).astype(">f8"))
        file["ids"] = np.arange(4)
        file["linked"] = h5py.ExternalLink("other.h5", "user")
        file.create_dataset("outside", (2, 2), "<f4", external=[(str(tmp_path / "numbers"), 0, 16)])
    np.testing.assert_array_equal(read_all(f"{tmp_path}/t.hdf5:a/user")[0], matrix(50, 4))
    np.testing.assert_array_equal(read_all(f"{tmp_path}/t.hdf5:b/user")[0], matrix(3, 4))
    with pytest.raises(ExportError, match="has no 'user'; its matrices of floats are 'a/user', 'b/user', 'outside'"):
        read_all(f"{tmp_path}/t.hdf5:user")
    with pytest.raises(ExportError, match="outside keeps its numbers in other files"):
        read_all(f"{tmp_path}/t.hdf5:outside")


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    small_chunks(monkeypatch, num_bytes=32)
    columns = {"word": pa.array(_WORDS), "v": pa.array(list(_ROWS)), "id": pa.array(range(6), pa.uint16())}
    pyarrow.feather.write_feather(pa.table(columns), tmp_path / "t.feather", compression, chunksize=4)
    rows, keys = read_all(f"{tmp_path}/t.feather?key=word")
    assert keys == _WORDS and rows.tobytes() == _ROWS.tobytes()
    assert read_all(f"{tmp_path}/t.feather?key=id&vector=v")[1] == list(range(6))


def test_unsigned_keys(tmp_path: Path) -> None:
    hashes = [1, 2**63 + 5, 2**64 - 1, 4, 5, 6]
    table = pa.table({"id": pa.array(hashes, pa.uint64()), "v": pa.array(list(_ROWS)), "word": pa.array(_WORDS)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert read_all(f"{tmp_path}/t.parquet?key=id")[1] == hashes
    rows, keys = read_all(f"{tmp_path}/t.parquet?key=id&key_dtype=string")
    assert keys == [str(key) for key in hashes] and rows.tobytes() == _ROWS.tobytes()
    with pytest.raises(ExportError, match="key column 'word' is string, not integers"):
        read_all(f"{tmp_path}/t.parquet?key=word&key_dtype=int64")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_raw_matrices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    # numpy writes what HugeCTR writes into emb_vector: the numbers of the rows, little-endian.
    small_chunks(monkeypatch, num_bytes=32)
    matrix(6, 4).astype(dtype).tofile(tmp_path / "emb_vector")
    np.testing.assert_array_equal(read_all(f"{tmp_path}/emb_vector?format=raw&dim=4&dtype={dtype}")[0], matrix(6, 4))
