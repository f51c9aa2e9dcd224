"""Reads matrices that lie as plain numbers in a file: NumPy's, without pickle, safetensors, HDF5 and Keras' files.

An uncompressed matrix is read in chunks and not mapped, because mapped pages count as used memory. Fortran order is
read column by column for the rows of a chunk, and transposed. safetensors is read without its library, which would map
the file and has no bfloat16 for numpy. Of a Keras model only numbers are read, so no code of it runs.

Source: numpy/lib/_format_impl.py (NumPy 2.4), "Format Version 1.0" to "3.0"; APPNOTE.TXT 4.3.7 for the local header of
a zip member; huggingface/safetensors README.md "Format": 8 bytes little-endian N, N bytes of JSON, the tensors
row-major.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.reduced_table import widened
from model_export.importers.address import Address
from model_export.importers.table_reader import CHUNK_BYTES, Chunk, Rows, TableReader, missing_library, rows_per_chunk
from service.artifact.hashes import crc32c_of, masked
from service.types import Array


@dataclass(frozen=True, slots=True)
class NumberType:
    """The stored form of a number. dtype: numpy's, with byte order; for bfloat16, which numpy lacks, uint16."""

    dtype: np.dtype[np.generic]
    is_bfloat16: bool = False

    def numbers(self, stored: Array) -> Array:
        """Converts numbers, as a matrix file stores them, to a float dtype of numpy; bfloat16 becomes float32."""
        return widened(stored, "bfloat16") if self.is_bfloat16 else stored


NUMBERS = {
    "float16": NumberType(np.dtype("<f2")),
    "float32": NumberType(np.dtype("<f4")),
    "float64": NumberType(np.dtype("<f8")),
    "bfloat16": NumberType(np.dtype("<u2"), is_bfloat16=True),
}


def open_raw(address: Address) -> TableReader:
    """Opens a file of numbers without a header, PATH?format=raw&dim=D[&dtype=float32], as HugeCTR's emb_vector.

    Raises:
      ExportError: dim or dtype is missing or invalid, or the file does not hold whole rows.
    """
    dim, dtype = address.options.get("dim", ""), address.options.get("dtype", "float32")
    if not dim.isdecimal() or int(dim) < 1 or dtype not in NUMBERS:
        raise ExportError(
            f"{address.text}: a raw matrix needs ?format=raw&dim=D, D numbers a row, little-endian; &dtype= is one of "
            f"{', '.join(NUMBERS)} (default: float32)"
        )
    number = NUMBERS[dtype]
    size, row_bytes = address.path.stat().st_size, int(dim) * number.dtype.itemsize
    if size % row_bytes:
        raise ExportError(f"{address.path} has {size:,} bytes, no multiple of the {row_bytes:,} of {dim} x {dtype}")
    return RawMatrix(address.path, 0, size // row_bytes, int(dim), number)


@dataclass(frozen=True, slots=True)
class RawMatrix:
    """A TableReader of a [num_rows, dim] matrix that starts at an offset in a file.

    crc32c: masked checksum of the bytes, compared while all rows are read in order; None: there is none.
    """

    path: Path
    offset: int
    num_rows: int
    dim: int
    number: NumberType
    is_fortran: bool = False
    crc32c: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        self.check_size()
        step, crc = rows_per_chunk(self.dim), 0
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, self.num_rows, step):
                stored = self._stored(file, start, min(start + step, self.num_rows))
                if self.crc32c is not None:
                    crc = crc32c_of(stored, crc)
                yield Chunk(self.number.numbers(stored))
        if self.crc32c is not None and masked(crc) != self.crc32c:
            raise ExportError(f"{self.path} is damaged: its numbers do not have the checksum that was saved with them")

    def read(self, start: int, stop: int) -> Array:
        with self.path.open("rb", buffering=0) as file:
            return self.number.numbers(self._stored(file, start, stop))

    def read_rows(self, rows: Array) -> Array:
        """Reads rows [n] int64 of a matrix in C order, in the order of their numbers in `rows`."""
        item = self.number.dtype.itemsize
        stored = np.empty((len(rows), self.dim), self.number.dtype)
        with self.path.open("rb", buffering=0) as file:
            for i, row in enumerate(rows.tolist()):
                file.seek(self.offset + row * self.dim * item)
                self._fill(file, stored[i])
        return self.number.numbers(stored)

    def check_size(self) -> None:
        end = self.offset + self.num_rows * self.dim * self.number.dtype.itemsize
        size = self.path.stat().st_size
        if size < end:
            raise ExportError(
                f"{self.path} is cut short: {self.num_rows} rows of {self.dim} numbers end at byte {end:,}, the file "
                f"at {size:,}; copy it again"
            )

    def _stored(self, file: BinaryIO, start: int, stop: int) -> Array:
        rows, item = stop - start, self.number.dtype.itemsize
        if not self.is_fortran:
            whole = np.empty((rows, self.dim), self.number.dtype)
            file.seek(self.offset + start * self.dim * item)
            self._fill(file, whole)
            return whole
        columns = np.empty((self.dim, rows), self.number.dtype)
        for column in range(self.dim):
            file.seek(self.offset + (column * self.num_rows + start) * item)
            self._fill(file, columns[column])
        return np.ascontiguousarray(columns.T)

    def _fill(self, file: BinaryIO, numbers: Array) -> None:
        # A read of more than 2 GB may return only part of the bytes.
        view = numbers.reshape(-1).view(np.uint8).data
        while view:
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise ExportError(f"{self.path} became shorter while it was read")
            view = view[count:]


