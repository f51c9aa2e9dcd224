"""Encodes a request and its answer as a PredictionLog record for the request log, alike for HTTP and gRPC.

Source: tensorflow_serving/apis/{prediction_log,logging,classification,regression,input}.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.artifact.protobuf_wire import tag, varint
from service.artifact.protos import message_class
from service.engine.inference import Classification, Regression
from service.types import Array
from service.wire.example_proto import encode_classification, encode_regression
from service.wire.predict_proto import encode_model_spec

# Field numbers of the protobuf message PredictionLog.
_METADATA, _CLASSIFY, _REGRESS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Subject:
    """The model, version and signature that answered a recorded request."""

    model: str
    version: int
    signature_name: str


def examples_record(
    subject: Subject, metadata: bytes, *, examples: Array, result: Classification | Regression, has_answer: bool
) -> bytes:
    """Encodes a PredictionLog record of a Classify or Regress request, or of one task of a MultiInference request."""
    listed = b"".join(_field(1, example) for example in examples.tolist())
    # Field numbers of a Classify or Regress request: model_spec = 1, input = 2, which holds example_list = 1 with
    # examples = 1.
    log = _field(1, _field(1, _spec(subject)) + _field(2, _field(1, listed)))
    named = {"model": subject.model, "version": subject.version, "signature_name": subject.signature_name}
    if isinstance(result, Classification):
        answer = encode_classification(result, **named) if has_answer else b""  # type: ignore[arg-type]
    else:
        answer = encode_regression(result, **named) if has_answer else b""  # type: ignore[arg-type]
    log += _field(2, answer) if has_answer else b""
    return _record(metadata, _CLASSIFY if isinstance(result, Classification) else _REGRESS, log)


def core_record(metadata: bytes, log: bytes) -> bytes:
    """Returns a PredictionLog record; log: a serialized PredictionLog of the native core, which lacks the metadata."""
    return _field(_METADATA, metadata) + log


def encode_metadata(subject: Subject, *, sampling_rate: float, tags: Sequence[str], timestamp_s: int) -> bytes:
    """Encodes a LogMetadata."""
    message = message_class("tensorflow.serving.LogMetadata")()
    message.model_spec.ParseFromString(_spec(subject))
    message.sampling_config.sampling_rate = sampling_rate
    message.saved_model_tags.extend(tags)
    message.timestamp_secs = timestamp_s
    return bytes(message.SerializeToString())


def _spec(subject: Subject) -> bytes:
    return encode_model_spec(subject.model, subject.version, subject.signature_name)


def _record(metadata: bytes, number: int, log: bytes) -> bytes:
    return _field(_METADATA, metadata) + _field(number, log)


def _field(number: int, data: bytes) -> bytes:
    return tag(number, 2) + varint(len(data)) + data
