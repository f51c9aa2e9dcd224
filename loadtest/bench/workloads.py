"""The five workloads of the benchmark: tables, ids and expected answers, computed from seeds with numpy.

W1: one row, three single ids. W2: 128 rows of user, item, and 1 to 20 tags, whose vectors are averaged. W3: W2 with
4096 rows. W4: 10,000 rows of one table. W5: W2's vectors into a dense tower of 160-256-1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]
WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
MODEL = "bench"
LOOKUP, PREDICT = "lookup", "serving_default"
_HIDDEN = 256
_MAX_TAGS = 20
# The ids are distributed as in recommenders: the frequency of the r-th most frequent id is proportional to 1 / r^1.05.
_ZIPF = 1.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the benchmark's tables and requests.

    tables: table -> (rows, columns).
    rows: rows of a request of each workload; variants: number of different requests, sent in turn.
    """

    tables: Mapping[str, tuple[int, int]]
    rows: Mapping[str, int]
    variants: Mapping[str, int]


FULL = Sizes(
    tables={"user": (1_000_000, 64), "item": (200_000, 64), "tag": (50_000, 32)},
    rows={"W1": 1, "W2": 128, "W3": 4096, "W4": 10_000, "W5": 128},
    variants={"W1": 64, "W2": 16, "W3": 4, "W4": 4, "W5": 16},
)
# Sizes for loadtest/soak: so large that a version which the server never unloads shows in the server's memory.
SMALL = Sizes(
    tables={"user": (40_000, 64), "item": (10_000, 64), "tag": (5_000, 32)},
    rows={"W1": 1, "W2": 48, "W3": 1024, "W4": 10_000, "W5": 48},
    variants={"W1": 64, "W2": 16, "W3": 4, "W4": 4, "W5": 16},
)
TINY = Sizes(
    tables={"user": (100, 64), "item": (50, 64), "tag": (20, 32)},
    rows={"W1": 1, "W2": 8, "W3": 300, "W4": 400, "W5": 8},
    variants=dict.fromkeys(WORKLOADS, 2),
)


@dataclass(frozen=True)
class Data:
    """Tables, tower and requests of a benchmark with given sizes; they are the same in every run."""

    sizes: Sizes

    @cached_property
    def tables(self) -> Arrays:
        """[V, D] float32 by name."""
        return {
            name: np.random.default_rng([1, i]).standard_normal(shape, np.float32)
            for i, (name, shape) in enumerate(self.sizes.tables.items())
        }

    @cached_property
    def tower(self) -> Arrays:
        """The tower's weights: kernel_1 [160, 256], bias_1, kernel_2 [256, 1], bias_2, all float32."""
        generator = np.random.default_rng(2)
        wide = sum(dim for _, dim in self.sizes.tables.values())
        return {
            "kernel_1": generator.standard_normal((wide, _HIDDEN), np.float32) / np.float32(np.sqrt(wide)),
            "bias_1": generator.standard_normal(_HIDDEN, np.float32),
            "kernel_2": generator.standard_normal((_HIDDEN, 1), np.float32) / np.float32(np.sqrt(_HIDDEN)),
            "bias_2": generator.standard_normal(1, np.float32),
        }

    @cached_property
    def _frequencies(self) -> dict[str, tuple[Any, Any]]:
        found = {}
        for i, (name, (rows, _)) in enumerate(self.sizes.tables.items()):
            shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -_ZIPF)
            # A random permutation of the ids, so that frequent ids are spread over the table.
            found[name] = (shares / shares[-1], np.random.default_rng([3, i]).permutation(rows))
        return found

    def _ids(self, table: str, count: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
        shares, order = self._frequencies[table]
        return order[np.searchsorted(shares, generator.random(count))].astype(np.int64)

    def requests(self, workload: str) -> list[Arrays]:
        """Returns the inputs of each variant of a workload's request, by the signature's input names."""
        found = []
        rows = self.sizes.rows[workload]
        # Workload W5 sends the same ids as workload W2, so it draws them with the same seed.
        seed = WORKLOADS.index("W2" if workload == "W5" else workload)
        for variant in range(self.sizes.variants[workload]):
            generator = np.random.default_rng([4, seed, variant])
            inputs = {"item": self._ids("item", rows, generator)}
            if workload != "W4":
                inputs["user"] = self._ids("user", rows, generator)
                # Workload W1 has requests of one row, which always has one tag.
                lengths = generator.integers(1, _MAX_TAGS + 1, rows) if rows > 1 else np.ones(1, np.int64)
                inputs["tags__row_splits"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
                inputs["tags__values"] = self._ids("tag", int(lengths.sum()), generator)
            found.append(inputs)
        return found

    def expected(self, workload: str, inputs: Arrays) -> Arrays:
        """Computes the answer to a request with numpy: vectors by feature, or the tower's score."""
        tables = self.tables
        found = {"item": tables["item"][inputs["item"]]}
        if "user" in inputs:
            splits = inputs["tags__row_splits"]
            sums = np.add.reduceat(tables["tag"][inputs["tags__values"]].astype(np.float64), splits[:-1], axis=0)
            found["user"] = tables["user"][inputs["user"]]
            found["tags"] = (sums / np.diff(splits)[:, None]).astype(np.float32)
        if workload != "W5":
            return found
        tower = self.tower
        joined = np.concatenate([found["user"], found["item"], found["tags"]], axis=1).astype(np.float64)
        hidden = np.maximum(joined @ tower["kernel_1"] + tower["bias_1"], 0)
        return {"score": (hidden @ tower["kernel_2"] + tower["bias_2"]).astype(np.float32)}


def key_of(row: int) -> str:
    """Returns the string key of a row, for models that have vocabularies."""
    return f"key-{row:07}"


def signature_of(workload: str) -> str:
    """Returns the name of the signature that the requests of a workload call."""
    return PREDICT if workload == "W5" else LOOKUP
