"""Adds to answers of GET requests headers that forbid browsers to guess content types, run foreign scripts, or show
answers in frames.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from re import DOTALL, findall

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_POLICY = b"content-security-policy"
# The Content-Security-Policy of answers that set none: a browser must not load or run anything for them.
_NOTHING = (_POLICY, b"default-src 'none'; frame-ancestors 'none'")


class SecurityHeadersMiddleware:
    """ASGI middleware: adds security headers to the answers of GET requests, which browsers show.

    Concurrency: event loop only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application, and adds security headers to its answer if the request is a GET or HEAD."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], *_HEADERS]
                if not any(name == _POLICY for name, _ in headers):
                    headers.append(_NOTHING)
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_marked)


def page_policy(page: str, sources: str) -> str:
    """Returns the Content-Security-Policy of an HTML page, which allows its own inline scripts and given sources.

    >>> page_policy("<script>1</script>", "'self'").split("; ")[1]
    "script-src 'self' 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in findall(_SCRIPT, page, DOTALL)]
    scripts = " ".join([sources, *(f"'sha256-{digest}'" for digest in digests)])
    # The Content-Security-Policy of an HTML page allows inline styles and `data:` images, because Swagger UI needs
    # both.
    return (
        f"default-src 'none'; script-src {scripts}; style-src {sources} 'unsafe-inline'; "
        f"img-src {sources} data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


_SCRIPT = r"<script>(.*?)</script>"
