"""Rounds float32 tables to fewer bits, measures the error, and converts the stored numbers back to float32.

float16, bfloat16: each number is rounded to the nearest one, and to the even one of two that are equally near. int8:
row r is scale[r] times whole numbers from -127 to 127, scale[r] = max|row| / 127; a row of zeros has scale 0. int4: the
same with numbers from -7 to 7, two of them a byte. No table dtype changes what a prediction computes: only lookups read
the table in fewer bits.

>>> rows = np.array([[0.5, -1.0, 0.26], [0, 0, 0]], np.float32)
>>> table = reduced("film", "int8", 2, lambda start, stop: rows[start:stop])
>>> table.numbers.tolist()
[[64, -127, 33], [0, 0, 0]]
>>> round(table.rounding.largest_error, 5), round(table.rounding.error_bound, 5)
(0.00394, 0.00394)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from model_export.errors import ExportError
from service.artifact.stored_tables import LARGEST, STEPS, rounded, unpacked
from service.types import SCALED_DTYPES, TABLE_DTYPES, Array, stored_columns

TableDtype = Literal["float32", "float16", "bfloat16", "int8", "int4"]
# Key in the manifest's provenance. The value maps each table in fewer bits to Rounding.to_json() and, if compact
# reduced the table, to its losses.
REDUCED_KEY = "reduced_tables"

_CHUNK_BYTES = 16 << 20
# Half the distance between two neighbouring numbers of the dtype: first of numbers between 1 and 2, then of subnormal
# numbers.
_HALF_STEP = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


@dataclass(frozen=True, slots=True)
class ReducedTable:
    """A table rounded to fewer bits, in the form in which it is saved.

    numbers: [V, D] as TABLE_DTYPES reads the dtype; of bfloat16 its bits, of int4 [V, ceil(D / 2)] bytes.
    scales: [V, 1] float32 of an int8 or int4 table.
    """

    dtype: TableDtype
    embedding_dim: int
    numbers: Array
    scales: Array | None
    rounding: Rounding


def chosen_dtypes(table_dtype: str | Mapping[str, str] | None, tables: Sequence[str]) -> dict[str, TableDtype]:
    """Returns the dtype of each table that shall have fewer bits than float32.

    Args:
      table_dtype: one for all tables, or by table.

    Raises:
      ExportError: a table or a dtype is unknown.
    """
    if table_dtype is None:
        return {}
    by_table = dict.fromkeys(tables, table_dtype) if isinstance(table_dtype, str) else dict(table_dtype)
    if unknown := sorted(set(by_table) - set(tables)):
        raise ExportError(f"table_dtype names {unknown}; the tables are {sorted(tables)}")
    choices: tuple[TableDtype, ...] = get_args(TableDtype)
    if wrong := {name: dtype for name, dtype in by_table.items() if dtype not in choices}:
        raise ExportError(f"table_dtype is {wrong}; expected one of {', '.join(choices)}")
    return {name: cast(TableDtype, dtype) for name, dtype in by_table.items() if dtype != "float32"}


def reduced(name: str, dtype: TableDtype, vocabulary_size: int, rows: Callable[[int, int], Array]) -> ReducedTable:
    """Rounds a table to fewer bits; reads a few megabytes of rows at a time.

    Args:
      rows: returns the rows [start, stop) as [stop - start, D] float32.

    Raises:
      ExportError: a number is too large for the dtype, or the dtype is int8 or int4 and a number is NaN or infinite.
    """
    dim = rows(0, 1).shape[1]
    numbers = np.empty((vocabulary_size, stored_columns(dtype, dim)), TABLE_DTYPES[dtype])
    scales = np.empty((vocabulary_size, 1), np.float32) if dtype in SCALED_DTYPES else None
    rounding = Rounding(name, dtype)
    step = max(1, _CHUNK_BYTES // (4 * dim))
    for start in range(0, vocabulary_size, step):
        stop = min(start + step, vocabulary_size)
        numbers[start:stop], some = rounding.add(np.asarray(rows(start, stop), np.float32))
        if scales is not None:
            scales[start:stop] = some
    return ReducedTable(dtype, dim, numbers, scales, rounding)


class Rounding:
    """Rounds the rows of one table, block by block in the order of rows, and keeps the largest rounding error.

    largest_error: the largest difference from the given rows.
    error_bound: the largest difference that rounding these rows to the dtype can cause.
    Concurrency: one caller at a time.
    """

    def __init__(self, name: str, dtype: TableDtype) -> None:
        self.largest_error = self.error_bound = 0.0
        self._name, self._dtype, self._done = name, dtype, 0

    def add(self, rows: Array) -> tuple[Array, Array | None]:
        """Rounds the table's next [n, D] float32 rows to fewer bits; raises the errors that reduced() raises.

        Returns:
          The numbers, in ReducedTable's form, and for int8 and int4 their [n, 1] float32 scales.
        """
        _check(self._name, self._dtype, rows, self._done)
        numbers, scales = rounded(rows, self._dtype)
        stored = widened(numbers, self._dtype, scales, embedding_dim=rows.shape[1])
        error, bound = _errors(rows, stored, self._dtype, scales)
        self.largest_error, self.error_bound = max(self.largest_error, error), max(self.error_bound, bound)
        self._done += len(rows)
        return numbers, scales

    def to_json(self) -> dict[str, str | float]:
        return {"dtype": self._dtype, "largest_error": self.largest_error, "error_bound": self.error_bound}


def widened(numbers: Array, dtype: str, scales: Array | None = None, *, embedding_dim: int | None = None) -> Array:
    """Converts the stored numbers of a reduced table to float32.

    Args:
      numbers: [..., D] as TABLE_DTYPES reads the dtype; [..., ceil(D / 2)] of int4.
      scales: [..., 1] float32 of int8 and int4.
      embedding_dim: D of an int4 table; None: the result has one number too many if D is odd.
    """
    if dtype == "bfloat16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    floats: Array = (unpacked(numbers, embedding_dim) if dtype == "int4" else numbers).astype(np.float32)
    return floats if scales is None else floats * scales


def _check(name: str, dtype: TableDtype, rows: Array, start: int) -> None:
    is_finite = np.isfinite(rows).all(axis=1)
    if dtype in SCALED_DTYPES and not is_finite.all():
        row = start + int(np.argmin(is_finite))
        raise ExportError(
            f"table {name!r}: row {row} holds NaN or infinity, which {dtype} has no number for; export it as float16, "
            "bfloat16 or float32"
        )
    if dtype in LARGEST:
        finite = np.where(np.isfinite(rows), rows, 0)
        is_lost = ~np.isfinite(widened(rounded(finite, dtype)[0], dtype)).all(axis=1)
        if is_lost.any():
            row = int(np.argmax(is_lost))
            largest = float(np.abs(finite[row]).max())
            raise ExportError(
                f"table {name!r}: row {start + row} holds {largest:.6g}, {dtype} ends at {LARGEST[dtype]:.6g}; "
                "export it as float32 or int8"
            )


def _errors(trained: Array, stored: Array, dtype: TableDtype, scales: Array | None) -> tuple[float, float]:
    is_finite = np.isfinite(trained)
    exact = np.where(is_finite, trained, 0).astype(np.float64)
    error = float(np.abs(np.where(is_finite, stored, 0).astype(np.float64) - exact).max())
    if scales is not None:
        # The bound of the error is half a quantization step, plus the float32 rounding errors of the scale and of
        # scale * number, for the largest number.
        return error, float(scales.max()) * (0.5 + 2 * STEPS[dtype] * 2.0**-24)
    relative, smallest = _HALF_STEP[dtype]
    largest = float(np.abs(exact).max())
    return error, max(relative * 2.0 ** np.floor(np.log2(largest)) if largest else 0.0, smallest)
