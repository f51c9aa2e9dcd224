"""Damaged files, and files that no reader takes: what `model-export import` says about each, to the letter."""

from __future__ import annotations

import gzip
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from model_export.__main__ import main
from model_export.exporter.bundle_writer import BundleWriter
from tests.source_files import ROOT
from tests.unit.model_export.importers.reading import matrix

_DATA = ROOT / "tests/data/imports"
_TABLE = pa.table({"id": list("abcdef"), "v": list(matrix(6, 4))})


def cut(path: Path, size: int) -> str:
    """Cuts a file after `size` bytes (from its end if negative); returns its name."""
    path.write_bytes(path.read_bytes()[:size])
    return path.name


def flipped(path: Path, at: int) -> str:
    """Changes a byte of a file; returns its name."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    return path.name


def written(path: Path, content: bytes) -> str:
    """Writes a file; returns its name."""
    path.write_bytes(content)
    return path.name


def npy(folder: Path) -> Path:
    """Writes a file of NumPy; returns its path."""
    np.save(folder / "t.npy", matrix(6, 4))
    return folder / "t.npy"


def npz(folder: Path) -> Path:
    """Writes a compressed archive of NumPy; returns its path."""
    np.savez_compressed(folder / "t.npz", user=matrix(60, 4))
    return folder / "t.npz"


def safetensors(folder: Path) -> Path:
    """Writes a file of safetensors; returns its path."""
    save_file({"user": matrix(6, 4)}, folder / "t.safetensors")
    return folder / "t.safetensors"


def parquet(folder: Path) -> Path:
    """Writes a Parquet file; returns its path."""
    pyarrow.parquet.write_table(_TABLE, folder / "t.parquet")
    return folder / "t.parquet"


def feather(folder: Path) -> Path:
    """Writes a Feather file; returns its path."""
    pyarrow.feather.write_feather(_TABLE, folder / "t.feather")
    return folder / "t.feather"


def checkpoint(folder: Path) -> Path:
    """Writes a TensorFlow checkpoint; returns the path of its numbers."""
    with BundleWriter(folder / "ckpt") as writer:
        writer.add("user", "float32", [matrix(6, 4)])
    return folder / "ckpt.data-00000-of-00001"


def hdf5(folder: Path) -> Path:
    """Writes an HDF5 file; returns its path."""
    with h5py.File(folder / "t.h5", "w") as file:
        file["user"] = matrix(600, 4)
    return folder / "t.h5"


def library(folder: Path, name: str) -> Path:
    """Copies a file of another library; returns the copy's path."""
    return Path(shutil.copy(_DATA / name, folder / name))


def zipped(folder: Path, name: str, content: bytes) -> Path:
    """Writes a zip archive of one file; returns its path."""
    with zipfile.ZipFile(folder / "t.zip", "w") as archive:
        archive.writestr(name, content)
    return folder / "t.zip"


