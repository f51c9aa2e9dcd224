"""Sends calls over HTTP from an event loop, with httpx."""

from __future__ import annotations

import asyncio
from typing import Any

try:
    import httpx
except ImportError as error:
    raise ImportError(
        "AsyncEmbeddingClient over HTTP needs httpx: pip install httpx; EmbeddingClient needs nothing more."
    ) from error

from embedding_client.bearer import NO_TOKEN, Bearer
from embedding_client.calls import Call, Reply
from embedding_client.errors import DeadlineExceeded
from embedding_client.http_answers import checked, no_connection, request_headers
from embedding_client.targets import Target

_MAX_CONNECTIONS = 100


class AsyncHttpTransport:
    """A pool of HTTP connections; a request waits while all are busy. Concurrency: only the event loop that made it."""

    def __init__(self, target: Target, bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        self._client = httpx.AsyncClient(
            base_url=str(target),
            verify=True if target.tls is None else target.tls.ssl_context(),
            # The client connects to the server directly, even if http_proxy or a similar variable is set.
            trust_env=False,
            # httpx gets no timeout, because it would limit each read; send() limits the whole exchange.
            timeout=None,
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS),
        )

    async def send(self, call: Call[Any], timeout_s: float) -> Reply:
        """Sends a call over HTTP and returns the server's reply; raises EmbeddingError."""
        try:
            async with asyncio.timeout(timeout_s):
                method = "GET" if call.body is None else "POST"
                headers = self._bearer.headers(request_headers(call))
                response = await self._client.request(method, call.path, content=call.body, headers=headers)
        except TimeoutError as error:
            text = f"No answer from {self._target} within {timeout_s:.3g} s."
            raise DeadlineExceeded("DEADLINE_EXCEEDED", text) from error
        except (httpx.RequestError, OSError) as error:
            # httpx leaves some errors of TLS as they are: a server that refuses the client's certificate late.
            raise no_connection(self._target, error) from error
        return checked(response.status_code, response.content, response.headers.get)

    async def close(self) -> None:
        """Closes the HTTP connections of the pool."""
        await self._client.aclose()
