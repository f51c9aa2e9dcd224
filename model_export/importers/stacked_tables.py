"""Finds one table in a SparseCore stack, an array of several tables whose rows are spread over shards.

Row i of a table lies in shard (i % num_shards + shard_rotation) % num_shards, at row i // num_shards +
row_offset_in_shard of that shard; the array holds one shard after the other. A JSON file describes each table:

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
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.importers.address import Address

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
