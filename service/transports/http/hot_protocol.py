"""uvicorn's HTTP/1.1 connection, which answers plain lookups as soon as their last byte is there.

A task, a cycle of messages and an event for each request cost three times what a lookup does; HotAnswers needs none of
them. Whatever it leaves alone goes the usual way, from the request's first byte on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from service.transports.http.hot_answers import Answer, Asked, HotAnswers


class HotProtocol(HttpToolsProtocol):
    """One connection. Concurrency: event loop only."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        answers: HotAnswers,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._answers = answers
        # The request whose body is on its way, and what is there of it.
        self._asked: Asked | None = None
        self._body = b""
        self._defaults: object = None
        self._start = b""

    def on_headers_complete(self) -> None:
        """Decides which way a request goes."""
        self._asked = None
        if (
            # Answers keep the order of requests, and wait for a client that reads slowly.
            (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
        ):
            asked = self._answers.ask(self.url, self.headers)
            # What may have to be compressed takes a while.
            if asked is not None and not asked.accepts_coding:
                self._asked = asked
                self._body = b""
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        if self._asked is None:
            super().on_body(body)
            return
        self._body = self._body + body if self._body else body
        if len(self._body) > self._asked.max_bytes:
            self._go_usual_way()

    def on_message_complete(self) -> None:
        """Answers, where that is to be done here."""
        if self._asked is not None:
            answer = self._answers.answer(self._asked, self._body)
            if answer is not None:
                self._asked, self._body = None, b""
                self._write(answer)
                return
            self._go_usual_way()
        super().on_message_complete()

    def shutdown(self) -> None:
        """Lets the request end whose body is on its way."""
        if self._asked is not None:
            self._go_usual_way()
        super().shutdown()

    def _go_usual_way(self) -> None:
        body, self._asked, self._body = self._body, None, b""
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _write(self, answer: Answer) -> None:
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            # Made anew once a second, for the date.
            self._defaults = defaults
            self._start = STATUS_LINE[200] + b"".join(b"%b: %b\r\n" % header for header in defaults)
        self.transport.writelines([b"%b%b\r\n" % (self._start, answer.head), answer.body])
        self.on_response_complete()
