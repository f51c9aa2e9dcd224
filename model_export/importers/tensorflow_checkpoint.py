"""Reads variables and hash tables of TensorFlow checkpoints and SavedModels, without TensorFlow.

A variable may be whole or partitioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model_export.adoption.spec import candidate_lines, find_variable, is_table
from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.hash_table import (
    HASH_TABLE_OPTIONS,
    KEYS,
    VALUES,
    HashTable,
    hash_tables,
    open_hash_table,
)
from model_export.importers.raw_matrix import NumberType, RawMatrix
from model_export.importers.table_reader import Chunk, TableReader, rows_per_chunk
from model_export.parity.integrity import VARIABLES_PREFIX
from service.artifact.bundle import BundleEntry, read_bundle
from service.types import Array

_NUMBERS = {
    "float16": NumberType(np.dtype("<f2")),
    "float32": NumberType(np.dtype("<f4")),
    "float64": NumberType(np.dtype("<f8")),
    "bfloat16": NumberType(np.dtype("<u2"), is_bfloat16=True),
}


def open_checkpoint(address: Address) -> TableReader:
    """Opens the variable of PREFIX:VARIABLE or SAVED_MODEL_FOLDER:VARIABLE; raises ExportError or ArtifactError."""
    prefix = address.path / VARIABLES_PREFIX if (address.path / "saved_model.pb").is_file() else address.path
    # The ending ".index" is removed, because users see that file in the folder and pass its name.
    prefix = prefix.with_suffix("") if prefix.suffix == ".index" and prefix.is_file() else prefix
    variables = read_bundle(prefix)
    hashed = hash_tables(variables)
    tensors = {part + end for table in hashed for part in table.parts for end in (KEYS, VALUES)}
    plain = {key: entry for key, entry in variables.items() if key not in tensors}
    if address.name is None:
        tables = [key for key, entry in plain.items() if is_table(entry, _NUMBERS)]
        if len(tables) + len(hashed) != 1:
            lines = "\n".join([*candidate_lines(plain), *_hash_table_lines(hashed, variables)])
            raise ExportError(f"{address.path}: say which variable with {address.path.name}:VARIABLE:\n{lines}")
        chosen = hashed
    else:
        chosen = [table for table in hashed if table.is_named(address.name)]
    if len(chosen) > 1:
        raise ExportError(f"{address.path}: {address.name!r} may be any of {sorted(table.name for table in chosen)}")
    if chosen:
        return _open_hash_table(address, chosen[0], variables)
    if given := sorted(set(address.options) & set(HASH_TABLE_OPTIONS)):
        raise ExportError(f"{address.text}: {given[0]}= is for hash tables, and this is a variable")
    name = tables[0] if address.name is None else address.name
    return _open_variable(name, plain, _hash_table_lines(hashed, variables))


def _open_hash_table(address: Address, table: HashTable, variables: Mapping[str, BundleEntry]) -> TableReader:
    values = {part: variables[part + VALUES] for part in table.parts}
    for part, entry in values.items():
        if not is_table(entry, _NUMBERS) or entry.is_sliced:
            raise ExportError(
                f"{address.path}:{part}{VALUES} is {entry.dtype} {list(entry.shape)}; a hash table is imported if its "
                f"values are a matrix of {' or '.join(_NUMBERS)}"
            )
        _check_file(entry, table.name)
    return open_hash_table(address, table, variables, {part: _matrix(entry) for part, entry in values.items()})


def _open_variable(name: str, variables: Mapping[str, BundleEntry], hash_table_lines: Sequence[str]) -> TableReader:
    try:
        entry = variables[find_variable(name, variables, dtypes=_NUMBERS)]
    except ExportError as error:
        raise ExportError("\n".join([str(error), *hash_table_lines])) from error
    parts = tuple((part.start, _matrix(part.entry)) for part in entry.slices) or (((0, 0), _matrix(entry)),)
    for part_entry in (part.entry for part in entry.slices) if entry.slices else (entry,):
        _check_file(part_entry, name)
    return parts[0][1] if len(parts) == 1 else _Partitioned(entry.shape[0], entry.shape[1], parts)


def _check_file(entry: BundleEntry, name: str) -> None:
    if not entry.file.is_file():
        raise ExportError(f"{entry.file} is missing: it holds a part of {name!r}")


def _hash_table_lines(tables: Sequence[HashTable], variables: Mapping[str, BundleEntry]) -> list[str]:
    lines = []
    for table in tables:
        sizes = [variables[part + VALUES].shape for part in table.parts]
        shape = [sum(size[0] for size in sizes), *sizes[0][1:]]
        lines.append(f"  table? {table.name}  {shape} hash table")
    return lines


def _matrix(entry: BundleEntry) -> RawMatrix:
    rows, dim = entry.shape
    return RawMatrix(entry.file, entry.offset, rows, dim, _NUMBERS[entry.dtype], crc32c=entry.crc32c)


@dataclass(frozen=True, slots=True)
class _Partitioned:
    """A variable saved in parts (by rows, columns or both) that cover the matrix without overlap."""

    num_rows: int
    dim: int
    parts: tuple[tuple[tuple[int, ...], RawMatrix], ...]

    def chunks(self) -> Iterator[Chunk]:
        covered = sum(part.num_rows * part.dim for _, part in self.parts)
        if covered != self.num_rows * self.dim:
            raise ExportError(f"the saved parts hold {covered:,} numbers, the variable {self.num_rows * self.dim:,}")
        for _, part in self.parts:
            part.check_size()
        if all(part.dim == self.dim for _, part in self.parts):
            # If the variable is split by rows only, read the parts one after the other, and compare their checksums
            # meanwhile.
            for _, part in self.parts:
                yield from part.chunks()
            return
        step = rows_per_chunk(self.dim)
        for start in range(0, self.num_rows, step):
            yield Chunk(self._rows(start, min(start + step, self.num_rows)))

    def _rows(self, start: int, stop: int) -> Array:
        out = np.empty((stop - start, self.dim), np.result_type(self.parts[0][1].read(0, 0)))
        for (row, column), part in self.parts:
            first, last = max(start, row), min(stop, row + part.num_rows)
            if first < last:
                out[first - start : last - start, column : column + part.dim] = part.read(first - row, last - row)
        return out
