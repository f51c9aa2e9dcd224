"""Generates requests for comparing signatures: edge cases, then seeded random rows. Needs no TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from model_export.answers.served import Constants, edge_ids, edge_key_numbers, edge_keys
from model_export.parity.oracle import Ids, Keys, RefusedError, read_keys
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.signature_def import read_signatures
from service.types import Array, RaggedIds, TensorSpec

_LONGEST_ROW = 12
_SEED = 20
_OPEN_SIZE = 3
# Largest number of rows in a request of edge_cases(), and of values of a feature that each must be refused alone.
_MOST_EDGES, _MOST_REFUSED = 64, 12
# Unknown keys, one for each branch of Fingerprint64, which branches by length. No two keys have the same first bytes.
_STRANGERS = tuple(f"{size} no such key ".ljust(size, "~").encode() for size in (0, 20, 40, 70))
_FAR = {"int32": 2**31 - 1, "int64": 2**40 + 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One request: the ids of each feature. refused: why the signature must refuse it; "" if it must answer.

    refused_of: the feature whose ids must be refused.

    A request that must be refused may lack features, and so outputs.
    """

    features: Mapping[str, Ids]
    refused: str = ""
    refused_of: str = ""

    def inputs(self, signature: SignatureEntry) -> dict[str, Array]:
        """Returns the request's input tensors for a signature; the tensor of weights that are not sent is empty."""
        tensors: dict[str, Array] = {}
        for name, feature in signature.features.items():
            if name not in self.features:
                continue
            ids = self.features[name]
            if not isinstance(ids, RaggedIds):
                tensors[feature.ids] = ids
                continue
            tensors |= {feature.ids: ids.values, feature.row_splits or "": ids.row_splits}
            if feature.weights:
                tensors[feature.weights] = np.zeros(0, np.float32) if ids.weights is None else ids.weights
        return tensors


