"""Serves gRPC calls with grpcio: calls that the core forwards, and streams; checks the rights of their callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import grpc

from service.access.callers import Callers, Grant, Part
from service.control import request_context
from service.control.engine import Engine
from service.control.request_context import Call
from service.core.forwarded import Forwarding
from service.errors import ModelNotFound, Unauthenticated, Unimplemented, models_told
from service.grpc.health import HEALTH_SERVICE, REFLECTION_NAMES, Health, Reflection
from service.grpc.methods import (
    HEALTH_NAMES,
    INFERENCE_SERVICE,
    SERVICES,
    TENSOR_ENCODING_KEY,
    UNIMPLEMENTED,
    descriptor_pool,
    unary_handlers,
)
from service.grpc.refusals import STATUS_CODES, Refusals, retry_hint
from service.versions.threads import Workers
from service.wire.api import GRPC_API, PREDICT, Handler

_OPEN_PATHS: dict[str, Part] = {
    **{f"/{HEALTH_SERVICE}/{method}": "health" for method in ("Check", "Watch")},
    **{f"/{INFERENCE_SERVICE}/{method}": "health" for method in ("ServerLive", "ServerReady", "ServerMetadata")},
    **{f"/{name}/ServerReflectionInfo": "reflection" for name in REFLECTION_NAMES},
}


class Guard:
    """The check of gRPC calls' callers: finds a call's caller, and ends calls of unknown callers.

    Concurrency: any thread.

    engine: checks the rights of the current caller.
    """

    def __init__(self, callers: Callers, engine: Engine, forwarding: Forwarding) -> None:
        self.engine = engine
        self._callers = callers
        self._forwarding = forwarding
        self._refusals = Refusals()

    @contextmanager
    def acting(self, path: str, context: grpc.ServicerContext) -> Iterator[None]:
        with self._callers.acting(self._grant(path, context)):
            yield

    def sees(self, context: grpc.ServicerContext) -> Callable[[str], bool]:
        """Returns whether the caller of a health check may see a service: each of the server's, a model with a right on
        it.
        """
        grant = self._grant_or_end(f"/{HEALTH_SERVICE}/Check", context)
        return lambda service: service in HEALTH_NAMES or bool(grant.rights(service))

    def check_reflection(self, context: grpc.ServicerContext) -> None:
        self._grant_or_end(f"/{REFLECTION_NAMES[0]}/ServerReflectionInfo", context)

    def _grant_or_end(self, path: str, context: grpc.ServicerContext) -> Grant:
        try:
            return self._grant(path, context)
        except Unauthenticated as error:
            code, text = self._refusals(error)
            context.abort(STATUS_CODES[code], text)

    def _grant(self, path: str, context: grpc.ServicerContext) -> Grant:
        headers = _headers(context)
        values = [value for name, value in headers if name == b"authorization"]
        value = None if not values else values[0] if len(values) == 1 else b""
        try:
            return self._callers.authenticate(value, self._forwarding.names(headers))
        except Unauthenticated:
            part = _OPEN_PATHS.get(path)
            if part is None or not self._callers.is_open(part):
                raise
            return self._callers.nobody


class _Everybody:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def acting(self, path: str, context: grpc.ServicerContext) -> AbstractContextManager[None]:
        return nullcontext()

    def sees(self, context: grpc.ServicerContext) -> Callable[[str], bool]:
        return lambda service: True

    def check_reflection(self, context: grpc.ServicerContext) -> None:
        pass


# Searches count themselves, and the probes of orchestrators are not counted.
_UNCOUNTED = (PREDICT, *(f"/{INFERENCE_SERVICE}/{method}" for method in ("ServerLive", "ServerReady", "ModelReady")))


def _call(path: str) -> Call:
    """Returns what a call is counted as; the path is "" for unknown methods, whose names are the clients'."""
    return Call(GRPC_API, path.rpartition("/")[2], is_control=bool(path))


