"""Statistics of a table's lookups: ids by example and partition, distinct ids, and the ids that are looked up most.

Counts of several steps, runs and files can be added.

>>> counts = IdCounts(capacity=2).with_ids(np.array([7, 7, 7, 5, 9]))
>>> counts.ids, counts.counts, counts.undercount
(array([7]), array([2]), 1)
>>> table = TableDescription("film", 10, 4, "mean", ("liked",))
>>> seen = TableStatistics.empty(table, partitions=2).with_rows(np.array([3, 3, 9]), np.array([0, 2, 2, 3]))
>>> seen.examples, seen.ids, seen.mean_ids_per_example, seen.distinct_ids
(3, 3, 1.0, 2)
>>> seen.hot_ids(1), seen.partition_loads
([HotId(id=3, count=2, share=0.6666666666666666)], {'div': (2, 1), 'mod': (0, 3)})

Source: Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm" (2007), with its
linear counting for small numbers; the hash is splitmix64's finalizer (Steele et al., OOPSLA 2014). Misra and Gries,
"Finding repeated elements" (1982); merging as in Agarwal et al., "Mergeable summaries" (2012).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace

import numpy as np

from model_export.spec.embedding_config_spec import PartitionStrategy
from model_export.training.partitioning import locate_rows
from service.types import Array

_BITS = 12
REGISTERS = 1 << _BITS
"""Number of registers; the standard error is 1.04 / sqrt(REGISTERS), 1.6%."""


def empty_registers() -> Array:
    """Returns the registers of a HyperLogLog counter that has seen no ids: [REGISTERS] uint8."""
    return np.zeros(REGISTERS, np.uint8)


def with_ids(registers: Array, ids: Array) -> Array:
    """Returns a HyperLogLog counter's registers after [n] more ids. Two counters merge by the elementwise maximum."""
    hashes = _hashed(np.asarray(ids, np.int64).astype(np.uint64))
    register = (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
    rest = hashes << np.uint64(_BITS)
    # The rank of a hash is one more than the number of leading zeros of `rest`, which is 64 minus the exponent that
    # frexp returns. Rounding to a double can add one to the exponent if the bits are almost all ones, which happens to
    # one hash in 2**53.
    _, exponent = np.frexp(rest.astype(np.float64))
    rank = np.where(rest == 0, 64 - _BITS + 1, 65 - exponent)
    after = registers.copy()
    np.maximum.at(after, register, rank.astype(np.uint8))
    return after


def estimate(registers: Array) -> int:
    empty = int(np.count_nonzero(registers == 0))
    raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float(np.sum(2.0 ** -registers.astype(np.float64)))
    if raw <= 2.5 * REGISTERS and empty:
        return round(REGISTERS * float(np.log(REGISTERS / empty)))
    return round(raw)


def _hashed(values: Array) -> Array:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class IdCounts:
    """Record of the commonest ids of a stream of ids, with their counts, in bounded memory.

    Counts are exact up to `capacity` distinct ids. With more ids they are the counts of Misra and Gries: too low by at
    most `undercount`, and an id without a count came at most `undercount` times.

    ids: [n] int64, ascending. counts: [n] int64, each above 0.
    """

    capacity: int
    ids: Array = field(default_factory=_none)
    counts: Array = field(default_factory=_none)
    undercount: int = 0

    def with_ids(self, ids: Array) -> IdCounts:
        """Returns the counts after [n] more ids of the stream; each occurrence of an id counts."""
        found, counts = np.unique(np.asarray(ids, np.int64), return_counts=True)
        return self.merged(IdCounts(self.capacity, found, counts))

    def merged(self, other: IdCounts) -> IdCounts:
        ids, position = np.unique(np.concatenate([self.ids, other.ids]), return_inverse=True)
        counts = np.zeros(len(ids), np.int64)
        np.add.at(counts, position, np.concatenate([self.counts, other.counts]))
        undercount = self.undercount + other.undercount
        if len(ids) > self.capacity:
            # To keep at most `capacity` ids, subtract the (capacity + 1)-th largest count from all counts, and drop
            # each id whose count is then not positive.
            off = int(np.partition(counts, -(self.capacity + 1))[-(self.capacity + 1)])
            kept = counts > off
            ids, counts, undercount = ids[kept], counts[kept] - off, undercount + off
        return IdCounts(self.capacity, ids, counts, undercount)

    def top(self, n: int) -> list[tuple[int, int]]:
        order = np.lexsort((self.ids, -self.counts))[:n]
        return [(int(self.ids[i]), int(self.counts[i])) for i in order]


HISTOGRAM_BINS = 1025
"""ids_per_example_histogram counts rows of 0 to 1023 ids one by one; the last bin holds all longer rows."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The configuration of a table whose lookups are counted; its hash names the table's statistics file.

    features: names of the features that read the table, in any order.
    partition_strategy: placement of the table's rows on hosts, from the spec.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    combiner: str | None
    features: tuple[str, ...]
    partition_strategy: PartitionStrategy = "div"

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(sorted(self.features)))

    def key(self, partitions: int) -> str:
        """Returns a hash of this description and `partitions`: 16 hexadecimal digits, the same in every process."""
        config = {**asdict(self), "partitions": partitions}
        return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class HotId:
    """An id that was looked up often. share: its count, divided by the count of all ids within the table."""

    id: int
    count: int
    share: float


# Fields of TableStatistics that are added up when two statistics merge.
_ADDED = ("steps", "sampled_steps", "examples", "ids", "bad_ids", "ids_per_example_histogram")


@dataclass(frozen=True, slots=True, eq=False)
class TableStatistics:
    """Counts of the ids that the sampled training steps looked up in one table.

    An example is one row of one feature. All counts but `steps` are of sampled steps only.

    steps, sampled_steps: number of trained steps, and of steps in the sample.
    ids: number of ids within the table; bad_ids: number of ids outside of it, which only ids_per_example counts too.
    ids_per_example_histogram: [HISTOGRAM_BINS] int64. max_ids_per_example: exact for long rows too.
    counts: counts of the commonest ids. distinct_registers: state of the estimate of distinct ids.
    partition_loads: strategy -> number of ids in each partition.
    """

    table: TableDescription
    partitions: int
    _: KW_ONLY
    steps: int = 0
    sampled_steps: int = 0
    examples: int = 0
    ids: int = 0
    bad_ids: int = 0
    max_ids_per_example: int = 0
    ids_per_example_histogram: Array = field(repr=False)
    counts: IdCounts = field(repr=False)
    distinct_registers: Array = field(repr=False)
    partition_loads: Mapping[PartitionStrategy, tuple[int, ...]]

    @staticmethod
    def empty(table: TableDescription, *, partitions: int, capacity: int = 4096) -> TableStatistics:
        """Returns the statistics of a table before the first step.

        Args:
          capacity: maximum number of ids with a count; up to it, counts and distinct_ids are exact.
        """
        if partitions < 1 or capacity < 1:
            raise ValueError(f"partitions is {partitions} and capacity {capacity}, expected 1 or more")
        none = (0,) * partitions
        return TableStatistics(
            table,
            partitions,
            ids_per_example_histogram=np.zeros(HISTOGRAM_BINS, np.int64),
            counts=IdCounts(capacity),
            distinct_registers=empty_registers(),
            partition_loads={"div": none, "mod": none},
        )

    def with_rows(self, values: Array, row_splits: Array) -> TableStatistics:
        """Returns the table's statistics plus a feature's ids of a training step. values: [N]; row_splits: [B + 1]."""
        lengths = np.diff(row_splits)
        ids = np.asarray(values, np.int64)
        inside = ids[(ids >= 0) & (ids < self.table.vocabulary_size)]
        histogram = np.bincount(np.minimum(lengths, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
        return replace(
            self,
            examples=self.examples + len(lengths),
            ids=self.ids + len(inside),
            bad_ids=self.bad_ids + len(ids) - len(inside),
            max_ids_per_example=max(self.max_ids_per_example, int(lengths.max(initial=0))),
            ids_per_example_histogram=self.ids_per_example_histogram + histogram,
            counts=self.counts.with_ids(inside),
            distinct_registers=with_ids(self.distinct_registers, inside),
            partition_loads={
                strategy: self._loads_with(strategy, inside, loads) for strategy, loads in self.partition_loads.items()
            },
        )

    def with_step(self, *, is_sampled: bool) -> TableStatistics:
        return replace(self, steps=self.steps + 1, sampled_steps=self.sampled_steps + is_sampled)

    def merged(self, other: TableStatistics) -> TableStatistics:
        if (self.table, self.partitions) != (other.table, other.partitions):
            raise ValueError(f"statistics of {other.table} do not add to those of {self.table}")
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _ADDED},
            max_ids_per_example=max(self.max_ids_per_example, other.max_ids_per_example),
            counts=self.counts.merged(other.counts),
            distinct_registers=np.maximum(self.distinct_registers, other.distinct_registers),
            partition_loads={
                strategy: tuple(a + b for a, b in zip(loads, other.partition_loads[strategy], strict=True))
                for strategy, loads in self.partition_loads.items()
            },
        )

    @property
    def mean_ids_per_example(self) -> float:
        """Mean number of ids per example in the sampled steps, including ids outside the table; 0 without examples."""
        return (self.ids + self.bad_ids) / self.examples if self.examples else 0.0

    @property
    def distinct_is_exact(self) -> bool:
        """Says whether distinct_ids and the counts in hot_ids() are exact, not estimated."""
        return self.counts.undercount == 0

    @property
    def distinct_ids(self) -> int:
        """Number of distinct ids looked up, at most the table's rows; off by about 2% unless distinct_is_exact."""
        if self.distinct_is_exact:
            return len(self.counts.ids)
        return min(estimate(self.distinct_registers), self.table.vocabulary_size)

    def hot_ids(self, n: int) -> list[HotId]:
        """Returns the n ids that were looked up most; each count may be too low by at most counts.undercount."""
        return [HotId(id, count, count / self.ids) for id, count in self.counts.top(n)]

    def imbalance(self, strategy: PartitionStrategy) -> float:
        """Returns the id count of the fullest partition, divided by the partitions' mean; 1 means even, or no ids."""
        loads = self.partition_loads[strategy]
        return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0

    def _loads_with(self, strategy: PartitionStrategy, ids: Array, loads: tuple[int, ...]) -> tuple[int, ...]:
        partition, _ = locate_rows(ids, self.table.vocabulary_size, self.partitions, strategy)
        added = np.bincount(partition, minlength=self.partitions)
        return tuple(int(load + more) for load, more in zip(loads, added, strict=True))
