"""uvicorn's HTTP/1.1 connection, which answers plain lookups as soon as their last byte is there.

A task, a cycle of messages and an event for each request cost three times what a lookup does; HotAnswers needs none of
them. Nor does a head have to be parsed that came before. Whatever is left alone goes the usual way, from the request's
first byte on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from service.core.errors import Overloaded
from service.transports.http.connection_guard import ConnectionGuard
from service.transports.http.guarded_protocol import GuardedProtocol
from service.transports.http.hot_answers import Answer, Asked, HotAnswers
from service.transports.http.known_heads import KnownHeads
from service.transports.turns import Turns

# From this size on, two buffers cost less than a copy of the body behind its head.
_LARGE_BYTES = 16 << 10


class HotProtocol(GuardedProtocol):
    """One connection. Concurrency: event loop only.

    Args:
      heads, turns, guard: shared by all connections.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        answers: HotAnswers,
        heads: KnownHeads,
        turns: Turns,
        guard: ConnectionGuard | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, guard=guard)
        self._answers = answers
        self._heads = heads
        self._turns = turns
        # The request whose body is on its way, and what is there of it.
        self._asked: Asked | None = None
        self._hot_body = b""
        self._held: tuple[str, int] = ("", 0)
        # The request that the parser came to the end of last, if it was answered here.
        self._answered: tuple[Asked, bytes] | None = None
        # Whether the parser expects a request's first byte. After one that went the usual way that is not known.
        self._is_between = True
        # What is read now was not to be answered here when it was looked at unparsed.
        self._is_refused = False
        self._defaults: object = None
        self._start = b""
        # Something came that was not looked at yet.
        self._is_waiting = False
        # What will look at _idle_since_s: when an answer was sent from here, None since the next request began.
        self._idle_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._is_waiting = True
        self._turns.came(self, data)

    def take(self, data: bytes) -> int:
        """Answers one whole request with a known head, has everything else parsed; see turns.Member."""
        self._is_waiting = False
        if not self.transport.is_closing():
            self._take(data)
        return 0

    def answer(self) -> None:
        """See turns.Member; what can be answered at once was answered when it was read."""

    def flush(self) -> None:
        """See turns.Member; the event loop sends what was written at the end of its turn."""

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        self._settle()
        super().eof_received()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that nothing came from for a while."""
        if not self._is_waiting:
            super().timeout_keep_alive_handler()

    def _take(self, data: bytes) -> None:
        if self._is_between:
            found = self._heads.find(data)
            if found is None:
                super().data_received(data)
                if self._asked is not None or self._held[1]:
                    self._hold()
                if self._is_between and self._answered is not None:
                    self._heads.learn(data, *self._answered)
                self._answered = None
                return
            if self._may_answer():
                answer = self._answers.answer(*found)
                if answer is not None:
                    self._write(answer)
                    return
                self._is_refused = True
        super().data_received(data)
        if self._asked is not None or self._held[1]:
            self._hold()

    def on_message_begin(self) -> None:
        """Starts a request."""
        self._is_between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Decides which way a request goes."""
        self._head_done()
        self._asked = None
        if (
            not self._is_refused
            and self._may_answer()
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
        ):
            asked = self._answers.ask(self.url, self.headers)
            # What may have to be compressed takes a while.
            if asked is not None and not asked.accepts_coding:
                self._asked = asked
                self._hot_body = b""
                return
        self._is_refused = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._body_part(len(body))
        if self._asked is None:
            super().on_body(body)
            return
        self._hot_body = self._hot_body + body if self._hot_body else body
        if len(self._hot_body) > self._asked.max_bytes:
            self._go_usual_way()

    def on_message_complete(self) -> None:
        """Answers, where that is to be done here."""
        self._body_done()
        if self._asked is not None:
            asked, body = self._asked, self._hot_body
            answer = self._answers.answer(asked, body)
            if answer is not None:
                self._asked, self._hot_body = None, b""
                self._write(answer)
                self._is_between, self._answered = True, (asked, body)
                return
            self._go_usual_way()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._let_go()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Lets the request end whose body is on its way."""
        self._settle()
        if self._asked is not None:
            self._go_usual_way()
        super().shutdown()

    def _settle(self) -> None:
        if self._is_waiting:
            self._turns.settle(self)

    def _may_answer(self) -> bool:
        # Answers keep the order of requests, and wait for a client that reads slowly.
        return (
            (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self._admission.is_full
        )

    def _hold(self) -> None:
        """Counts the part of a body that is here; goes the usual way, which refuses it, where there is no room."""
        self._let_go()
        if self._asked is None:
            return
        model = self._answers.share_of(self._asked)
        try:
            self._admission.take_bytes(model, len(self._hot_body))
            self._held = (model, len(self._hot_body))
        except Overloaded:
            self._go_usual_way()

    def _let_go(self) -> None:
        model, size = self._held
        if size:
            self._admission.give_back(model, 0, size)
            self._held = ("", 0)

    def _go_usual_way(self) -> None:
        body, self._asked, self._hot_body = self._hot_body, None, b""
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _write(self, answer: Answer) -> None:
        self.server_state.total_requests += 1
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            # Made anew once a second, for the date.
            self._defaults = defaults
            self._start = STATUS_LINE[200] + b"".join(b"%b: %b\r\n" % header for header in defaults)
        if len(answer.body) < _LARGE_BYTES:
            self.transport.write(b"%b%b\r\n%b" % (self._start, answer.head, answer.body))
        else:
            self.transport.writelines([b"%b%b\r\n" % (self._start, answer.head), answer.body])
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        # One timer looks at the time of the last answer, in place of one that is made for each.
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._on_idle)

    def _on_idle(self) -> None:
        self._settle()
        self._idle_timer = None
        if self._idle_since_s is None:
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._on_idle)
        else:
            self.timeout_keep_alive_handler()
