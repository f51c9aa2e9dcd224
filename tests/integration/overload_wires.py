"""Sends single requests over HTTP or gRPC, and returns their outcomes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Literal, Protocol

import grpc
import grpc.aio

from loadtest.wire import PREDICT_METHOD, message_classes

# The outcomes of a request. ok: the right answer; late: no answer before the client's deadline; refused: an error
# because of overload; failed: anything else.
Kind = Literal["ok", "refused", "late", "failed"]
_DT_FLOAT = 1
X, Y = 3.0, 6.0


class Wire(Protocol):
    """The interface for sending requests over HTTP or gRPC. Concurrency: one event loop."""

    async def ask(self, model: str, timeout_s: float) -> tuple[Kind, bool]:
        """Sends a request to a model; returns its outcome, and whether a refusal had a Retry-After."""
        ...

    async def close(self) -> None:
        """Closes all connections to the server."""
        ...


class HttpWire:
    """Sender of requests over persistent HTTP connections, one for each request in flight."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self._body = json.dumps({"inputs": {"x": [X]}}).encode()

    async def ask(self, model: str, timeout_s: float) -> tuple[Kind, bool]:
        """Sends a request; returns its outcome. After timeout_s the client gives up and closes the connection."""
        try:
            return await asyncio.wait_for(self._ask(model), timeout_s)
        except TimeoutError:
            return "late", False
        except (OSError, asyncio.IncompleteReadError):
            return "failed", False

    async def close(self) -> None:
        """Closes the wire's idle connections."""
        for _, writer in self._free:
            writer.close()
        for _, writer in self._free:
            await writer.wait_closed()
        self._free.clear()

    async def _ask(self, model: str) -> tuple[Kind, bool]:
        pair = self._free.popleft() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = pair
        is_whole = False
        try:
            head = f"POST /v1/models/{model}:predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self._body)}\r\n\r\n"
            writer.write(head.encode() + self._body)
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            is_whole = True
        finally:
            if is_whole and b"connection: close" not in lines:
                self._free.append(pair)
            else:
                writer.close()
        status = int(lines[0].split()[1])
        if status == 200:
            return ("ok" if json.loads(body)["outputs"] == [Y] else "failed"), False
        return ("refused" if status == 503 else "failed"), any(line.startswith(b"retry-after:") for line in lines)


class GrpcWire:
    """Sender of requests over one gRPC channel, each with the client's deadline."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        request_class, self._response_class = message_classes()
        self._requests: dict[str, bytes] = {}
        self._request_class = request_class
        self._call = self._channel.unary_unary(PREDICT_METHOD)

    async def ask(self, model: str, timeout_s: float) -> tuple[Kind, bool]:
        """Calls a model; returns the outcome, and whether a refusal's trailers say when to try again."""
        try:
            data = await self._call(self._request(model), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "late", False
            trailers = error.trailing_metadata() or ()
            hint = any(key == "grpc-retry-pushback-ms" for key, _ in trailers)
            return ("refused" if error.code() is grpc.StatusCode.UNAVAILABLE else "failed"), hint
        return ("ok" if list(self._response_class.FromString(data).outputs["y"].float_val) == [Y] else "failed"), False

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def _request(self, model: str) -> bytes:
        if model not in self._requests:
            request = self._request_class()
            request.model_spec.name = model
            tensor = request.inputs["x"]
            tensor.dtype = _DT_FLOAT
            tensor.tensor_shape.dim.add().size = 1
            tensor.float_val.append(X)
            self._requests[model] = request.SerializeToString()
        return self._requests[model]
