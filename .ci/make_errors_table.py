"""Writes docs/errors.md from the error tables of the server and of the client, and docs/mistakes.md from
tests/mistakes.toml; `--check` only compares the files.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generated_page

from embedding_client.errors import error_of
from service.errors import ServiceError
from service.grpc.refusals import STATUS_CODES
from service.http.errors import CODE_HEADER, ERROR_HEADERS, HTTP_STATUS

HEAD = f"""\
# Errors

This page lists every error that a client can get. An error has one canonical code, a name of `google.rpc.Code`, and one
HTTP status.

- **gRPC**: the call's status is the canonical code; its text is the message, cut at 1024 bytes.
- **HTTP**: the body is `{{"error": "<message>"}}`, and the header `{CODE_HEADER}` holds the canonical code, because
    several codes share a status.
- **Open Inference Protocol**: the same as HTTP or gRPC.
- **Python client**: the exception in the column "Client", with the code and the message ([client.md](client.md)).

The message names the input, the value that the client sent and the value that the server expects. For a fault of the
server the message has a request id instead, under which the server's log has the cause. UNAVAILABLE means that the same
request may succeed later: wait, at least as long as `Retry-After` says, and try again. [wire.md](wire.md#error-table)
lists errors that are not in this table. [mistakes.md](mistakes.md) has a hundred wrong requests with their answers.

This file is generated from `service/errors.py` (`make generated`).

| Error | Code (gRPC) | HTTP | Headers | Client | When |
|---|---|---|---|---|---|
"""

MISTAKES_HEAD = """\
# Common mistakes and their errors

This page lists typical wrong requests to a small copy of the demo's model, with 60 users and 80 films (`model-export
demo --dataset synthetic`), and what the server answers. Where TensorFlow Serving has a text for a mistake, its text
stands first, to the letter; but the inputs of a prediction with ragged features are named as in JSON. An empty cell:
the mistake can not be made over that protocol. [errors.md](errors.md) lists codes and statuses.

This file is generated from `tests/mistakes.toml` (`make generated`); `tests/integration/test_mistakes.py` sends each
request to a server.
"""
MISTAKES_GROUP = """
## {}

| Mistake | Request over HTTP | HTTP | gRPC | Text |
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
    client = type(error_of(code, "")).__name__
    about = " ".join((cls.__doc__ or "").split())
    return generated_page.row(cls.__name__, code, str(HTTP_STATUS[cls]), headers, client, about)


def mistakes_page() -> str:
    """Returns the page of mistakes: a table for each group of them."""
    mistakes = tomllib.loads((Path(__file__).parents[1] / "tests/mistakes.toml").read_text())["mistake"]
    groups: dict[str, str] = {}
    for one in mistakes:
        groups[one["group"]] = groups.get(one["group"], "") + _mistake(one)
    return MISTAKES_HEAD + "".join(MISTAKES_GROUP.format(group) + rows for group, rows in groups.items())


def _mistake(one: dict[str, Any]) -> str:
    request = " ".join(filter(None, (one.get("call"), one.get("body"))))
    text = _code(one.get("text", one.get("grpc_text", "")))
    if "text" in one and "grpc_text" in one:
        text += f" gRPC: {_code(one['grpc_text'])}"
    if "models" in one:
        text += f', and in the field "models": {_code(", ".join(one["models"]))}'
    status = one.get("status", "") + (f", Allow: {one['allow']}" if "allow" in one else "")
    return generated_page.row(one["name"], _code(request), status, one.get("code", ""), text)


def _code(text: str) -> str:
    return f"`` {' '.join(text.split())} ``" if text.strip() else ""


if __name__ == "__main__":
    sys.exit(generated_page.run({"errors.md": page(), "mistakes.md": mistakes_page()}))
