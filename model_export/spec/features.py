"""Tables and features of a model, as TensorFlow's TableConfig and FeatureConfig have them.

A table is a [V, D] matrix with one combiner; features read tables and may share one. Row 0 of every table stands for
"unknown".

>>> films = TableSpec("film", vocabulary_size=4, embedding_dim=2)
>>> spec = ModelSpec((films,), (FeatureSpec("film_id", "film"), FeatureSpec("recent", "film", is_ragged=True)))
>>> spec.feature("recent").row_splits_input
'recent__row_splits'
>>> FeatureSpec("a.b", "film")
Traceback (most recent call last):
  ...
ValueError: feature name 'a.b': SavedModel inputs are named with letters, digits and _ only
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from service.core.manifest import Combiner
from service.core.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, WEIGHTS_SUFFIX

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table.

    vocabulary: strings in row order, the first being row 1; any other string is row 0. None: ids are rows.
    initial_stddev: standard deviation of the truncated normal that rows start from.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    combiner: Combiner = "mean"
    vocabulary: tuple[str, ...] | None = None
    initial_stddev: float = 0.05

    def __post_init__(self) -> None:
        _check_name("table", self.name)
        if self.vocabulary_size < 1 or self.embedding_dim < 1:
            raise ValueError(f"table {self.name!r}: {self.vocabulary_size} x {self.embedding_dim} holds no numbers")
        if self.combiner not in get_args(Combiner):
            allowed = get_args(Combiner)
            raise ValueError(f"table {self.name!r}: combiner is {self.combiner!r}, expected one of {allowed}")
        if self.vocabulary is not None:
            _check_vocabulary(self.name, self.vocabulary, self.vocabulary_size)


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One id input.

    is_ragged: any number of ids per row, combined; otherwise one id per row, not combined.
    max_ids_per_row: K of the padded tensor-core lookup; 1 unless ragged.
    """

    name: str
    table: str
    is_ragged: bool = False
    max_ids_per_row: int = 1

    def __post_init__(self) -> None:
        _check_name("feature", self.name)
        if "__" in self.name:
            raise ValueError(f"feature name {self.name!r}: __ separates a feature from its parts")
        if self.max_ids_per_row < 1 or (self.max_ids_per_row > 1 and not self.is_ragged):
            raise ValueError(f"feature {self.name!r}: max_ids_per_row is {self.max_ids_per_row}")

    @property
    def ids_input(self) -> str:
        """Input that carries the ids."""
        return self.name + VALUES_SUFFIX if self.is_ragged else self.name

    @property
    def row_splits_input(self) -> str | None:
        """Input that says where rows end; None for one id per row."""
        return self.name + ROW_SPLITS_SUFFIX if self.is_ragged else None

    @property
    def weights_input(self) -> str | None:
        """Input of one factor per id; None for one id per row."""
        return self.name + WEIGHTS_SUFFIX if self.is_ragged else None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """All tables and features of a model; every feature's table exists and every table is used."""

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]

    def __post_init__(self) -> None:
        tables = {table.name: table for table in self.tables}
        names = [feature.name for feature in self.features]
        if len(tables) != len(self.tables) or len(set(names)) != len(names):
            raise ValueError("two tables or two features have the same name")
        for feature in self.features:
            if feature.table not in tables:
                raise ValueError(f"feature {feature.name!r} uses table {feature.table!r}, which is not declared")
        unused = sorted(set(tables) - {feature.table for feature in self.features})
        if unused:
            raise ValueError(f"no feature uses tables {unused}")

    def table(self, name: str) -> TableSpec:
        """Returns a table by name."""
        return next(table for table in self.tables if table.name == name)

    def feature(self, name: str) -> FeatureSpec:
        """Returns a feature by name."""
        return next(feature for feature in self.features if feature.name == name)

    def table_of(self, feature: str) -> TableSpec:
        """Returns the table that a feature reads."""
        return self.table(self.feature(feature).table)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelSpec:
        """Builds from to_json's object, with all checks."""
        tables = []
        for entry in data["tables"]:
            words = entry["vocabulary"]
            tables.append(TableSpec(**{**entry, "vocabulary": None if words is None else tuple(words)}))
        return ModelSpec(tuple(tables), tuple(FeatureSpec(**entry) for entry in data["features"]))


def _check_vocabulary(table: str, words: tuple[str, ...], rows: int) -> None:
    if len(set(words)) != len(words):
        raise ValueError(f"table {table!r}: the vocabulary names a string twice")
    if any(not word or word.splitlines() != [word] for word in words):
        raise ValueError(f"table {table!r}: a vocabulary entry is empty or spans lines")
    if len(words) + 1 > rows:
        raise ValueError(f"table {table!r}: {len(words)} strings and the unknown row do not fit in {rows} rows")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} name {name!r}: SavedModel inputs are named with letters, digits and _ only")
