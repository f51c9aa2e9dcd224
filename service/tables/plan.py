"""Compiles a lookup signature with its tables, so that each request costs one kernel call per feature."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import NamedTuple

import numpy as np

from service.artifact.manifest import LookupFeature, SignatureEntry
from service.artifact.signature_rules import LookupRules
from service.engine.hot_rows import FeatureIds
from service.errors import IdsTooMany, InputMismatch, id_out_of_range
from service.tables import kernels
from service.tables.kernel_codes import POLICIES
from service.tables.remote_table import RemoteTable
from service.tables.row_pool import Part, RowRunner, in_one_piece
from service.tables.table import MappedTable
from service.tables.uncommon_lookups import gather_stored, sequence_stored, small_table, with_empty_rows
from service.types import VALUES_SUFFIX, Array, TableCounts, Tensors

COMBINERS = {"sum": kernels.SUM, "mean": kernels.MEAN, "sqrtn": kernels.SQRTN}
_SUMMATIONS = {
    "in_order": kernels.IN_ORDER,
    "blocks_of_8": kernels.BLOCKS_OF_8,
    "four_lanes": kernels.FOUR_LANES,
    "segment_mean": kernels.SEGMENT_MEAN,
}
# Policies for bad ids (outside the table) by which such an id reads another id's row.
_READ_INSTEAD = ("default_row", "clamp", "wrap")
_NO_WEIGHTS = np.empty(0, np.float32)


def combiner_number(feature: LookupFeature) -> int:
    """Returns the kernels' number for a feature's combiner and its order of additions."""
    return COMBINERS[feature.combiner or "sum"] + _SUMMATIONS[feature.summation]


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """The compiled plan to look up one feature of a signature in its table. Concurrency: any thread.

    position: the feature's position in its signature, for the counts.
    dtype: dtype of the answer, float32 or the table's stored dtype. ids_rank: rank of its ids input; None: any but 0.
    has_checked_splits: engine.validation has checked the row splits.
    """

    feature: LookupFeature
    table: MappedTable | RemoteTable
    max_rows: int | None
    runner: RowRunner = in_one_piece
    position: int = 0
    dtype: str = "float32"
    ids_rank: int | None = 1
    has_checked_splits: bool = False

    def num_rows(self, inputs: Tensors) -> int:
        """Returns B, the number of rows of ids in a request for this feature."""
        splits = self.feature.row_splits
        rows: int = inputs[self.feature.ids].shape[0] if splits is None else inputs[splits].shape[0] - 1
        return rows

    def read_counts(self, ids: int, missing: int) -> TableCounts:
        """Returns what a lookup of `ids` ids, `missing` of them without a row, adds to the table's counts."""
        read = ids if self.feature.on_bad_id in _READ_INSTEAD else ids - missing
        return TableCounts(ids, missing, 0, max(read, 0) * self.table.row_bytes)

    def feature_ids(self, ids: int, missing: int) -> FeatureIds:
        """Returns what a lookup of `ids` ids adds to the feature's counts, if `missing` of the ids have no row."""
        return FeatureIds(ids, missing, missing if self.feature.on_bad_id in _READ_INSTEAD else 0)

    def run(self, inputs: Tensors, counts: Array) -> Array:
        """Looks up the feature's ids; returns [B, D], [B, L, D] for a sequence, or [B, K, D] for ids of shape [B, K].

        Args:
          counts: [2] int64 of the calling thread; the number of ids and the number of ids without a row are added to
            it. A refused lookup counts only the id that it is refused for.

        Raises:
          IdOutOfRange: an id has no row and the policy refuses it.
          IdsTooMany: a row has more than max_ids_per_row ids and is not truncated, or there are too many rows.
          InputMismatch: has_checked_splits is False, and the row splits are invalid.
          TableUnreachable, DeadlineExceeded: rows of a remote table could not be read.
        """
        feature = self.feature
        rows = self.num_rows(inputs)
        if self.max_rows is not None and rows > self.max_rows:
            raise IdsTooMany(f'input "{feature.ids}": {rows} rows, this signature takes at most {self.max_rows}.')
        ids = _int64(inputs[feature.ids]).reshape(-1)
        splits = None if feature.row_splits is None else _int64(inputs[feature.row_splits])
        if splits is not None and not self.has_checked_splits:
            _check_splits(splits, ids, feature.row_splits)
        length, dim = feature.max_sequence_length, self.table.info.embedding_dim
        num_vectors = ids.shape[0] if splits is None else rows
        out = np.empty((num_vectors, dim) if length is None else (rows, length, dim), self.dtype)
        missing = 0
        # For a remote table, the kernels read a small table of the request's rows, and `read` has positions in it;
        # error texts name the ids that the client sent.
        table, read = self.table, ids
        if isinstance(table, RemoteTable):
            table, feature, read, missing = table.rows_of_request(feature, ids)
        if self.dtype != "float32":
            part = _copy_stored(table, feature, read, splits, out)
        elif feature.max_norm is None and table.info.dtype != "float64":
            part = self._part(inputs, read, splits, out, table.place, POLICIES[feature.on_bad_id])
        else:
            small = small_table(table, feature, read)
            missing += small.num_read_instead
            part = self._part(inputs, small.ids, splits, out, small.place, kernels.DROP_NEGATIVE)
        stopped = self.runner(part, num_vectors, splits, out.nbytes)
        if stopped != kernels.OK:
            if stopped > kernels.MISSING:
                if stopped >= 0:
                    counts[0] += 1
                    counts[1] += 1
                raise self._explain(stopped, ids, inputs)
            missing += kernels.MISSING - stopped
        counts[0] += ids.shape[0]
        counts[1] += missing
        if splits is None:
            return out.reshape(*inputs[feature.ids].shape, dim)
        if feature.on_empty_row != "zeros" or feature.trailing_empty_rows != "keep":
            return with_empty_rows(table, feature, out, read, splits, self._weights(inputs))
        return out

    def _weights(self, inputs: Tensors) -> Array:
        return np.ascontiguousarray(inputs.get(self.feature.weights or "", _NO_WEIGHTS))

    def _part(
        self,
        inputs: Tensors,
        ids: Array,
        splits: Array | None,
        out: Array,
        place: tuple[int, Array, Array, int, int],
        policy: int,
    ) -> Part:
        feature = self.feature
        if splits is None:

            def gather(begin: int, end: int) -> int:
                stopped = kernels.gather(*place, ids[begin:end], policy, feature.default_row, out[begin:end])
                return int(stopped + begin if stopped >= 0 else stopped)

            return gather
        if feature.max_sequence_length is not None:

            def sequence(begin: int, end: int) -> int:
                some, to = splits[begin : end + 1], out[begin:end]
                return int(kernels.sequence(*place, ids, some, policy, feature.default_row, to))

            return sequence
        weights = self._weights(inputs)
        options = (
            feature.on_nonpositive_weight == "drop",
            combiner_number(feature),
            feature.mean_divisor == "at_least_one",
            feature.max_ids_per_row or 0,
            feature.on_too_many_ids == "truncate",
            policy,
            feature.default_row,
        )

        def combine(begin: int, end: int) -> int:
            some = splits[begin : end + 1]
            stopped = kernels.combine(*place, ids, some, weights, *options, out[begin:end])
            return int(stopped - begin if kernels.MISSING < stopped <= kernels.TOO_MANY else stopped)

        return combine

    def _explain(self, stopped: int, ids: Array, inputs: Tensors) -> Exception:
        feature = self.feature
        if stopped >= 0:
            return id_out_of_range(feature.ids, int(ids[stopped]), stopped, self.table.info.vocabulary_size)
        row = kernels.TOO_MANY - stopped
        splits = inputs[feature.row_splits or ""]
        return IdsTooMany(
            f'input "{feature.ids}": row {row} has {splits[row + 1] - splits[row]} ids, '
            f"this signature takes at most {feature.max_ids_per_row}."
        )


