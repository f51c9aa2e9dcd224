"""Finds the caller of a gRPC call in grpcio's call context, the only source of the client's certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from service.access.callers import Grant, names_of_auth_context
from service.errors import Unauthenticated
from service.grpc.guard import Guard, HealthFor
from service.grpc.health import SERVICE_NAME, Health
from service.grpc.refusals import Refusals
from service.grpc.server_reflection import REFLECTION_NAMES, Reflection
from service.grpc.status_codes import STATUS_CODES
from service.native.forwarded import Forwarding


class ContextGuard:
    """The check of callers for grpcio: finds a call's caller, ends an unknown caller's calls. Concurrency: any thread.

    Args:
      forwarding: reads the names in client certificates, which the native core passes on in headers.
    """

    def __init__(self, guard: Guard, forwarding: Forwarding) -> None:
        self._guard = guard
        self._forwarding = forwarding
        self._refusals = Refusals()

    def grant(self, path: str, context: grpc.ServicerContext) -> Grant:
        """Returns the rights (the grant) of a gRPC call's caller; ends the call if the caller is unknown."""
        headers = headers_of(context)
        values = [value for name, value in headers if name == b"authorization"]
        # auth_context has the type Any, because a key can have several values, and grpcio's type stubs allow only one.
        auth_context: Any = context.auth_context()
        try:
            names = names_of_auth_context(auth_context) | self._forwarding.names(headers)
            return self._guard.grant(path, values, names)
        except Unauthenticated as error:
            code, text = self._refusals(error)
            context.abort(STATUS_CODES[code], text)


class CallerTable(grpc.GenericRpcHandler):
    """The dispatcher of gRPC calls: each caller has a table of methods, over an engine that checks its rights.

    Args:
      make: makes the table of methods of one caller.
    """

    def __init__(self, guard: ContextGuard, make: Callable[[Grant], grpc.GenericRpcHandler]) -> None:
        self._guard = guard
        self._make = make

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Returns the handler of a gRPC method for grpcio.

        None for health and reflection, which have handlers of their own.
        """
        path = handler_call_details.method
        if path.startswith((f"/{SERVICE_NAME}/", *(f"/{name}/" for name in REFLECTION_NAMES))):
            return None

        def serve(data: bytes, context: grpc.ServicerContext) -> bytes:
            grant = self._guard.grant(path, context)
            handler: Any = grant.keep("grpcio", lambda: self._make(grant)).service(handler_call_details)
            if handler is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            answer: bytes = handler.unary_unary(data, context)
            return answer

        return grpc.unary_unary_rpc_method_handler(serve)


class GuardedHealth(Health):
    """A health service that finds the caller of each call, and hides models on which this caller has no right."""

    def __init__(self, guard: ContextGuard) -> None:
        super().__init__()
        self._guard = guard

    def _seen_by(self, context: grpc.ServicerContext) -> HealthFor:
        return HealthFor(self, self._guard.grant(f"/{SERVICE_NAME}/Check", context))


class GuardedReflection(Reflection):
    """A reflection service that answers only callers who may use reflection."""

    def __init__(self, guard: ContextGuard, *args: Any) -> None:
        super().__init__(*args)
        self._guard = guard

    def _answer(self, requests: Any, context: grpc.ServicerContext) -> Any:
        self._guard.grant(f"/{REFLECTION_NAMES[0]}/ServerReflectionInfo", context)
        return super()._answer(requests, context)


def headers_of(context: grpc.ServicerContext) -> list[tuple[bytes, bytes]]:
    """Returns the metadata (headers) of a gRPC call as pairs of bytes."""
    metadata = context.invocation_metadata() or ()
    return [(key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in metadata]