_NO_ZIP = (
    " is no zip archive, as torch.save() has written since PyTorch 1.6, or is cut short; load it with PyTorch and save "
    "it again"
)
# What damages a file -> the address to import, and the whole error behind "model-export: ", {t} for the folder.
_DAMAGES: list[tuple[Callable[[Path], str], str, str]] = [
    (
        lambda t: cut(npy(t), -5),
        "",
        "{t}/t.npy is cut short: 6 rows of 4 numbers end at byte 224, the file at 219; copy it again",
    ),
    (lambda t: cut(npy(t), 40), "", "{t}/t.npy is no .npy file: EOF: reading array header, expected 118 bytes got 30"),
    (
        lambda t: flipped(npz(t), 120),
        "",
        (
            "{t}/t.npz is no .npz file, or is damaged or cut short: Error -3 while decompressing data: "
            "invalid literal/lengths set"
        ),
    ),
    (lambda t: cut(npz(t), 60), "", "{t}/t.npz is no .npz file, or is damaged or cut short: File is not a zip file"),
    (
        lambda t: cut(safetensors(t), -5),
        "",
        ("{t}/t.safetensors is cut short: 6 rows of 4 numbers end at byte 168, the file at 163; copy it again"),
    ),
    (lambda t: cut(safetensors(t), 20), "", "{t}/t.safetensors is no safetensors file, or is cut short in its header"),
    (
        lambda t: cut(parquet(t), -5),
        "?key=id",
        (
            "{t}/t.parquet is no Parquet file, or is cut short: Parquet magic bytes not found in footer. "
            "Either the file is corrupted or this is not a parquet file."
        ),
    ),
    (
        lambda t: cut(feather(t), -5),
        "?key=id",
        (
            "{t}/t.feather is no Feather file of version 2, or is cut short: Not an Arrow file; "
            "pyarrow.feather.write_feather(TABLE, PATH) writes one"
        ),
    ),
    (
        lambda t: flipped(checkpoint(t), 9) and "ckpt",
        ":user",
        ("{t}/ckpt.data-00000-of-00001 is damaged: its numbers do not have the checksum that was saved with them"),
    ),
    (
        lambda t: cut(checkpoint(t), 9) and "ckpt",
        ":user",
        ("{t}/ckpt.data-00000-of-00001 is cut short: 6 rows of 4 numbers end at byte 96, the file at 9; copy it again"),
    ),
    (
        lambda t: cut(hdf5(t), 3000),
        ":user",
        (
            "{t}/t.h5 is no HDF5 file, or is damaged or cut short: Unable to synchronously open file "
            "(truncated file: eof = 3000, sblock->base_addr = 0, stored_eof = 11648)"
        ),
    ),
    (
        lambda t: written(t / "model.keras", b"?"),
        "",
        (
            "{t}/model.keras is no HDF5 file, or is damaged or cut short: Unable to synchronously open file "
            "(file signature not found)"
        ),
    ),
    (lambda t: cut(library(t, "state_dict.pt"), 900), "", "{t}/state_dict.pt" + _NO_ZIP),
    (lambda t: written(t / "model.pt", b"?"), "", "{t}/model.pt" + _NO_ZIP),
    (lambda t: library(t, "before_1_6.pt").name, "", "{t}/before_1_6.pt" + _NO_ZIP),
    (
        lambda t: library(t, "module.pt").name,
        "",
        (
            "{t}/module.pt can not be read without running code: it holds torch.nn.modules.sparse.Embedding; "
            "save its tensors alone, torch.save(model.state_dict(), PATH), or use safetensors"
        ),
    ),
    (
        lambda t: library(t, "fasttext.bin").name,
        "",
        (
            "{t}/fasttext.bin is a fastText model, whose word vectors are computed from its rows of "
            "subwords; import its .vec file, or write one with fastText: for each word of model.words, the "
            "word and model.get_word_vector(word)"
        ),
    ),
    (
        lambda t: written(t / "gensim.kv", b"?"),
        "",
        (
            "{t}/gensim.kv is a pickle of gensim; write another file with "
            "KeyedVectors.load(PATH).save_word2vec_format(NEW, binary=True)"
        ),
    ),
    (
        lambda t: cut(library(t, "gensim.vec"), -30),
        "",
        "{t}/gensim.vec, line 7 has 2 columns, expected a key and 4 numbers",
    ),
    (
        lambda t: cut(library(t, "gensim.bin"), -30),
        "",
        "{t}/gensim.bin is cut short: it ends in row 4, its first line says 6",
    ),
    (
        lambda t: cut(library(t, "gensim.vec.gz"), -30),
        "",
        (
            "{t}/gensim.vec.gz is damaged or cut short: Compressed file ended before the end-of-stream "
            "marker was reached"
        ),
    ),
    (lambda t: written(t / "t.vec.gz", b"?"), "", "{t}/t.vec.gz is damaged or cut short: Not a gzipped file (b'?')"),
    (
        lambda t: flipped(zipped(t, "t.vec", (_DATA / "gensim.vec").read_bytes()), 60),
        "",
        "{t}/t.zip:t.vec is damaged or cut short: Bad CRC-32 for file 't.vec'",
    ),
    (
        lambda t: cut(zipped(t, "t.vec", b"1 2\na 1 2\n"), -9),
        "",
        "{t}/t.zip is no zip archive, or is cut short: File is not a zip file",
    ),
    (
        lambda t: written(t / "t.vec", b"1 2\na 1 2\nb 1 2\n"),
        "",
        (
            "{t}/t.vec has 2 rows, its first line says 1: it goes on after them; if its first line is a row, "
            "add ?format=glove"
        ),
    ),
    (
        lambda t: written(t / "t.txt", b"0.5 1 2\n7 1 2\n"),
        "",
        (
            "{t}/t.txt: each line begins with a number, and the file does not tell whether it is a key: add "
            "?keys=none (3 numbers a row, no keys) or ?keys=first (a key and 2 numbers)"
        ),
    ),
    (
        lambda t: written(t / "t.csv", b"id,x,y\na,1,2\nb,1\n"),
        "",
        "{t}/t.csv, line 3 has 2 columns, the first line has 3",
    ),
    (lambda t: written(t / "t.csv", b'id,x,y\na,1,2\n"b,1,2\n'), "", "{t}/t.csv, line 3: unexpected end of data"),
    (
        lambda t: written(t / "t.tsv", b"1\t2.5\n2\t3\n"),
        "",
        (
            "{t}/t.tsv: its first column holds numbers, and the file does not tell whether they are keys: "
            "add ?keys=first (keys) or ?keys=none (part of the vectors)"
        ),
    ),
    (
        lambda t: written(t / "emb_vector", bytes(42)),
        "",
        (
            "{t}/emb_vector is a matrix without a header, as HugeCTR and HPS write it; add "
            "?format=raw&dim=D, D numbers a row. Save its keys for --keys with numpy.save(NEW, "
            "numpy.fromfile(KEY_FILE, numpy.int64))"
        ),
    ),
    (
        lambda t: written(t / "emb_vector", bytes(42)),
        "?format=raw&dim=4",
        "{t}/emb_vector has 42 bytes, no multiple of the 16 of 4 x float32",
    ),
    (
        lambda t: written(t / "t.npy.gz", gzip.compress(b"x")),
        "",
        "{t}/t.npy.gz is compressed, and npy is not read from compressed files; unpack it",
    ),
    (
        lambda t: flipped(library(t, "tensor.pt"), 704),
        "",
        "{t}/tensor.pt:tensor/data/0 is damaged: Bad CRC-32 for file 'tensor/data/0'",
    ),
    (
        lambda t: written(t / "t.npy", b""),
        "",
        "{t}/t.npy is no .npy file: EOF: reading magic string, expected 8 bytes got 0",
    ),
]


@pytest.mark.parametrize(("damage", "rest", "message"), _DAMAGES)
def test_a_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], str], rest: str, message: str
) -> None:
    address = f"{tmp_path}/{damage(tmp_path)}{rest}"
    before = sorted(tmp_path.iterdir())
    assert main(["import", "--out", f"{tmp_path}/m", "--table", f"t={address}"]) == 1
    assert capsys.readouterr().err.replace(str(tmp_path), "{t}") == f"model-export: {message}\n"
    assert sorted(tmp_path.iterdir()) == before
