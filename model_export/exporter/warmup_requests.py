"""Writes warm-up requests. TensorFlow Serving replays them when it loads a version, before it serves that version.

There is one per signature, and one per static batch size of a padded lookup, so that XLA compiles all of them then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from model_export.parity.parity_cases import CaseWriter
from model_export.parity.prediction_log import LoggedPrediction, write_predictions
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH
from service.types import Array


def write_warmup(artifact: Path, requests: Mapping[str, list[Mapping[str, Array]]]) -> int:
    """Writes the file of warm-up requests into an artifact; returns the number of requests.

    Args:
      requests: signature -> valid requests; TensorFlow Serving refuses a version whose warm-up fails.
    """
    predictions = [LoggedPrediction(name, inputs) for name, several in requests.items() for inputs in several]
    return write_predictions(artifact / WARMUP_PATH, predictions[:MAX_WARMUP_RECORDS])


def lookup_warmup(writer: CaseWriter, dtypes: Mapping[str, str]) -> Iterator[dict[str, Array]]:
    """Yields warm-up requests of a lookup: one of 1 row, or one of each static batch size. Weights are left empty.

    Args:
      dtypes: dtype of each input of the signature.
    """
    for case in writer.predict_cases(writer.signature.batch_sizes or (1,)):
        inputs = case.inputs(writer.signature)
        yield {n: array if dtypes[n] == "string" else array.astype(dtypes[n]) for n, array in inputs.items()}