_INT32_MAX = 2**31 - 1
# Twice the native core's limit on a request's headers (max_header_list_bytes, 64 KB), because the core adds headers to
# the requests that it forwards.
_MAX_METADATA_BYTES = 128 << 10
_CONTEXT_KEYS = (request_context.REQUEST_ID, request_context.TRACEPARENT)


# gRPC's options of a server behind the native core, which keeps one connection and pings each second. Other processes
# of this machine can connect to an abstract name too, but can not use up the process's descriptors.
_CORE_OPTIONS: dict[str, int | str] = {"grpc.http2.max_ping_strikes": 0, "grpc.max_allowed_incoming_connections": 8}


class GrpcServer:
    """The gRPC server in Python, with TensorFlow Serving's API and the Open Inference Protocol.

    Args:
      abstract_name: name of the abstract Unix socket to listen on, where only the native core may call.
      as_content: answers have tensor_content unless a request asks for the other form.

    Concurrency: any thread; start and stop once.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        abstract_name: str,
        max_message_bytes: int,
        max_workers: int,
        as_content: bool = False,
        guard: Guard | None = None,
        forwarding: Forwarding,
    ) -> None:
        self._engine = engine
        self._abstract_name = abstract_name
        self._threads = Workers(max_workers, "grpc")
        known = guard or _Everybody(engine)
        self._health = Health(known.sees)
        self._reflection = Reflection(SERVICES, descriptor_pool(), known.check_reflection)
        core_only: list[grpc.ServerInterceptor] = [_CoreOnly(forwarding)]
        self._server = grpc.server(
            self._threads,
            handlers=[
                self._health.handler(),
                *self._reflection.handlers(),
                # The last one, because it also answers calls of unknown methods.
                _MethodTable(known, forwarding, as_content=as_content),
            ],
            options=list({**_options(max_message_bytes), **_CORE_OPTIONS}.items()),
            interceptors=core_only,
        )

    def start(self) -> None:
        address = f"unix-abstract:{self._abstract_name}"
        try:
            self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"gRPC can not listen on {address}: is it in use?") from error
        self.set_serving(self._engine.is_ready)
        self._server.start()

    def set_serving(self, is_serving: bool) -> None:
        self._health.set_serving(self._engine, HEALTH_NAMES, is_serving)

    def serving(self) -> frozenset[str]:
        return self._health.serving()

    def stop(self, grace_s: float) -> None:
        """Refuses new requests at once, and cancels those that have not ended after grace_s seconds; blocks."""
        self._health.stop()
        self._reflection.stop()
        try:
            stopped = self._server.stop(grace_s)
        except RuntimeError:
            # The system starts no thread that would wait.
            stopped = self._server.stop(None)
        stopped.wait()
        self._health.close()
        self._reflection.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _CoreOnly(grpc.ServerInterceptor):
    """The guard of a server behind the native core: ends calls of other processes, which lack the core's seal."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._refused: Any = grpc.unary_unary_rpc_method_handler(_refuse_others)

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        is_core = self._forwarding.is_core(handler_call_details.invocation_metadata or ())
        return continuation(handler_call_details) if is_core else self._refused


def _refuse_others(data: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "Only the server's own process may call here.")


def _options(max_message_bytes: int) -> dict[str, int | str]:
    return {
        "grpc.max_receive_message_length": max_message_bytes,
        # The limit on the size of answers is TensorFlow Serving's; it is not max_message_bytes, as answers may be
        # larger than requests.
        "grpc.max_send_message_length": _INT32_MAX,
        # The gRPC server's limit on metadata is larger than the native core's, because the core adds headers to the
        # requests that it forwards to this server.
        "grpc.max_metadata_size": _MAX_METADATA_BYTES,
        "grpc.absolute_max_metadata_size": _MAX_METADATA_BYTES,
        # SO_REUSEPORT is off: with it, a second server could listen on the same port, and each request would reach one
        # of the two.
        "grpc.so_reuseport": 0,
    }


