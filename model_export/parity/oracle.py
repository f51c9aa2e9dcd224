"""Computes the expected answer of each lookup with numpy from the manifest, without TensorFlow's graphs.

The oracle computes in float64 on the bytes that the manifest refers to, so that a comparison also shows that these
bytes are the tables.

>>> table = np.array([[0, 0], [1, 2], [3, 6]], np.float32)
>>> bag = LookupFeature("g__values", "g__row_splits", combiner="mean")
>>> looked_up(table, bag, RaggedIds(np.array([1, 2]), np.array([0, 2, 2]))).tolist()
[[2.0, 4.0], [0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_export.parity.saved_table import Rows
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.hashes import fingerprint64
from service.artifact.manifest import LookupFeature, Manifest, VocabularyEntry
from service.types import Array, RaggedIds

# The ids of one feature: an array [B] for one id per row, or RaggedIds. They are row numbers of the table, or keys
# (object arrays of bytes, or integers of a vocabulary of integers).
Ids = Array | RaggedIds


class RefusedError(Exception):
    """Raised by the oracle for a request that a lookup must refuse: an id or key has no row, or a row too many ids."""


@dataclass(frozen=True, slots=True)
class Keys:
    """A vocabulary with its file's lines. sends_rows: clients send row numbers instead of the vocabulary's keys."""

    entry: VocabularyEntry
    lines: tuple[bytes, ...]
    sends_rows: bool = False
    # Number of each line, filled at the first use: checks ask a vocabulary of a million keys for one key at a time.
    _number_of: dict[bytes, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rows_of(self, keys: Array) -> Array:
        """Maps keys to int64 row numbers; a dropped key is -1. Raises RefusedError if the vocabulary refuses a key."""
        if self.sends_rows:
            return keys.astype(np.int64)
        return np.array([self.row_of(key) for key in keys.tolist()], np.int64)

    def key_of(self, row: int) -> Array | None:
        """Returns the key of a row as an array of one, of object or int64; None for a row without a key of its own."""
        number = row - self.entry.first_id
        if not 0 <= number < len(self.lines):
            return None
        if self.entry.key_dtype == "int64":
            return np.array([int(self.lines[number])], np.int64)
        return np.array([self.lines[number]], object)

    def row_of(self, key: bytes | int) -> int:
        """Maps one key to its row; -1 if it is dropped. Raises RefusedError if the vocabulary refuses the key."""
        if not self._number_of:
            self._number_of.update({line: number for number, line in enumerate(self.lines)})
        text = key if isinstance(key, bytes) else str(key).encode()
        entry = self.entry
        if not text and entry.empty_key_id is not None:
            return entry.empty_key_id
        if text in self._number_of:
            return entry.first_id + self._number_of[text]
        if entry.num_oov_buckets:
            return entry.first_bucket + fingerprint64(text) % entry.num_oov_buckets
        if entry.oov_id is not None:
            return entry.oov_id
        if entry.on_oov == "error":
            raise RefusedError(f"unknown key {text!r}")
        return -1


def looked_up(table: Rows, feature: LookupFeature, ids: Ids, keys: Keys | None = None) -> Array:
    """Looks up ids in a [V, D] table; returns [B, D] float64, or [B, L, D] for a sequence. An empty row gives zeros by
    default.

    sum: sum(w v). mean: sum(w v) / sum(w), or / max(sum(w), 1) with "at_least_one". sqrtn: sum(w v) / sqrt(sum(w w)).
    A divisor of 0 gives zeros. A row is cut before its ids are checked; vectors are clipped before they are weighted.
    Ids of shape [B, K] give [B, K, D]. A row in which no id counts gives the manifest's vector of empty rows, or is cut
    off at the end.

    Raises:
      RefusedError: by the manifest an id, a key or the length of a row is an error.
    """
    if not isinstance(ids, RaggedIds):
        flat = ids.reshape(-1)
        rows = flat if keys is None else keys.rows_of(flat)
        vectors = [_vector(table, feature, int(row)) for row in rows]
        found = np.array([np.zeros(table.shape[1]) if v is None else v for v in vectors])
        return found.reshape(*ids.shape, table.shape[1])
    # Keys are mapped to table rows before long lists of keys are cut, so an unknown key in a cut part is an error, too.
    values = ids.values if keys is None else keys.rows_of(ids.values)
    length = feature.max_sequence_length
    out = np.zeros((len(ids.row_splits) - 1, *([] if length is None else [length]), table.shape[1]))
    last = -1
    for r, (start, end) in enumerate(zip(ids.row_splits[:-1], ids.row_splits[1:], strict=True)):
        weights = None if ids.weights is None else ids.weights[start:end].astype(np.float64)
        if length is not None:
            for position, row in enumerate(values[start:end][:length]):
                vector = _vector(table, feature, int(row))
                out[r, position] = 0.0 if vector is None else vector
        else:
            # numpy's warnings about invalid sums are off, because a table may hold NaN and infinity.
            with np.errstate(invalid="ignore"):
                combined = _combined(table, feature, values[start:end], weights)
            last = last if combined is None else r
            out[r] = _empty_row(table, feature) if combined is None else combined
    return out[: last + 1] if feature.trailing_empty_rows == "cut" else out


def _empty_row(table: Rows, feature: LookupFeature) -> Array | float:
    if feature.on_empty_row == "default_row":
        return _bounded(table[feature.default_row].astype(np.float64), feature)
    return float("nan") if feature.on_empty_row == "nan" else 0.0


def _bounded(vector: Array, feature: LookupFeature) -> Array:
    if feature.max_norm is None:
        return vector
    norm = float(np.sqrt((vector * vector).sum()))
    return vector * (feature.max_norm / max(norm, feature.max_norm))


def read_keys(artifact: Path, manifest: Manifest, id_dtypes: Mapping[str, str]) -> dict[str, Keys]:
    """Returns the vocabulary of each feature that has one, by feature name.

    Args:
      id_dtypes: feature -> dtype of its ids input. If the vocabulary holds strings and the dtype is an integer, the ids
        are row numbers.
    """
    keys = {}
    for feature, dtype in id_dtypes.items():
        name = manifest.features[feature].vocabulary
        if name is not None:
            entry = manifest.vocabularies[name]
            sends_rows = entry.key_dtype == "string" and dtype != "string"
            # A vocabulary that hashes keys has no file, so its list of lines is empty.
            lines = vocabulary_lines(artifact / entry.file) if entry.file else ()
            keys[feature] = Keys(entry, lines, sends_rows)
    return keys


def _vector(table: Rows, feature: LookupFeature, row: int) -> Array | None:
    # Returns the vector that row number `row` of a feature reads from the table; None if the policy drops it.
    policy = feature.on_bad_id
    if not 0 <= row < table.shape[0]:
        if policy == "drop" or (policy == "drop_negative" and row < 0):
            return None
        if policy == "clamp":
            row = min(max(row, 0), table.shape[0] - 1)
        elif policy == "default_row":
            row = feature.default_row
        elif policy == "wrap" and -table.shape[0] <= row < 0:
            row += table.shape[0]
        else:
            raise RefusedError(f"id {row}")
    return _bounded(table[row].astype(np.float64), feature)


def _combined(
    table: Rows, feature: LookupFeature, rows: Array, weights: Sequence[float] | Array | None
) -> Array | None:
    # Returns the combined vector of one example's ids; None if there are no ids, or all are dropped.
    most = feature.max_ids_per_row
    if most is not None and len(rows) > most:
        if feature.on_too_many_ids == "error":
            raise RefusedError(f"{len(rows)} ids in a row")
        rows = rows[:most]
    total, squares, weight_sum, count = np.zeros(table.shape[1]), 0.0, 0.0, 0
    for position, row in enumerate(rows):
        weight = 1.0 if weights is None else float(weights[position])
        if feature.on_nonpositive_weight == "drop" and not weight > 0:
            continue
        vector = _vector(table, feature, int(row))
        if vector is None:
            continue
        total += weight * vector
        weight_sum += weight
        squares += weight * weight
        count += 1
    if not count:
        return None
    if feature.combiner == "sum":
        return total
    if feature.combiner == "sqrtn":
        divisor = squares**0.5
    else:
        divisor = max(weight_sum, 1.0) if feature.mean_divisor == "at_least_one" else weight_sum
    return total / divisor if divisor else np.zeros_like(total)
