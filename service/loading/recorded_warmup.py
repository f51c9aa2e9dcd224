"""Replays the warm-up requests in a version's folder before the version is AVAILABLE.

Source: tensorflow_serving/servables/tensorflow/saved_model_warmup.cc, saved_model_warmup_util.cc (9d981c5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service.artifact.crc32c import masked_of
from service.artifact.proto_fields import check_num_fields
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH, read_records
from service.engine.inference import CLASSIFY_METHOD, INPUTS, REGRESS_METHOD, result_of, wanted_outputs
from service.engine.servable import Servable
from service.errors import ArtifactError, InvalidRequest, MalformedPayload, ServiceError
from service.wire.example_proto import decode_examples, decode_examples_request, decode_multi_inference
from service.wire.predict_proto import decode_response, encode_request
from service.wire.proto_message import parse_message

logger = logging.getLogger(__name__)

_LOG = "tensorflow.serving.PredictionLog"

# Kind of warm-up record that neither TensorFlow Serving nor this server can replay -> its number in the proto's enum.
_UNSUPPORTED = {"predict_streamed_log": 7, "session_run_log": 5}
_EXAMPLE_METHODS = {
    "classify_log": ("tensorflow.serving.ClassificationRequest", CLASSIFY_METHOD),
    "regress_log": ("tensorflow.serving.RegressionRequest", REGRESS_METHOD),
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
    # The model's name in a warm-up record is replaced by the name of the version's model, because it may be missing or
    # another model's. The version that the record names is ignored, too.
    for message in request.tasks if kind == "multi_inference_log" else [request]:
        message.model_spec.name = servable.name
        message.model_spec.ClearField("version_choice")
    # The warm-up neither runs nor checks records of the signatures in `cold`.
    is_predict = kind == "predict_log"
    runs = _predict_runs(servable, request, cold) if is_predict else _example_runs(servable, kind, request, cold)
    for run in runs:
        for _ in range(iterations):
            assert servable.native is not None
            run.check(servable.native.answer(run.request))
    return bool(runs)


@dataclass(frozen=True, slots=True)
class _Run:
    """One signature run that a warm-up record asks for, as a PredictRequest. check: raises if the PredictResponse is no
    valid answer.
    """

    request: bytes
    check: Callable[[bytes], object]


def _predict_runs(servable: Servable, request: Any, cold: frozenset[str]) -> list[_Run]:
    if servable.signature(request.model_spec.signature_name).name in cold:
        return []
    # The core refuses unknown fields, which a log of a newer client may have.
    request.DiscardUnknownFields()
    return [_Run(request.SerializeToString(), lambda response: None)]


def _example_runs(servable: Servable, kind: str, message: Any, cold: frozenset[str]) -> list[_Run]:
    data = message.SerializeToString()
    if kind == "multi_inference_log":
        multi = decode_multi_inference(data)
        if multi.problem:
            raise InvalidRequest(multi.problem)
        methods = [(task.signature_name, task.method_name) for task in multi.tasks]
        examples = decode_examples(multi.input)
    else:
        full_name, method_name = _EXAMPLE_METHODS[kind]
        request = decode_examples_request(full_name, data)
        methods = [(request.signature_name, method_name)]
        examples = decode_examples(request.input)
    runs = []
    for signature_name, method_name in methods:
        spec = servable.signature(signature_name)
        if spec.name in cold:
            continue
        wanted = wanted_outputs(spec, method_name)
        check = partial(_check, method_name, examples.size)
        runs.append(_Run(encode_request(servable.name, spec.name, {INPUTS: examples}, wanted), check))
    return runs


def _check(method_name: str, num_examples: int, response: bytes) -> None:
    result_of(method_name, decode_response(response), num_examples)
