"""Calls over one gRPC channel of an event loop."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from service.client.bearer import NO_TOKEN, Bearer
from service.client.calls import Call
from service.client.grpc_channel import OPTIONS, credentials, rpc_error
from service.client.targets import Target


class AsyncGrpcTransport:
    """One channel, which reconnects by itself. Concurrency: event loop only, made there too."""

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        if target.tls is None:
            self._channel = grpc.aio.insecure_channel(target.address, OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target.address, credentials(target), OPTIONS)
        self._methods: dict[str, Any] = {}

    async def send(self, call: Call[Any], timeout_s: float) -> bytes:
        """Returns the answer's bytes; raises EmbeddingError."""
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path)
        metadata = self._bearer.metadata()
        try:
            data: bytes = await method(call.body, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise rpc_error(error, self._target, timeout_s) from error
        return data

    async def close(self) -> None:
        """Ends calls in flight and the connection."""
        await self._channel.close()
