"""The client for an event loop."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from service.client.answers import ModelMetadata
from service.client.bearer import Bearer, Token
from service.client.calls import Arrays, Call, Flow
from service.client.errors import EmbeddingError
from service.client.inputs import FeatureIds, FeatureWeights, TensorInput
from service.client.methods import Methods
from service.client.retry import Attempts, RetryPolicy
from service.client.targets import Target, Tls
from service.core.types import Array, VersionStatus

T = TypeVar("T")


class _Transport(Protocol):
    async def send(self, call: Call[Any], timeout_s: float) -> bytes: ...

    async def close(self) -> None: ...


class AsyncEmbeddingClient:
    """EmbeddingClient with coroutines; see there for what the arguments and methods mean.

        async with AsyncEmbeddingClient("localhost:8500", model="movielens") as client:
            answers = await asyncio.gather(*(client.lookup({"user_id": [user]}) for user in users))

    Over HTTP it needs httpx (`pip install 'embedding-server[client]'`); where that is missing, the first call raises
    ImportError.

    Concurrency: one event loop, any number of tasks; it connects at its first call.
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._methods = Methods(target, model, tls, http_target)
        self._bearer = Bearer(token)
        self._policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._random = random
        # Checks the timeout now and not at the first call.
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
    ) -> Arrays:
        """See EmbeddingClient.lookup."""
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
    ) -> Arrays:
        """See EmbeddingClient.predict."""
        flow = self._methods.predict(inputs, version=version, label=label, signature=signature, outputs=outputs)
        return await self._run(flow, self._methods.target, timeout_s)

    async def rows(
        self,
        table: str,
        ids: Sequence[int] | Array,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """See EmbeddingClient.rows."""
        flow = self._methods.rows(table, ids, version=version, label=label)
        return await self._run(flow, self._methods.rows_target or self._methods.target, timeout_s)

    async def status(self, version: int | None = None, *, timeout_s: float | None = None) -> tuple[VersionStatus, ...]:
        """See EmbeddingClient.status."""
        return await self._run(self._methods.status(version), self._methods.target, timeout_s)

    async def metadata(
        self, version: int | None = None, label: str | None = None, *, timeout_s: float | None = None
    ) -> ModelMetadata:
        """See EmbeddingClient.metadata."""
        return await self._run(self._methods.metadata(version, label), self._methods.target, timeout_s)

    async def close(self) -> None:
        """Closes the connections. Calls in flight may fail; later ones do."""
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
        # Not in the constructor, which may run before the event loop does.
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
        answer: Any = None
        while True:
            try:
                call = flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = await self._answer(call, transport, attempts)

    async def _answer(self, call: Call[T], transport: _Transport, attempts: Attempts) -> T:
        while True:
            try:
                return call.read(await transport.send(call, attempts.begin()))
            except EmbeddingError as error:
                await self._sleep(attempts.wait_s(error))


def _open(target: Target, bearer: Bearer) -> _Transport:
    # Each brings its library, of which a client needs one.
    if target.wire == "grpc":
        from service.client.grpc_aio_channel import AsyncGrpcTransport

        return AsyncGrpcTransport(target, bearer)
    from service.client.http_async import AsyncHttpTransport

    return AsyncHttpTransport(target, bearer)