_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    num_bytes: int


def open_npy(address: Address) -> TableReader:
    with address.path.open("rb") as file:
        header = _read_npy_header(file, str(address.path))
    return _raw_matrix(address, address.path, 0, header, str(address.path))


def open_npz(address: Address) -> TableReader:
    try:
        with zipfile.ZipFile(address.path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            name = address.chosen(sorted(members), "arrays")
            info = members[name]
            what = f"{address.path}:{name}"
            with archive.open(info) as file:
                header = _read_npy_header(file, what)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ExportError(f"{address.path} is no .npz file, or is damaged or cut short: {error}") from error
    if info.compress_type == zipfile.ZIP_STORED:
        return stored_matrix(_raw_matrix(address, address.path, data_offset(address.path, info), header, what), info)
    if header.is_fortran:
        raise ExportError(f"{what} is compressed and in Fortran order; save np.ascontiguousarray(...) of it instead")
    number = _npy_number_type(address, header, what)
    return Rows(header.shape[0], partial(_decompressed, address.path, info.filename, header, number))


def stored_matrix(matrix: RawMatrix, member: zipfile.ZipInfo) -> TableReader:
    def chunks() -> Iterator[Chunk]:
        matrix.check_size()
        try:
            with zipfile.ZipFile(matrix.path) as archive, archive.open(member) as file:
                while file.read(CHUNK_BYTES):
                    pass
        except (zipfile.BadZipFile, EOFError) as error:
            raise ExportError(f"{matrix.path}:{member.filename} is damaged: {error}") from error
        yield from matrix.chunks()

    return Rows(matrix.num_rows, chunks)


def _decompressed(path: Path, member: str, header: _Header, number: NumberType) -> Iterator[Chunk]:
    rows, dim = header.shape
    step = rows_per_chunk(dim)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            file.read(header.num_bytes)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                data = file.read(count * dim * header.dtype.itemsize)
                if len(data) < count * dim * header.dtype.itemsize:
                    raise ExportError(f"{path}:{member} is cut short after row {start:,} of {rows:,}")
                yield Chunk(number.numbers(np.frombuffer(data, number.dtype).reshape(count, dim)))
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ExportError(f"{path}:{member} is damaged: {error}") from error


def _raw_matrix(address: Address, path: Path, offset: int, header: _Header, what: str) -> RawMatrix:
    number = _npy_number_type(address, header, what)
    rows, dim = header.shape
    return RawMatrix(path, offset + header.num_bytes, rows, dim, number, is_fortran=header.is_fortran)


def _read_npy_header(file: IO[bytes], what: str) -> _Header:
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


def _npy_number_type(address: Address, header: _Header, what: str) -> NumberType:
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


# Largest size in bytes of a safetensors file's header; the safetensors library has the same limit.
_MAX_HEADER_BYTES = 100_000_000
_SAFETENSORS = {
    "F16": NUMBERS["float16"],
    "F32": NUMBERS["float32"],
    "F64": NUMBERS["float64"],
    "BF16": NUMBERS["bfloat16"],
}


def open_safetensors(address: Address) -> TableReader:
    header, first_byte = _read_header(address.path)
    name = address.chosen(sorted(header), "tensors")
    return _matrix(address.path, name, header[name], first_byte)


def open_sharded(address: Address) -> TableReader:
    """Opens the tensor NAME in its shard, which PATH.safetensors.index.json names; raises ExportError."""
    try:
        shards = json.loads(address.path.read_bytes())["weight_map"]
        names = sorted(shards)
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{address.path} is no index of safetensors files: it has no weight_map") from error
    name = address.chosen(names, "tensors")
    shard = address.path.parent / str(shards[name])
    if not shard.is_file():
        raise ExportError(f"{address.path} says that {name!r} is in {shards[name]!r}, which is not beside it")
    header, first_byte = _read_header(shard)
    if name not in header:
        raise ExportError(f"{shard} has no {name!r}, although {address.path.name} says so")
    return _matrix(shard, name, header[name], first_byte)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size) if 2 <= size <= _MAX_HEADER_BYTES else b""
    if len(text) != size or not text:
        raise ExportError(f"{path} is no safetensors file, or is cut short in its header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is no safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ExportError(f"{path} is no safetensors file: its header is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + size


def _matrix(path: Path, name: str, entry: Any, first_byte: int) -> RawMatrix:
    try:
        dtype, shape = entry["dtype"], [int(size) for size in entry["shape"]]
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{path}:{name}: its header entry is malformed") from error
    if dtype not in _SAFETENSORS:
        raise ExportError(f"{path}:{name} holds {dtype}; a table holds {', '.join(_SAFETENSORS)}")
    if len(shape) != 2 or min(shape) < 0:
        raise ExportError(f"{path}:{name} has shape {shape}; a table is a matrix, [rows, numbers per row]")
    number = _SAFETENSORS[dtype]
    if begin < 0 or end - begin != shape[0] * shape[1] * number.dtype.itemsize:
        raise ExportError(f"{path}:{name}: {end - begin:,} bytes can not hold {shape} of {dtype}")
    return RawMatrix(path, first_byte + begin, shape[0], shape[1], number)


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
        rows, dim = (int(size) for size in dataset.shape)
        number = NUMBERS["bfloat16"] if _is_bfloat16(dataset) else NumberType(dataset.dtype)

    def chunks() -> Iterator[Chunk]:
        step = rows_per_chunk(dim)
        with _opened(address.path) as file:
            for start in range(0, rows, step):
                stored = file[name][start : min(start + step, rows)]
                yield Chunk(number.numbers(stored.view(number.dtype)))

    return Rows(rows, chunks)


def _is_matrix(item: Any) -> bool:
    import h5py

    is_matrix = isinstance(item, h5py.Dataset) and len(item.shape or ()) == 2
    return is_matrix and (_is_bfloat16(item) or item.dtype.kind == "f")


def _is_bfloat16(dataset: Any) -> bool:
    # Keras says in an attribute that the two bytes of a number are a bfloat16, a dtype that HDF5 lacks.
    return bool(dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2)


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
