"""Writes docs/errors.md from service.errors and the error tables of HTTP and gRPC; `--check` only compares the file."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import generated_page

from service.errors import ServiceError
from service.grpc.status_codes import STATUS_CODES
from service.http.errors import CODE_HEADER, ERROR_HEADERS, HTTP_STATUS

HEAD = f"""\
# Errors

This page lists every error that a client can get. An error has one canonical code, a name of `google.rpc.Code`, and one
HTTP status.

- **gRPC**: the call's status is the canonical code; its text is the message, cut at 1024 bytes.
- **HTTP**: the body is `{{"error": "<message>"}}`, and the header `{CODE_HEADER}` holds the canonical code, because
    several codes share a status.
- **Open Inference Protocol**: the same as HTTP or gRPC.

The message names the input, the value that the client sent and the value that the server expects. For a fault of the
server the message has a request id instead, under which the server's log has the cause. UNAVAILABLE means that the same
request may succeed later: wait, at least as long as `Retry-After` says, and try again. [wire.md](wire.md#error-table)
lists errors that are not in this table.

This file is generated from `service/errors.py` (`make generated`).

| Error | Code (gRPC) | HTTP | Headers | When |
|---|---|---|---|---|
"""


def page() -> str:
    """Returns the page's text: one row for each error class, in the order of service/errors.py."""
    return HEAD + "".join(_row(cls) for cls in _subclasses(ServiceError))


def _subclasses(base: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _row(cls: type[ServiceError]) -> str:
    headers = ", ".join(f"`{name}: {value}`" for name, value in ERROR_HEADERS.get(cls, {}).items())
    code = STATUS_CODES[cls.code].name
    return generated_page.row(cls.__name__, code, str(HTTP_STATUS[cls]), headers, " ".join((cls.__doc__ or "").split()))


if __name__ == "__main__":
    sys.exit(generated_page.run({"errors.md": page()}))
