"""Reads Parquet files, folders of part files, and Feather files: a key column becomes the vocabulary, vectors rows.

pyarrow decodes a batch of rows at a time, from buffered reads of the row group or record batch that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.table_reader import (
    Chunk,
    KeyDtypeChoice,
    Keys,
    TableReader,
    missing_library,
    option,
    rows_per_chunk,
)
from service.types import Array

# Number of a Parquet file's rows that are read at once if the length of the vectors is not known in advance.
_BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20


def open_parquet(address: Address) -> TableReader:
    """Opens the table at PATH?key=COLUMN&vector=COLUMN[,COLUMN...] and returns its reader; raises ExportError."""
    files = sorted(address.path.glob("*.parquet")) if address.path.is_dir() else [address.path]
    return _opened(address, [_ParquetPart(file) for file in files], "Parquet files")


def open_feather(address: Address) -> TableReader:
    return _opened(address, [_FeatherPart(address.path)], "Feather files")


def _opened(address: Address, parts: Sequence[_Part], what: str) -> TableReader:
    try:
        import pyarrow
    except ImportError as error:
        raise missing_library("pyarrow", what) from error
    schema = parts[0].schema
    for part in parts[1:]:
        other = part.schema
        if not other.equals(schema):
            raise ExportError(f"{part.path} has other columns or types than {parts[0].path.name}: {_listed(other)}")
    key = address.options.get("key")
    vector = _vector_columns(address, schema, key)
    for column in [*vector, *([] if key is None else [key])]:
        if column not in schema.names:
            raise ExportError(f"{address.path} has no column {column!r}; its columns are {_listed(schema)}")
    if len(set(vector)) != len(vector):
        raise ExportError(f"{address.text}: vector= names a column twice")
    for column in vector:
        _check_vector_type(address, schema.field(column).type, column, len(vector))
    if key is not None:
        _check_key_type(address, schema.field(key).type, key)
    dtype = option(address.options, "key_dtype", KeyDtypeChoice, address.text)
    if dtype == "int64" and key is not None and not pyarrow.types.is_integer(schema.field(key).type):
        raise ExportError(f"{address.path}: key column {key!r} is {schema.field(key).type}, not integers")
    return _Columns(address, tuple(parts), key, tuple(vector), dtype == "string")


class _Part(Protocol):
    path: Path

    @property
    def schema(self) -> Any: ...

    @property
    def num_rows(self) -> int: ...

    def batches(self, size: int, columns: list[str]) -> Iterator[Any]: ...


@dataclass(slots=True)
class _ParquetPart:
    path: Path

    @property
    def schema(self) -> Any:
        return self._file().schema_arrow

    @property
    def num_rows(self) -> int:
        return int(self._file().metadata.num_rows)

    def batches(self, size: int, columns: list[str]) -> Iterator[Any]:
        yield from self._file().iter_batches(size, columns=columns)

    def _file(self) -> Any:
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except pyarrow.ArrowException as error:
            raise ExportError(f"{self.path} is no Parquet file, or is cut short: {error}") from error


@dataclass(slots=True)
class _FeatherPart:
    path: Path

    @property
    def schema(self) -> Any:
        return self._file().schema

    @property
    def num_rows(self) -> int:
        file = self._file()
        return sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))

    def batches(self, size: int, columns: list[str]) -> Iterator[Any]:
        file = self._file([self.schema.names.index(column) for column in columns])
        for i in range(file.num_record_batches):
            batch = file.get_batch(i)
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size)

    def _file(self, columns: list[int] | None = None) -> Any:
        import pyarrow
        import pyarrow.ipc

        try:
            options = pyarrow.ipc.IpcReadOptions(included_fields=columns)
            return pyarrow.ipc.open_file(pyarrow.OSFile(str(self.path)), options=options)
        except pyarrow.ArrowException as error:
            raise ExportError(
                f"{self.path} is no Feather file of version 2, or is cut short: {error}; "
                "pyarrow.feather.write_feather(TABLE, PATH) writes one"
            ) from error


@dataclass(frozen=True, slots=True)
class _Columns:
    address: Address
    parts: tuple[_Part, ...]
    key: str | None
    vector: tuple[str, ...]
    has_strings: bool

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def chunks(self) -> Iterator[Chunk]:
        import pyarrow

        columns = [*self.vector, *([] if self.key is None else [self.key])]
        done, dim = 0, None
        for part in self.parts:
            size = rows_per_chunk(self._known_dim(part.schema)) if dim is None else rows_per_chunk(dim)
            try:
                for batch in part.batches(size, list(dict.fromkeys(columns))):
                    if not batch.num_rows:
                        continue
                    rows = self._rows(batch, part.path, done)
                    keys = self._keys(batch, part.path, done)
                    dim = rows.shape[1]
                    done += batch.num_rows
                    yield Chunk(rows, keys)
            except pyarrow.ArrowException as error:
                raise ExportError(f"{part.path} can not be read: {error}") from error

    def _keys(self, batch: Any, path: Path, done: int) -> Keys | None:
        if self.key is None:
            return None
        import pyarrow

        column = batch.column(self.key)
        _check_no_nulls(column, path, done, self.key)
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        keys: Sequence[str] | Sequence[int] = column.to_pylist()
        return [str(key) for key in keys] if self.has_strings else keys

    def _known_dim(self, schema: Any) -> int:
        import pyarrow

        if len(self.vector) > 1:
            return len(self.vector)
        kind = schema.field(self.vector[0]).type
        known = kind.list_size if pyarrow.types.is_fixed_size_list(kind) else 1
        return int(max(known, 4 * (1 << 20) // _BATCH_ROWS))

    def _rows(self, batch: Any, path: Path, done: int) -> Array:
        import pyarrow

        first = batch.column(self.vector[0])
        if pyarrow.types.is_nested(first.type):
            return _list_rows(first, path, done, self.vector[0])
        rows = np.empty((batch.num_rows, len(self.vector)), np.float64)
        for i, name in enumerate(self.vector):
            rows[:, i] = _numbers(batch.column(name), path, done, name)
        return rows


def _vector_columns(address: Address, schema: Any, key: str | None) -> list[str]:
    import pyarrow

    if said := address.options.get("vector"):
        # A comma may be part of a column's name, so try the whole text as one name before it is split at commas.
        return [said] if said in schema.names else said.split(",")
    lists = [field.name for field in schema if pyarrow.types.is_nested(field.type) and field.name != key]
    if len(lists) != 1:
        raise ExportError(f"{address.path}: say the vectors' column with ?vector=COLUMN; there are {_listed(schema)}")
    return lists


def _check_vector_type(address: Address, kind: Any, column: str, count: int) -> None:
    import pyarrow

    types = pyarrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and count == 1 and types.is_floating(kind.value_type):
        return
    if not is_list and (types.is_floating(kind) or (types.is_integer(kind) and count > 1)):
        return
    wanted = "a list of float16, float32 or float64, or several columns of numbers"
    raise ExportError(f"{address.path}: column {column!r} is {kind}; vectors are {wanted}")


def _check_key_type(address: Address, kind: Any, column: str) -> None:
    import pyarrow

    types = pyarrow.types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(inner) or types.is_large_string(inner) or types.is_integer(inner)):
        raise ExportError(f"{address.path}: key column {column!r} is {kind}; keys are strings or whole numbers")


def _list_rows(column: Any, path: Path, done: int, name: str) -> Array:
    import pyarrow
    import pyarrow.compute

    _check_no_nulls(column, path, done, name)
    lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    dim = int(lengths[0])
    if (lengths != dim).any():
        row = int(np.argmax(lengths != dim))
        raise ExportError(
            f"{path}, row {done + row}: {name!r} has {lengths[row]} numbers, expected {dim} as in row {done}"
        )
    # flatten() returns only the numbers of this slice of the Arrow list column; column.values would return the numbers
    # of the whole array.
    return _numbers(column.flatten(), path, done, name, dim).reshape(-1, dim)


def _numbers(column: Any, path: Path, done: int, name: str, dim: int = 1) -> Array:
    _check_no_nulls(column, path, done, name, dim)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers


def _check_no_nulls(column: Any, path: Path, done: int, name: str, dim: int = 1) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) // max(dim, 1)
        raise ExportError(f"{path}, row {done + row}: {name!r} is null; leave such rows out of the file")


def _listed(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
