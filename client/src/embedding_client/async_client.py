"""The asyncio client: AsyncEmbeddingClient sends requests to an embedding server from an event loop."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from embedding_client.bearer import Bearer, Token
from embedding_client.calls import Call, Flow, Reply
from embedding_client.errors import EmbeddingError
from embedding_client.inputs import FeatureIds, FeatureWeights, TensorInput
from embedding_client.methods import Methods
from embedding_client.retry import Attempts, RetryPolicy
from embedding_client.targets import Target, Tls
from embedding_client.types import Array, ModelMetadata, Neighbors, Outputs, TableDescription, VersionStatus

T = TypeVar("T")


class _Transport(Protocol):
    async def send(self, call: Call[Any], timeout_s: float) -> Reply: ...

    async def close(self) -> None: ...


class AsyncEmbeddingClient:
    """The client of one model on a server, with coroutines; arguments and methods are those of EmbeddingClient.

        async with AsyncEmbeddingClient("localhost:8500", model="movielens") as client:
            answers = await asyncio.gather(*(client.lookup({"user_id": [user]}) for user in users))

    Concurrency: one event loop, any number of tasks. It connects at its first call, which raises ImportError if the
    library of the wire is not installed: grpcio, or httpx over HTTP.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str,
        timeout_s: float = 1.0,
        retries: int | RetryPolicy = 2,
        tls: Tls | None = None,
        token: Token = None,
        http_target: str | None = None,
        float_dtype: str = "float32",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._methods = Methods(target, model, tls, http_target, float_dtype)
        self._bearer = Bearer(token)
        self._policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._random = random
        # Attempts() checks the client's timeout_s, so that a bad value fails in the constructor, not at the first call.
        self._attempts(None)
        self._transports: dict[Target, _Transport] = {}
        self._is_closed = False

    async def lookup(
        self,
        features: Mapping[str, FeatureIds],
        weights: Mapping[str, FeatureWeights] | None = None,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "lookup",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Outputs:
        """Looks up embeddings; arguments and errors are those of EmbeddingClient.lookup."""
        flow = self._methods.lookup(
            features, weights, version=version, label=label, signature=signature, outputs=outputs
        )
        return await self._run(flow, self._methods.target, timeout_s)

    async def predict(
        self,
        inputs: Mapping[str, TensorInput],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "serving_default",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Outputs:
        """Runs a signature of the model; arguments and errors are those of EmbeddingClient.predict."""
        flow = self._methods.predict(inputs, version=version, label=label, signature=signature, outputs=outputs)
        return await self._run(flow, self._methods.target, timeout_s)

    async def tables(
        self, version: int | None = None, label: str | None = None, *, timeout_s: float | None = None
    ) -> tuple[TableDescription, ...]:
        """Returns the model's embedding tables by name; errors are those of EmbeddingClient.tables."""
        target = self._methods.tables_target or self._methods.target
        return await self._run(self._methods.tables(version, label), target, timeout_s)

    async def rows(
        self,
        table: str,
        ids: Sequence[int] | Array,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Reads rows of a table as [N, D] float32; arguments and errors are those of EmbeddingClient.rows."""
        flow = self._methods.rows(table, ids, version=version, label=label)
        return await self._run(flow, self._methods.tables_target or self._methods.target, timeout_s)

    async def neighbors(
        self,
        table: str,
        *,
        ids: Sequence[int] | Array | None = None,
        keys: Sequence[Any] | Array | None = None,
        vectors: Sequence[Sequence[float]] | Array | None = None,
        labels: Sequence[str] | bool | None = None,
        k: int | None = None,
        metric: str | None = None,
        feature: str | None = None,
        filter_ids: Sequence[int] | Array | None = None,
        filter_keys: Sequence[Any] | Array | None = None,
        exclude_ids: Sequence[int] | Array | None = None,
        exclude_keys: Sequence[Any] | Array | None = None,
        include_self: bool | None = None,
        exact: bool | None = None,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> Neighbors:
        """Finds nearest rows of a table; takes the arguments and raises the errors of EmbeddingClient.neighbors."""
        search = {
            "ids": ids,
            "keys": keys,
            "vectors": vectors,
            "labels": labels,
            "k": k,
            "metric": metric,
            "feature": feature,
            "filter_ids": filter_ids,
            "filter_keys": filter_keys,
            "exclude_ids": exclude_ids,
            "exclude_keys": exclude_keys,
            "include_self": include_self,
            "exact": exact,
        }
        flow = self._methods.neighbors(table, search, version=version, label=label)
        return await self._run(flow, self._methods.target, timeout_s)

    async def status(self, version: int | None = None, *, timeout_s: float | None = None) -> tuple[VersionStatus, ...]:
        """Returns the states of the model's versions; raises EmbeddingError."""
        return await self._run(self._methods.status(version), self._methods.target, timeout_s)

    async def metadata(
        self, version: int | None = None, label: str | None = None, *, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Returns the signatures of one version of the model; raises EmbeddingError."""
        return await self._run(self._methods.metadata(version, label), self._methods.target, timeout_s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._methods.target)!r}, model={self._methods.model!r})"

    async def close(self) -> None:
        """Closes this client's connections. Calls in flight may fail; later calls raise RuntimeError."""
        self._is_closed = True
        for transport in self._transports.values():
            await transport.close()

    async def __aenter__(self) -> AsyncEmbeddingClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _transport(self, target: Target) -> _Transport:
        # The transport is opened at the first call and not in the constructor, because the event loop may not run yet
        # then.
        transport = self._transports.get(target)
        if transport is None:
            transport = self._transports[target] = _open(target, self._bearer)
        return transport

    def _attempts(self, timeout_s: float | None) -> Attempts:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return Attempts(self._policy, timeout_s, self._clock, self._random)

    async def _run(self, flow: Flow[T], target: Target, timeout_s: float | None) -> T:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        transport = self._transport(target)
        attempts = self._attempts(timeout_s)
        advance: Callable[[Any], Call[Any]] = flow.send
        answer: Any = None
        while True:
            try:
                call = advance(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                advance, answer = flow.send, await self._send_with_retries(call, transport, attempts)
            except EmbeddingError as error:
                advance, answer = flow.throw, error

    async def _send_with_retries(self, call: Call[T], transport: _Transport, attempts: Attempts) -> T:
        while True:
            try:
                return call.read(await transport.send(call, attempts.start_try()))
            except EmbeddingError as error:
                await self._sleep(attempts.wait_s(error))


def _open(target: Target, bearer: Bearer) -> _Transport:
    # The modules are imported here, so that a client over HTTP needs no grpcio, and a client over gRPC no httpx.
    if target.wire == "grpc":
        from embedding_client.grpc_transport import AsyncGrpcTransport

        return AsyncGrpcTransport(target, bearer)
    from embedding_client.http_async import AsyncHttpTransport

    return AsyncHttpTransport(target, bearer)
