"""Converts the exception of a gRPC call to a status for the client and a line in the log.

Source of the limit on texts: tensorflow_serving/model_servers/grpc_status_util.cc (9d981c5).
"""

from __future__ import annotations

import itertools
import logging
import secrets
from typing import get_args

import grpc

from service.control import request_context
from service.errors import Code, Overloaded, ServiceError

STATUS_CODES: dict[str, grpc.StatusCode] = {code: grpc.StatusCode[code] for code in get_args(Code)}

_MAX_DETAIL_BYTES = 1024
_CUT_MARK = "...TRUNCATED"


def details(text: str) -> str:
    """Returns an error text as valid UTF-8 of at most 1024 bytes, followed by "...TRUNCATED" if it was longer.

    >>> details("x" * 2000)[1020:]
    'xxxx...TRUNCATED'
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= _MAX_DETAIL_BYTES:
        return data.decode()
    return data[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore") + _CUT_MARK


logger = logging.getLogger(__name__)

# Error codes that are logged as warnings, because the server or its load causes them, and not the client. Overloaded is
# only a debug line, although its code is UNAVAILABLE.
_OURS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
# Trailer by which an overloaded server tells clients to retry after 1000 ms. Source: gRPC A6, "Pushback".
_PUSHBACK_KEY, _PUSHBACK_MS = "grpc-retry-pushback-ms", "1000"


def retry_hint(error: BaseException) -> tuple[tuple[str, str], ...]:
    return ((_PUSHBACK_KEY, _PUSHBACK_MS),) if isinstance(error, Overloaded) else ()


class Refusals:
    """The converter of gRPC calls' exceptions to statuses, which also logs them. Concurrency: any thread."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def __call__(self, error: BaseException) -> tuple[str, str]:
        """Logs an exception, and returns its canonical code and the text for the client.

        The client does not get the text of an unexpected error, which is only logged.
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
                # Refusals by overload are counted in metrics and not logged: there may be thousands a second, and a log
                # line costs more than a refusal.
                level = logging.DEBUG
            extra = {"code": error.code, "request_id": request_id}
            # The logged error text is cut to 1 KB by details(): it may quote a value of the request, which may have
            # megabytes.
            logger.log(level, "request refused: %s", ascii(details(text)), extra=extra)
        return error.code, details(text)

    def new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers):x}"
