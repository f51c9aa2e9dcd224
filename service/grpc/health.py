"""Answers the gRPC services of health checks and of reflection.

grpcio-health-checking's servicer sends to watchers while it holds its lock. Sending waits for the server's event
thread, and that thread needs the same lock when a watcher leaves. So a status change at the moment when a watcher
leaves can stop the whole server. Here one thread sends, and it holds no lock while it does.

A reflection stream holds its thread for as long as the client keeps it open, and clients such as grpcurl keep it while
a person reads. So reflection has threads of its own: a handful of streams would leave no worker for requests.

Source: grpc/health/v1/health.proto; grpc_health/v1/health.py and grpc/_server.py for the non-blocking handlers (1.85);
grpc/reflection/v1/reflection.proto, which equals v1alpha but for the name.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.control.engine import Engine
from service.versions.threads import Workers

HEALTH_SERVICE = "grpc.health.v1.Health"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@dataclass(eq=False, slots=True)
class _Watcher:
    """A client that watches the health status of one service.

    send: sends the client a HealthCheckResponse; None ends its stream.
    last: the status that the client got last; only the sending thread uses it.
    """

    send: Callable[[Any], None]
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Behavior:
    """A handler with attributes by which grpcio gives it its own thread pool and lets it send answers by callback."""

    call: Callable[..., Any]
    experimental_thread_pool: ThreadPoolExecutor
    experimental_non_blocking: bool = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.call(*args, **options)


# Largest number of models whose health status is kept after they were served.
_MOST_GONE = 1000


class Health:
    """The health statuses of the server, its services and its models, which clients check or watch.

    Concurrency: any thread.

    Args:
      sees: finds the caller of a call, and returns whether this caller may see a service's status; a model that the
        caller may not see looks like an unknown service.
    """

    def __init__(self, sees: Callable[[grpc.ServicerContext], Callable[[str], bool]]) -> None:
        self._sees = sees
        self._lock = threading.Lock()
        self._statuses: dict[str, int] = {}
        self._watchers: dict[str, list[_Watcher]] = {}
        self._models: set[str] = set()
        # Names of models that are no longer served, the last one last. They keep the status NOT_SERVING.
        self._gone: dict[str, None] = {}
        self._is_stopped = False
        self._is_closed = False
        # Health checks have a thread of their own, so that they are answered while all the server's workers are busy.
        self._threads = Workers(1, "grpc-health")
        self._changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_changes, name="grpc-health-watch", daemon=True)
        self._sender.start()

    def handler(self) -> grpc.GenericRpcHandler:
        check = Behavior(self._check, self._threads)
        watch = Behavior(self._watch, self._threads, experimental_non_blocking=True)
        serialize = health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(check, response_serializer=serialize),
                "Watch": grpc.unary_stream_rpc_method_handler(watch, response_serializer=serialize),
            },
        )

    def set(self, service: str, is_serving: bool) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._statuses[service] = _SERVING if is_serving else _NOT_SERVING
        self._changed.put(service)

    def _unset(self, model: str) -> None:
        """Makes a model unknown, as if it had never been served."""
        del self._gone[model]
        with self._lock:
            if not self._is_stopped:
                self._statuses.pop(model, None)
        self._changed.put(model)

    def set_serving(self, engine: Engine, services: Sequence[str], is_serving: bool) -> None:
        problems = engine.problems()
        for name in services:
            self.set(name, is_serving)
        models = set(engine.models())
        for name in models:
            self.set(name, name not in problems and not engine.is_draining)
            self._gone.pop(name, None)
        for name in self._models - models:
            self.set(name, False)
            self._gone[name] = None
        self._models = models
        while len(self._gone) > _MOST_GONE:
            self._unset(next(iter(self._gone)))

    def stop(self) -> None:
        """Sets every health status to NOT_SERVING for good, sends this to watching clients, and ends their streams."""
        with self._lock:
            self._is_stopped = True
            self._statuses = dict.fromkeys(self._statuses, _NOT_SERVING)
        self._changed.put(None)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._is_closed = True
        self._changed.put(None)

    def serving(self) -> frozenset[str]:
        with self._lock:
            return frozenset(name for name, status in self._statuses.items() if status == _SERVING)

    def _check(self, data: bytes, context: grpc.ServicerContext) -> Any:
        sees, service = self._sees(context), _service(data, context)
        status = self._statuses.get(service) if sees(service) else None
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Unknown service: {service[:100]}")
        return health_pb2.HealthCheckResponse(status=status)

    def _watch(self, data: bytes, context: grpc.ServicerContext, send_response_callback: Callable[[Any], None]) -> None:
        """Sends a service's status now and at each change, and None at the end; another thread calls
        send_response_callback.
        """
        sees, service = self._sees(context), _service(data, context)
        # Names of gRPC services and of models hold no slashes, so a model that the caller may not see is watched like
        # an unknown service.
        service = service if sees(service) else f"/{service}"
        watcher = _Watcher(send_response_callback)
        with self._lock:
            self._watchers.setdefault(service, []).append(watcher)
        # The thread that sends changed health statuses to watchers also sends a new watcher's first status. If the
        # thread that adds the watcher sent it, it could arrive after a newer status.
        self._changed.put(None if self._is_stopped else service)

        def forget() -> None:
            self._forget(service, watcher)

        if not context.add_callback(forget):
            # add_callback() returns False if the client has disconnected already: then the callback never runs.
            forget()

    def _forget(self, service: str, watcher: _Watcher) -> bool:
        with self._lock:
            watchers = self._watchers.get(service, [])
            if watcher not in watchers:
                return False
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[service]
            return True

    def _send_changes(self) -> None:
        while not self._is_closed:
            service = self._changed.get()
            if service is None:
                self._end_watches()
            else:
                self._send_status(service)

    def _send_status(self, service: str) -> None:
        with self._lock:
            status, watchers = self._statuses.get(service, _UNKNOWN), list(self._watchers.get(service, ()))
        for watcher in watchers:
            if watcher.last != status:
                watcher.last = status
                watcher.send(health_pb2.HealthCheckResponse(status=status))

    def _end_watches(self) -> None:
        with self._lock:
            watched = {service: list(watchers) for service, watchers in self._watchers.items()}
        for service, watchers in watched.items():
            self._send_status(service)
            for watcher in watchers:
                if self._forget(service, watcher):
                    watcher.send(None)


def _service(data: bytes, context: grpc.ServicerContext) -> str:
    """Parses a health request and returns the service's name; ends the call if the request does not parse.

    It is parsed here, because grpcio itself would log a traceback for each request that does not parse.
    """
    try:
        return str(health_pb2.HealthCheckRequest.FromString(data).service)
    except DecodeError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The request can not be read: {error}")


REFLECTION_SERVICE = reflection.SERVICE_NAME
# Both versions of the reflection service are served, v1alpha and v1, which newer clients try first; both have the same
# messages.
REFLECTION_NAMES = (REFLECTION_SERVICE, "grpc.reflection.v1.ServerReflection")
# Most reflection streams that are served at a time; further streams wait until one of them ends.
_NUM_THREADS = 4


class Reflection:
    """The reflection service for the gRPC services in a descriptor pool. Concurrency: any thread."""

    def __init__(self, services: Sequence[str], pool: Any, check: Callable[[grpc.ServicerContext], object]) -> None:
        self._check = check
        self._threads = Workers(_NUM_THREADS, "grpc-reflection")
        self._servicer = reflection.ReflectionServicer(services, pool=_PoolWithMethods(pool))
        self._lock = threading.Lock()
        self._open: set[grpc.ServicerContext] = set()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
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
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        self._check(context)
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
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            found = self._pool.FindServiceByName(service)
            if method not in found.methods_by_name:
                raise
            return found.file


def _read(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
    for data in requests:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The request can not be read: {error}")
        yield request
