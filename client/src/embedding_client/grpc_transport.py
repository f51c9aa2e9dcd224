"""Sends calls over a gRPC channel: GrpcTransport blocks, AsyncGrpcTransport runs on an event loop."""

from __future__ import annotations

from typing import Any

try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise ImportError(
        "The client over gRPC needs grpcio: pip install grpcio; EmbeddingClient over HTTP needs nothing more."
    ) from error

from embedding_client.bearer import NO_TOKEN, Bearer
from embedding_client.calls import Call, Reply
from embedding_client.errors import EmbeddingError, error_of
from embedding_client.targets import Target

_OPTIONS: tuple[tuple[str, int], ...] = (
    # The client accepts and sends messages of any size, because the server limits them.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Pauses between attempts to connect grow from 0.1 s to 2 s, so that the client soon finds a restarted server. The
    # defaults of gRPC grow from 1 s to 2 minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # The client connects to the server directly, even if http_proxy or a similar variable is set; its HTTP transports
    # do the same.
    ("grpc.enable_http_proxy", 0),
)


class GrpcTransport:
    """One gRPC channel for blocking calls, which reconnects by itself. Concurrency: any thread."""

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        if target.tls is None:
            self._channel = grpc.insecure_channel(target.address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(target.address, _credentials(target), _OPTIONS)
        # Maps a gRPC method's path to grpcio's callable for it; making a callable costs much more than calling it.
        self._methods: dict[str, Any] = {}

    def send(self, call: Call[Any], timeout_s: float) -> Reply:
        """Sends a call over the gRPC channel and returns the server's reply; raises EmbeddingError."""
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path)
        try:
            return Reply(method(call.body, timeout_s, self._bearer.metadata(call.metadata)))
        except grpc.RpcError as error:
            raise _rpc_error(error, self._target, timeout_s) from error

    def close(self) -> None:
        """Closes the gRPC channel; calls in flight fail."""
        self._channel.close()


class AsyncGrpcTransport:
    """One grpc.aio channel, which reconnects by itself. Concurrency: only the event loop in which it was made."""

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        if target.tls is None:
            self._channel = grpc.aio.insecure_channel(target.address, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target.address, _credentials(target), _OPTIONS)
        self._methods: dict[str, Any] = {}

    async def send(self, call: Call[Any], timeout_s: float) -> Reply:
        """Sends a call over the gRPC channel and returns the server's reply; raises EmbeddingError."""
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path)
        try:
            return Reply(await method(call.body, timeout=timeout_s, metadata=self._bearer.metadata(call.metadata)))
        except grpc.RpcError as error:
            raise _rpc_error(error, self._target, timeout_s) from error

    async def close(self) -> None:
        """Closes the gRPC channel; calls in flight fail."""
        await self._channel.close()


def _credentials(target: Target) -> grpc.ChannelCredentials:
    assert target.tls is not None
    return grpc.ssl_channel_credentials(*target.tls.pem())


def _rpc_error(error: grpc.RpcError, target: Target, timeout_s: float) -> EmbeddingError:
    code, text = error.code().name, error.details() or ""
    if code == "DEADLINE_EXCEEDED":
        text = f"No answer from {target} within {timeout_s:.3g} s: {text}"
    if "WRONG_VERSION_NUMBER" in text:
        text = f"{text}. This port has no TLS: begin the target with grpc://."
    return error_of(code, text)
