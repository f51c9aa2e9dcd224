"""Blocking calls over one gRPC channel."""

from __future__ import annotations

from typing import Any

import grpc

from service.client.bearer import NO_TOKEN, Bearer
from service.client.calls import Call
from service.client.errors import EmbeddingError, error_of
from service.client.targets import Target

OPTIONS: tuple[tuple[str, int], ...] = (
    # The server's limits are the limits.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Back within tenths of a second where a server restarted; gRPC's own first wait is a second, its last two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # The environment's proxies are meant for the internet; HTTP here takes none either.
    ("grpc.enable_http_proxy", 0),
)


class GrpcTransport:
    """One channel, which reconnects by itself. Concurrency: any thread."""

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        if target.tls is None:
            self._channel = grpc.insecure_channel(target.address, OPTIONS)
        else:
            self._channel = grpc.secure_channel(target.address, credentials(target), OPTIONS)
        # By path; a call object is cheap to use and dear to make.
        self._methods: dict[str, Any] = {}

    def send(self, call: Call[Any], timeout_s: float) -> bytes:
        """Returns the answer's bytes; raises EmbeddingError."""
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path)
        metadata = self._bearer.metadata()
        try:
            data: bytes = method(call.body, timeout_s, metadata)
        except grpc.RpcError as error:
            raise rpc_error(error, self._target, timeout_s) from error
        return data

    def close(self) -> None:
        """Ends calls in flight and the connection."""
        self._channel.close()


def credentials(target: Target) -> grpc.ChannelCredentials:
    """Returns the TLS credentials of a target that has any."""
    assert target.tls is not None
    return grpc.ssl_channel_credentials(*target.tls.pem())


def rpc_error(error: grpc.RpcError, target: Target, timeout_s: float) -> EmbeddingError:
    """Returns the client's error of gRPC's."""
    code, text = error.code().name, error.details() or ""
    if code == "DEADLINE_EXCEEDED":
        text = f"No answer from {target} within {timeout_s:.3g} s: {text}"
    return error_of(code, text)
