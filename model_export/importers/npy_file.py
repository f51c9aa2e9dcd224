"""Reads NumPy's .npy and .npz files, without pickle.

Source: numpy/lib/_format_impl.py (NumPy 2.4), "Format Version 1.0" to "3.0"; APPNOTE.TXT 4.3.7 for the local header of
a zip member.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.raw_matrix import NumberType, RawMatrix
from model_export.importers.table_reader import CHUNK_BYTES, Chunk, TableReader, rows_per_chunk

_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    num_bytes: int


def open_npy(address: Address) -> TableReader:
    with address.path.open("rb") as file:
        header = _read_header(file, str(address.path))
    return _raw_matrix(address, address.path, 0, header, str(address.path))


def open_npz(address: Address) -> TableReader:
    try:
        with zipfile.ZipFile(address.path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            name = address.chosen(sorted(members), "arrays")
            info = members[name]
            what = f"{address.path}:{name}"
            with archive.open(info) as file:
                header = _read_header(file, what)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ExportError(f"{address.path} is no .npz file, or is damaged or cut short: {error}") from error
    if info.compress_type == zipfile.ZIP_STORED:
        return StoredMatrix(_raw_matrix(address, address.path, data_offset(address.path, info), header, what), info)
    if header.is_fortran:
        raise ExportError(f"{what} is compressed and in Fortran order; save np.ascontiguousarray(...) of it instead")
    return _CompressedMember(address.path, info.filename, header, _number_type(address, header, what))


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A TableReader of a matrix in an uncompressed member of a zip archive, whose checksum is compared first."""

    matrix: RawMatrix
    member: zipfile.ZipInfo

    @property
    def num_rows(self) -> int:
        return self.matrix.num_rows

    def chunks(self) -> Iterator[Chunk]:
        self.matrix.check_size()
        try:
            with zipfile.ZipFile(self.matrix.path) as archive, archive.open(self.member) as file:
                while file.read(CHUNK_BYTES):
                    pass
        except (zipfile.BadZipFile, EOFError) as error:
            raise ExportError(f"{self.matrix.path}:{self.member.filename} is damaged: {error}") from error
        yield from self.matrix.chunks()


@dataclass(frozen=True, slots=True)
class _CompressedMember:
    path: Path
    member: str
    header: _Header
    number: NumberType

    @property
    def num_rows(self) -> int:
        return self.header.shape[0]

    def chunks(self) -> Iterator[Chunk]:
        rows, dim = self.header.shape
        step = rows_per_chunk(dim)
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                file.read(self.header.num_bytes)
                for start in range(0, rows, step):
                    count = min(step, rows - start)
                    data = file.read(count * dim * self.header.dtype.itemsize)
                    if len(data) < count * dim * self.header.dtype.itemsize:
                        raise ExportError(f"{self.path}:{self.member} is cut short after row {start:,} of {rows:,}")
                    yield Chunk(self.number.numbers(np.frombuffer(data, self.number.dtype).reshape(count, dim)))
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ExportError(f"{self.path}:{self.member} is damaged: {error}") from error


def _raw_matrix(address: Address, path: Path, offset: int, header: _Header, what: str) -> RawMatrix:
    number = _number_type(address, header, what)
    rows, dim = header.shape
    return RawMatrix(path, offset + header.num_bytes, rows, dim, number, is_fortran=header.is_fortran)


def _read_header(file: IO[bytes], what: str) -> _Header:
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            # NumPy writes version 3 only for structured dtypes with field names beyond Latin-1, which hold no matrix.
            raise ExportError(f"{what} has .npy format {version}, which is for records; a table is a matrix of floats")
        shape, is_fortran, dtype = readers[version](file)
    except (ValueError, EOFError) as error:
        raise ExportError(f"{what} is no .npy file: {error}") from error
    if dtype.hasobject:
        raise ExportError(
            f"{what} holds Python objects (dtype object), which are pickled and never read; save np.array(..., "
            "np.float32) of rows of one length"
        )
    if len(shape) != 2:
        raise ExportError(f"{what} has shape {list(shape)}; a table is a matrix, [rows, numbers per row]")
    return _Header(tuple(int(size) for size in shape), is_fortran, dtype, file.tell())


def _number_type(address: Address, header: _Header, what: str) -> NumberType:
    dtype = header.dtype
    said = address.options.get("dtype")
    if said not in (None, "bfloat16"):
        raise ExportError(f"{what}: dtype={said}; only ?dtype=bfloat16 is an option, files name other dtypes")
    # np.save writes ml_dtypes.bfloat16 as the untyped dtype V2, two bytes.
    if dtype == np.dtype("V2") or (said and dtype.kind in "uV" and dtype.itemsize == 2):
        return NumberType(np.dtype("<u2") if dtype.kind == "V" else dtype, is_bfloat16=True)
    if dtype.kind != "f" or dtype.itemsize > 8:
        hint = "; if they are bits of bfloat16, add ?dtype=bfloat16" if dtype.kind == "u" else ""
        raise ExportError(f"{what} holds {dtype}; a table holds float16, float32, float64 or bfloat16{hint}")
    return NumberType(dtype)


def data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Returns the offset of a member's bytes in a zip archive; raises ExportError."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEADER.size)
        if len(head) < _LOCAL_HEADER.size or head[:4] != b"PK\3\4":
            raise ExportError(f"{path} is damaged: no local header of {info.filename!r}")
        _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    return int(info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes)
