"""Declares the tables and features of a model, like TensorFlow's TableConfig and FeatureConfig.

A table is a [V, D] matrix with one combiner; features read tables and may share one. By convention row 0 of a table is
for unknown keys.

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
from dataclasses import dataclass, replace
from typing import Any, get_args

from service.artifact.manifest import BadIdPolicy, Combiner, KeyDtype, OovPolicy, TooManyPolicy, WeightPolicy
from service.errors import did_you_mean
from service.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, WEIGHTS_SUFFIX

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


def line_fault(key: str) -> str | None:
    """Says why a string can not be a line of a vocabulary file; returns None if it can.

    Source: InputBuffer::ReadLine of tsl/lib/io/inputbuffer.cc and TextFileLineIterator of
    tensorflow/core/kernels/lookup_util.cc (TensorFlow 2.21).

    >>> line_fault("new\\u2028york"), line_fault("york\\r")
    (None, "is 'york\\\\r', and readers of vocabulary files drop a carriage return at the end of a line")
    """
    if not key:
        return "is empty"
    if "\n" in key:
        return f"is {key!r}, and a line feed ends a line of a vocabulary file"
    if key.endswith("\r"):
        return f"is {key!r}, and readers of vocabulary files drop a carriage return at the end of a line"
    try:
        key.encode()
    except UnicodeEncodeError:
        return f"is {key!r}, and half of a surrogate pair is no UTF-8"
    return None


@dataclass(frozen=True, slots=True)
class VocabularySpec:
    """The keys that clients send for rows of a table: keys[i] means row first_id + i.

    keys: all str, or all int, without duplicates.
    oov_id, num_oov_buckets, on_oov: policy for any other key, as in service.artifact.manifest.VocabularyEntry.
    """

    keys: tuple[str, ...] | tuple[int, ...]
    first_id: int = 0
    oov_id: int | None = None
    num_oov_buckets: int = 0
    on_oov: OovPolicy = "error"

    def __post_init__(self) -> None:
        kinds = {type(key) for key in self.keys}
        if kinds not in ({str}, {int}):
            raise ValueError("a vocabulary has keys that are all strings or all integers, at least one")
        for row, key in enumerate(self.keys, self.first_id):
            if isinstance(key, str) and (fault := line_fault(key)):
                raise ValueError(f"the key of row {row} {fault}; leave the row out, or give it another key")
        if len(set(self.keys)) != len(self.keys):
            first: dict[Any, int] = {}
            row, key = next(
                (row, key) for row, key in enumerate(self.keys, self.first_id) if first.setdefault(key, row) != row
            )
            raise ValueError(f"rows {first[key]} and {row} have the same key {key!r}; keep one of them")
        if self.num_oov_buckets and self.oov_id is not None:
            raise ValueError("a vocabulary has either oov_id or num_oov_buckets")

    @property
    def key_dtype(self) -> KeyDtype:
        """Returns the dtype of this vocabulary's keys, which clients send: "string" or "int64"."""
        return "string" if isinstance(self.keys[0], str) else "int64"

    @property
    def last_id(self) -> int:
        """The largest row number to which this vocabulary can map a key."""
        return max(self.first_id + len(self.keys) + self.num_oov_buckets - 1, self.oov_id or 0)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table.

    combiner: combiner of the features that do not have their own.
    initial_stddev: standard deviation of the truncated normal from which rows are initialized.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    combiner: Combiner = "mean"
    initial_stddev: float = 0.05

    def __post_init__(self) -> None:
        _check_name("table", self.name)
        if self.vocabulary_size < 1 or self.embedding_dim < 1:
            raise ValueError(f"table {self.name!r}: {self.vocabulary_size} x {self.embedding_dim} holds no numbers")
        _check_choice(f"table {self.name!r}", "combiner", self.combiner, Combiner)


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One feature: an input of ids, with the table and the policies for looking them up.

    is_ragged: any number of ids per row; otherwise one id per row, not combined.
    max_ids_per_row: K of the padded tensor-core lookup; 1 unless ragged.
    combiner: combiner of a ragged feature; None: the table's.
    max_sequence_length: L > 0 makes it a sequence: [B, L, D], not combined, cut and padded with zeros; K is then L.
    vocabulary: maps the keys that clients send to rows; None: ids are rows.
    sends_rows: the signature's input is row numbers (int64) despite a vocabulary of strings; our server accepts both.
    default_id: row that an id outside [0, V) reads if on_bad_id is "default_row".
    on_bad_id, on_nonpositive_weight: policies of both lookups, on_too_many_ids of the padded one, as in
      service.artifact.manifest.LookupFeature.
    """

    name: str
    table: str
    is_ragged: bool = False
    max_ids_per_row: int = 1
    combiner: Combiner | None = None
    max_sequence_length: int = 0
    vocabulary: VocabularySpec | None = None
    sends_rows: bool = False
    on_bad_id: BadIdPolicy = "error"
    default_id: int = 0
    on_nonpositive_weight: WeightPolicy = "keep"
    on_too_many_ids: TooManyPolicy = "error"

    def __post_init__(self) -> None:
        _check_name("feature", self.name)
        if "__" in self.name:
            raise ValueError(f"feature name {self.name!r}: __ separates a feature from its parts")
        what = f"feature {self.name!r}"
        if self.max_ids_per_row < 1 or (self.max_ids_per_row > 1 and not self.is_ragged):
            raise ValueError(f"{what}: max_ids_per_row is {self.max_ids_per_row}")
        if self.max_sequence_length < 0 or (self.max_sequence_length and not self.is_ragged):
            raise ValueError(f"{what}: max_sequence_length is {self.max_sequence_length}")
        if self.combiner is not None:
            _check_choice(what, "combiner", self.combiner, Combiner)
        _check_choice(what, "on_bad_id", self.on_bad_id, BadIdPolicy)
        _check_choice(what, "on_nonpositive_weight", self.on_nonpositive_weight, WeightPolicy)
        _check_choice(what, "on_too_many_ids", self.on_too_many_ids, TooManyPolicy)
        if self.sends_rows and (self.vocabulary is None or self.vocabulary.key_dtype != "string"):
            raise ValueError(f"{what}: sends_rows needs a vocabulary of strings")
        drops = self.on_bad_id in ("drop", "drop_negative")
        if self.vocabulary is not None and self.vocabulary.on_oov == "drop" and not drops:
            raise ValueError(f"{what}: its vocabulary drops unknown keys, on_bad_id must too, not {self.on_bad_id!r}")

    @property
    def ids_input(self) -> str:
        """Name of the signature's input for the feature's ids."""
        return self.name + VALUES_SUFFIX if self.is_ragged else self.name

    @property
    def row_splits_input(self) -> str | None:
        """Name of the signature's input for the feature's row splits; None if each row has one id."""
        return self.name + ROW_SPLITS_SUFFIX if self.is_ragged else None

    @property
    def weights_input(self) -> str | None:
        """Name of the signature's input for one weight per id; None if the feature's ids are not combined."""
        return self.name + WEIGHTS_SUFFIX if self.is_ragged and not self.max_sequence_length else None

    @property
    def id_dtype(self) -> KeyDtype:
        """Returns the dtype of the feature's ids in requests: "string" if clients send string keys, else "int64"."""
        return "int64" if self.vocabulary is None or self.sends_rows else self.vocabulary.key_dtype


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The tables and features of a model. Each feature's table is among them, and each table has a feature."""

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]

    def __post_init__(self) -> None:
        tables = {table.name: table for table in self.tables}
        names = [feature.name for feature in self.features]
        if len(tables) != len(self.tables) or len(set(names)) != len(names):
            raise ValueError("two tables or two features have the same name")
        for feature in self.features:
            if feature.table not in tables:
                near = did_you_mean(feature.table, tables)
                raise ValueError(f"feature {feature.name!r} uses table {feature.table!r}, which is not declared{near}")
            rows = tables[feature.table].vocabulary_size
            if feature.vocabulary is not None and feature.vocabulary.last_id >= rows:
                raise ValueError(
                    f"feature {feature.name!r}: its vocabulary reaches row {feature.vocabulary.last_id}, table "
                    f"{feature.table!r} has {rows} rows"
                )
            if feature.default_id >= rows:
                raise ValueError(f"feature {feature.name!r}: default_id {feature.default_id} is not in its table")
        unused = sorted(set(tables) - {feature.table for feature in self.features})
        if unused:
            raise ValueError(f"no feature uses tables {unused}")

    def table(self, name: str) -> TableSpec:
        """Returns the model's table with the given name; raises StopIteration if the model has none of that name."""
        return next(table for table in self.tables if table.name == name)

    def feature(self, name: str) -> FeatureSpec:
        """Returns the model's feature with the given name; raises StopIteration if the model has none of that name."""
        return next(feature for feature in self.features if feature.name == name)

    def combiner_of(self, feature: FeatureSpec) -> Combiner | None:
        """Returns the combiner of a feature; None for a feature of one id per row, and for a sequence."""
        if not feature.is_ragged or feature.max_sequence_length:
            return None
        return feature.combiner or self.table(feature.table).combiner

    def table_of(self, feature: str) -> TableSpec:
        """Returns the table whose rows a feature's ids name."""
        return self.table(self.feature(feature).table)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that from_json() takes."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelSpec:
        """Makes a ModelSpec of the object that to_json() returned, and checks it."""
        features = []
        for entry in data["features"]:
            words = entry["vocabulary"]
            vocabulary = None if words is None else VocabularySpec(**{**words, "keys": tuple(words["keys"])})
            features.append(FeatureSpec(**{**entry, "vocabulary": vocabulary}))
        return ModelSpec(tuple(TableSpec(**entry) for entry in data["tables"]), tuple(features))


def _check_choice(what: str, field: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{what}: {field} is {value!r}, expected one of {get_args(choices)}")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} name {name!r}: SavedModel inputs are named with letters, digits and _ only")


def cut_spec(spec: ModelSpec, rows: int) -> ModelSpec:
    """Returns the spec with at most `rows` rows per table; drops keys of cut rows, and clamps ids of default rows."""
    tables = tuple(replace(table, vocabulary_size=min(rows, table.vocabulary_size)) for table in spec.tables)
    return ModelSpec(tables, tuple(_cut(feature, rows) for feature in spec.features))


def _cut(feature: FeatureSpec, rows: int) -> FeatureSpec:
    vocabulary = feature.vocabulary
    if vocabulary is not None:
        oov = None if vocabulary.oov_id is None else min(vocabulary.oov_id, rows - 1)
        kept = max(rows - vocabulary.first_id - vocabulary.num_oov_buckets, 0)
        vocabulary = replace(vocabulary, keys=vocabulary.keys[:kept], oov_id=oov)
    return replace(feature, vocabulary=vocabulary, default_id=min(feature.default_id, rows - 1))
