"""Damaged files, and files that no reader takes: what `model-export import` says about each, to the letter."""

from __future__ import annotations

import shutil
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def npy(file: Path) -> None:
    """Writes a file of NumPy."""
    np.save(file, matrix(6, 4))


def npz(file: Path) -> None:
    """Writes a compressed archive of NumPy."""
    np.savez_compressed(file, user=matrix(60, 4))


def checkpoint(file: Path) -> None:
    """Writes a TensorFlow checkpoint; file: of its numbers."""
    with BundleWriter(file.with_suffix("")) as writer:
        writer.add("user", "float32", [matrix(6, 4)])


def hdf5(file: Path) -> None:
    """Writes an HDF5 file."""
    with h5py.File(file, "w") as opened:
        opened["user"] = matrix(600, 4)


def zipped(file: Path) -> None:
    """Writes a zip archive of one file."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("t.vec", (_DATA / "gensim.vec").read_bytes())


# Files that are written by libraries; others are copied from _DATA, or their content is in the row.
_WRITERS: dict[str, Callable[[Path], object]] = {
    "t.npy": npy,
    "t.npz": npz,
    "t.safetensors": lambda file: save_file({"user": matrix(6, 4)}, file),
    "t.parquet": lambda file: pyarrow.parquet.write_table(_TABLE, file),
    "t.feather": lambda file: pyarrow.feather.write_feather(_TABLE, file),
    "t.h5": hdf5,
    "t.zip": zipped,
    "ckpt.data-00000-of-00001": checkpoint,
}
_DAMAGES = tomllib.loads((_DATA / "damages.toml").read_text())["damages"]


@pytest.mark.parametrize("damage", _DAMAGES, ids=lambda damage: damage["says"])
def test_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, Any]) -> None:
    file = tmp_path / damage["file"]
    if "written" in damage:
        file.write_text(damage["written"])
    elif file.name in _WRITERS:
        _WRITERS[file.name](file)
    else:
        shutil.copy(_DATA / file.name, file)
    data = bytearray(file.read_bytes()[: damage.get("cut")])
    if "flipped" in damage:
        data[damage["flipped"]] ^= 0x55
    file.write_bytes(data)
    before = sorted(tmp_path.iterdir())
    address = f"{tmp_path}/{file.name.partition('.data-')[0]}{damage.get('rest', '')}"
    assert main(["import", "--out", f"{tmp_path}/m", "--table", f"t={address}"]) == 1
    assert capsys.readouterr().err == f"model-export: {tmp_path}/{damage['says']}\n"
    assert sorted(tmp_path.iterdir()) == before
