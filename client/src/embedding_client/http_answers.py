"""Makes a request's HTTP headers, and converts a response to a Reply, or to the error that gRPC would have given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from embedding_client.calls import Call, Reply
from embedding_client.errors import EmbeddingError, Unavailable, error_of
from embedding_client.targets import Target

_CODE_OF_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    # 502 Bad Gateway: a proxy did not reach the server.
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# First words of error texts that TensorFlow Serving and this server send with code FAILED_PRECONDITION over gRPC, but
# with status 400 over HTTP.
_PRECONDITIONS = ("Serving signature ", 'Signature "')
_SHOWN_CHARS = 300
# The header with the length of the JSON before binary tensors.
_JSON_LENGTH = "Inference-Header-Content-Length"


# Names of the errors of a connection that the server has closed, as a gRPC port does to HTTP/1.1, or on which its
# answer was no HTTP/1.1, as that of a port with TLS.
_CLOSED = ("ConnectionResetError", "RemoteDisconnected", "BadStatusLine", "ReadError", "RemoteProtocolError")


def no_connection(target: Target, error: Exception) -> Unavailable:
    """Returns the error of a request whose connection could not be opened, or was closed before the answer."""
    kind = type(error).__name__
    hint = ""
    if "WRONG_VERSION_NUMBER" in str(error):
        hint = ". This port has no TLS: begin the target with http://."
    elif kind in _CLOSED and target.tls is None:
        hint = (
            ". Is this the server's HTTP port, by default 8501? A gRPC port closes such connections; for a port with "
            "TLS, begin the target with https://."
        )
    return Unavailable("UNAVAILABLE", f"No connection to {target}: {kind}: {error}{hint}")


def request_headers(call: Call[Any]) -> dict[str, str]:
    """Returns the HTTP headers of a request, without those for its connection and its sender."""
    if call.body is None:
        return {}
    if call.json_length is None:
        return {"Content-Type": "application/json"}
    return {"Content-Type": "application/octet-stream", _JSON_LENGTH: str(call.json_length)}


def checked(status: int, body: bytes, header: Callable[[str], str | None]) -> Reply:
    """Returns the Reply of an HTTP response with status 200; raises EmbeddingError for another status.

    Args:
      header: returns a response header's value by its name. A Retry-After that is a date is ignored.

    Raises:
      EmbeddingError: the status is not 200.
    """
    if status == 200:
        return Reply(body, _number(header("X-Model-Version")), _number(header(_JSON_LENGTH)))
    raise _error(status, body, header)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _error(status: int, body: bytes, header: Callable[[str], str | None]) -> EmbeddingError:
    text = _text(body) or f"HTTP status {status} without an error text."
    code = _CODE_OF_STATUS.get(status)
    if code is None:
        code = "INVALID_ARGUMENT" if 400 <= status < 500 else "INTERNAL" if status == 500 else "UNKNOWN"
    if status == 400 and text.startswith(_PRECONDITIONS):
        code = "FAILED_PRECONDITION"
    # embedding-server sends the gRPC code in the header X-Error-Code; TensorFlow Serving has no such header.
    code = header("X-Error-Code") or code
    retry_after = header("Retry-After")
    seconds = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
    return error_of(code, text, seconds)


def _text(body: bytes) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        # A body that is not JSON is probably the error page of a proxy: its first characters become the error's text.
        return body.decode("utf-8", "replace")[:_SHOWN_CHARS]
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, str) else body.decode("utf-8", "replace")[:_SHOWN_CHARS]
