"""Checks the arguments of a client method and makes its flow of Calls, for EmbeddingClient and AsyncEmbeddingClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedding_client.calls import Calls, Flow, where
from embedding_client.errors import invalid
from embedding_client.grpc_calls import GrpcCalls
from embedding_client.http_calls import HttpCalls
from embedding_client.inputs import FeatureIds, FeatureWeights, TensorInput, lookup_ids, tensors
from embedding_client.leaves import to_array
from embedding_client.targets import Target, Tls, parse_target
from embedding_client.tensor_proto import float_dtype as to_float_dtype
from embedding_client.types import FLOAT32, Array, ModelMetadata, Neighbors, Outputs, TableDescription, VersionStatus


class Methods:
    """The client's methods for one model, without the code that sends the Calls. Concurrency: any thread.

    model: the model's name. target: the server, for every method but `tables` and `rows`.
    tables_target: the server for `tables` and `rows`; None if it is target.
    """

    def __init__(
        self, target: str, model: str, tls: Tls | None, http_target: str | None, float_dtype: str = "float32"
    ) -> None:
        if not model:
            raise ValueError("model is empty: expected the name of a served model")
        self.model = model
        self.target = parse_target(target, tls)
        self._dtype = to_float_dtype(float_dtype)
        self._calls = _calls(self.target, model, self._dtype)
        self._tables_calls = self._calls
        self.tables_target: Target | None = None
        if http_target is None:
            return
        if self.target.wire == "http":
            raise ValueError(f"http_target {http_target!r} was given although the target speaks HTTP itself")
        self.tables_target = parse_target(http_target, tls)
        if self.tables_target.wire != "http":
            raise ValueError(f"http_target {http_target!r}: expected http://host:port or https://host:port")
        self._tables_calls = _calls(self.tables_target, model, self._dtype)

    def lookup(
        self,
        features: Mapping[str, FeatureIds],
        weights: Mapping[str, FeatureWeights] | None,
        *,
        version: int | None,
        label: str | None,
        signature: str,
        outputs: Sequence[str] | None,
    ) -> Flow[Outputs]:
        """Checks the client's arguments for lookup(); returns the generator of its `Call`s; raises InvalidRequest."""
        flow = self._calls.lookup(
            lookup_ids(features, weights), _names(outputs), where(version, label), signature or "lookup"
        )
        return self._rounded(flow)

    def predict(
        self,
        inputs: Mapping[str, TensorInput],
        *,
        version: int | None,
        label: str | None,
        signature: str,
        outputs: Sequence[str] | None,
    ) -> Flow[Outputs]:
        """Checks the client's arguments for predict(); returns the generator of its `Call`s; raises InvalidRequest."""
        return self._rounded(self._calls.predict(tensors(inputs), _names(outputs), where(version, label), signature))

    def _rounded(self, flow: Flow[Outputs]) -> Flow[Outputs]:
        """Rounds float32 outputs to the client's dtype, if the server has not: JSON has none, nor has TensorFlow
        Serving.
        """
        outputs = yield from flow
        if self._dtype == FLOAT32:
            return outputs
        # A number that is too large for float16 becomes infinite, as in the server.
        with np.errstate(over="ignore"):
            for name, array in outputs.items():
                if array.dtype == FLOAT32:
                    outputs[name] = array.astype(self._dtype)
        return outputs

    def tables(self, version: int | None, label: str | None) -> Flow[tuple[TableDescription, ...]]:
        """Checks the client's arguments for tables(); returns the generator of its `Call`s; raises InvalidRequest."""
        return self._tables_calls.tables(where(version, label))

    def rows(self, table: str, ids: Any, *, version: int | None, label: str | None) -> Flow[Array]:
        """Checks the client's arguments for rows(); returns the generator of its `Call`s; raises InvalidRequest."""
        array = to_array("ids", np.empty(0, np.int64) if isinstance(ids, (list, tuple)) and not ids else ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise invalid(f"ids: expected a list or an array of integers, got {array.dtype} of rank {array.ndim}.")
        return self._tables_calls.rows(table, array, where(version, label))

    def neighbors(
        self, table: str, search: Mapping[str, Any], *, version: int | None, label: str | None
    ) -> Flow[Neighbors]:
        """Checks the client's arguments for neighbors(); returns the generator of its `Call`s; raises InvalidRequest.

        Args:
          search: the inputs of the signature "neighbors" by name, without the table; None for inputs that are not
          given.
        """
        given = {name: value for name, value in search.items() if value is not None}
        queries = given.keys() & {"ids", "keys", "vectors", "labels"}
        if len(queries - {"labels"} if isinstance(given.get("labels"), bool) else queries) != 1:
            raise invalid("neighbors(): give one of ids, keys, vectors and labels.")
        inputs = {name: to_array(name, value) for name, value in given.items()}
        inputs["table"] = to_array("table", table)
        if "vectors" in inputs and inputs["vectors"].dtype.kind in "iu":
            inputs["vectors"] = inputs["vectors"].astype(np.float32)
        return self._calls.neighbors(inputs, where(version, label))

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Returns the generator of the `Call`s of the client's method status(); checks no arguments."""
        return self._calls.status(version)

    def metadata(self, version: int | None, label: str | None) -> Flow[ModelMetadata]:
        """Checks the client's arguments for metadata(); returns the generator of its `Call`s; raises InvalidRequest."""
        return self._calls.metadata(where(version, label))


def _calls(target: Target, model: str, dtype: np.dtype[Any]) -> Calls:
    return GrpcCalls(model, dtype) if target.wire == "grpc" else HttpCalls(model, dtype)


def _names(outputs: Sequence[str] | None) -> Sequence[str]:
    # A single string in place of a list of names is refused at run time, because a type checker accepts it: a string is
    # a Sequence[str] too.
    if isinstance(outputs, str):
        raise invalid(f"outputs: expected a list of names, got the string {outputs!r}.")
    return () if outputs is None else outputs
