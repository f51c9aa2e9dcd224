"""Finds the lookup (inputs, combiner, policies) behind one read of a table, by running chosen requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_export.adoption.keys import FoundKeys, find_keys
from model_export.adoption.opened_graph import Read, SignatureGraph
from model_export.adoption.policies import Outcome, find_policy, row_of
from model_export.adoption.probing import Probe
from model_export.adoption.roles import Roles, possible_roles, width_of
from model_export.parity.fingerprint import fingerprint64
from model_export.tensorflow_setup import tf
from service.artifact.manifest import (
    Combiner,
    EmptyRowPolicy,
    LookupFeature,
    SignatureEntry,
    Summation,
    TrailingRowPolicy,
)
from service.errors import ServiceError
from service.graph.probes import Constants, is_same_sum
from service.tables.plan import compile_signature
from service.types import Array, Tensors

_COMBINERS: tuple[Combiner, ...] = ("sum", "mean", "sqrtn")
# Numbers of ids per row in each trial request. Some rows are long, because a graph may sum their vectors in another
# order.
_LENGTHS = ((3, 0, 1, 2), (0, 0, 5, 1, 9, 0), (40, 2, 0, 17, 1), (1,), (0, 0), (8, 16, 24, 10))
_SEED = 31
# _HASHED_KEYS: the most keys that are hashed to find a key for each row. _SEARCHED_ROWS: the most rows that are
# compared to find the default row.
_HASHED_KEYS = 4096
_SEARCHED_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FoundFeature:
    """A lookup that adopt's search found in the graph of a signature.

    tensor: the graph's tensor with the result: [B, D], or any shape if the ids are not combined.
    read: the read of the table whose rows the lookup uses.
    is_exact: whether our kernels gave the same bits as the graph.
    """

    roles: Roles
    lookup: LookupFeature
    keys: FoundKeys | None
    read: Read
    tensor: str
    is_exact: bool


def find_feature(
    probe: Probe, graph: SignatureGraph, read: Read, *, allow_rounding: bool = False
) -> FoundFeature | None:
    """Returns the lookup that starts at a read of a table and spans the most ops; None if the read is in no lookup.

    Args:
      allow_rounding: accept a lookup whose sums differ from the graph's in the last bits.
    """
    found = None
    for tensor in graph.behind(read):
        if not _is_lookup_alone(graph, read, tensor):
            break
        for roles in possible_roles(graph, tensor, [gather.ids for gather in read.gathers]):
            better = _Trial(probe, graph, read, tensor, roles).found(found)
            if better is not None and (better.is_exact or allow_rounding):
                found = better
                break
    return found


def _is_lookup_alone(graph: SignatureGraph, read: Read, tensor: str) -> bool:
    """Says whether the graph computes a tensor from the read's rows and the request alone, without other variables."""
    for name in graph.flat.ancestors([tensor], cut=read.rows, follow=graph.follow):
        node = graph.flat.nodes[name]
        if node.op in ("VarHandleOp", "VariableV2", "Variable", "ReadVariableOp", "ResourceGather"):
            return False
    return True