@dataclass(frozen=True, slots=True)
class CaseWriter:
    """Generator of requests for one signature of a manifest.

    keys: vocabularies by feature; id_dtypes: feature -> dtype of its ids input; id_shapes: feature -> shape of its
    ids input; default: [B]. weighted: features that must be sent with weights, because the signature has no default.
    apart: feature -> the features in a request that must be refused for an id of it; default: all. So few that the
    number of such requests does not multiply with that of all features.
    """

    manifest: Manifest
    signature: SignatureEntry
    keys: Mapping[str, Keys]
    id_dtypes: Mapping[str, str]
    id_shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    weighted: frozenset[str] = frozenset()
    apart: Mapping[str, Collection[str]] = field(default_factory=dict)

    def lookup_cases(self) -> Iterator[Case]:
        """Yields requests to a lookup signature, with and without weights for the ids.

        They have 0 rows, 1 row, and one more and one less than every batch size; empty first, middle and last rows;
        rows of K - 1 and K ids (of L - 1, L and L + 1), and of K + 1 if the policy cuts them; repeated ids, the first
        and the last id of a table; ids outside of it and unknown keys if the policies accept them; negative weights,
        weights that sum to 0 and to less than 1. Then follow, one at a time, ids that the lookup must refuse.
        """
        return self._with_shared_inputs(self._lookup_cases())

    def _lookup_cases(self) -> Iterator[Case]:
        rng = np.random.default_rng(_SEED)
        sizes = {0, 1, 2, 7, *self.signature.batch_sizes, *(size + 1 for size in self.signature.batch_sizes[:-1])}
        most = max(self.signature.batch_sizes, default=max(sizes))
        for rows in sorted(size for size in sizes if size <= most):
            for is_weighted in (False, True):
                yield Case({name: self._ids(rng, name, rows, is_weighted) for name in self.signature.features})
        if most >= 2:
            yield from self._single_values(rng)

    def predict_cases(self, sizes: tuple[int, ...] = (1, 17, 64)) -> Iterator[Case]:
        """Yields requests to a predict signature; only ids that must have weights have them.

        Their ids are inside the tables, row 0 among them; keys are known, or unknown if the policy accepts that; some
        rows are empty.
        """
        return self._with_shared_inputs(self._predict_cases(sizes))

    def _predict_cases(self, sizes: tuple[int, ...]) -> Iterator[Case]:
        rng = np.random.default_rng(_SEED)
        for rows in sizes:
            yield Case({name: self._ids(rng, name, rows, False, is_inside=True) for name in self.signature.features})

    def edge_cases(self, constants: Constants) -> Iterator[Case]:
        """Yields requests whose ids or keys lie at edges: limits of the table, the dtype and the vocabulary, and the
        graph's constants.

        Each value is alone in its row. First come the values that the policies accept, many of all features in a
        request; then those that must be refused, one in a request.
        """
        return self._with_shared_inputs(self._edge_cases(constants))

    def _edge_cases(self, constants: Constants) -> Iterator[Case]:
        rng = np.random.default_rng(_SEED)
        most = min(max(self.signature.batch_sizes, default=_MOST_EDGES), _MOST_EDGES)
        accepted: dict[str, Array] = {}
        bad: dict[str, Array] = {}
        for name in self.signature.features:
            values = self._edges(name, constants)
            refused = np.array([self._is_refused(name, values[n : n + 1]) for n in range(len(values))], bool)
            accepted[name], bad[name] = values[~refused], values[refused]
        for names in self._shared():
            together = np.unique(np.concatenate([accepted[name] for name in names]))
            accepted |= dict.fromkeys(names, together[self._are_accepted(names, together)])
        for start in range(0, max(map(len, accepted.values()), default=0), most):
            edges = {name: values[start : start + most] for name, values in accepted.items()}
            rows = max(map(len, edges.values()))
            yield Case({name: self._alone(rng, name, values, rows) for name, values in edges.items()})
        for name, values in bad.items():
            # The values at both ends are the limits of the dtype.
            ends = np.concatenate([values[: _MOST_REFUSED // 2], values[_MOST_REFUSED // 2 :][-_MOST_REFUSED // 2 :]])
            for n in range(len(ends)):
                others = {other: self._ids(rng, other, 1, False, is_inside=True) for other in self._beside(name)}
                features = {**others, name: self._alone(rng, name, ends[n : n + 1], 1)}
                yield Case(features, f"{self.signature.features[name].ids}: {ends[n]!r}", name)

    def _shared(self) -> list[list[str]]:
        """Returns the features of each input of ids that several features read."""
        names: dict[str, list[str]] = {}
        for name, feature in self.signature.features.items():
            names.setdefault(feature.ids, []).append(name)
        return [group for group in names.values() if len(group) > 1]

    def _with_shared_inputs(self, cases: Iterator[Case]) -> Iterator[Case]:
        """Yields requests in which features that read one input have the ids of one of them."""
        groups = self._shared()
        for case in cases:
            features = dict(case.features)
            for names in groups:
                if len(present := [name for name in names if name in features]) > 1:
                    features |= self._alike(present, case)
            yield replace(case, features=features)

    def _alike(self, names: Sequence[str], case: Case) -> dict[str, Ids]:
        """Returns the same ids for several features: those of the feature that must be refused, or else ids that all
        accept."""
        features = self.signature.features
        first = max(names, key=lambda name: (features[name].weights is not None, features[name].row_splits is not None))
        ids = case.features[case.refused_of if case.refused_of in names else first]
        values = ids.values if isinstance(ids, RaggedIds) else ids
        if case.refused_of not in names:
            values = self._accepted(names, values)
        if isinstance(ids, RaggedIds):
            splits, weights = ids.row_splits, ids.weights
        else:
            splits, weights = np.arange(values.size + 1, dtype=np.int64), None
        found: dict[str, Ids] = {}
        for name in names:
            if features[name].row_splits is None:
                found[name] = values
                continue
            is_unweighted = weights is None and name in self.weighted and name != case.refused_of
            own = np.ones(values.size, np.float32) if is_unweighted else weights if features[name].weights else None
            found[name] = RaggedIds(values.reshape(-1), splits, own)
        return found

    def _accepted(self, names: Sequence[str], values: Array) -> Array:
        """Returns values in which one that all of the features accept stands for each that one of them refuses."""
        good = self._are_accepted(names, values.reshape(-1)).reshape(values.shape)
        if good.all():
            return values
        rng = np.random.default_rng(_SEED)
        drawn = np.concatenate([self._draw(rng, name, values.size, is_inside=True) for name in names])
        some = drawn[self._are_accepted(names, drawn)]
        return np.where(good, values, np.resize(some, values.shape)) if some.size else values

    def _are_accepted(self, names: Sequence[str], values: Array) -> Array:
        refused = [any(self._is_refused(name, values[n : n + 1]) for name in names) for n in range(values.size)]
        return ~np.array(refused, bool)

    def _alone(self, rng: np.random.Generator, name: str, values: Array, rows: int) -> Ids:
        if len(values) < rows:
            values = np.concatenate([values, self._draw(rng, name, rows - len(values), is_inside=True)])
        if self.signature.features[name].row_splits is not None:
            weights = np.ones(rows, np.float32) if name in self.weighted else None
            return RaggedIds(values, np.arange(rows + 1, dtype=np.int64), weights)
        inner = self._inner(name)
        return np.repeat(values, math.prod(inner)).reshape(rows, *inner)

    def _beside(self, name: str) -> Collection[str]:
        return self.apart.get(name, self.signature.features.keys())

    def _edges(self, name: str, constants: Constants) -> Array:
        keys = self.keys.get(name)
        if keys is None or keys.sends_rows:
            return edge_ids(self._vocabulary_size(name), self.id_dtypes[name], constants)
        if keys.entry.key_dtype == "string":
            return _array(keys, edge_keys(keys.lines, constants))
        return edge_key_numbers([int(line) for line in keys.lines], constants)

    def is_dropped(self, name: str, value: Array) -> bool:
        keys, policy = self.keys.get(name), self.signature.features[name].on_bad_id
        if self._is_refused(name, value):
            return False
        row = int(value[0] if keys is None else keys.rows_of(value)[0])
        is_outside = not 0 <= row < self._vocabulary_size(name)
        return is_outside and (policy == "drop" or (policy == "drop_negative" and row < 0))

    def _is_refused(self, name: str, value: Array) -> bool:
        keys, policy, size = self.keys.get(name), self.signature.features[name].on_bad_id, self._vocabulary_size(name)
        if keys is not None and not keys.sends_rows:
            try:
                keys.rows_of(value)
            except RefusedError:
                return True
            return False
        row = int(value[0])
        if 0 <= row < size or policy in ("drop", "default_row", "clamp"):
            return False
        return not (policy == "drop_negative" and row < 0) and not (policy == "wrap" and -size <= row < 0)

    def _inner(self, name: str) -> tuple[int, ...]:
        # A dense feature's ids have shape [B, ...]; each size that the signature leaves open is _OPEN_SIZE.
        return tuple(_OPEN_SIZE if size is None else size for size in self.id_shapes.get(name, (None,))[1:])

    def _single_values(self, rng: np.random.Generator) -> Iterator[Case]:
        # Each id that is outside the table or at a limit is alone in its row, so that only this id determines the row's
        # result.
        plain = {name: self._ids(rng, name, 2, False, is_inside=True) for name in self.signature.features}

        def with_last(name: str, value: Array) -> Ids:
            ids = plain[name]
            if isinstance(ids, RaggedIds):
                weights = np.ones(1, np.float32) if name in self.weighted else None
                return RaggedIds(value, np.array([0, 0, 1]), weights)
            changed = ids.copy()
            changed[-1:] = value
            return changed

        tolerated = {name: self._tolerated(name) for name in plain}
        for n in range(max(map(len, tolerated.values()), default=0)):
            told = {name: with_last(name, np.array([bad[n]])) for name, bad in tolerated.items() if n < len(bad)}
            yield Case({**plain, **told})
        for name, feature in self.signature.features.items():
            others = {other: plain[other] for other in self._beside(name)}
            for reason, bad in self._refused_values(name, feature):
                yield Case({**others, name: with_last(name, bad)}, f"{feature.ids}: {reason}", name)
            if name in self.weighted and isinstance(ids := plain[name], RaggedIds):
                unweighted = ids._replace(weights=np.zeros(0, np.float32))
                yield Case({**others, name: unweighted}, f"{feature.ids}: no weights", name)
            most = feature.max_ids_per_row
            if feature.row_splits and most is not None and feature.on_too_many_ids == "error":
                values = self._draw(rng, name, most + 1, is_inside=True)
                weights = np.ones(most + 1, np.float32) if name in self.weighted else None
                too_long = RaggedIds(values, np.array([0, 0, most + 1]), weights)
                yield Case({**others, name: too_long}, f"{feature.ids}: {most + 1} ids in a row", name)

    def _refused_values(self, name: str, feature: LookupFeature) -> Iterator[tuple[str, Array]]:
        vocabulary_size, keys = self._vocabulary_size(name), self.keys.get(name)
        if keys is not None and not keys.sends_rows:
            if not keys.entry.num_oov_buckets and keys.entry.oov_id is None and keys.entry.on_oov == "error":
                yield "an unknown key", _strangers(keys, 1)
            return
        if feature.on_bad_id == "error":
            yield "an id below 0", np.array([-1])
        if feature.on_bad_id == "wrap":
            yield "an id before the table", np.array([-vocabulary_size - 1])
        if feature.on_bad_id in ("error", "drop_negative", "wrap"):
            yield "an id beyond the table", np.array([vocabulary_size])

    def _ids(
        self, rng: np.random.Generator, name: str, rows: int, is_weighted: bool, *, is_inside: bool = False
    ) -> Ids:
        feature = self.signature.features[name]
        if feature.row_splits is None:
            inner = self._inner(name)
            return self._draw(rng, name, rows * math.prod(inner), is_inside=is_inside).reshape(rows, *inner)
        lengths = _lengths(rng, feature, rows, is_inside)
        values = self._draw(rng, name, int(lengths.sum()), is_inside=is_inside)
        row_splits = np.r_[0, np.cumsum(lengths)].astype(np.int64)
        if not (feature.weights and (is_weighted or name in self.weighted)):
            return RaggedIds(values, row_splits)
        return RaggedIds(values, row_splits, _weights(rng, feature, lengths, row_splits))

    def _draw(self, rng: np.random.Generator, name: str, count: int, *, is_inside: bool) -> Array:
        keys, vocabulary_size = self.keys.get(name), self._vocabulary_size(name)
        if keys is not None and not keys.sends_rows:
            return _draw_keys(rng, keys, count)
        values = rng.integers(0, vocabulary_size, count)
        if count > 3:
            values[:4] = [vocabulary_size - 1, 0, 1 % vocabulary_size, 1 % vocabulary_size]
        bad = [] if is_inside else self._tolerated(name)
        # Each bad id that the policy accepts replaces one value, every second one from the end backwards, so that rows
        # of different lengths get bad ids.
        for position, bad_id in enumerate(bad):
            if count > 2 * len(bad):
                values[-2 - 2 * position] = bad_id
        return values

    def _tolerated(self, name: str) -> list[int]:
        # Returns trial ids outside the table that the feature's policy accepts; an empty list if the policy is error or
        # the ids are keys.
        keys, policy = self.keys.get(name), self.signature.features[name].on_bad_id
        if policy == "error" or (keys is not None and not keys.sends_rows):
            return []
        if policy == "wrap":
            return [-1, -self._vocabulary_size(name)]
        beyond = [] if policy == "drop_negative" else [self._vocabulary_size(name), _FAR[self.id_dtypes[name]]]
        return [-1, -9, *beyond]

    def _vocabulary_size(self, name: str) -> int:
        return self.manifest.tables[self.manifest.features[name].table].vocabulary_size


def case_writer(
    artifact: Path,
    manifest: Manifest,
    signature: str,
    features: Mapping[str, LookupFeature] | None = None,
    *,
    inputs: Mapping[str, TensorSpec] | None = None,
) -> CaseWriter:
    """Returns the writer of requests for a signature of an artifact.

    Args:
      features: only these; None: those of its entry. inputs: the signature's, as read_signatures() returns them.
    """
    entry = manifest.signatures[signature]
    inputs = read_signatures(artifact / "saved_model.pb")[signature].inputs if inputs is None else inputs
    if features is not None:
        entry = replace(entry, features=features)
    known = {key: inputs[feature.ids] for key, feature in entry.features.items() if feature.ids in inputs}
    dtypes = {key: tensor.dtype for key, tensor in known.items()}
    shapes = {key: tensor.shape or (None,) for key, tensor in known.items()}
    weights = {key: inputs.get(feature.weights or "") for key, feature in entry.features.items()}
    weighted = {key for key, tensor in weights.items() if tensor is not None and tensor.default is None}
    return CaseWriter(manifest, entry, read_keys(artifact, manifest, dtypes), dtypes, shapes, frozenset(weighted))


def _limit(feature: LookupFeature) -> int | None:
    return feature.max_sequence_length or feature.max_ids_per_row


def _lengths(rng: np.random.Generator, feature: LookupFeature, rows: int, is_inside: bool) -> Array:
    limit = _limit(feature)
    longest = limit or _LONGEST_ROW
    lengths = rng.integers(0, longest + 1, rows)
    is_cut = limit is not None and (feature.max_sequence_length or feature.on_too_many_ids == "truncate")
    if rows > 2:
        lengths[[0, rows // 2, -1]] = 0
        lengths[1] = longest
    elif rows:
        lengths[0] = min(max(lengths[0], 2), longest)
    if rows > 6:
        lengths[2] = longest - 1
        lengths[5] = longest + 1 if is_cut and not is_inside else longest
    return lengths


def _weights(rng: np.random.Generator, feature: LookupFeature, lengths: Array, row_splits: Array) -> Array:
    weights = rng.uniform(0.25, 2.0, int(row_splits[-1])).astype(np.float32)
    weights[::7] = -0.125
    filled = np.flatnonzero(lengths > 0)
    if len(filled):
        # The weights of the first row with ids sum to 0.5, so that the two values of mean_divisor give different means.
        first = slice(row_splits[filled[0]], row_splits[filled[0] + 1])
        weights[first] = 0.5 / min(lengths[filled[0]], _limit(feature) or _LONGEST_ROW)
    if len(filled) > 1:
        weights[row_splits[filled[-1]] :] = 0
    return weights


def _draw_keys(rng: np.random.Generator, keys: Keys, count: int) -> Array:
    if not keys.lines:
        # A vocabulary that hashes keys has no file, so any key is valid.
        return np.resize(_strangers(keys, len(_STRANGERS)), count)
    is_strict = not keys.entry.num_oov_buckets and keys.entry.oov_id is None and keys.entry.on_oov == "error"
    positions = rng.integers(0, len(keys.lines), count)
    if count > 1:
        positions[:2] = [len(keys.lines) - 1, 0]
    drawn = _array(keys, [keys.lines[position] for position in positions])
    if count > 4 and not is_strict:
        drawn[2::3] = np.resize(_strangers(keys, len(_STRANGERS)), len(drawn[2::3]))
    return drawn


def _strangers(keys: Keys, count: int) -> Array:
    if keys.entry.key_dtype == "string":
        return _array(keys, list(_STRANGERS[:count]))
    known = {int(line) for line in keys.lines}
    beyond = (max(known, default=0) + step for step in (1, 2, 10**6, 10**12))
    unknown = (key for key in itertools.chain(beyond, itertools.count()) if key < 2**63 and key not in known)
    return np.array([*itertools.islice(unknown, count)], np.int64)


def _array(keys: Keys, items: list[bytes]) -> Array:
    is_int = keys.entry.key_dtype == "int64"
    return np.array([int(item) for item in items], np.int64) if is_int else np.array(items, object)
