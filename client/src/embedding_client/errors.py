"""Defines the errors of client calls. gRPC and HTTP raise the same class with the same code for the same fault.

EmbeddingError
  InvalidRequest     INVALID_ARGUMENT  FAILED_PRECONDITION  OUT_OF_RANGE   the request can not succeed as it was sent
  NotFound           NOT_FOUND                                             no such model, version or table
  TooLarge           RESOURCE_EXHAUSTED                                    over a limit of the server
  Refused            UNAUTHENTICATED  PERMISSION_DENIED
  Unavailable        UNAVAILABLE                                           no connection, loading, overloaded: try later
  DeadlineExceeded   DEADLINE_EXCEEDED                                     no answer within timeout_s
  Unimplemented      UNIMPLEMENTED                                         not on this server, or not on this wire
  ServerFault        INTERNAL  UNKNOWN  DATA_LOSS  ABORTED  ALREADY_EXISTS  CANCELLED

Source of the codes: google/rpc/code.proto.
"""

from __future__ import annotations


class EmbeddingError(Exception):
    """Base class of all errors that a call of the client raises.

    code: a name of google.rpc.Code.
    message: the server's text, or the client's own if it refused the request.
    retry_after_s: how long the server asks to wait before the next try; None if it does not ask.
    attempts: how often the request was sent; 0 if the client refused it.
    """

    def __init__(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(code, message, retry_after_s)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.attempts = 0

    @property
    def is_retryable(self) -> bool:
        """Whether this error's code is UNAVAILABLE: all tries of the client failed, but a later call may succeed."""
        return self.code == "UNAVAILABLE"

    def __str__(self) -> str:
        tries = f" (tried {self.attempts} times)" if self.attempts > 1 else ""
        return f"{self.code}: {self.message}{tries}"


class InvalidRequest(EmbeddingError):
    """Raised for a request that can never succeed as it was sent."""


class NotFound(EmbeddingError):
    """Raised if the server does not have the model, version or table that a request names."""


class TooLarge(EmbeddingError):
    """Raised if a request, or the answer to it, exceeds a limit of the server."""


class Refused(EmbeddingError):
    """Raised if the server, or a proxy before it, refuses a client's credentials, or the client lacks the right."""


class Unavailable(EmbeddingError):
    """Raised if the client can not reach the server, or the server can not answer now: it loads, drains or is full."""


class DeadlineExceeded(EmbeddingError):
    """Raised if the server did not answer a call within timeout_s."""


class Unimplemented(EmbeddingError):
    """Raised if the server, or the protocol of the client (gRPC or HTTP), lacks the called method."""


class ServerFault(EmbeddingError):
    """Raised if the server failed, or the client can not decode its answer."""


_CLASS_OF_CODE: dict[str, type[EmbeddingError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "FAILED_PRECONDITION": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "NOT_FOUND": NotFound,
    "RESOURCE_EXHAUSTED": TooLarge,
    "UNAUTHENTICATED": Refused,
    "PERMISSION_DENIED": Refused,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNIMPLEMENTED": Unimplemented,
}


def error_of(code: str, message: str, retry_after_s: float | None = None) -> EmbeddingError:
    """Returns the exception for a google.rpc code; ServerFault if no other class stands for the code.

    >>> error_of("NOT_FOUND", "Servable not found for request: Latest(m)")
    NotFound('NOT_FOUND', 'Servable not found for request: Latest(m)', None)
    """
    return _CLASS_OF_CODE.get(code, ServerFault)(code, message, retry_after_s)


def invalid(message: str) -> InvalidRequest:
    """Makes the InvalidRequest error for a request that the client itself refuses to send."""
    return InvalidRequest("INVALID_ARGUMENT", message)