class _Trial:
    """The search for the lookup that computes one tensor, given which inputs hold its ids, row splits and weights."""

    def __init__(self, probe: Probe, graph: SignatureGraph, read: Read, tensor: str, roles: Roles) -> None:
        self._probe, self._graph, self._read, self._tensor, self._roles = probe, graph, read, tensor, roles
        self._table = probe.tables[read.key]
        self._size = self._table.info.vocabulary_size
        self._random = np.random.default_rng(_SEED)
        self._keys: FoundKeys | None = None
        # Maps a row number of the table to a key that reads the row; empty if the input takes ids.
        self._key_of: dict[int, Any] = {}

    def found(self, before: FoundFeature | None) -> FoundFeature | None:
        """Returns the lookup that computes the examined tensor; None if no lookup does.

        Args:
          before: the lookup of a tensor nearer to the table's rows; None if there is none yet. A later tensor counts
              only if it combines the vectors of a row.
        """
        if self._roles.row_splits is None:
            if before is not None:
                return None
            return self._single()
        return self._combined()

    def _single(self) -> FoundFeature | None:
        if not self._learn_keys():
            return None
        policy = self._policy(self._single_outcome)
        if policy is None:
            return None
        feature = LookupFeature(ids=self._roles.ids, on_bad_id=policy[0], default_row=policy[1])
        rows = self._draw(5 * self._width).reshape(5, self._width).tolist()
        for count in (5, 1, 0):
            got = self._run(self._request(rows[:count]))
            wanted = self._stored(np.array(rows[:count], np.int64).reshape(-1))
            if got is None or got.reshape(-1).tobytes() != wanted.tobytes() or got.dtype != wanted.dtype:
                return None
        return self._as_found(feature, is_exact=True)

    def _combined(self) -> FoundFeature | None:
        if self._table.info.dtype != "float32" or not self._learn_keys():
            return None
        empty = self._empty_rows()
        if empty is None:
            return None
        on_empty, default_row, trailing = empty
        policy = self._policy(self._ragged_outcome)
        if policy is None:
            return None
        if on_empty == "default_row" and policy[0] == "default_row" and policy[1] != default_row:
            return None
        base = LookupFeature(
            ids=self._roles.ids,
            row_splits=self._roles.row_splits,
            weights=self._roles.weights,
            on_bad_id=policy[0],
            default_row=default_row if on_empty == "default_row" else policy[1],
            on_empty_row=on_empty,
            trailing_empty_rows=trailing,
        )
        for feature in self._variants(base):
            is_exact = self._agrees(feature)
            if is_exact is None:
                continue
            if not is_exact:
                others = (replace(feature, summation=order) for order in self._summations())
                exact = next((other for other in others if self._agrees(other)), None)
                return self._as_found(exact or feature, is_exact=exact is not None)
            return self._as_found(feature, is_exact=True)
        return None

    def _summations(self) -> tuple[Summation, ...]:
        return ("four_lanes",) if self._roles.weights else ("blocks_of_8", "four_lanes")

    def _variants(self, base: LookupFeature) -> Iterator[LookupFeature]:
        for combiner in _COMBINERS:
            plain = replace(base, combiner=combiner)
            dropping = replace(plain, on_nonpositive_weight="drop")
            for feature in (plain, dropping) if self._roles.weights else (plain,):
                yield feature
                yield from (replace(feature, max_norm=norm) for norm in self._norms())

    def _norms(self) -> list[float]:
        return [n for n in _constants(self._graph, self._tensor).floats if 1e-6 < n < 1e6 and n != 1.0] + [1.0]

    def _agrees(self, feature: LookupFeature) -> bool | None:
        """Returns True if graph and lookup give equal bits in all trials, False if only rounding differs, else None."""
        entry = SignatureEntry("lookup", {"it": replace(feature, output="it")})
        plan = compile_signature(entry, {"it": self._read.key}, self._probe.tables)
        is_exact = True
        for request, in_rows in self._requests(feature):
            got = self._run(request)
            try:
                wanted = plan.run(in_rows, ("it",))["it"]
            except ServiceError:
                wanted = None
            if got is None or wanted is None:
                if got is not wanted:
                    return None
                continue
            if not is_same_sum(feature, in_rows, wanted, got):
                return None
            is_exact = is_exact and np.array_equal(got, wanted, equal_nan=True)
        return is_exact

    def _requests(self, feature: LookupFeature) -> Iterator[tuple[dict[str, Array], Tensors]]:
        """Yields trial requests in two forms: for the adopted graph, and for our kernels, with row numbers for keys."""
        bad = {"error": [], "wrap": [-1, -self._size], "drop_negative": [-1, -7]}.get(
            feature.on_bad_id, [-1, -7, self._size, self._size + 9]
        )
        for lengths in _LENGTHS:
            for with_bad in (False, True) if bad and self._keys is None else (False,):
                ids = self._draw(sum(lengths))
                if with_bad and ids.size:
                    ids[:: max(3, ids.size // 4)] = np.resize(bad, ids[:: max(3, ids.size // 4)].shape)
                ends = np.cumsum([0, *lengths])
                rows = [ids[a:b].tolist() for a, b in zip(ends, ends[1:], strict=False)]
                for weights in self._weights(ids.size):
                    sent = self._request(rows, weights)
                    yield sent, {**sent, self._roles.ids: ids}

    def _weights(self, count: int) -> list[Array | None]:
        if self._roles.weights is None:
            return [None]
        telling = np.array([1, 0, -1, 0.5, 2], np.float32)
        return [self._random.uniform(0.1, 2, count).astype(np.float32), self._random.choice(telling, count)]

    def _empty_rows(self) -> tuple[EmptyRowPolicy, int, TrailingRowPolicy] | None:
        good = self._draw(2).tolist()
        got = self._run(self._request([[], good, [], good, [], []]))
        if got is None or got.ndim != 2 or got.shape[1:] != (self._table.info.embedding_dim,):
            return None
        if len(got) not in (4, 6):
            return None
        trailing: TrailingRowPolicy = "cut" if len(got) == 4 else "keep"
        empty = got[[0, 2]] if trailing == "cut" else got[[0, 2, 4, 5]]
        if not empty.any():
            return "zeros", 0, trailing
        if np.isnan(empty).all():
            return "nan", 0, trailing
        row = row_of(empty[0], self._rows)
        if row is None or not (empty == empty[0]).all():
            return None
        return "default_row", row, trailing

    def _policy(self, outcome: Callable[[Any], Outcome | None]) -> tuple[Any, int] | None:
        """Finds the on_bad_id and default_row that explain how the graph reacts to bad ids; None if no policy does."""
        if self._keys is not None:
            # Known keys always become rows of the table, so only an unknown key is tried, to find the policy for ids
            # outside the table.
            entry = self._keys.entry
            if entry.num_oov_buckets or entry.oov_id is not None or not entry.size:
                return "error", 0
            became = outcome(b"no such key at all" if entry.key_dtype == "string" else 10**12 + 1)
            if became == "dropped":
                self._keys = replace(self._keys, entry=replace(entry, on_oov="drop"))
            return ("drop", 0) if became == "dropped" else ("error", 0) if became == "refused" else None
        limits = np.iinfo(self._graph.spec.inputs[self._roles.ids].dtype)
        found = find_policy(outcome, self._size, int(limits.max) if limits.bits == 32 else 2**40 + 1)
        return None if found is None else (found.on_bad_id, found.default_row)

    def _single_outcome(self, item: Any) -> Outcome | None:
        got = self._run(self._roles.request(self._graph.spec, [[item] * self._width]))
        if got is None:
            return "refused"
        vector = got.reshape(-1)[: self._table.info.embedding_dim]
        return "dropped" if not vector.astype(np.float32).any() else row_of(vector, self._rows)

    def _ragged_outcome(self, item: Any) -> Outcome | None:
        good = self._draw(1).tolist()
        request = self._roles.request(self._graph.spec, [[item], [self._sent(good[0])]])
        got, empty = self._run(request), self._run(self._request([[], good]))
        if got is None or empty is None:
            return "refused"
        if np.array_equal(got, empty, equal_nan=True):
            return "dropped"
        return row_of(got[0], self._rows)

    def _learn_keys(self) -> bool:
        """Finds a key for each row, unless the input takes row numbers; returns False if the input seems to take
        neither.
        """
        tensor = self._graph.spec.inputs[self._roles.ids]
        ids = None
        if tensor.dtype != "string":
            probe_rows = [[0] * self._width, [min(1, self._size - 1)] * self._width]
            ids = self._probe.ids(self._graph, self._read, self._roles.request(self._graph.spec, probe_rows))
            if len(self._read.gathers) > 1:
                # The graph maps an id of a table saved in parts to a part and to a row of that part. Such ids can not
                # be compared with row numbers here; _single() and _combined() compare the looked-up vectors instead.
                return True
            if (
                ids is not None
                and set(ids.reshape(-1).tolist()) == {0, min(1, self._size - 1)}
                and not self._has_keys()
            ):
                return True
        self._keys = find_keys(self._probe, self._graph, self._read, self._roles)
        if self._keys is None:
            return False
        entry, lines = self._keys.entry, self._keys.lines
        self._key_of = {entry.first_id + number: line for number, line in enumerate(lines)}
        if not lines:
            hashed = (b"%d" % number for number in range(_HASHED_KEYS))
            self._key_of = {entry.first_id + fingerprint64(key) % entry.num_oov_buckets: key for key in hashed}
        if entry.key_dtype == "int64":
            self._key_of = {row: int(key) for row, key in self._key_of.items()}
        return True

    def _draw(self, count: int) -> Array:
        """Draws the numbers of random rows, [N] int64; with a vocabulary, only rows that a known key reads."""
        if self._keys is None:
            return self._random.integers(0, self._size, count)
        return self._random.choice(np.fromiter(self._key_of, np.int64), count)

    def _sent(self, row: int) -> Any:
        return row if self._keys is None else self._key_of[row]

    def _has_keys(self) -> bool:
        nodes = self._graph.flat.nodes
        return any(
            nodes[name].op.startswith(("LookupTable", "StringToHash"))
            for name in self._graph.flat.ancestors([self._read.gathers[0].ids], follow=self._graph.follow)
        )

    @property
    def _width(self) -> int:
        return width_of(self._graph.spec.inputs[self._roles.ids])

    @property
    def _rows(self) -> Array:
        return self._stored(np.arange(min(self._size, _SEARCHED_ROWS)))

    def _stored(self, ids: Array) -> Array:
        return self._table.rows(ids) if self._table.info.dtype == "float32" else self._table.stored_rows(ids)

    def _request(self, rows: Sequence[Sequence[int]], weights: Array | None = None) -> dict[str, Array]:
        sent = [[self._sent(row) for row in ids] for ids in rows]
        return self._roles.request(self._graph.spec, sent, weights)

    def _run(self, request: Tensors) -> Array | None:
        got = self._probe.run(self._graph, request, self._read, [self._tensor])
        return None if got is None else np.asarray(got[0])

    def _as_found(self, feature: LookupFeature, *, is_exact: bool) -> FoundFeature:
        return FoundFeature(self._roles, feature, self._keys, self._read, self._tensor, is_exact)


def _constants(graph: SignatureGraph, tensor: str) -> Constants:
    integers: set[int] = set()
    floats: set[float] = set()
    for name in graph.flat.ancestors([tensor], follow=graph.follow):
        node = graph.flat.nodes[name]
        if node.op == "Const":
            numbers = tf.make_ndarray(node.attr["value"].tensor)
            if numbers.size <= 8 and numbers.dtype.kind in "if":
                target: set[Any] = integers if numbers.dtype.kind == "i" else floats
                target.update(numbers.reshape(-1).tolist())
    return Constants(tuple(sorted(integers)), tuple(sorted(floats)))
