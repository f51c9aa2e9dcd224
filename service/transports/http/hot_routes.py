"""Answers plain lookups in front of the application: no routing, no request object, no layer of middleware."""

from __future__ import annotations

from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.transports.http.gzip_answers import GzipMiddleware
from service.transports.http.hot_answers import Answer, HotAnswers


class HotRoutesMiddleware:
    """Answers what HotAnswers does and hands all else on untouched. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, answers: HotAnswers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event stream."""
        asked = None
        if scope["type"] == "http" and scope["method"] == "POST":
            asked = self._answers.ask(scope.get("raw_path") or b"", scope["headers"])
        if asked is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body", False) and len(body) <= asked.max_bytes:
            message = await receive()
            body += message.get("body", b"")
        is_whole = message["type"] == "http.request" and not message.get("more_body", False)
        answer = None
        if is_whole and len(body) <= asked.max_bytes:
            answer = self._answers.answer(asked, body)
        if answer is None:
            await self._app(scope, _replayed({**message, "body": body}, receive), send)
        elif self._answers.compresses(asked, answer.body):
            compressed = GzipMiddleware(partial(_send, answer), self._answers.gzip_min_bytes)
            await compressed(scope, receive, partial(_send_marked, answer, send))
        else:
            await _send(answer, scope, receive, partial(_send_marked, answer, send))


def _replayed(message: Message, receive: Receive) -> Receive:
    """Returns a receive that gives a message first: what was read already."""
    messages = [message]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def _send(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(answer.body)), *_headers(answer.content)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _send_marked(answer: Answer, send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *_headers(answer.marks)]
    await send(message)


def _headers(lines: bytes) -> list[tuple[bytes, ...]]:
    return [tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n") if line]
