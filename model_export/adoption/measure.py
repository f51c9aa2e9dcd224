"""Times each signature of an adopted model, whole and with its lookups cut out; chooses the form that is served."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from model_export.adoption.summary import Served, Times
from model_export.graphs.signature_runner import SERVE
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.vocabulary_lines import vocabulary_lines
from service.errors import ServiceError
from service.process.trial import Trial
from service.types import Array, SignatureSpec

# Numbers of rows of the requests that adopt times; the summary shows the times of the largest request.
_ROWS = (1, 32, 256)
# Numbers of rows of further, untimed requests: the whole graph's answers are compared with the answers of the graph
# whose lookups are cut out.
_COMPARED_ROWS = (2, 7, 20, 64, 130)
_IDS_PER_ROW = 5
# The server runs the whole graph of a signature if the graph with its lookups cut out reaches less than this share of
# the whole graph's rate, for any timed number of rows.
_LEAST_RATIO = 0.97
_TURNS = 5
_SEED = 37


def measured(
    artifact: Path, manifest: Manifest, served: Mapping[str, Served], say: Callable[[str], None]
) -> dict[str, Served]:
    """Times each signature; sets `run` to "whole" for a predict that the server answers better by the whole graph.

    The whole graph is better if it is faster than the graph with its lookups cut out, or if any bit of the answers
    differs.

    The timed work is the server's: from a request's bytes to an answer's bytes. The graph's run alone is a third of
    that time, and a signature with cut-out lookups may skip arrays and checks that the whole graph needs.

    A signature that refuses the random requests keeps its entry and gets no times.
    """
    found = dict(served)
    with Trial(artifact, manifest, served.keys(), frozenset(SERVE)) as trial:
        for name, one in served.items():
            if not trial.can_cut(name):
                continue
            say(f"timing signature {name}")
            requests = _requests(artifact, manifest, one.entry, trial.signatures[name])
            # No choice depends on the ratio of a lookup, so only the request is timed whose times the summary shows.
            timed = _ROWS if one.entry.kind == "predict" else _ROWS[-1:]
            ratio, times = _compared(trial, name, {rows: requests[rows] for rows in timed})
            entry, reason = one.entry, one.reason
            if entry.kind == "predict":
                differs = _differs(trial, name, requests.values())
                if differs:
                    reason = f"{reason}; answers would differ in some bits if its lookups were cut out"
                if differs or (ratio is not None and ratio < _LEAST_RATIO):
                    entry = dataclasses.replace(entry, run="whole")
                    times = None if times is None else times._replace(after_s=times.before_s)
            found[name] = dataclasses.replace(one, entry=entry, times=times, reason=reason)
    return found


def _compared(
    trial: Trial, name: str, requests: Mapping[int, Mapping[str, Array]]
) -> tuple[float | None, Times | None]:
    """Returns the smallest ratio of the cut graph's rate to the whole graph's, and the largest request's times, or two
    None.
    """
    try:
        rates = trial.rates(name, requests, turns=_TURNS)
    except ServiceError:
        return None, None
    largest = rates[max(rates)]
    return min(one.ratio for one in rates.values()), Times(1 / largest.whole, 1 / largest.cut, max(rates))


def _differs(trial: Trial, name: str, requests: Iterable[Mapping[str, Array]]) -> bool:
    """Says whether cutting out the lookups changes any bit of the outputs, or the set of requests that the graph
    refuses.
    """
    for request in requests:
        cut, whole = trial.outputs(name, request)
        if cut.keys() != whole.keys() or any(cut[o].tobytes() != whole[o].tobytes() for o in cut):
            return True
    return False


def _requests(
    artifact: Path, manifest: Manifest, entry: SignatureEntry, spec: SignatureSpec
) -> dict[int, dict[str, Array]]:
    random = np.random.default_rng(_SEED)
    found = {}
    for rows in (*_ROWS, *_COMPARED_ROWS):
        request = {name: _filler(spec, name, rows) for name in spec.inputs}
        for name, lookup in entry.features.items():
            request |= _drawn(artifact, manifest, name, lookup, spec, rows, random)
        found[rows] = request
    return found


def _drawn(
    artifact: Path,
    manifest: Manifest,
    name: str,
    lookup: LookupFeature,
    spec: SignatureSpec,
    rows: int,
    random: np.random.Generator,
) -> dict[str, Array]:
    """Draws random ids or keys for one feature; returns a request's ids, row splits and weights by input name."""
    shape = (rows * _IDS_PER_ROW,) if lookup.row_splits else _filler(spec, lookup.ids, rows).shape
    feature = manifest.features[name]
    vocabulary = manifest.vocabularies.get(feature.vocabulary or "")
    ids = random.integers(0, manifest.tables[feature.table].vocabulary_size, shape)
    tensor = spec.inputs[lookup.ids]
    if vocabulary is not None and tensor.takes_keys and spec.kind == "predict":
        lines = vocabulary_lines(artifact / vocabulary.file)[:1000] if vocabulary.file else ()
        keys = [lines[int(i) % len(lines)] if lines else b"%d" % i for i in ids.reshape(-1)]
        drawn = np.empty(len(keys), object)
        drawn[:] = keys
        ids = (drawn if tensor.dtype == "string" else np.array([int(key) for key in keys])).reshape(shape)
    request = {lookup.ids: ids if tensor.dtype == "string" else ids.astype(tensor.numpy_dtype or np.int64)}
    if lookup.row_splits:
        splits = np.arange(rows + 1) * _IDS_PER_ROW
        request[lookup.row_splits] = splits.astype(spec.inputs[lookup.row_splits].numpy_dtype or np.int64)
    if lookup.weights:
        request[lookup.weights] = np.ones(shape, np.float32)
    return request


def _filler(spec: SignatureSpec, name: str, rows: int) -> Array:
    tensor = spec.inputs[name]
    if tensor.default is not None:
        return tensor.default
    splits = {names.row_splits for names in spec.ragged_names}
    if name in splits:
        return np.zeros(rows + 1, tensor.numpy_dtype)
    values = {part for names in spec.ragged_names for part in (names.values, names.weights)}
    shape = tensor.shape if tensor.shape is not None else (None,)
    sizes = (0 if name in values else rows, *(size or _IDS_PER_ROW for size in shape[1:])) if shape else ()
    dtype = tensor.numpy_dtype or np.dtype(object)
    return np.full(sizes, b"", object) if dtype.kind == "O" else np.zeros(sizes, dtype)