class _MethodTable(grpc.GenericRpcHandler):
    """The table of gRPC methods by path; handlers get and return bytes, because no serializers are given to grpcio.

    The handler is also chosen by the form of answer in the request's metadata: choosing later would cost each request.
    """

    def __init__(self, guard: Guard | _Everybody, forwarding: Forwarding, *, as_content: bool) -> None:
        serve = _Serve(guard, forwarding)
        self._as_content = as_content
        self._handlers: dict[tuple[str, bool], grpc.RpcMethodHandler[bytes, bytes]] = {
            (path, in_content): grpc.unary_unary_rpc_method_handler(partial(serve, path, handler))
            for in_content in (False, True)
            for path, handler in unary_handlers(guard.engine, as_content=in_content).items()
        }
        self._refusals = {path: _refusing(serve, path, text) for path, text in UNIMPLEMENTED.items()}
        # An unknown caller must not learn which methods there are, so this handler checks callers, too. It also counts
        # the call, which grpcio's own handler would not.
        self._unknown = _refusing(serve, "", "Method not found!")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        as_content = self._as_content
        for key, value in handler_call_details.invocation_metadata or ():
            if key == TENSOR_ENCODING_KEY:
                as_content = value != "values"
        path = handler_call_details.method
        return self._handlers.get((path, as_content)) or self._refusals.get(path, self._unknown)


class _Serve:
    """The adapter from grpcio to handlers: calls a handler, and converts its errors to gRPC statuses.

    Concurrency: any thread.
    """

    def __init__(self, guard: Guard | _Everybody, forwarding: Forwarding) -> None:
        self._engine = guard.engine
        self._guard = guard
        self._forwarding = forwarding
        self._refusals = Refusals()

    def __call__(self, path: str, handler: Handler, data: bytes, context: grpc.ServicerContext) -> bytes:
        if not context.is_active():
            # The client has cancelled the call while it waited for a thread, so nobody reads this answer.
            return b""
        self._enter(context)
        try:
            with self._guard.acting(path, context):
                remaining_s = context.time_remaining()
                deadline_s = None if remaining_s is None else self._engine.clock() + remaining_s
                try:
                    answer = handler(data, deadline_s)
                except ModelNotFound as error:
                    raise ModelNotFound(f"{error.message}{models_told(self._engine.models())}") from error
        except Exception as error:
            # Predict counts its own refusals.
            if path not in _UNCOUNTED:
                self._engine.reject(error, _call(path))
            self._abort(context, error)
        if path not in _UNCOUNTED:
            self._engine.answered(_call(path))
        return answer

    def _enter(self, context: grpc.ServicerContext) -> None:
        named = {key: value for key, value in context.invocation_metadata() or () if key in _CONTEXT_KEYS}
        parent = str(named.get(request_context.TRACEPARENT, "")).encode("latin-1", "replace")
        own_id = request_context.sane_id(str(named.get(request_context.REQUEST_ID, "")).encode("latin-1", "replace"))
        if own_id:
            context.send_initial_metadata(((request_context.REQUEST_ID, own_id.decode()),))
        own_id = own_id or request_context.trace_id(parent)
        request_context.enter(own_id, parent, self._forwarding.client(_headers(context)))

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        if not request_context.request_id.get():
            request_context.request_id.set(self._refusals.new_id().encode())
        own_id = request_context.request_id.get().decode()
        context.set_trailing_metadata(((request_context.REQUEST_ID, own_id), *retry_hint(error)))
        code, text = self._refusals(error)
        context.abort(STATUS_CODES[code], text)


def _headers(context: grpc.ServicerContext) -> list[tuple[bytes, bytes]]:
    metadata = context.invocation_metadata() or ()
    return [(key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in metadata]


def _refusing(serve: _Serve, path: str, text: str) -> grpc.RpcMethodHandler[bytes, bytes]:
    def refuse(data: bytes, deadline_s: float | None) -> bytes:
        raise Unimplemented(text)

    return grpc.unary_unary_rpc_method_handler(partial(serve, path, refuse))
