"""Calls over HTTP for an event loop, with httpx, which only this needs: it is the extra `client`."""

from __future__ import annotations

import asyncio
from typing import Any

from service.client.bearer import NO_TOKEN, Bearer
from service.client.calls import Call
from service.client.errors import DeadlineExceeded, Unavailable
from service.client.http_answers import checked
from service.client.targets import Target

_MAX_CONNECTIONS = 100
_GET_HEADERS: dict[str, str] = {}
_POST_HEADERS = {"Content-Type": "application/json"}


class AsyncHttpTransport:
    """A pool of connections; more requests than that wait for one. Concurrency: event loop only, made there too.

    Raises:
      ImportError: httpx is not installed.
    """

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ImportError(
                "AsyncEmbeddingClient over HTTP needs httpx: pip install 'embedding-server[client]'; "
                "over gRPC it needs nothing more."
            ) from error
        self._target = target
        self._bearer = bearer
        self._failure = httpx.TransportError
        self._client = httpx.AsyncClient(
            base_url=str(target),
            verify=True if target.tls is None else target.tls.ssl_context(),
            # The environment's proxies are meant for the internet.
            trust_env=False,
            # The deadline is kept here, over the whole exchange.
            timeout=None,
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS),
        )

    async def send(self, call: Call[Any], timeout_s: float) -> bytes:
        """Returns the answer's body; raises EmbeddingError."""
        try:
            async with asyncio.timeout(timeout_s):
                if call.body is None:
                    response = await self._client.get(call.path, headers=self._bearer.headers(_GET_HEADERS))
                else:
                    headers = self._bearer.headers(_POST_HEADERS)
                    response = await self._client.post(call.path, content=call.body, headers=headers)
        except TimeoutError as error:
            text = f"No answer from {self._target} within {timeout_s:.3g} s."
            raise DeadlineExceeded("DEADLINE_EXCEEDED", text) from error
        except self._failure as error:
            reason = f"{type(error).__name__}: {error}"
            raise Unavailable("UNAVAILABLE", f"No connection to {self._target}: {reason}") from error
        return checked(response.status_code, response.content, response.headers.get)

    async def close(self) -> None:
        """Closes the pool."""
        await self._client.aclose()
