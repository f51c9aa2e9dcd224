"""Converts a call's exception to the status for the client and a line in the log."""

from __future__ import annotations

import itertools
import logging
import secrets

from service.engine import request_context
from service.errors import Overloaded, ServiceError
from service.grpc.status_codes import details

logger = logging.getLogger(__name__)

# Codes of errors that the server or its load causes; they are logged as warnings.
_OURS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
# Milliseconds after which a client may try again. Source: gRPC A6, "Pushback".
_PUSHBACK_KEY, _PUSHBACK_MS = "grpc-retry-pushback-ms", "1000"


def retry_hint(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Returns the trailers that say when the client may try again; none for errors that a retry can not cure."""
    return ((_PUSHBACK_KEY, _PUSHBACK_MS),) if isinstance(error, Overloaded) else ()


class Refusals:
    """Converts the exceptions of calls to statuses, and logs them. Concurrency: any thread."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def __call__(self, error: BaseException) -> tuple[str, str]:
        """Returns an exception's canonical code and text, and logs both.

        The text of an unexpected error is only logged.
        """
        request_id = request_context.request_id.get().decode("latin-1") or self.new_id()
        if not isinstance(error, ServiceError):
            logger.error("unexpected error", extra={"request_id": request_id}, exc_info=error)
            return "INTERNAL", f"Internal error; the server's log has the cause, request id {request_id}"
        text = error.message
        if error.code == "INTERNAL":
            logger.error("request failed: %s", text, extra={"request_id": request_id}, exc_info=error)
            text += f" Request id: {request_id}"
        else:
            level = logging.WARNING if error.code in _OURS else logging.INFO
            if isinstance(error, Overloaded):
                # Thousands may be refused a second, and a log line costs more than a refusal: metrics count them.
                level = logging.DEBUG
            logger.log(level, "request refused: %s", ascii(text), extra={"code": error.code, "request_id": request_id})
        return error.code, details(text)

    def new_id(self) -> str:
        """Returns a request id for a gRPC call that came without one."""
        return f"{self._prefix}-{next(self._numbers):x}"
