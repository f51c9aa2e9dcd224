"""Reads the options of an imported table: the features that read it, and the policy for unknown keys and ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from model_export.errors import ExportError
from model_export.importers.table_reader import Keys
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import Combiner

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table whose rows are in the checkpoint. mean_row: number of the row with the mean of all others, or None."""

    name: str
    vocabulary_size: int
    embedding_dim: int
    keys: Keys | None = None
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


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """A feature and the table that it reads. combiner: None means one id per row, otherwise any number of ids."""

    name: str
    table: str
    combiner: Combiner | None = None


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


def choose_features(features: Mapping[str, str], tables: Sequence[str]) -> tuple[FeatureChoice, ...]:
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
        chosen.append(FeatureChoice(name, table, kept))
    read = {feature.table for feature in chosen}
    chosen += [FeatureChoice(table, table) for table in tables if table not in read]
    if len({feature.name for feature in chosen}) != len(chosen):
        raise ExportError(f"two features have the same name: {[feature.name for feature in chosen]}")
    return tuple(chosen)


def model_spec(
    tables: Sequence[ReadTable], features: Sequence[FeatureChoice], oov: Mapping[str, OovPolicy]
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
    feature: FeatureChoice, table: ReadTable, oov: OovPolicy, vocabulary: VocabularySpec | None
) -> FeatureSpec:
    is_ragged = feature.combiner is not None
    plain = FeatureSpec(feature.name, feature.table, is_ragged=is_ragged, combiner=feature.combiner)
    row = table.mean_row if oov.kind == "mean" else oov.row
    if row is not None and row >= table.vocabulary_size:
        raise ExportError(f"oov of table {table.name!r} is row {row}, it has {table.vocabulary_size} rows")
    if oov.kind == "zero":
        return replace(plain, on_bad_id="drop", vocabulary=vocabulary)
    if vocabulary is None and oov.kind in ("row", "mean"):
        return replace(plain, on_bad_id="default_row", default_id=row or 0)
    return replace(plain, vocabulary=vocabulary)


def _vocabulary(table: ReadTable, oov: OovPolicy) -> VocabularySpec:
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
