"""Requests that an exporter recorded for warm-up, replayed before a version is AVAILABLE.

Source: tensorflow_serving/servables/tensorflow/saved_model_warmup.cc, saved_model_warmup_util.cc (9d981c5).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from service.codecs.predict_proto import decode_inputs, decode_request, parse_message
from service.codecs.tf_record import read_records
from service.core.errors import ArtifactError, MalformedPayload, ServiceError
from service.core.servable import Servable
from service.core.validation import checked

WARMUP_REQUESTS = Path("assets.extra/tf_serving_warmup_requests")
MAX_RECORDS = 1000

logger = logging.getLogger(__name__)

# What can not be warmed up, there and here; the numbers are the proto's.
_UNSUPPORTED = {"predict_streamed_log": 7, "session_run_log": 5}


def replay_requests(servable: Servable, artifact: Path, iterations: int, cold: frozenset[str] = frozenset()) -> int:
    """Runs each recorded request; the model, version and answer that a record names are not looked at.

    Returns how many there were.

    Args:
      cold: signatures that are not to be run, such as those whose graph is not open yet.

    Raises:
      ArtifactError: the file is broken, too long, or holds a request that fails: then the version is not served.
    """
    path = artifact / WARMUP_REQUESTS
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    num_skipped = number = 0
    with file:
        for number, record in enumerate(read_records(file), 1):
            if number > MAX_RECORDS:
                raise ArtifactError(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}")
            try:
                log = parse_message("tensorflow.serving.PredictionLog", record)
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
    if kind != "predict_log":
        return False
    # A record may come without a model, or from one of another name.
    log.predict_log.request.model_spec.name = servable.name
    request = decode_request(log.predict_log.request.SerializeToString())
    spec = servable.signature(request.signature_name)
    backend = servable.backends.get(spec.name)
    if backend is None or spec.name in cold:
        return False
    for _ in range(iterations):
        arrays, _ = checked(spec, decode_inputs(request))
        backend.run(spec.name, arrays, request.output_filter or tuple(spec.outputs))
    return True
