"""Answers browsers that show no credentials with a page, where other clients get the error as JSON."""

from __future__ import annotations

from html import escape

from starlette.responses import Response

from service.errors import Unauthenticated
from service.http.errors import CODE_HEADER, ERROR_HEADERS, HTTP_STATUS

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign in</title></head>
<body><h1>Sign in</h1><p>{}</p></body>
</html>
"""
_CLOSED = (
    "This server shows its pages only to callers that it knows, and its console is closed. The operator opens it with "
    "<code>open = [..., &quot;console&quot;]</code> in the file of <code>--auth_config</code>."
)


def sign_in_page(path: str, *, is_open: bool) -> Response:
    """Returns the answer 401 to a browser: a page with a link to the console, where people sign in.

    Args:
      path: of the request, from which the link leads to the console; a proxy may serve both under a prefix.
      is_open: whether --auth_config opens the console to everybody.
    """
    console = "../" * max(path.count("/") - 1, 0) + "console"
    text = (
        f'<a href="{escape(console)}">Sign in with your token</a>, then open this page again.' if is_open else _CLOSED
    )
    headers = {CODE_HEADER: Unauthenticated.code, "Vary": "Accept", "Cache-Control": "no-store"}
    headers |= ERROR_HEADERS[Unauthenticated]
    return Response(_PAGE.format(text), HTTP_STATUS[Unauthenticated], headers, media_type="text/html")


def wants_html(accept: str) -> bool:
    """Says whether an Accept header names HTML before JSON; False if it names neither.

    >>> wants_html("text/html,application/xhtml+xml,*/*;q=0.8"), wants_html("application/json, text/html")
    (True, False)
    """
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((name == "text/html" for name in named if name in ("text/html", "application/json")), False)
