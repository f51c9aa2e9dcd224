"""Health and server reflection as conversations over bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.core.errors import MalformedPayload, NotReady
from service.transports.grpc.h2.streaming import Answers
from service.transports.grpc.health import Health
from service.transports.grpc.paths import Handler


def health_check(health: Health) -> Handler:
    """Returns grpc.health.v1.Health/Check."""

    def check(data: bytes, deadline_s: float | None) -> bytes:
        answer: bytes = health.check(_parsed(health_pb2.HealthCheckRequest, data).service).SerializeToString()
        return answer

    return check


class HealthWatch:
    """grpc.health.v1.Health/Watch."""

    def __init__(self, health: Health, answers: Answers) -> None:
        self._health = health
        self._answers = answers
        self._forget: Callable[[], None] | None = None

    def message(self, data: bytes) -> None:
        """See Conversation."""
        if self._forget is not None:
            raise MalformedPayload("The request holds more than one message.")
        service = _parsed(health_pb2.HealthCheckRequest, data).service
        self._forget = self._health.watch(service, self._send)

    def half_closed(self) -> None:
        """See Conversation."""
        if self._forget is None:
            raise MalformedPayload("The request holds no message.")

    def draining(self) -> None:
        """See Conversation; Health ends it by itself."""

    def closed(self) -> None:
        """See Conversation."""
        if self._forget is not None:
            self._forget()

    def _send(self, status: Any) -> None:
        if status is None:
            self._answers.end()
        else:
            self._answers.send(status.SerializeToString())


class Reflection:
    """grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo: one answer per message."""

    def __init__(self, servicer: reflection.ReflectionServicer, answers: Answers) -> None:
        self._servicer = servicer
        self._answers = answers

    def message(self, data: bytes) -> None:
        """See Conversation."""
        request = _parsed(reflection_pb2.ServerReflectionRequest, data)
        for answer in self._servicer.ServerReflectionInfo(iter([request]), None):
            self._answers.send(answer.SerializeToString())

    def half_closed(self) -> None:
        """See Conversation."""
        self._answers.end()

    def draining(self) -> None:
        """See Conversation; whoever keeps it open would hold up the stop."""
        raise NotReady("The server is shutting down.")

    def closed(self) -> None:
        """See Conversation."""


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise MalformedPayload(f"The request can not be read: {error}") from error
