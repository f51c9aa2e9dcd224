"""Reads matrices of HDF5 files: Keras' weights (.weights.h5, .h5) and whole models (.keras, a zip archive).

Only numbers are read; a model's configuration is not, so no code of it runs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.raw_matrix import NumberType
from model_export.importers.table_reader import Chunk, TableReader, missing_library, rows_per_chunk

# The file of weights in a .keras archive. Source: keras/src/saving/saving_lib.py (Keras 3.15).
_WEIGHTS = "model.weights.h5"


def open_hdf5(address: Address) -> TableReader:
    """Opens the dataset PATH:NAME (a path in the file, or its end) and returns its reader; raises ExportError."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise missing_library("h5py", "HDF5 and .keras files") from error
    with _opened(address.path) as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, item: found.setdefault(name, item) and None)
        tables = sorted(name for name, item in found.items() if _is_matrix(item))
        ends = [name for name in tables if address.name is not None and name.endswith("/" + address.name)]
        name = (
            ends[0] if len(ends) == 1 and address.name not in tables else address.chosen(tables, "matrices of floats")
        )
        dataset = found[name]
        if dataset.is_virtual or dataset.external:
            raise ExportError(f"{address.path}:{name} keeps its numbers in other files; copy it into one HDF5 file")
        rows, dim = dataset.shape
        return _Dataset(address.path, name, int(rows), int(dim), _number_type(dataset))


@dataclass(frozen=True, slots=True)
class _Dataset:
    path: Path
    name: str
    num_rows: int
    dim: int
    number: NumberType

    def chunks(self) -> Iterator[Chunk]:
        step = rows_per_chunk(self.dim)
        with _opened(self.path) as file:
            for start in range(0, self.num_rows, step):
                stored = file[self.name][start : min(start + step, self.num_rows)]
                yield Chunk(self.number.numbers(stored.view(self.number.dtype)))


def _is_matrix(item: Any) -> bool:
    import h5py

    is_matrix = isinstance(item, h5py.Dataset) and len(item.shape or ()) == 2
    return is_matrix and (_is_bfloat16(item) or item.dtype.kind == "f")


def _is_bfloat16(dataset: Any) -> bool:
    # Keras says in an attribute that the two bytes of a number are a bfloat16, a dtype that HDF5 lacks.
    return bool(dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2)


def _number_type(dataset: Any) -> NumberType:
    if _is_bfloat16(dataset):
        return NumberType(np.dtype("<u2"), is_bfloat16=True)
    return NumberType(dataset.dtype)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open(_WEIGHTS) as weights, h5py.File(weights, "r") as file:
                yield file
        else:
            with h5py.File(path, "r") as file:
                yield file
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path} is no HDF5 file, or is damaged or cut short: {error}") from error
    except KeyError as error:
        raise ExportError(f"{path} has no {_WEIGHTS}, which a .keras file has: {error}") from error
