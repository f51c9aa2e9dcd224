"""Calls over TensorFlow Serving's gRPC methods: any server of that protocol answers all but `rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from service.client.answers import ModelMetadata, SignatureDescription, TensorDescription
from service.client.calls import Arrays, Call, Flow, Where
from service.client.errors import Unimplemented
from service.client.inputs import Ids, ragged_parts
from service.client.predict_message import encode_model_spec, encode_predict
from service.codecs.dtypes import dtype_name
from service.codecs.protos import message_class
from service.codecs.tensor_proto import MAX_SPREAD_ELEMENTS, decode_tensor
from service.core.errors import Code
from service.core.types import Array, RaggedIds, State, VersionStatus

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


class GrpcCalls:
    """The methods of one model; see calls.Calls."""

    def __init__(self, model: str) -> None:
        self._model = model

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Predicts a lookup signature."""
        inputs: dict[str, Array] = {}
        for name, value in ids.items():
            if isinstance(value, RaggedIds):
                inputs.update(ragged_parts(name, value))
            else:
                inputs[name] = value
        return self.predict(inputs, outputs, at, signature)

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Runs a signature."""
        spec = encode_model_spec(self._model, at, signature)
        arrays: Arrays = yield Call(PREDICT, encode_predict(spec, inputs, outputs), decode_predict)
        return arrays

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Raises Unimplemented: the protocol has no such method."""
        raise Unimplemented(
            "UNIMPLEMENTED",
            'rows() goes over HTTP: give the client http_target="http://host:port", or that as its target.',
        )
        yield

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Asks ModelService."""
        request = message_class("tensorflow.serving.GetModelStatusRequest")()
        request.model_spec.name = self._model
        if version is not None:
            request.model_spec.version.value = version
        statuses: tuple[VersionStatus, ...] = yield Call(STATUS, request.SerializeToString(), _decode_status)
        return statuses

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Asks for the SignatureDefs."""
        request = message_class("tensorflow.serving.GetModelMetadataRequest")()
        request.model_spec.ParseFromString(encode_model_spec(self._model, at, ""))
        request.metadata_field.append("signature_def")
        decode = partial(_decode_metadata, self._model)
        metadata: ModelMetadata = yield Call(METADATA, request.SerializeToString(), decode)
        return metadata


def decode_predict(data: bytes) -> Arrays:
    """Returns the arrays of a PredictResponse, each its own and writable."""
    response = message_class("tensorflow.serving.PredictResponse").FromString(data)
    # An element that was sent takes a byte at least, so only values spread over a shape can meet this limit.
    max_elements = max(len(data), MAX_SPREAD_ELEMENTS)
    arrays: Arrays = {}
    for name, tensor in response.outputs.items():
        array = decode_tensor(name, tensor, max_elements)
        # tensor_content is shown in place, and read-only.
        arrays[name] = array if array.flags.writeable else array.copy()
    return arrays


def _decode_status(data: bytes) -> tuple[VersionStatus, ...]:
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(data)
    codes = message_class("tensorflow.serving.StatusProto").DESCRIPTOR.fields_by_name["error_code"].enum_type
    return tuple(
        VersionStatus(
            entry.version,
            State(entry.state),
            cast(Code, codes.values_by_number[entry.status.error_code].name),
            entry.status.error_message,
        )
        for entry in response.model_version_status
    )


def _decode_metadata(model: str, data: bytes) -> ModelMetadata:
    response = message_class("tensorflow.serving.GetModelMetadataResponse").FromString(data)
    packed = response.metadata["signature_def"].value
    signatures = message_class("tensorflow.serving.SignatureDefMap").FromString(packed).signature_def
    return ModelMetadata(
        model,
        response.model_spec.version.value,
        {
            name: SignatureDescription(
                signatures[name].method_name,
                _tensors(signatures[name].inputs),
                _tensors(signatures[name].outputs),
            )
            for name in sorted(signatures)
        },
    )


def _tensors(infos: Mapping[str, Any]) -> dict[str, TensorDescription]:
    return {
        name: TensorDescription(
            dtype_name(infos[name].dtype),
            None
            if infos[name].tensor_shape.unknown_rank
            else tuple(None if dim.size < 0 else dim.size for dim in infos[name].tensor_shape.dim),
        )
        for name in sorted(infos)
    }
