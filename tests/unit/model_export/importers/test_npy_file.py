"""Reads NumPy's files of every dtype, order and container, as numpy's own reader does."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

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


def test_files_that_are_cut_short(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", matrix(50, 4))
    data = (tmp_path / "t.npy").read_bytes()
    for size, message in ((len(data) - 1, "is cut short: 50 rows of 4 numbers end at byte 928"), (20, "is no .npy")):
        (tmp_path / "cut.npy").write_bytes(data[:size])
        with pytest.raises(ExportError, match=message):
            read_all(tmp_path / "cut.npy")
    np.savez(tmp_path / "t.npz", t=matrix(50, 4))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "t.npz").read_bytes()[:-9])
    with pytest.raises(ExportError, match=r"is no .npz file, or is damaged or cut short"):
        read_all(tmp_path / "cut.npz")


def test_a_compressed_member_that_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        np.save(tmp_path / "t.npy", matrix(50, 4))
        archive.writestr("t.npy", (tmp_path / "t.npy").read_bytes()[:-16])
    with pytest.raises(ExportError, match="is cut short after row 0 of 50"):
        read_all(tmp_path / "t.npz")
