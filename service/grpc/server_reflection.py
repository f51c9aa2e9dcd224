"""Serves gRPC reflection, by which clients ask for the server's services, on separate threads.

A reflection stream holds its thread for as long as the client keeps it open, and clients such as grpcurl keep it while
a person reads. If the server's workers did this, a handful of such streams would leave none for requests.

Source: grpc/reflection/v1/reflection.proto, which equals v1alpha but for the name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.grpc.health import Behavior

SERVICE_NAME = reflection.SERVICE_NAME
# Both versions of the reflection service are served, v1alpha and v1, which newer clients try first; both have the same
# messages.
REFLECTION_NAMES = (SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
# Most reflection streams that are served at a time; further streams wait until one of them ends.
_NUM_THREADS = 4


class Reflection:
    """The reflection service for the gRPC services in a descriptor pool. Concurrency: any thread."""

    def __init__(self, services: Sequence[str], pool: Any) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grpc-reflection")
        self._servicer = reflection.ReflectionServicer(services, pool=_PoolWithMethods(pool))
        self._lock = threading.Lock()
        self._open: set[grpc.ServicerContext] = set()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Returns the gRPC handlers of the reflection service, one for each of its two names."""
        method: grpc.RpcMethodHandler[bytes, Any] = grpc.stream_stream_rpc_method_handler(
            Behavior(self._answer, self._threads),
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        methods = {"ServerReflectionInfo": method}
        return tuple(grpc.method_handlers_generic_handler(name, methods) for name in REFLECTION_NAMES)

    def stop(self) -> None:
        """Ends all open reflection streams, because a server that stops would wait for their clients."""
        with self._lock:
            contexts = list(self._open)
        for context in contexts:
            # The lock is not held here: cancelling a reflection stream may call _forget(), which acquires the lock.
            context.cancel()

    def close(self) -> None:
        """Ends the threads of the reflection service; called after the gRPC server has stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        with self._lock:
            self._open.add(context)
        if not context.add_callback(partial(self._forget, context)):
            self._forget(context)
        return iter(self._servicer.ServerReflectionInfo(_read(requests, context), context))

    def _forget(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._open.discard(context)


class _PoolWithMethods:
    """A descriptor pool that, unlike protobuf's, also finds a proto file by a method's name, for the tool ghz."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        """Returns the proto file that declares a message, field, service or method; raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            found = self._pool.FindServiceByName(service)
            if method not in found.methods_by_name:
                raise
            return found.file


def _read(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
    """Yields the parsed reflection requests of a stream, and ends the call at a request that does not parse."""
    for data in requests:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The request can not be read: {error}")
        yield request
