"""Looks up the features of a lookup signature in its tables, by the policies of the manifest.

A row of ids is cut at its limit first, and ids behind the limit are never checked. Then an id's weight is compared with
0, then the id with the size of the table. The first fault in the order of the rows refuses the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.signature_rules import LookupRules
from service.artifact.stored_tables import flushed
from service.errors import IdsTooMany, InputMismatch, id_out_of_range
from service.reference.rows import Table, bounded, combined, places
from service.types import Array, Tensors

# Row number of an id that is dropped: it counts as if it were not sent, and reads zeros where nothing is combined.
_NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup signature with the tables of its features. Concurrency: any thread.

    tables: feature -> its table. rules: the outputs, each with the features whose vectors it holds.
    """

    entry: SignatureEntry
    tables: Mapping[str, Table]
    rules: LookupRules

    @staticmethod
    def of(entry: SignatureEntry, manifest: Manifest, tables: Mapping[str, Table], rules: LookupRules) -> Lookup:
        return Lookup(entry, {name: tables[manifest.features[name].table] for name in entry.features}, rules)

    def run(self, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns those of the named outputs for which all features were sent.

        Args:
          inputs: as reference.inputs has checked them.

        Raises:
          IdOutOfRange, IdsTooMany: the policy of a feature refuses an id or a row.
          InputMismatch: features of one output differ in their number of rows.
        """
        found: dict[str, Array] = {}
        results = {}
        for output in outputs:
            rule = self.rules.outputs[output]
            if any(self.entry.features[part].ids not in inputs for part in rule.parts):
                continue
            for part in rule.parts:
                if part not in found:
                    found[part] = self._vectors(part, inputs, rule.dtype)
            parts = [found[part] for part in rule.parts]
            if len(rule.shape) == 2:
                parts = [part.reshape(part.shape[0], math.prod(part.shape[1:])) for part in parts]
            if len({part.shape[:-1] for part in parts}) > 1:
                told = (f'"{name}" has {part.shape[0]}' for name, part in zip(rule.parts, parts, strict=True))
                raise InputMismatch(
                    f'output "{output}" joins features that differ in their number of rows: {", ".join(told)}.'
                )
            results[output] = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        return results

    def _vectors(self, name: str, inputs: Tensors, dtype: str) -> Array:
        lookup = self.entry.features[name]
        ids = inputs[lookup.ids]
        num_rows = ids.shape[0] if lookup.row_splits is None else inputs[lookup.row_splits].shape[0] - 1
        most = self.entry.batch_sizes[-1] if self.entry.batch_sizes else num_rows
        if num_rows > most:
            raise IdsTooMany(f'input "{lookup.ids}": {num_rows} rows, this signature takes at most {most}.')
        return look_up(lookup, self.tables[name], inputs, dtype)


def look_up(lookup: LookupFeature, table: Table, inputs: Tensors, dtype: str = "float32") -> Array:
    """Looks up the ids of one feature.

    Args:
      dtype: of the result: float32, or the table's own dtype, for rows as they are stored.

    Returns:
      [B, D] for one id per row, and for ragged ids with a combiner; [B, K, D] for ids of shape [B, K]; [B, L, D] for
      sequences.

    Raises IdOutOfRange and IdsTooMany.
    """
    ids = inputs[lookup.ids].astype(np.int64).reshape(-1)
    if lookup.row_splits is None:
        rows = _rows_read(lookup, ids, np.arange(ids.size), table)
        return _copies(lookup, table, rows, dtype).reshape(*inputs[lookup.ids].shape, table.info.embedding_dim)
    splits = inputs[lookup.row_splits].astype(np.int64)
    if lookup.max_sequence_length is not None:
        return _sequences(lookup, table, ids, splits, dtype)
    return _combined(lookup, table, ids, splits, inputs.get(lookup.weights or ""))


def _rows_read(lookup: LookupFeature, ids: Array, at: Array, table: Table, counts: Array | None = None) -> Array:
    """Returns the row that each of the ids at some positions reads, by the feature's policy for ids without a row.

    Raises IdOutOfRange for the first id that the policy refuses, among those that count.
    """
    size = table.info.vocabulary_size
    ids_read = ids[at]
    is_bad = (ids_read < 0) | (ids_read >= size)
    rows = ids_read.copy()
    is_refused = is_bad
    match lookup.on_bad_id:
        case "drop":
            rows[is_bad] = _NO_ROW
            is_refused = np.full(at.shape, False)
        case "drop_negative":
            rows[ids_read < 0] = _NO_ROW
            is_refused = ids_read >= size
        case "default_row":
            rows[is_bad] = lookup.default_row
            is_refused = np.full(at.shape, False)
        case "clamp":
            rows = np.clip(ids_read, 0, size - 1)
            is_refused = np.full(at.shape, False)
        case "wrap":
            is_refused = (ids_read < -size) | (ids_read >= size)
            rows = np.where(ids_read < 0, ids_read + size, ids_read)
    for place in np.flatnonzero(is_refused if counts is None else is_refused & counts)[:1]:
        position = int(at[place])
        raise id_out_of_range(lookup.ids, int(ids[position]), position, size)
    return rows


def _copies(lookup: LookupFeature, table: Table, rows: Array, dtype: str) -> Array:
    """Returns a copy of each row; zeros for a dropped id."""
    has_row = rows >= 0
    found = np.zeros((rows.size, table.info.embedding_dim), dtype)
    if dtype == "float32":
        with np.errstate(all="ignore"):
            found[has_row] = bounded(table.rows(rows[has_row]), lookup.max_norm)
    else:
        found[has_row] = table.stored_rows(rows[has_row])
    return found


def _sequences(lookup: LookupFeature, table: Table, ids: Array, splits: Array, dtype: str) -> Array:
    """Returns each row's vectors one behind the other: a shorter row ends in zeros, a longer one is cut."""
    length = lookup.max_sequence_length or 0
    of_row, place = places(np.minimum(np.diff(splits), length))
    rows = _rows_read(lookup, ids, splits[of_row] + place, table)
    found = np.zeros((splits.size - 1, length, table.info.embedding_dim), dtype)
    found[of_row, place] = _copies(lookup, table, rows, dtype)
    return found


def _combined(lookup: LookupFeature, table: Table, ids: Array, splits: Array, weights: Array | None) -> Array:
    lengths, most = np.diff(splits), lookup.max_ids_per_row
    too_long: Array = np.empty(0, np.int64)
    if most is not None:
        if lookup.on_too_many_ids == "error":
            too_long = np.flatnonzero(lengths > most)
        lengths = np.minimum(lengths, most)
    # The ids of the first row that is too long, and those behind it, are not checked: the row is the first fault.
    of_row, place = places(lengths[: too_long[0]] if too_long.size else lengths)
    at = splits[of_row] + place
    # An empty array of weights is the signature's default, and means weight 1 for every id.
    factors = weights[at] if weights is not None and weights.size else None
    counts = np.full(at.shape, True)
    if factors is not None and lookup.on_nonpositive_weight == "drop":
        counts = flushed(factors) > 0
    rows = _rows_read(lookup, ids, at, table, counts)
    if too_long.size:
        row = int(too_long[0])
        raise IdsTooMany(
            f'input "{lookup.ids}": row {row} has {splits[row + 1] - splits[row]} ids, '
            f"this signature takes at most {most}."
        )
    # A refused id that does not count may be left among the rows.
    counts &= rows >= 0
    lengths = np.bincount(of_row[counts], minlength=splits.size - 1)
    combine = partial(
        combined,
        combiner=lookup.combiner or "sum",
        summation=lookup.summation,
        at_least_one=lookup.mean_divisor == "at_least_one",
    )
    vectors = _copies(lookup, table, rows[counts], "float32")
    found = combine(vectors, lengths, None if factors is None else factors[counts])
    if lookup.on_empty_row == "nan":
        found[lengths == 0] = np.nan
    elif lookup.on_empty_row == "default_row":
        # As in safe_embedding_lookup_sparse, an empty row becomes a row with this one id, of weight 1.
        vector = _copies(lookup, table, np.array([lookup.default_row]), "float32")
        found[lengths == 0] = combine(vector, np.array([1]), None if factors is None else np.ones(1, np.float32))
    if lookup.trailing_empty_rows == "cut":
        return found[: int(np.flatnonzero(lengths)[-1]) + 1 if lengths.any() else 0]
    return found