class OutputPlan(NamedTuple):
    """The plan of one output of a lookup signature: which features' vectors it holds, and its rank.

    parts: the features whose vectors the output holds side by side.
    rank: rank of the output; None: the rank of its features' vectors.
    """

    parts: tuple[str, ...]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SignaturePlan:
    """The compiled plan of a lookup signature: one plan for each feature and for each output.

    Concurrency: any thread.
    """

    features: Mapping[str, FeaturePlan]
    outputs: Mapping[str, OutputPlan]
    # Number of a thread -> for each feature, how many ids the thread looked up, and how many of them had no row. Each
    # thread adds to an array of its own, so that no lock is needed.
    _counts: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def max_rows(self) -> int | None:
        """Largest number of rows that a request to this lookup signature may have; None: there is no limit."""
        return min((plan.max_rows for plan in self.features.values() if plan.max_rows is not None), default=None)

    def run(self, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Looks up each feature that was sent, and returns the named outputs for which all features were sent.

        The vectors of one feature are [B, D], [B, L, D] for a sequence or [B, K, D] for ids of shape [B, K], in float32
        or in the table's stored dtype.

        Raises:
          InputMismatch: features of one output differ in their number of rows.
          InvalidRequest: as FeaturePlan.run does.
        """
        counts = self.counts_of_thread()
        found: dict[str, Array] = {}
        results = {}
        for name in outputs:
            output = self.outputs[name]
            if any(self.features[part].feature.ids not in inputs for part in output.parts):
                continue
            for part in output.parts:
                if part not in found:
                    plan = self.features[part]
                    found[part] = plan.run(inputs, counts[plan.position])
            results[name] = self._output(name, [found[part] for part in output.parts], inputs)
        return results

    def _output(self, name: str, parts: list[Array], inputs: Tensors) -> Array:
        output = self.outputs[name]
        if output.rank == 2:
            # The width of a flattened row is computed here, because reshape(0, -1) can not infer it for an answer
            # without rows.
            parts = [p if p.ndim == 2 else p.reshape(p.shape[0], math.prod(p.shape[1:])) for p in parts]
        if len(parts) == 1:
            return parts[0]
        if len({part.shape[:-1] for part in parts}) > 1:
            raise InputMismatch(self._unequal(name, parts, inputs))
        return np.concatenate(parts, axis=-1)

    def _unequal(self, name: str, parts: list[Array], inputs: Tensors) -> str:
        told = []
        for feature, part in zip(self.outputs[name].parts, parts, strict=True):
            plan = self.features[feature]
            rows, left_out = part.shape[0], plan.num_rows(inputs) - part.shape[0]
            size = f"{rows} rows of {part.shape[1]} ids" if part.ndim > 2 else str(rows)
            if left_out:
                size += f" (its last {left_out} rows hold no ids, and the model's graph leaves them out)"
            told.append(f'"{plan.feature.ids}" has {size}')
        return f'output "{name}" joins features that differ in their number of rows: {", ".join(told)}.'

    def on_tables(self, tables: Mapping[str, MappedTable]) -> SignaturePlan:
        """Returns a plan that reads other tables of the same names and shapes; both plans add to the same counts.

        The plan keeps its own table where `tables` has none of that name.
        """
        moved = {
            name: replace(plan, table=tables.get(plan.table.info.name, plan.table))
            for name, plan in self.features.items()
        }
        return replace(self, features=moved)

    def counts_of_thread(self) -> Array:
        """Returns the calling thread's counts, [F, 2] int64: per feature, the numbers of ids and of ids without row."""
        thread = get_ident()
        counts = self._counts.get(thread)
        if counts is None:
            counts = self._counts[thread] = np.zeros((len(self.features), 2), np.int64)
        return counts

    def feature_counts(self) -> Iterator[tuple[str, str, FeatureIds]]:
        """Yields, for each feature, its table's name, its own name, and the counts of the ids that were looked up."""
        totals = sum(self._counts.copy().values(), np.zeros((len(self.features), 2), np.int64))
        for plan in self.features.values():
            ids, missing = totals[plan.position].tolist()
            # In the metrics, a feature has the name of its input of ids, without the suffix "__values"; the native core
            # counts ids under the same name.
            yield plan.table.info.name, plan.feature.ids.removesuffix(VALUES_SUFFIX), plan.feature_ids(ids, missing)

    def counts(self) -> Iterator[tuple[str, TableCounts]]:
        """Yields, for each feature, its table's name and its counts of reads; vocabularies count unknown keys."""
        totals = sum(self._counts.copy().values(), np.zeros((len(self.features), 2), np.int64))
        for plan in self.features.values():
            ids, missing = totals[plan.position].tolist()
            yield plan.table.info.name, plan.read_counts(ids, missing)


def compile_signature(
    entry: SignatureEntry,
    feature_tables: Mapping[str, str],
    tables: Mapping[str, MappedTable | RemoteTable],
    runner: RowRunner = in_one_piece,
    rules: LookupRules | None = None,
) -> SignaturePlan:
    """Compiles the plan of a lookup signature from its manifest entry and the tables.

    Args:
      feature_tables: feature -> table name.
      rules: None: each feature is a float32 output of its own. With rules, engine.validation has checked the row
        splits.
    """
    max_rows = entry.batch_sizes[-1] if entry.batch_sizes else None
    alone = {lookup.output or name: (name,) for name, lookup in entry.features.items()}
    outputs = {name: OutputPlan(parts) for name, parts in alone.items()}
    dtypes: dict[str, str] = {}
    ids_ranks: Mapping[str, int] = {}
    if rules is not None:
        outputs = {name: OutputPlan(rule.parts, len(rule.shape)) for name, rule in rules.outputs.items()}
        dtypes = {part: rule.dtype for rule in rules.outputs.values() for part in rule.parts}
        ids_ranks = rules.ids_ranks
    features = {
        name: FeaturePlan(
            lookup,
            tables[feature_tables[name]],
            max_rows,
            runner,
            position,
            dtypes.get(name, "float32"),
            ids_ranks.get(name, 1),
            has_checked_splits=rules is not None,
        )
        for position, (name, lookup) in enumerate(entry.features.items())
    }
    return SignaturePlan(features, outputs)


def _copy_stored(table: MappedTable, feature: LookupFeature, ids: Array, splits: Array | None, out: Array) -> Part:
    def copy(begin: int, end: int) -> int:
        if splits is not None:
            return sequence_stored(table, feature, ids, splits[begin : end + 1], out[begin:end])
        stopped = gather_stored(table, feature, ids[begin:end], out[begin:end])
        return stopped + begin if stopped >= 0 else stopped

    return copy


def _int64(array: Array) -> Array:
    return np.ascontiguousarray(array, np.int64)


def _check_splits(splits: Array, ids: Array, name: str | None) -> None:
    is_sound = splits.ndim == 1 and splits.size and splits[0] == 0 and splits[-1] == ids.shape[0]
    if not is_sound or (splits[1:] < splits[:-1]).any():
        raise InputMismatch(f'input "{name}": must start with 0, not decrease and end with {ids.shape[0]}.')
