"""Calls the server with the project's own client over gRPC and HTTP; the answers must be equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from embedding_client import EmbeddingClient
from loadtest.model_samples import Signature
from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "embedding_client"
_TIMEOUT_S = 60


def checks(place: Place) -> Iterator[Check]:
    for wire, target in (("grpc", place.grpc), ("http", place.http)):
        yield Check(CLIENT, f"{wire}: status, metadata, rows", partial(_describe, place, target))
    for signature in place.model.predicted():
        yield Check(CLIENT, f"predict {signature.name}, grpc = http", partial(_same, place, signature))
    yield Check(CLIENT, "lookup, grpc = http", partial(_lookup, place))


def _open(place: Place, target: str) -> EmbeddingClient:
    # EmbeddingClient.rows() works only over HTTP, so a client of gRPC gets an HTTP address too.
    http_target = None if target.startswith("http") else place.http
    return EmbeddingClient(target, model=place.model.name, timeout_s=_TIMEOUT_S, http_target=http_target)


def _describe(place: Place, target: str) -> str:
    with _open(place, target) as client:
        states = client.status()
        require(place.model.version in [status.version for status in states], str(states))
        found = sorted(client.metadata().signatures)
        require(found == [s.name for s in place.model.signatures], f"other than over HTTP: {found}")
        table = next(iter(place.model.tables), None)
        rows = "no tables" if table is None else f"rows of {table} {list(client.rows(table, [1, 0]).shape)}"
    return f"{states[0].version} {states[0].state.name}, {len(found)} signatures, {rows}"


def _same(place: Place, signature: Signature) -> str:
    with _open(place, place.grpc) as over_grpc, _open(place, place.http) as over_http:
        inputs = signature.tensors()
        first = over_grpc.predict(inputs, signature=signature.name)
        second = over_http.predict(inputs, signature=signature.name)
    return _compare(first, second)


def _lookup(place: Place) -> str:
    if not place.model.lookups():
        raise Skip("the model has no lookups")
    signature = place.model.lookups()[0]
    with _open(place, place.grpc) as over_grpc, _open(place, place.http) as over_http:
        first = over_grpc.lookup(signature.columns(), signature=signature.name)
        second = over_http.lookup(signature.columns(), signature=signature.name)
    return _compare(first, second)


def _compare(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> str:
    require(first.keys() == second.keys() and bool(first), f"{sorted(first)} and {sorted(second)}")
    for name, array in first.items():
        require(np.array_equal(array, second[name], equal_nan=True), f"{name} differs")
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in sorted(first.items()))
