"""Says where and in what dtype a table's rows are stored, reads them as float32, and rounds float32 rows to that dtype.

As on TensorFlow's threads, a product takes denormal numbers for zeros, and makes zeros in their place; copies of
numbers keep them. Rows are rounded at the export, and those of deltas. Each row of int8 or int4 has a scale: the row's
largest number is 127 times the scale (int8), or 7 times (int4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.bundle import BundleEntry, prefix_of, read_bundle
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.errors import ArtifactError
from service.types import TABLE_DTYPES, Array, TableInfo, saved_dtype, stored_columns

_LEAST_NORMAL = np.finfo(np.float32).smallest_normal


def float32_rows(stored: Array, scales: Array | None, dtype: str, dim: int) -> Array:
    """Returns the [N, D] float32 numbers of rows.

    Args:
      stored: [N, columns] numbers as the file has them. scales: [N, 1] float32; None: the table has no scales.
      dtype: the table's, one of TABLE_DTYPES.
    """
    if dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "int4":
        stored = unpacked(stored, dim)
    with np.errstate(over="ignore"):
        found: Array = stored.astype(np.float32)
    return found if scales is None else product(found, scales)


def flushed(numbers: Any) -> Array:
    """Returns float32 numbers with zeros of the same sign in place of denormal numbers.

    >>> flushed(np.array([1e-39, -1e-39, 1.5], np.float32)).tolist()
    [0.0, -0.0, 1.5]
    """
    found: Array = np.where(np.abs(numbers) < _LEAST_NORMAL, np.copysign(np.float32(0), numbers), numbers)
    return found


def product(numbers: Array, factors: Array | np.float32) -> Array:
    """Returns the float32 products of numbers and factors, flushed as are the operands."""
    return flushed(flushed(numbers) * flushed(factors))


# Dtype of a table -> the largest finite number of this dtype.
LARGEST: Mapping[str, float] = {"float16": 65504.0, "bfloat16": float(255 * 2.0**120)}
# Dtype of a table whose rows have a scale -> the largest integer that a row stores.
STEPS: Mapping[str, int] = {"int8": 127, "int4": 7}
_SMALLEST_SCALE = np.float32(2.0**-126)


def rounded(rows: Array, dtype: str) -> tuple[Array, Array | None]:
    """Converts [N, D] float32 rows to a table dtype; returns stored rows and, for int8 and int4, [N, 1] float32 scales.

    Stored rows are [N, D], for int4 [N, ceil(D / 2)] bytes. Numbers beyond the dtype's range become infinities; int8
    and int4 have no place for NaN and infinity.

    >>> rounded(np.float32([[1.5]]), "float64")
    (array([[1.5]]), None)
    >>> numbers, scales = rounded(np.float32([[1.0, -2.0]]), "int8")
    >>> numbers.tolist(), scales.tolist() == [[np.float32(2) / np.float32(127)]]
    ([[64, -127]], True)
    >>> [f"{byte:02x}" for byte in rounded(np.float32([[1.0, -7.0, 3.0]]), "int4")[0][0]]
    ['91', '03']
    """
    if dtype == "float32":
        return np.asarray(rows, np.float32), None
    if dtype == "float64":
        return rows.astype(np.float64), None
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return rows.astype(np.float16), None
    if dtype == "bfloat16":
        return _to_bfloat16(rows), None
    scales = _scales(rows, STEPS[dtype])
    steps = np.rint(np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0)).astype(np.int8)
    return (packed(steps) if dtype == "int4" else steps), scales


def packed(numbers: Array) -> Array:
    """Packs [N, D] int8 numbers from -8 to 7 into [N, ceil(D / 2)] bytes.

    For an odd D, the last byte's high half is 0.
    """
    halves = numbers.view(np.uint8) & 15
    octets = halves[:, ::2].copy()
    octets[:, : halves.shape[1] // 2] |= halves[:, 1::2] << 4
    return octets


def unpacked(octets: Array, embedding_dim: int | None = None) -> Array:
    """Unpacks [..., ceil(D / 2)] bytes into [..., D] int8 numbers; without embedding_dim, D is even.

    >>> unpacked(packed(np.int8([[1, -7, 3]])), 3).tolist()
    [[1, -7, 3]]
    """
    # The low half of a byte is the number of an even column; shifting it left and back right extends its sign.
    low, high = octets.view(np.int8) << 4 >> 4, octets.view(np.int8) >> 4
    numbers = np.stack([low, high], axis=-1).reshape(*octets.shape[:-1], 2 * octets.shape[-1])
    return numbers[..., :embedding_dim]


def _to_bfloat16(rows: Array) -> Array:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # A NaN is not rounded: rounding could clear its mantissa, which would turn the NaN into an infinity.
    return np.where(np.isnan(rows), (bits >> 16) | 0x40, up).astype(np.uint16)


def _scales(rows: Array, steps: int) -> Array:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    # The scale of an int8 or int4 row is at least the smallest normal float32: a smaller scale has few significant
    # bits, and the rounding error could then exceed half a step.
    scales: Array = np.maximum(largest / np.float32(steps), _SMALLEST_SCALE)
    return np.where(largest > 0, scales, np.float32(0)).astype(np.float32)


def check_files(artifact: Path, manifest: Manifest) -> None:
    """Raises ArtifactError unless every file has the size in the manifest, so that partly copied files are refused."""
    for name, nbytes in manifest.files.items():
        try:
            found = (artifact / name).stat().st_size
        except (OSError, ValueError) as error:  # ValueError: a file's name in the manifest has a NUL
            reason = getattr(error, "strerror", None) or error
            raise ArtifactError(f"file {name!r} of {artifact} can not be read: {reason}") from error
        if found != nbytes:
            raise ArtifactError(f"file {name} of {artifact} has {found} bytes, its manifest says {nbytes}")


def table_info(manifest: Manifest, name: str, nbytes: int) -> TableInfo:
    entry = manifest.tables[name]
    features = {feature: one for feature, one in manifest.features.items() if one.table == name}
    unknown = (manifest.vocabularies[one.vocabulary].unknown_key_rows for one in features.values() if one.vocabulary)
    return TableInfo(
        name=name,
        vocabulary_size=entry.vocabulary_size,
        embedding_dim=entry.embedding_dim,
        dtype=entry.dtype,
        nbytes=nbytes,
        features=tuple(sorted(features)),
        unknown_key_rows=tuple(sorted({(rows[0], rows[-1]) for rows in unknown if rows})),
    )


def stored_shape(name: str, entry: TableEntry) -> tuple[int, int]:
    """Returns the shape of a table's stored numbers; raises ArtifactError for a dtype that can not be mapped."""
    if entry.dtype not in TABLE_DTYPES:
        raise ArtifactError(f"table {name!r} is {entry.dtype}; only {', '.join(TABLE_DTYPES)} can be mapped")
    return entry.vocabulary_size, stored_columns(entry.dtype, entry.embedding_dim)


