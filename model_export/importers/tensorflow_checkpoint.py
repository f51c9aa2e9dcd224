"""Reads variables, whole or in parts, and hash tables of TensorFlow checkpoints and SavedModels, without TensorFlow.

A hash table's keys and values are saved beside each other, in order of buckets.

Source: MutableHashTable._Saveable and DenseHashTable._Saveable of tensorflow/python/ops/lookup_ops.py (2.21): tensors
NAME-keys and NAME-values. Variable._make_name of TensorFlow Recommenders Addons' dynamic_embedding_variable.py: one
table NAME_mht_IofN for each device. WriteStringTensor of tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from model_export.adoption.spec import candidate_lines, find_variable, is_table
from model_export.errors import ExportError
from model_export.graphs.source import VARIABLES_PREFIX
from model_export.importers.address import Address
from model_export.importers.matrix_files import NUMBERS, RawMatrix
from model_export.importers.table_reader import Chunk, Errors, Keys, Rows, TableReader, decoded, option, rows_per_chunk
from service.artifact.bundle import BundleEntry, read_bundle, read_varint
from service.artifact.hashes import crc32c_of, masked
from service.types import Array

KEYS, VALUES = "-keys", "-values"
HASH_TABLE_OPTIONS = ("empty_key", "deleted_key", "errors")
_INTEGERS = {"int32": "<i4", "int64": "<i8"}
_OBJECT = "/.ATTRIBUTES/table"
# The number in a part's name, in a checkpoint by names and in one by objects.
_PART = re.compile(r"(?<=_mht_)\d+(?=of\d+(_\d+)?$)|(?<=/)\d+(?=/\.ATTRIBUTES/table$)")


@dataclass(frozen=True, slots=True)
class HashTable:
    """A hash table in a checkpoint. parts: the keys of its tensors without -keys or -values, one per part."""

    name: str
    parts: tuple[str, ...]

    def is_named(self, name: str) -> bool:
        tensors = {part + end for part in self.parts for end in ("", KEYS, VALUES)}
        return name in tensors or f"/{self.name}".endswith(f"/{name}")


def hash_tables(variables: Mapping[str, BundleEntry]) -> list[HashTable]:
    found: dict[str, list[str]] = {}
    for key, values in variables.items():
        stem = key.removesuffix(VALUES)
        keys = variables.get(stem + KEYS)
        if stem == key or keys is None or not values.shape or keys.dtype.startswith("float"):
            continue
        if keys.shape in (values.shape[:1], (values.shape[0], 1)):
            part = _PART.search(stem)
            whole = stem if part is None else f"{stem[: part.start()]}*{stem[part.end() :]}"
            found.setdefault(whole, []).append(stem)
    for whole, parts in found.items():
        if (number := re.search(r"_mht_\*of(\d+)", whole)) and int(number[1]) != len(parts):
            raise ExportError(
                f"hash table {whole.replace('*', 'I')} has {len(parts)} of its {number[1]} parts in the checkpoint"
            )
    return [
        HashTable((parts[0] if len(parts) == 1 else whole).removesuffix(_OBJECT), tuple(parts))
        for whole, parts in found.items()
    ]


def _open_hash_table(address: Address, table: HashTable, variables: Mapping[str, BundleEntry]) -> TableReader:
    values = [variables[part + VALUES] for part in table.parts]
    for part, entry in zip(table.parts, values, strict=True):
        if not is_table(entry, NUMBERS) or entry.is_sliced:
            raise ExportError(
                f"{address.path}:{part}{VALUES} is {entry.dtype} {list(entry.shape)}; a hash table is imported if its "
                f"values are a matrix of {' or '.join(NUMBERS)}"
            )
        _check_file(entry, table.name)
    entries = [variables[part + KEYS] for part in table.parts]
    keys = [_keys(entry, f"{address.path}:{part}{KEYS}") for part, entry in zip(table.parts, entries, strict=True)]
    flat = [key for some in keys for key in some.tolist()]
    real = _real_rows(address, table, flat, is_dense=any(len(entry.shape) == 2 for entry in entries))
    errors = option(address.options, "errors", Errors, address.text) or "strict"
    where = f"{address.path}:{table.name}"
    order, named = [], []
    for i in sorted(real, key=flat.__getitem__):
        key = decoded(flat[i], errors, where) if isinstance(flat[i], bytes) else flat[i]
        if key is not None:
            order.append(i)
            named.append(key)
    sizes = [len(some) for some in keys]
    places = np.stack([np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(n) for n in sizes])], axis=1)
    return Rows(len(named), partial(_sorted_rows, [_matrix(entry) for entry in values], places[order], named))


def _sorted_rows(parts: Sequence[RawMatrix], places: Array, keys: Keys) -> Iterator[Chunk]:
    # Yields a hash table's values in the order of their keys. places: [n, 2] int64, the part that holds a row and the
    # row's number in it.
    for part in parts:
        # Only whole values have a checksum, so they are read once in order, to compare it.
        for _ in part.chunks():
            pass
    dim = parts[0].dim
    for start in range(0, len(keys), step := rows_per_chunk(dim)):
        here = places[start : start + step]
        rows: Array = np.empty((len(here), dim), np.result_type(parts[0].read(0, 0)))
        for number, part in enumerate(parts):
            mine = here[:, 0] == number
            rows[mine] = part.read_rows(here[mine, 1])
        yield Chunk(rows, keys[start : start + step])


def _real_rows(address: Address, table: HashTable, keys: Sequence[int | bytes], *, is_dense: bool) -> list[int]:
    # A dense table saves all its buckets, the unused ones with its empty key and its deleted key, which the checkpoint
    # does not name.
    if not is_dense:
        return list(range(len(keys)))
    counts = Counter(keys)
    most = max(counts, key=counts.__getitem__) if counts else 0
    named = {name: address.options.get(name) for name in ("empty_key", "deleted_key")}
    if missing := [name for name, value in named.items() if value is None]:
        shown = most.decode(errors="backslashreplace") if isinstance(most, bytes) else most
        raise ExportError(
            f"{address.path}:{table.name} is a DenseHashTable, saved with its unused buckets: {counts.get(most, 0):,} "
            f"of {len(keys):,} have the key {shown}; add ?empty_key=K&deleted_key=K ({missing[0]} is missing)"
        )
    unused: set[int | bytes] = set()
    for name, value in named.items():
        try:
            unused.add(str(value).encode() if isinstance(most, bytes) else int(str(value)))
        except ValueError as error:
            raise ExportError(f"{address.text}: {name}={value}; the table's keys are integers") from error
    if counts.get(most, 0) > 1 and most not in unused:
        raise ExportError(f"{address.text}: {counts[most]:,} buckets have the key {most!r}, so it is the empty key")
    return [i for i, key in enumerate(keys) if key not in unused]


def _keys(entry: BundleEntry, what: str) -> Array:
    if entry.dtype not in _INTEGERS and entry.dtype != "other":
        raise ExportError(f"{what} holds {entry.dtype}; keys are int64, int32 or strings")
    if not entry.file.is_file():
        raise ExportError(f"{entry.file} is missing: it holds {what}")
    with entry.file.open("rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.nbytes)
    if len(data) < entry.nbytes:
        raise ExportError(f"{entry.file} is cut short: it ends in {what}; copy it again")
    keys = _strings(data, entry) if entry.dtype == "other" else np.frombuffer(data, _INTEGERS[entry.dtype])
    if keys is None or (entry.dtype != "other" and masked(crc32c_of(data)) != entry.crc32c):
        raise ExportError(f"{entry.file} is damaged: {what} does not have the checksum that was saved with it")
    return keys


def _strings(data: bytes, entry: BundleEntry) -> Array | None:
    # Returns the strings of a tensor, or None if a checksum differs. A tensor of strings is saved as their lengths
    # (varints), the masked checksum of the lengths, and their bytes; its own checksum covers all of that.
    position, lengths = 0, []
    try:
        for _ in range(entry.shape[0]):
            length, position = read_varint(data, position)
            lengths.append(length)
        crc = crc32c_of(np.array(lengths, np.uint32))
    except (IndexError, ValueError, OverflowError):
        return None
    saved, text = data[position : position + 4], data[position + 4 :]
    if saved != masked(crc).to_bytes(4, "little") or sum(lengths) != len(text):
        return None
    if masked(crc32c_of(text, crc32c_of(saved, crc))) != entry.crc32c:
        return None
    ends = list(accumulate(lengths))
    return np.array([text[end - length : end] for length, end in zip(lengths, ends, strict=True)], object)


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
        tables = [key for key, entry in plain.items() if is_table(entry, NUMBERS)]
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


def _open_variable(name: str, variables: Mapping[str, BundleEntry], hash_table_lines: Sequence[str]) -> TableReader:
    try:
        entry = variables[find_variable(name, variables, dtypes=NUMBERS)]
    except ExportError as error:
        raise ExportError("\n".join([str(error), *hash_table_lines])) from error
    parts = tuple((part.start, _matrix(part.entry)) for part in entry.slices) or (((0, 0), _matrix(entry)),)
    for part_entry in (part.entry for part in entry.slices) if entry.slices else (entry,):
        _check_file(part_entry, name)
    return (
        parts[0][1]
        if len(parts) == 1
        else Rows(entry.shape[0], partial(_joined, entry.shape[0], entry.shape[1], parts))
    )


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
    return RawMatrix(entry.file, entry.offset, rows, dim, NUMBERS[entry.dtype], crc32c=entry.crc32c)


def _joined(num_rows: int, dim: int, parts: Sequence[tuple[tuple[int, ...], RawMatrix]]) -> Iterator[Chunk]:
    # Yields the rows of a variable saved in parts (by rows, columns or both) that cover the matrix without overlap.
    covered = sum(part.num_rows * part.dim for _, part in parts)
    if covered != num_rows * dim:
        raise ExportError(f"the saved parts hold {covered:,} numbers, the variable {num_rows * dim:,}")
    for _, part in parts:
        part.check_size()
    if all(part.dim == dim for _, part in parts):
        # If the variable is split by rows only, read the parts one after the other, and compare their checksums
        # meanwhile.
        for _, part in parts:
            yield from part.chunks()
        return
    for start in range(0, num_rows, step := rows_per_chunk(dim)):
        stop = min(start + step, num_rows)
        out: Array = np.empty((stop - start, dim), np.result_type(parts[0][1].read(0, 0)))
        for (row, column), part in parts:
            first, last = max(start, row), min(stop, row + part.num_rows)
            if first < last:
                out[first - start : last - start, column : column + part.dim] = part.read(first - row, last - row)
        yield Chunk(out)
