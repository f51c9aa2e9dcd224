"""Runs each graph signature with made-up or recorded requests before a version is AVAILABLE.

TensorFlow optimises a graph in its first run, which took 0.3 to 0.6 s for a small ranking model; no request should wait
for that.

Source: tensorflow_serving/servables/tensorflow/saved_model_warmup.cc, saved_model_warmup_util.cc (9d981c5).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.hashes import masked_of
from service.artifact.protos import check_num_fields
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH, read_records
from service.errors import ArtifactError, MalformedPayload, ServiceError
from service.types import Array, SignatureSpec, TensorSpec
from service.versions.servable import Servable
from service.wire.api import parse_message

logger = logging.getLogger(__name__)


def warm_up(servable: Servable, names: Iterable[str]) -> None:
    """Runs each named signature once on a row of made-up values: id 0, a key of a vocabulary, zeros, empty strings.

    The core runs it, as it will run requests. A signature that refuses such a row stays cold; the version is served all
    the same.
    """
    for name in names:
        assert servable.native is not None
        row = _one_row(servable.signatures[name])
        try:
            servable.native.run(name, row)
        except ServiceError as error:
            logger.info("signature is not warmed up", extra={"signature": name, "reason": error.message})


def _one_row(spec: SignatureSpec) -> dict[str, Array]:
    row: dict[str, Array] = {}
    for name in sorted(spec.row_inputs & spec.required):
        tensor = spec.inputs[name]
        row[name] = _filled(tensor, tuple(size or 1 for size in tensor.shape or ()))
    for names in spec.ragged_names:
        row[names.values] = _filled(spec.inputs[names.values], (1,))
        row[names.row_splits] = np.array([0, 1], spec.inputs[names.row_splits].numpy_dtype)
        if names.weights in spec.inputs:
            row[names.weights] = _filled(spec.inputs[names.weights], (1,))
    return row


def _filled(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    if tensor.vocabulary is not None and tensor.takes_keys:
        value: bytes | int = tensor.vocabulary.example_key
    else:
        value = b"" if tensor.dtype == "string" else 0
    return np.full(shape, value, tensor.numpy_dtype)


_LOG = "tensorflow.serving.PredictionLog"

# Kind of warm-up record that neither TensorFlow Serving nor this server can replay -> its number in the proto's enum.
_UNSUPPORTED = {"predict_streamed_log": 7, "session_run_log": 5}
# Kind of warm-up record -> the method of its request.
_METHODS = {
    "predict_log": "Predict",
    "classify_log": "Classify",
    "regress_log": "Regress",
    "multi_inference_log": "MultiInference",
}


def replay_requests(servable: Servable, artifact: Path, iterations: int, cold: frozenset[str] = frozenset()) -> int:
    """Runs each warm-up request of a version `iterations` times in the native core, which will answer the version's
    requests; ignores the model, version and answer in its record. Returns the number of records.

    Args:
      cold: signatures that are not run: those with a graph that is not open yet, and those that the core does not run.

    Raises:
      ArtifactError: the file is broken or too long, or one of its requests fails: the version is not served then.
    """
    path = artifact / WARMUP_PATH
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    num_skipped = number = 0
    with file:
        for number, record in enumerate(read_records(file, masked_of), 1):
            if number > MAX_WARMUP_RECORDS:
                raise ArtifactError(f"Number of warmup records exceeds the maximum ({MAX_WARMUP_RECORDS}) at {path}")
            try:
                check_num_fields(f"{path}: warmup record number {number}", record, _LOG)
                log = parse_message(_LOG, record)
            except MalformedPayload as error:
                raise ArtifactError(f"Failed to parse warmup record: number {number} from {path}") from error
            try:
                is_run = _replay(servable, log, iterations, cold)
            except Exception as error:
                reason = error.message if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
                raise ArtifactError(f"{path}: warmup record number {number} failed: {reason}") from error
            num_skipped += not is_run
    logger.info("replayed warm-up requests", extra={"path": str(path), "records": number, "skipped": num_skipped})
    return number


def _replay(servable: Servable, log: Any, iterations: int, cold: frozenset[str]) -> bool:
    kind = log.WhichOneof("log_type")
    if kind in _UNSUPPORTED:
        raise ArtifactError(f"Unsupported log_type for warmup: {_UNSUPPORTED[kind]}")
    if kind is None:
        return False
    request = getattr(log, kind).request
    tasks = request.tasks if kind == "multi_inference_log" else [request]
    # The warm-up runs no signature in `cold`: of a MultiInference, it runs the other tasks.
    is_cold = [servable.signature(task.model_spec.signature_name).name in cold for task in tasks]
    if all(is_cold) and is_cold:
        return False
    for place in reversed([place for place, one in enumerate(is_cold) if one]):
        del tasks[place]
    # The model's name in a warm-up record is replaced by the name of the version's model, because it may be missing or
    # another model's. The version that the record names is ignored, too.
    for task in tasks:
        task.model_spec.name = servable.name
        task.model_spec.ClearField("version_choice")
    assert servable.native is not None
    data = request.SerializeToString()
    for _ in range(iterations):
        servable.native.answer(data, _METHODS[kind])
    return True