class SavedTables:
    """The checkpoint indexes of an artifact, each read once. Concurrency: one caller at a time."""

    def __init__(self, artifact: Path) -> None:
        self._artifact = artifact
        self._indexes: dict[Path, dict[str, BundleEntry]] = {}

    def file(self, what: str, entry: TableEntry | TableScale, dtype: str, shape: tuple[int, ...]) -> Path:
        """Returns the file that has a variable's bytes where the manifest says.

        Raises ArtifactError, with a text that starts with `what`, if the variable is missing or does not fit `entry`.
        """
        prefix = prefix_of(Path(entry.file))
        if prefix not in self._indexes:
            self._indexes[prefix] = read_bundle(self._artifact / prefix)
        found = self._indexes[prefix].get(entry.variable)
        if found is None:
            raise ArtifactError(f"{what}: variable {entry.variable!r} is not in {prefix.as_posix()}.index")
        if found.is_sliced:
            raise ArtifactError(f"{what} is saved in {len(found.slices)} slices; only a whole one can be mapped")
        # Scales may have the shape [V], or [V, 1], with which a graph can multiply rows directly.
        is_column = len(shape) == 1 and found.shape == (*shape, 1)
        differences = {
            "shape": (shape if is_column else found.shape, shape),
            "dtype": (found.dtype, saved_dtype(dtype)),
            "file": (found.file, self._artifact / entry.file),
            "offset": (found.offset, entry.offset),
            "nbytes": (found.nbytes, entry.nbytes),
            "crc32c": (found.crc32c, entry.crc32c),
        }
        for name, (in_index, in_manifest) in differences.items():
            if in_index != in_manifest:
                raise ArtifactError(f"{what}: {name} is {in_index} in the index and {in_manifest} in the manifest")
        if entry.nbytes != math.prod(shape) * np.dtype(TABLE_DTYPES[dtype]).itemsize or entry.nbytes == 0:
            raise ArtifactError(f"{what}: {entry.nbytes} bytes do not hold {found.shape} of {dtype}")
        return found.file
