"""Reads and writes files of requests and answers: TFRecord files of TensorFlow Serving's PredictionLog messages.

TensorFlow Serving replays assets.extra/tf_serving_warmup_requests when it loads a version. A second file of this format
holds the trained model's answers, so that a later `verify` can compare the graph with them without the model.

Source: tensorflow_serving/apis/prediction_log.proto and g3doc/saved_model_warmup.md (9d981c5). The messages are made of
the service's descriptors, because model_export does not depend on tensorflow-serving-api.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from service.artifact.hashes import masked_of
from service.artifact.protos import message_class
from service.artifact.tf_record import encode_record, read_records
from service.errors import ArtifactError
from service.types import Array


@dataclass(frozen=True, slots=True)
class LoggedPrediction:
    """One recorded request to a signature, and its answer or None. Strings are numpy object arrays of bytes."""

    signature: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None = None


def write_predictions(path: Path, predictions: Iterable[LoggedPrediction]) -> int:
    path.parent.mkdir(exist_ok=True)
    count = 0
    with path.open("wb") as file:
        for prediction in predictions:
            file.write(encode_record(_message(prediction).SerializeToString(deterministic=True), masked_of))
            count += 1
    return count


def read_predictions(path: Path) -> Iterator[LoggedPrediction]:
    """Yields the requests and answers in a file of recorded predictions.

    Raises:
      ExportError: the file is cut off, or a record does not match its checksum.
    """
    with path.open("rb") as file:
        try:
            for record in read_records(file, masked_of):
                log = message_class("tensorflow.serving.PredictionLog").FromString(record).predict_log
                inputs = {name: tf.make_ndarray(tensor) for name, tensor in log.request.inputs.items()}
                outputs = {name: tf.make_ndarray(tensor) for name, tensor in log.response.outputs.items()}
                yield LoggedPrediction(log.request.model_spec.signature_name, inputs, outputs or None)
        except ArtifactError as error:
            raise ExportError(f"{path} is cut off or damaged: {error.message}") from error


def _message(prediction: LoggedPrediction) -> Any:
    message = message_class("tensorflow.serving.PredictionLog")()
    request, response = message.predict_log.request, message.predict_log.response
    request.model_spec.signature_name = prediction.signature
    for name, array in prediction.inputs.items():
        request.inputs[name].MergeFromString(_tensor(array))
    for name, array in (prediction.outputs or {}).items():
        response.outputs[name].MergeFromString(_tensor(array))
    return message


def _tensor(array: Array) -> bytes:
    # Strings need an explicit dtype: numpy's object dtype does not say that its elements are strings, and an empty
    # array has no element from which TensorFlow could infer the dtype.
    dtype = tf.string if np.asarray(array).dtype.kind in "OSU" else None
    data: bytes = tf.make_tensor_proto(array, dtype, np.shape(array)).SerializeToString()
    return data
