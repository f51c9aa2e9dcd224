"""The options of an imported table, and the copy of its rows into a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.graphs.reduced_table import Rounding, TableDtype
from model_export.importers.table_reader import Chunk, Keys, TableReader
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import Combiner
from service.types import Array, saved_dtype

_INT64 = range(-(2**63), 2**63)


# A callback for progress. Its arguments are the number of copied rows, and of all rows, or None if not known.
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """An imported table whose rows are in the checkpoint.

    source: address of the file. nonfinite: how many numbers are NaN or infinite.
    key, scale_key: keys in the checkpoint; rounding: provenance entry of a table in fewer bits.
    mean_row: number of the row with the mean of all others, or None.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    keys: Keys | None
    source: str
    dtype: TableDtype
    nonfinite: int
    key: str
    scale_key: str | None = None
    rounding: dict[str, str | float] | None = None
    mean_row: int | None = None


@dataclass(frozen=True, slots=True)
class OovPolicy:
    """The policy for unknown keys and ids beyond the table: "error", "zero", "mean", or a row that they read.

    >>> OovPolicy.parse("user", "row:3").row
    3
    """

    kind: str = "error"
    row: int = 0

    @staticmethod
    def parse(table: str, text: str) -> OovPolicy:
        kind, colon, row = text.partition(":")
        if kind == "row" and row.isdigit():
            return OovPolicy("row", int(row))
        if kind not in ("error", "zero", "mean") or colon:
            raise ExportError(f"oov of table {table!r} is {text!r}; expected error, zero, mean or row:N")
        return OovPolicy(kind)


def check_name(what: str, name: str) -> None:
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name) and "__" not in name:
        return
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", name) if word]
    better = "_".join(words) or what
    better = better if better[0].isalpha() else f"{what}_{better}"
    raise ExportError(
        f"{what} name {name!r} can not be an input of a SavedModel: letters, digits and single _ only, a letter first; "
        f"call it {better!r}"
    )


def choose_features(features: Mapping[str, str], tables: Sequence[str]) -> tuple[FeatureSpec, ...]:
    """Returns the named features, plus, for each table that no named feature reads, a feature of the table's name.

    Args:
      features: name -> TABLE, or TABLE:COMBINER.

    Raises:
      ExportError: a name can not be an input's name, or a table or combiner is unknown.
    """
    chosen = []
    for name, text in features.items():
        check_name("feature", name)
        table, _, combiner = text.partition(":")
        if table not in tables:
            raise ExportError(f"feature {name!r} reads table {table!r}; the tables are {', '.join(tables)}")
        if combiner and combiner not in get_args(Combiner):
            raise ExportError(f"feature {name!r}: {combiner!r} combines nothing; use {', '.join(get_args(Combiner))}")
        kept: Any = combiner or None
        chosen.append(FeatureSpec(name, table, is_ragged=kept is not None, combiner=kept))
    read = {feature.table for feature in chosen}
    chosen += [FeatureSpec(table, table) for table in tables if table not in read]
    if len({feature.name for feature in chosen}) != len(chosen):
        raise ExportError(f"two features have the same name: {[feature.name for feature in chosen]}")
    return tuple(chosen)


def model_spec(
    tables: Sequence[CopiedTable], features: Sequence[FeatureSpec], oov: Mapping[str, OovPolicy]
) -> ModelSpec:
    """Makes a ModelSpec of the tables and features; raises ExportError if a table's keys can not be a vocabulary."""
    by_name = {table.name: table for table in tables}
    vocabularies = {
        table.name: _vocabulary(table, oov.get(table.name, OovPolicy())) for table in tables if table.keys is not None
    }
    specs = [
        _feature(feature, by_name[feature.table], oov.get(feature.table, OovPolicy()), vocabularies.get(feature.table))
        for feature in features
    ]
    try:
        sizes = tuple(TableSpec(t.name, t.vocabulary_size, t.embedding_dim) for t in tables)
        return ModelSpec(sizes, tuple(specs))
    except ValueError as error:
        raise ExportError(str(error)) from error


def _feature(
    feature: FeatureSpec, table: CopiedTable, oov: OovPolicy, vocabulary: VocabularySpec | None
) -> FeatureSpec:
    row = table.mean_row if oov.kind == "mean" else oov.row
    if row is not None and row >= table.vocabulary_size:
        raise ExportError(f"oov of table {table.name!r} is row {row}, it has {table.vocabulary_size} rows")
    if oov.kind == "zero":
        return replace(feature, on_bad_id="drop", vocabulary=vocabulary)
    if vocabulary is None and oov.kind in ("row", "mean"):
        return replace(feature, on_bad_id="default_row", default_id=row or 0)
    return replace(feature, vocabulary=vocabulary)


