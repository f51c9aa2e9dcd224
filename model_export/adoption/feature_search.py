"""Describes the lookup (inputs, combiner, policies) behind one read of a table, as the graph's ops say it.

What each key's row is, and which keys are dropped, is worked out from the ops (key_evaluation.py). Which combiner,
order of additions and policy for empty rows the known ops amount to is found by trial requests. Their rows, weights and
row lengths lie beside every constant of those ops, so that no condition of the graph stays untried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_export.adoption.key_evaluation import KeyFunction
from model_export.adoption.key_graph import IdPolicy, NotHere, NotRead, Outcome, find_policy
from model_export.adoption.keys import find_keys, sample_keys, takes_keys, telling_keys
from model_export.adoption.reading import Reading, look_at_rows
from model_export.adoption.roles import MOST_INPUTS, Roles, inner_sizes, no_roles, possible_roles
from model_export.answers.opened_graph import OpenedGraph, Probe, Read, SignatureGraph
from model_export.exporter.summations import order_of
from model_export.parity.comparison import rows_of_other_bits
from model_export.parity.oracle import Keys, RefusedError
from service.artifact.manifest import (
    UNWEIGHTED,
    Combiner,
    EmptyRowPolicy,
    KeyDtype,
    LookupFeature,
    Summation,
    TrailingRowPolicy,
)
from service.errors import InvalidRequest
from service.graph.probes import MOST_LENGTH, ROW_LENGTHS, all_but_one, batches_beside, beside, is_same_sum
from service.process.trial import lookup_of
from service.types import Array, Tensors, TensorSpec

_COMBINERS: tuple[Combiner, ...] = ("sum", "mean", "sqrtn")
# Keys that are in no vocabulary.
_UNKNOWN_KEYS: dict[KeyDtype, bytes | int] = {"string": b"no such key at all", "int64": 2**61 + 1}
_SEED = 31


@dataclass(frozen=True, slots=True)
class FoundFeature:
    """A lookup that adopt has read in the graph of a signature.

    tensor: the graph's tensor with the result: [B, D], or any shape if the ids are not combined.
    read: the read of the table whose rows the lookup uses.
    is_exact: whether the server's lookup gave the same bits as the graph.
    """

    roles: Roles
    lookup: LookupFeature
    keys: Keys | None
    read: Read
    tensor: str
    is_exact: bool


def find_feature(
    opened: OpenedGraph, graph: SignatureGraph, read: Read, *, allow_rounding: bool = False
) -> tuple[FoundFeature | None, str]:
    """Returns the lookup that starts at a read of a table and spans the most ops, and why the description ends there.

    The lookup is None if the graph's ops do not say that the read is a lookup.

    Args:
      allow_rounding: accept a lookup whose sums differ from the graph's in the last bits.
    """
    tensors = graph.behind(read)
    few = [tensor for tensor in tensors if len(graph.sources(tensor)) <= MOST_INPUTS]
    with closing(Probe(opened, graph.part(few), read, few)) as probe:
        return _found(probe, graph, tensors, allow_rounding)


def _found(
    probe: Probe, graph: SignatureGraph, tensors: Sequence[str], allow_rounding: bool
) -> tuple[FoundFeature | None, str]:
    found, reason = None, ""
    for tensor in tensors:
        reasons, ends = [], []
        for roles in possible_roles(graph, tensor, [gather.ids for gather in probe.read.gathers]):
            try:
                better = _Trial(probe, tensor, roles).found(found)
            except NotRead as error:
                reasons.append(f"{error} (node {tensor.partition(':')[0]!r})")
                ends.append(not isinstance(error, NotHere))
                continue
            ends.append(False)
            if better is not None and (better.is_exact or allow_rounding):
                found, reasons = better, []
                break
            if better is not None:
                reasons.append("sums are added up in another order than in any description")
        if not ends and found is None:
            reasons = [no_roles(graph, tensor)]
        # The likely roles come first, so their reason says most.
        reason = reasons[0] if reasons else "" if found is not None and found.tensor == tensor else reason
        if ends and all(ends):
            # What is not known here is not known of any later tensor, either.
            break
    return found, reason


class _Trial:
    """The search for the lookup that computes one tensor, given which inputs hold its ids, row splits and weights."""

    def __init__(self, probe: Probe, tensor: str, roles: Roles) -> None:
        self._probe, self._tensor, self._roles = probe, tensor, roles
        self._graph, self._read, self._table = probe.graph, probe.read, probe.table
        self._size = self._table.info.vocabulary_size
        self._random = np.random.default_rng(_SEED)
        self._reading = Reading(self._graph, self._read, roles, probe.constant)
        self._keys: Keys | None = None
        # Maps a row number of the table to a key that reads the row; empty if the input takes ids.
        self._key_of: dict[int, Any] = {}
        self._rows_with_keys = np.empty(0, np.int64)

    def found(self, before: FoundFeature | None) -> FoundFeature | None:
        """Returns the lookup that computes the examined tensor; None if `before` is that lookup already.

        Args:
          before: the lookup of a tensor nearer to the table's rows; None if there is none yet. A later tensor counts
              only if it combines the vectors of a row.

        Raises:
          NotRead: the tensor is no lookup that can be described; the message says why.
        """
        if self._roles.row_splits is None and before is not None:
            return None
        self._reading.vectors(self._tensor)
        if most := [size for size in self._reading.sizes if MOST_LENGTH < abs(size) < 2**31 - 1]:
            raise NotRead(f"the constant {most[0]} takes part in the layout")
        return self._single() if self._roles.row_splits is None else self._combined()

    def _single(self) -> FoundFeature:
        policy = self._policy()
        feature = LookupFeature(ids=self._roles.ids, on_bad_id=policy.on_bad_id, default_row=policy.default_row)
        self._check_keys(feature)
        tensor, near = self._graph.spec.inputs[self._roles.ids], beside(self._reading.sizes)
        inner = inner_sizes(tensor)
        shapes = [(count, inner) for count in (5, 1, 0, *near)]
        for axis, size in enumerate((tensor.shape or (None,))[1:]):
            if size is None:
                shapes += [(2, [*inner[:axis], length, *inner[axis + 1 :]]) for length in near]
        for count, inner in shapes:
            rows = self._draw(count * int(np.prod(inner))).reshape(count, -1 if count else 0)
            got = self._run(self._request(rows.tolist(), inner=inner))
            wanted = self._stored(rows.reshape(-1))
            if got is None or got.reshape(-1).tobytes() != wanted.tobytes() or got.dtype != wanted.dtype:
                raise NotHere("the vectors are not the table's rows in the order of the ids")
        return self._as_found(feature, is_exact=True)

    def _combined(self) -> FoundFeature:
        if self._table.info.dtype != "float32":
            raise NotRead(f"vectors of a table of {self._table.info.dtype} are combined")
        self._table.spread(self._reading.norms)
        policy = self._policy()
        on_empty, default_row, trailing = self._empty_rows()
        if on_empty == "default_row" and policy.on_bad_id == "default_row" and policy.default_row != default_row:
            raise NotRead("empty rows and ids outside the table read different rows")
        base = LookupFeature(
            ids=self._roles.ids,
            row_splits=self._roles.row_splits,
            weights=self._roles.weights,
            on_bad_id=policy.on_bad_id,
            default_row=default_row if on_empty == "default_row" else policy.default_row,
            on_empty_row=on_empty,
            trailing_empty_rows=trailing,
        )
        # The order of the graph's op comes first: two orders can agree in all trials and differ in the sign of a zero.
        summations: list[Summation] = ["in_order", "four_lanes", *(() if self._roles.weights else UNWEIGHTED)]
        told = order_of(self._graph.flat, self._read.rows, self._tensor)
        summations.sort(key=lambda order: order != told)
        base = replace(base, summation=summations[0])
        for feature in self._variants(base):
            is_exact = self._agrees(feature)
            if is_exact is None:
                continue
            self._check_keys(feature)
            if not is_exact:
                # The only op that adds in the order of segment_mean computes means, so no added lookup can sum so.
                orders = [order for order in summations[1:] if order != "segment_mean" or feature.combiner == "mean"]
                others = (replace(feature, summation=order) for order in orders)
                exact = next((other for other in others if self._agrees(other)), None)
                return self._as_found(exact or feature, is_exact=exact is not None)
            return self._as_found(feature, is_exact=True)
        raise NotHere("the combined vectors are no sum, mean or sqrtn of the row's vectors")

    def _variants(self, base: LookupFeature) -> Iterator[LookupFeature]:
        for combiner in _COMBINERS:
            plain = replace(base, combiner=combiner)
            dropping = replace(plain, on_nonpositive_weight="drop")
            # What norms decide is described by one bound alone.
            bounds = [*self._reading.norms - {0}] if self._reading.has_norms else [None]
            for feature in (plain, dropping) if self._roles.weights else (plain,):
                yield from (replace(feature, max_norm=bound) for bound in bounds if len(bounds) == 1)

    def _agrees(self, feature: LookupFeature) -> bool | None:
        """Returns True if graph and lookup give equal bits in all trials, False if only rounding differs, else None."""
        look_up = self._look_up(feature)
        is_exact = True
        for request, in_rows in self._requests(feature):
            got = self._run(request)
            self._table.fill(np.append(in_rows[self._roles.ids], feature.default_row))
            try:
                wanted = look_up(in_rows)
            except InvalidRequest:
                wanted = None
            if got is None or wanted is None:
                if got is not wanted:
                    return None
                continue
            if not is_same_sum(feature, in_rows, wanted, got):
                return None
            is_exact = is_exact and not rows_of_other_bits(got, wanted).any()
        return is_exact

    def _look_up(self, feature: LookupFeature) -> Callable[[Tensors], Array]:
        """Returns the server's lookup of a feature, which takes row numbers in place of keys."""
        rows = TensorSpec(feature.ids, "int64", (None,))
        return lookup_of(feature, self._table, {**self._graph.spec.inputs, feature.ids: rows})

    def _requests(self, feature: LookupFeature) -> Iterator[tuple[dict[str, Array], Tensors]]:
        """Yields trial requests in two forms: for the graph, and for the server's lookup, with row numbers for keys."""
        bad = {"error": [], "wrap": [-1, -self._size], "drop_negative": [-1, -7]}.get(
            feature.on_bad_id, [-1, -7, self._size, self._size + 9]
        )
        # Behind a vocabulary, one number without a row is enough: each such number is sent as the same unknown key.
        bad = bad if self._keys is None else bad[:1]
        in_pairs = bool(self._reading.decisions)
        for lengths in (*ROW_LENGTHS, *batches_beside(self._reading.sizes, in_pairs=in_pairs)):
            some = np.zeros(sum(lengths), bool)
            some[:: max(3, some.size // 4)] = True
            left_out = all_but_one(lengths) if in_pairs else ()
            for of_bad in (None, some, *left_out) if bad else (None,):
                ids = self._draw(some.size)
                if of_bad is not None:
                    ids[of_bad] = np.resize(bad, of_bad.sum())
                ends = np.cumsum([0, *lengths])
                rows = [ids[a:b].tolist() for a, b in zip(ends, ends[1:], strict=False)]
                for weights in self._weights(ids.size):
                    sent = self._request(rows, weights)
                    yield sent, {**sent, self._roles.ids: ids}
        if self._roles.weights is not None:
            yield from self._beside_infinity()

    def _beside_infinity(self) -> Iterator[tuple[dict[str, Array], Tensors]]:
        """Yields a trial request that tells an id that its weight leaves out from one that is multiplied by 0."""
        ids = self._draw(2)[[0, 1, 0, 1, 0]]
        self._table.fill(ids)
        row = self._table.weights[ids[0]].copy()
        self._table.weights[ids[0]] = np.inf
        try:
            rows = [ids[:2].tolist(), ids[2:3].tolist(), ids[3:].tolist()]
            sent = self._request(rows, np.array([0, 1, 0, 1, -0.0], np.float32))
            yield sent, {**sent, self._roles.ids: ids}
        finally:
            self._table.weights[ids[0]] = row

    def _weights(self, count: int) -> list[Array | None]:
        if self._roles.weights is None:
            return [None]
        compared = np.array(sorted(self._reading.weights | {0.0}), np.float32)
        beside = [np.nextafter(compared, np.float32(to)) for to in (-np.inf, np.inf)]
        telling = np.concatenate([[1, 0, -1, 0.5, 2], compared, -compared, *beside])
        telling = telling[np.isfinite(telling)].astype(np.float32)
        odd = np.append(telling, np.array([np.nan, np.inf, -np.inf, 1e-39], np.float32))
        uniform = self._random.uniform(0.1, 2, count).astype(np.float32)
        return [uniform, self._random.choice(telling, count), self._random.choice(odd, count)]

    def _check_keys(self, feature: LookupFeature) -> None:
        """Sends keys that a graph may treat apart, and keys that differ little from them, each in a row of its own.

        The rows of all keys are known from the ops already: a difference here is a fault of this program.
        """
        if self._keys is None:
            return
        rows = []
        for key in telling_keys(self._keys, self._random):
            try:
                rows.append((key, self._keys.row_of(key)))
            except RefusedError:
                continue
        count = len(rows) // self._width * self._width
        if not count:
            return
        sent = [rows[at : at + self._width] for at in range(0, count, self._width)]
        got = self._run(self._roles.request(self._graph.spec, [[key for key, _ in row] for row in sent]))
        ids = np.array([row for row in rows[:count]], object)[:, 1].astype(np.int64)
        self._table.fill(ids)
        request = {feature.ids: ids}
        if feature.row_splits is not None:
            request |= {feature.row_splits: np.arange(len(ids) + 1)}
            if feature.weights is not None:
                request |= {feature.weights: np.ones(len(ids), np.float32)}
            wanted = self._look_up(feature)(request)
        else:
            wanted = self._stored(ids)
        if got is None or not np.array_equal(got.reshape(wanted.shape) if got.size == wanted.size else got, wanted):
            raise NotRead("a trial with keys next to the vocabulary's differs from what the ops say: a fault of adopt")

    def _empty_rows(self) -> tuple[EmptyRowPolicy, int, TrailingRowPolicy]:
        good = self._draw(2).tolist()
        got = self._run(self._request([[], good, [], good, [], []]))
        if got is None or got.ndim != 2 or got.shape[1:] != (self._table.info.embedding_dim,) or len(got) not in (4, 6):
            raise NotHere("the tensor does not hold one vector for each row of the request")
        trailing: TrailingRowPolicy = "cut" if len(got) == 4 else "keep"
        empty = got[[0, 2]] if trailing == "cut" else got[[0, 2, 4, 5]]
        if not empty.any():
            return "zeros", 0, trailing
        if np.isnan(empty).all():
            return "nan", 0, trailing
        for row in self._reading.filled_ids():
            if 0 <= row < self._size and (empty == self._stored(np.array([row]))).all():
                return "default_row", row, trailing
        raise NotHere("the vector of an empty row is neither zeros nor a row of the table")

    def _policy(self) -> IdPolicy:
        """Works out the rows of all keys or ids; returns the policy for ids outside the table."""
        reading, spec = self._reading, self._graph.spec.inputs[self._roles.ids]
        function = KeyFunction(
            self._graph.flat,
            reading.source,
            spec.dtype,
            reading.is_constant,
            reading.constant,
            self._probe.lookup_table,
            reading.casts_of_parts(),
        )
        conditions = sorted(reading.conditions)
        gathers = self._read.gathers
        if takes_keys(function, gathers[0].ids):
            if len(gathers) > 1:
                raise NotRead("keys are mapped to rows of a table that is saved in parts")
            if spec.dtype == "int32":
                raise NotRead("keys of a vocabulary or hash are int32")
            self._keys = find_keys(function, gathers[0].ids, conditions, self._size)
            self._key_of = dict(sample_keys(self._keys))
            self._rows_with_keys = np.fromiter(self._key_of, np.int64)
            return self._policy_of_unknown_keys()
        look = look_at_rows(reading, conditions, self._size)
        return find_policy(function.pieces(look, (0, self._size)), self._size, self._outcome)

    def _policy_of_unknown_keys(self) -> IdPolicy:
        # Known keys always become rows of the table, so only one unknown key is tried: the graph treats all alike.
        keys = self._keys
        assert keys is not None
        entry = keys.entry
        if entry.num_oov_buckets or entry.oov_id is not None or not entry.size:
            return IdPolicy("error")
        became = self._outcome(_UNKNOWN_KEYS[entry.key_dtype])
        if became == "dropped":
            self._keys = replace(keys, entry=replace(entry, on_oov="drop"))
            return IdPolicy("drop")
        if became != "refused":
            raise NotRead("unknown keys are neither dropped nor refused, and read no row of the table")
        return IdPolicy("error")

    def _outcome(self, item: Any) -> Outcome | None:
        """Sends one id or key; returns what became of it, None if the vector is not of the row that the graph read."""
        if self._roles.row_splits is None:
            request = self._roles.request(self._graph.spec, [[item] * self._width])
            got = self._run(request)
            if got is None:
                return "refused"
            rows = set(self._probe.rows_read(request).tolist())
            if not rows and len(self._graph.spec.inputs[self._roles.ids].shape or ()) == 1:
                raise NotHere(f"{item!r} reads no row, and row splits do not take part")
            if len(rows) != 1:
                return None
            row = rows.pop()
            vector = got.reshape(-1)[: self._table.info.embedding_dim]
            return row if vector.tobytes() == self._stored(np.array([row])).tobytes() else None
        good = int(self._draw(1)[0])
        # Beside a known id, a dropped id changes nothing.
        alone, beside = (
            self._run(self._roles.request(self._graph.spec, [ids]))
            for ids in ([self._sent(good)], [item, self._sent(good)])
        )
        if alone is None or beside is None:
            return "refused"
        rows = set(self._probe.rows_read(self._roles.request(self._graph.spec, [[item]])).tolist())
        if np.array_equal(alone, beside, equal_nan=True) and item != self._sent(good):
            return "dropped"
        return int(rows.pop()) if len(rows) == 1 else None

    def _draw(self, count: int) -> Array:
        """Draws the numbers of random rows, [N] int64; with a vocabulary, only rows that a known key reads."""
        found = self._random.choice(self._size if self._keys is None else self._rows_with_keys, count)
        if count > 3:
            # Few rows of a large table are drawn twice by chance.
            found[[2, -1]] = found[0]
        return found

    def _sent(self, row: int) -> Any:
        return row if self._keys is None else self._key_of.get(row, _UNKNOWN_KEYS[self._keys.entry.key_dtype])

    @property
    def _width(self) -> int:
        return int(np.prod(inner_sizes(self._graph.spec.inputs[self._roles.ids])))

    def _stored(self, ids: Array) -> Array:
        self._table.fill(ids)
        return self._table.rows(ids) if self._table.info.dtype == "float32" else self._table.stored_rows(ids)

    def _request(
        self, rows: Sequence[Sequence[int]], weights: Array | None = None, inner: Sequence[int] | None = None
    ) -> dict[str, Array]:
        sent = [[self._sent(row) for row in ids] for ids in rows]
        return self._roles.request(self._graph.spec, sent, weights, inner)

    def _run(self, request: Tensors) -> Array | None:
        return self._probe.run(request, self._tensor)

    def _as_found(self, feature: LookupFeature, *, is_exact: bool) -> FoundFeature:
        return FoundFeature(self._roles, feature, self._keys, self._read, self._tensor, is_exact)
