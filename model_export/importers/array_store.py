"""Reads Orbax checkpoints (OCDBT or a folder per array) and zarr arrays with tensorstore, and tables stacked in one.

A SparseCore stack is an array of several tables whose rows are spread over shards. Row i of a table lies in shard (i %
num_shards + shard_rotation) % num_shards, at row i // num_shards + row_offset_in_shard of that shard; the array holds
one shard after the other. A JSON file describes each table:

    {"format": 1,
     "stacks": {
       "film_user": {
         "array": "params.film_user", "num_shards": 8,
         "tables": {
           "film": {"vocabulary_size": 1000, "embedding_dim": 12, "row_offset_in_shard": 0, "shard_rotation": 0},
           "user": {"vocabulary_size": 5000, "embedding_dim": 16, "row_offset_in_shard": 128, "shard_rotation": 4}}}}}

Source: setting_in_stack and unshard_and_unstack_tables of jax-tpu-embedding 0.1.0, sparsecore/lib/nn/embedding_spec.py
and table_stacking.py.

>>> member = StackMember("a", 4, vocabulary_size=10, embedding_dim=2, row_offset_in_shard=8, shard_rotation=1)
>>> [where for _, where in member.slices(0, 8, (64, 8))][0]
(slice(24, 26, None), slice(0, 2, None))

An array is stored in blocks, and tensorstore reads whole blocks. If a block is larger than a chunk of rows, the array
is first written to an uncompressed temporary file, block by block, so that memory holds one block at a time.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.table_reader import CHUNK_BYTES, Chunk, TableReader, missing_library, rows_per_chunk
from service.types import Array

DESCRIPTION_NAME = "stacked_tables.json"
_FORMAT = 1
# In each shard of a SparseCore stack, a table is padded to a multiple of this number of rows.
_ROW_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class StackMember:
    """The place of one table in the array of a SparseCore stack.

    array: the array's name in the checkpoint. num_shards: number of devices times SparseCores per device.
    vocabulary_size, embedding_dim: the table's size without padding.
    row_offset_in_shard, shard_rotation: as in jax-tpu-embedding's TableSettingInStack.
    """

    array: str
    num_shards: int
    vocabulary_size: int
    embedding_dim: int
    row_offset_in_shard: int = 0
    shard_rotation: int = 0

    @property
    def rows_in_shard(self) -> int:
        step = _ROW_MULTIPLE * self.num_shards
        return -(-self.vocabulary_size // step) * _ROW_MULTIPLE

    def check_array(self, what: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError if the table does not fit in an array of this shape, [V, D] or [shards, V, D]."""
        rows = shape[0] if len(shape) == 2 else shape[0] * shape[1] if len(shape) == 3 else 0
        rows_of_shard, rest = divmod(rows, self.num_shards)
        if not rows or rest or (len(shape) == 3 and shape[0] != self.num_shards):
            raise ExportError(f"{what} has shape {list(shape)}, which is not {self.num_shards} shards of rows")
        if self.row_offset_in_shard + self.rows_in_shard > rows_of_shard or self.embedding_dim > shape[-1]:
            raise ExportError(
                f"{what} has {rows_of_shard} rows of {shape[-1]} numbers in a shard; the table needs rows "
                f"{self.row_offset_in_shard} to {self.row_offset_in_shard + self.rows_in_shard} of {self.embedding_dim}"
            )

    def slices(self, start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yields (r, index): `index` selects the table's rows start + r, start + r + num_shards, ... in the stack.

        Args:
          start: a multiple of num_shards.
          shape: shape of the array.
        """
        rows_of_shard = shape[0] // self.num_shards if len(shape) == 2 else shape[1]
        first = start // self.num_shards + self.row_offset_in_shard
        for residue in range(min(self.num_shards, stop - start)):
            count = -(-(stop - start - residue) // self.num_shards)
            shard = (residue + self.shard_rotation) % self.num_shards
            columns = slice(0, self.embedding_dim)
            if len(shape) == 3:
                yield residue, (shard, slice(first, first + count), columns)
            else:
                begin = shard * rows_of_shard + first
                yield residue, (slice(begin, begin + count), columns)


def find_member(address: Address, folder: Path) -> StackMember | None:
    """Returns the stacked table that an address names; None if the address names a whole array.

    The description is the file of the option stacks=, or stacked_tables.json in the checkpoint's folder or the one
    above it.

    Raises:
      ExportError: the description can not be read, or the file named by stacks= does not describe the table.
    """
    said = address.options.get("stacks")
    beside = [path for path in (folder / DESCRIPTION_NAME, folder.parent / DESCRIPTION_NAME) if path.is_file()]
    if said is None and not beside:
        return None
    path = beside[0] if said is None else Path(said)
    members = _read_description(path)
    if address.name in members:
        return members[address.name]
    if said is not None:
        raise ExportError(f"{path} describes no table {address.name!r}; its tables are {sorted(members)}")
    return None


def describe_stacked_tables(
    table_specs: Iterable[Any], num_shards: int, arrays: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Describes the stacked tables of a trained model as JSON, for a file beside the checkpoint.

    Args:
      table_specs: jax-tpu-embedding's TableSpecs after stacking, each with its setting_in_stack.
      num_shards: number of devices times SparseCores per device.
      arrays: stack -> name of its array in the checkpoint; default: the stack's name.
    """
    stacks: dict[str, Any] = {}
    for spec in table_specs:
        setting = spec.setting_in_stack
        stack = stacks.setdefault(
            setting.stack_name,
            {
                "array": (arrays or {}).get(setting.stack_name, setting.stack_name),
                "num_shards": num_shards,
                "tables": {},
            },
        )
        stack["tables"][spec.name] = {
            "vocabulary_size": spec.vocabulary_size,
            "embedding_dim": spec.embedding_dim,
            "row_offset_in_shard": setting.row_offset_in_shard,
            "shard_rotation": setting.shard_rotation,
        }
    return {"format": _FORMAT, "stacks": stacks}


def _read_description(path: Path) -> dict[str, StackMember]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            raise ExportError(f"{path} has format {data['format']!r}; this version reads format {_FORMAT}")
        members: dict[str, StackMember] = {}
        for stack in data["stacks"].values():
            for name, entry in stack["tables"].items():
                if name in members:
                    raise ExportError(f"{path} describes table {name!r} twice")
                members[name] = _member(
                    path, name, {"array": stack["array"], "num_shards": stack["num_shards"], **entry}
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{path} is no description of stacked tables: {error!r}") from error
    return members


def _member(path: Path, name: str, entry: Mapping[str, Any]) -> StackMember:
    if unknown := sorted(set(entry) - {field.name for field in fields(StackMember)}):
        raise ExportError(f"{path}: table {name!r} has unknown keys {unknown}")
    member = StackMember(**entry)
    numbers = {key: value for key, value in entry.items() if key != "array"}
    least = {"row_offset_in_shard": 0, "shard_rotation": 0}
    wrong = {key: v for key, v in numbers.items() if type(v) is not int or v < least.get(key, 1)}
    if wrong:
        raise ExportError(f"{path}: table {name!r} has {wrong}; whole numbers are needed, sizes from 1")
    return member


# Maps the last part of the key under which a store describes an array to tensorstore's driver for such arrays.
_DESCRIPTIONS = {".zarray": "zarr", "zarr.json": "zarr3"}
# Orbax's CheckpointManager saves a state in a subfolder of the step's folder, under one of these names.
_ORBAX_ITEMS = ("default", "state")
_FLOATS = ("float16", "float32", "float64", "bfloat16")


def is_array_store(folder: Path) -> bool:
    return any(_root(candidate) is not None for candidate in _candidates(folder))


def open_array_store(address: Address) -> TableReader:
    """Opens the array CHECKPOINT:ARRAY, or the rows of the table CHECKPOINT:TABLE in an array of several tables.

    Raises ExportError.
    """
    try:
        import tensorstore  # noqa: F401
    except ImportError as error:
        raise missing_library("tensorstore", "Orbax checkpoints and zarr arrays") from error
    folder = next((candidate for candidate in _candidates(address.path) if _root(candidate) is not None), None)
    if folder is None:
        raise ExportError(
            f"{address.path} is no Orbax checkpoint and no zarr array: it has no manifest.ocdbt, .zarray or zarr.json; "
            "of a CheckpointManager's folder, name a step's"
        )
    arrays = _arrays(folder)
    member = find_member(address, folder)
    name = member.array if member is not None else address.chosen(sorted(arrays), "arrays")
    if name not in arrays:
        raise ExportError(f"{folder} has no {name!r}, which the stacked table is in; its arrays are {sorted(arrays)}")
    store = _opened(folder, name, arrays[name])
    if store.dtype.name not in _FLOATS:
        raise ExportError(f"{folder}:{name} holds {store.dtype.name}; a table holds {', '.join(_FLOATS)}")
    if member is not None:
        member.check_array(f"{folder}:{name}", tuple(store.shape))
        return _Stored(store, member, address.scratch)
    if store.rank != 2:
        raise ExportError(f"{folder}:{name} has shape {list(store.shape)}; a table is a matrix")
    return _Stored(store, None, address.scratch)


def _candidates(folder: Path) -> list[Path]:
    return [folder, *(folder / item for item in _ORBAX_ITEMS)]


def _root(folder: Path) -> dict[str, Any] | None:
    # Returns the tensorstore specification of the key-value store that holds a folder's arrays; None if the folder
    # holds none.
    location = {"driver": "file", "path": f"{folder.absolute()}/"}
    if (folder / "manifest.ocdbt").is_file():
        return {"driver": "ocdbt", "base": location}
    if any((folder / end).is_file() for end in _DESCRIPTIONS) or any(
        (array / end).is_file() for array in (folder.iterdir() if folder.is_dir() else ()) for end in _DESCRIPTIONS
    ):
        return location
    return None


def _arrays(folder: Path) -> dict[str, str]:
    # Returns each array's name and tensorstore driver. If the folder itself is an array, the array's name is "".
    import tensorstore

    root = tensorstore.KvStore.open(_root(folder)).result()
    found = {}
    for key in root.list().result():
        for end, driver in _DESCRIPTIONS.items():
            if (text := key.decode()) == end or text.endswith("/" + end):
                found[text.removesuffix(end).removesuffix("/")] = driver
    return found


def _opened(folder: Path, name: str, driver: str) -> Any:
    import tensorstore

    root = dict(_root(folder) or {})
    root["path"] = (root.get("path") or "") + (f"{name}/" if name else "")
    # tensorstore gets a cache, so that a stored block that two chunks share is decoded once.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 2 * CHUNK_BYTES}})
    return tensorstore.open({"driver": driver, "kvstore": root}, read=True, context=context).result()


@dataclass(frozen=True, slots=True)
class _Stored:
    store: Any
    member: StackMember | None
    scratch: Path | None

    @property
    def num_rows(self) -> int:
        return int(self.store.shape[0]) if self.member is None else self.member.vocabulary_size

    def chunks(self) -> Iterator[Chunk]:
        with ExitStack() as stack:
            source, spool = self.store, None
            if np.prod(source.chunk_layout.read_chunk.shape) * source.dtype.numpy_dtype.itemsize > CHUNK_BYTES:
                spool = stack.enter_context(_Spool(self.store, self.scratch))
                source = spool.array
            # Each chunk has the same number of rows of every shard, so a chunk's size is a multiple of the number of
            # shards.
            shards = 1 if self.member is None else self.member.num_shards
            dim = int(self.store.shape[-1])
            step = -(-rows_per_chunk(dim) // shards) * shards
            for start in range(0, self.num_rows, step):
                yield Chunk(self._rows(source, start, min(start + step, self.num_rows)))
                if spool is not None:
                    spool.forget()

    def _rows(self, source: Any, start: int, stop: int) -> Array:
        if self.member is None:
            return _read([source[start:stop]])[0]
        member = self.member
        out: Array | None = None
        slices = list(member.slices(start, stop, tuple(source.shape)))
        parts = _read([source[where] for _, where in slices])
        for (residue, _), part in zip(slices, parts, strict=True):
            if out is None:
                out = np.empty((stop - start, member.embedding_dim), part.dtype)
            out[residue :: member.num_shards] = part
        # `out` is set, because a chunk has at least one row: the loop above has read at least one slice of the array.
        assert out is not None
        return out


def _read(views: list[Any]) -> list[Array]:
    if isinstance(views[0], np.ndarray):
        return [np.array(view) for view in views]
    futures = [view.read() for view in views]
    arrays = [future.result() for future in futures]
    # tensorstore returns ml_dtypes.bfloat16, all of whose values float32 can represent.
    return [array.astype(np.float32) if array.dtype.name == "bfloat16" else array for array in arrays]


class _Spool:
    """A copy of an array in a temporary file, which is mapped into memory. Concurrency: one caller at a time."""

    def __init__(self, store: Any, scratch: Path | None) -> None:
        dtype = np.dtype(np.float32) if store.dtype.name == "bfloat16" else store.dtype.numpy_dtype
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.truncate(int(store.size) * dtype.itemsize)
            self._map = mmap.mmap(file.fileno(), 0)
        self.array: Array = np.frombuffer(self._map, dtype).reshape(store.shape)
        block = store.chunk_layout.read_chunk.shape
        corners = product(*(range(0, size, step) for size, step in zip(store.shape, block, strict=True)))
        for corner in corners:
            where = tuple(slice(a, min(a + n, s)) for a, n, s in zip(corner, block, store.shape, strict=True))
            self.array[where] = _read([store[where]])[0]
            self.forget()

    def forget(self) -> None:
        """Releases the pages of the mapped file from the process's memory; the file keeps the data."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        # The memory map is not closed here, because a caller may still hold a view of it; the last view frees the map.
        del self.array
