"""A lookup signature compiled against its tables: what is left to do per request is one kernel call per feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import get_ident

import numpy as np

from service.core.errors import IdsTooMany
from service.core.manifest import LookupFeature, SignatureEntry
from service.core.types import Array, TableCounts, Tensors
from service.core.validation import id_out_of_range
from service.lookup import kernels
from service.lookup.row_pool import Part, RowRunner, in_one_piece
from service.lookup.table import MappedTable

COMBINERS = {"sum": kernels.SUM, "mean": kernels.MEAN, "sqrtn": kernels.SQRTN}
_SUMMATIONS = {"in_order": kernels.IN_ORDER, "blocks_of_8": kernels.BLOCKS_OF_8, "four_lanes": kernels.FOUR_LANES}
POLICIES = {
    "error": kernels.ERROR,
    "drop": kernels.DROP,
    "drop_negative": kernels.DROP_NEGATIVE,
    "default_row": kernels.DEFAULT_ROW,
    "clamp": kernels.CLAMP,
    "wrap": kernels.WRAP,
}
# Where a bad id reads a row of another id.
_READ_INSTEAD = ("default_row", "clamp", "wrap")
_NO_WEIGHTS = np.empty(0, np.float32)


def combiner_number(feature: LookupFeature) -> int:
    """Returns a feature's combiner and order of additions as the kernels take them."""
    return COMBINERS[feature.combiner or "sum"] + _SUMMATIONS[feature.summation]


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """One feature of a signature, its table at hand. Concurrency: any thread."""

    feature: LookupFeature
    table: MappedTable
    max_rows: int | None
    runner: RowRunner = in_one_piece
    # Among the features of its signature, for the counts.
    position: int = 0

    def run(self, inputs: Tensors, counts: Array) -> Array:
        """Returns [B, D] float32 for the feature's inputs, or [B, L, D] of a sequence.

        Args:
          counts: [2] int64, of the calling thread; the number of ids and of those without a row are added to it.
            Of a lookup that is refused, only the id that it is refused for.

        Raises:
          IdOutOfRange: an id has no row and the policy refuses it.
          IdsTooMany: a row has more than max_ids_per_row ids and is not to be truncated, or there are too many rows.
        """
        feature = self.feature
        ids = _int64(inputs[feature.ids])
        splits = None if feature.row_splits is None else _int64(inputs[feature.row_splits])
        rows = ids.shape[0] if splits is None else splits.shape[0] - 1
        if self.max_rows is not None and rows > self.max_rows:
            raise IdsTooMany(f'input "{feature.ids}": {rows} rows, this signature takes at most {self.max_rows}.')
        length, dim = feature.max_sequence_length, self.table.info.embedding_dim
        out = np.empty((rows, dim) if length is None else (rows, length, dim), np.float32)
        stopped = self.runner(self._part(inputs, ids, splits, out), rows, splits, out.nbytes)
        if stopped != kernels.OK:
            if stopped > kernels.MISSING:
                if stopped >= 0:
                    counts[0] += 1
                    counts[1] += 1
                raise self._explain(stopped, ids, inputs)
            counts[1] += kernels.MISSING - stopped
        counts[0] += ids.shape[0]
        return out

    def _part(self, inputs: Tensors, ids: Array, splits: Array | None, out: Array) -> Part:
        feature, place = self.feature, self.table.place
        policy = POLICIES[feature.on_bad_id]
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
        weights = np.ascontiguousarray(inputs.get(feature.weights or "", _NO_WEIGHTS))
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


@dataclass(frozen=True, slots=True)
class SignaturePlan:
    """All features of one lookup signature, by output name. Concurrency: any thread."""

    features: Mapping[str, FeaturePlan]
    # By thread: each counts in an array of its own, so that no lock is needed.
    _counts: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)

    def run(self, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns the outputs whose features were sent."""
        counts = self.counts_of_thread()
        return {
            name: plan.run(inputs, counts[plan.position])
            for name in outputs
            if (plan := self.features[name]).feature.ids in inputs
        }

    def on_tables(self, tables: Mapping[str, MappedTable]) -> SignaturePlan:
        """Returns the same plan on other tables of the same names and shapes; both count together."""
        moved = {name: replace(plan, table=tables[plan.table.info.name]) for name, plan in self.features.items()}
        return replace(self, features=moved)

    def counts_of_thread(self) -> Array:
        """Returns [F, 2] int64, the ids of each feature and those without a row, that the calling thread adds to."""
        thread = get_ident()
        counts = self._counts.get(thread)
        if counts is None:
            counts = self._counts[thread] = np.zeros((len(self.features), 2), np.int64)
        return counts

    def counts(self) -> Iterator[tuple[str, TableCounts]]:
        """Yields what each feature read so far, with its table's name; keys are not counted here."""
        totals = sum(self._counts.copy().values(), np.zeros((len(self.features), 2), np.int64))
        for plan in self.features.values():
            ids, missing = totals[plan.position].tolist()
            read = ids if plan.feature.on_bad_id in _READ_INSTEAD else ids - missing
            info = plan.table.info
            yield (
                info.name,
                TableCounts(ids, missing, 0, max(read, 0) * plan.table.row_bytes),
            )


def compile_signature(
    entry: SignatureEntry,
    feature_tables: Mapping[str, str],
    tables: Mapping[str, MappedTable],
    runner: RowRunner = in_one_piece,
) -> SignaturePlan:
    """Joins a signature of the manifest with its mapped tables; feature_tables: feature to table name."""
    max_rows = entry.batch_sizes[-1] if entry.batch_sizes else None
    return SignaturePlan(
        {
            lookup.output or name: FeaturePlan(lookup, tables[feature_tables[name]], max_rows, runner, position)
            for position, (name, lookup) in enumerate(entry.features.items())
        }
    )


def _int64(array: Array) -> Array:
    return np.ascontiguousarray(array, np.int64)
