"""Compares two versions' answers to the requests that were recorded with the old version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from model_export.graphs.signature_runner import GraphRefusedError, open_signatures
from model_export.graphs.source import RECORDED_PATH
from model_export.parity.prediction_log import LoggedPrediction, read_predictions
from service.artifact.manifest import Manifest
from service.artifact.tf_record import WARMUP_PATH
from service.comparison.document import OutputDiff
from service.types import DEFAULT_SIGNATURE, Array

_Answers = Sequence[Mapping[str, Array] | None]


def recorded_requests(folder: Path) -> list[LoggedPrediction]:
    """Returns the recorded predict requests of a version: those of its warm-up, and those recorded by the exporter.

    Lookups are left out: their answers are rows of tables, which are compared as such.

    Raises:
      ExportError: a file of requests is cut off.
    """
    manifest = Manifest.read(folder)
    lookups = set() if manifest is None else {n for n, entry in manifest.signatures.items() if entry.kind == "lookup"}
    found = []
    for path in (folder / WARMUP_PATH, folder / RECORDED_PATH):
        if not path.is_file():
            continue
        for request in read_predictions(path):
            name = request.signature or DEFAULT_SIGNATURE
            # A recorded request of another kind, such as a classification, has no input tensors.
            if request.inputs and name not in lookups:
                found.append(LoggedPrediction(name, request.inputs))
    return found


def compare_predictions(
    old: Path, new: Path, requests: Sequence[LoggedPrediction]
) -> tuple[tuple[OutputDiff, ...], tuple[str, ...]]:
    """Runs requests on both versions in TensorFlow; returns the differences by output, and notes.

    Raises:
      ExportError: TensorFlow can not load a version.
    """
    before, after = _answers(old, requests), _answers(new, requests)
    notes = []
    for version, answers in ((old, before), (new, after)):
        if refused := sum(answer is None for answer in answers):
            notes.append(f"{version} refuses {refused} of {len(requests)} recorded requests.")
    return tuple(_by_output(requests, before, after)), tuple(notes)


def output_diff(signature: str, output: str, pairs: Sequence[tuple[Array, Array]]) -> OutputDiff:
    """Returns how an output differs between the answers of two versions, given in pairs of equal shape.

    >>> found = output_diff("serving_default", "score", [(np.array([1.0, 2.0]), np.array([1.0, 2.5]))])
    >>> found.values, found.changed, found.max_absolute
    (2, 1, 0.5)
    """
    before, after = (np.concatenate([np.ravel(pair[side]) for pair in pairs]).astype(np.float64) for side in (0, 1))
    with np.errstate(invalid="ignore"):
        apart = np.abs(after - before)
    varies = before.size > 1 and before.std() > 0 and after.std() > 0
    return OutputDiff(
        signature,
        output,
        requests=len(pairs),
        values=before.size,
        changed=int((before != after).sum()),
        mean_absolute=float(apart.mean()) if apart.size else 0.0,
        max_absolute=float(apart.max(initial=0.0)),
        correlation=float(np.corrcoef(before, after)[0, 1]) if varies else None,
    )


def _answers(folder: Path, requests: Sequence[LoggedPrediction]) -> _Answers:
    with open_signatures(folder) as signatures:
        answers: list[Mapping[str, Array] | None] = []
        for request in requests:
            try:
                answers.append(signatures.run(request.signature, request.inputs))
            except (GraphRefusedError, ValueError, KeyError):
                # The version lacks the signature, its signature has other inputs, or it refuses an id: there is no
                # answer to compare.
                answers.append(None)
        return answers


def _by_output(requests: Sequence[LoggedPrediction], before: _Answers, after: _Answers) -> Iterator[OutputDiff]:
    pairs: dict[tuple[str, str], list[tuple[Array, Array]]] = {}
    for request, old, new in zip(requests, before, after, strict=True):
        if old is None or new is None:
            continue
        for output in old.keys() & new.keys():
            one, other = np.asarray(old[output]), np.asarray(new[output])
            if one.shape == other.shape and one.dtype.kind in "fiub" and other.dtype.kind in "fiub":
                pairs.setdefault((request.signature, output), []).append((one, other))
    for (signature, output), found in sorted(pairs.items()):
        yield output_diff(signature, output, found)