def _vocabulary(table: CopiedTable, oov: OovPolicy) -> VocabularySpec:
    keys: Any = tuple(table.keys or ())
    if keys and isinstance(keys[0], int) and not (min(keys) in _INT64 and max(keys) in _INT64):
        beyond = next(row for row, key in enumerate(keys) if key not in _INT64)
        raise ExportError(
            f"table {table.name!r}: the key of row {beyond} is {keys[beyond]}, beyond int64, which ends at 2^63 - 1; "
            "import the keys as strings: ?key_dtype=string for Parquet, Feather and CSV, or a text file for --keys"
        )
    row = table.mean_row if oov.kind == "mean" else oov.row if oov.kind == "row" else None
    try:
        return VocabularySpec(keys, oov_id=row, on_oov="drop" if oov.kind == "zero" else "error")
    except ValueError as error:
        way = ", or add ?duplicates=first or ?duplicates=last" if len(set(keys)) != len(keys) else ""
        raise ExportError(f"table {table.name!r}: {error}{way}") from error


class TableCopy:
    """The copy of one table's rows into a checkpoint; run() is called once. Concurrency: one caller at a time.

    Args:
      source: address of the file, for messages.
      adds_mean: append a row that is the mean of all rows.
    """

    def __init__(
        self,
        name: str,
        source: str,
        dtype: TableDtype = "float32",
        *,
        adds_mean: bool = False,
        allow_nonfinite: bool = False,
    ) -> None:
        self.name, self.source, self._dtype = name, source, dtype
        self._adds_mean, self._allow_nonfinite = adds_mean, allow_nonfinite
        self._rounding = None if dtype == "float32" else Rounding(name, dtype)
        self._scales: list[Array] = []
        self._sum: Any = 0.0
        self._keys: list[Any] | None = None
        self._rows = self._dim = self._nonfinite = 0

    def run(self, reader: TableReader, writer: BundleWriter, progress: Progress) -> CopiedTable:
        key, scale_key = f"tables/{self.name}", None
        writer.add(key, saved_dtype(self._dtype), self._pieces(reader, progress))
        if self._scales:
            scale_key = f"scales/{self.name}"
            writer.add(scale_key, "float32", self._scales)
        return CopiedTable(
            self.name,
            self._rows,
            self._dim,
            self._keys,
            self.source,
            self._dtype,
            self._nonfinite,
            key,
            scale_key,
            None if self._rounding is None else self._rounding.to_json(),
            self._rows - 1 if self._adds_mean else None,
        )

    def _pieces(self, reader: TableReader, progress: Progress) -> Iterator[Array]:
        for chunk in self._chunks(reader):
            yield self._stored(self._float32_rows(chunk))
            progress(self._rows, reader.num_rows)
        if not self._rows or not self._dim:
            raise ExportError(f"table {self.name!r}: {self.source} holds no rows of numbers")
        if self._adds_mean:
            yield self._stored((self._sum / self._rows).astype(np.float32)[None, :])

    def _chunks(self, reader: TableReader) -> Iterator[Chunk]:
        # The `try` below surrounds the reader alone, so that each OSError or ValueError in it comes from the reader's
        # library.
        chunks = reader.chunks()
        while True:
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            except (OSError, ValueError, NotImplementedError) as error:
                raise ExportError(f"table {self.name!r}: cannot read {self.source}: {error}") from error
            yield chunk

    def _float32_rows(self, chunk: Chunk) -> Array:
        if self._rows and chunk.rows.shape[1] != self._dim:
            raise ExportError(
                f"table {self.name!r}: row {self._rows} of {self.source} has {chunk.rows.shape[1]} "
                f"numbers, the rows before it have {self._dim}"
            )
        self._dim = chunk.rows.shape[1]
        rows = self._float32(chunk.rows)
        if chunk.keys is not None:
            self._keys = self._keys or []
            self._keys.extend(chunk.keys)
        if self._adds_mean:
            self._sum = self._sum + rows.sum(axis=0, dtype=np.float64)
        return rows

    def _float32(self, given: Array) -> Array:
        with np.errstate(over="ignore"):
            rows: Array = np.ascontiguousarray(given, "<f4")
        # If the sum is finite, all numbers are finite, so single numbers are checked only if the sum is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(rows.sum(dtype=np.float64)):
                return rows
        is_finite = np.isfinite(rows)
        count = int(rows.size - np.count_nonzero(is_finite))
        if not count:
            return rows
        row, column = (int(i[0]) for i in np.nonzero(~is_finite))
        what = f"table {self.name!r}: row {self._rows + row} of {self.source} holds {given[row, column]}"
        is_lost = np.isfinite(given) & ~is_finite
        if is_lost.any():
            row, column = (int(i[0]) for i in np.nonzero(is_lost))
            raise ExportError(
                f"table {self.name!r}: row {self._rows + row} of {self.source} holds "
                f"{given[row, column]}, float32 ends at 3.4e38"
            )
        if not self._allow_nonfinite:
            raise ExportError(f"{what}; nothing was imported (--allow_nonfinite imports NaN and infinity all the same)")
        self._nonfinite += count
        return rows

    def _stored(self, rows: Array) -> Array:
        self._rows += len(rows)
        if self._rounding is None:
            return rows
        numbers, scales = self._rounding.add(rows)
        if scales is not None:
            self._scales.append(scales)
        return numbers
