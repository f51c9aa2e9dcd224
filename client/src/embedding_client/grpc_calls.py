"""Calls TensorFlow Serving's gRPC methods. They serve all methods of the client except `tables` and `rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedding_client import messages
from embedding_client.calls import Call, Flow, Reply, Where
from embedding_client.errors import Unimplemented
from embedding_client.inputs import Ids, lookup_tensors
from embedding_client.types import FLOAT32, Array, ModelMetadata, Neighbors, Outputs, TableDescription, VersionStatus

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


class GrpcCalls:
    """The client's methods for one model, as gRPC calls of PredictionService and ModelService.

    dtype: the dtype in which the server shall send float32 outputs.
    """

    def __init__(self, model: str, dtype: np.dtype[Any] = FLOAT32) -> None:
        self._model = model
        self._metadata = () if dtype == FLOAT32 else (("x-tensor-encoding", dtype.name),)

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Calls the gRPC method Predict with a lookup signature."""
        return self.predict(lookup_tensors(ids), outputs, at, signature)

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Calls the gRPC method Predict with any signature."""
        spec = messages.encode_model_spec(self._model, at, signature)
        request = messages.encode_predict(spec, inputs, outputs)
        arrays: Outputs = yield Call(PREDICT, request, _outputs, metadata=self._metadata)
        return arrays

    def tables(self, at: Where) -> Flow[tuple[TableDescription, ...]]:
        """Raises Unimplemented, because the gRPC services have no method that lists tables."""
        raise _over_http_only("tables")
        yield

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Raises Unimplemented, because the gRPC services have no method that reads rows of a table."""
        raise _over_http_only("rows")
        yield

    def neighbors(self, search: Mapping[str, Array], at: Where) -> Flow[Neighbors]:
        """Calls the gRPC method Predict with the signature "neighbors"."""
        found = yield from self.predict(search, (), at, "neighbors")
        labels = found.get("labels")
        texts = None if labels is None else np.array([label.decode() for label in labels.flat], object)
        shaped = None if texts is None else texts.reshape(found["ids"].shape)
        return Neighbors(found["ids"], found["scores"], found.get("keys"), found.version, shaped)

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Calls ModelService.GetModelStatus."""
        request = messages.encode_status(messages.encode_model_spec(self._model, Where(version), ""))
        statuses: tuple[VersionStatus, ...] = yield Call(
            STATUS, request, lambda reply: messages.decode_statuses(reply.body)
        )
        return statuses

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Calls the gRPC method GetModelMetadata, which returns the model's SignatureDefs."""
        request = messages.encode_metadata(messages.encode_model_spec(self._model, at, ""))
        metadata: ModelMetadata = yield Call(
            METADATA, request, lambda reply: messages.decode_metadata(self._model, reply.body)
        )
        return metadata


def _outputs(reply: Reply) -> Outputs:
    return messages.decode_predict(reply.body)


def _over_http_only(method: str) -> Unimplemented:
    return Unimplemented(
        "UNIMPLEMENTED",
        f'{method}() goes over HTTP: give the client http_target="http://host:port", or that as its target.',
    )
