"""Whole requests that need no stream: begun when they come, and answered together with those of other connections."""

from __future__ import annotations

from typing import Protocol

from service.core.shortcuts import Begun
from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.answers import answer_frames, send_answer, send_frames
from service.transports.grpc.h2.messages import PREFIX_BYTES
from service.transports.grpc.h2.route import Route, Routes
from service.transports.grpc.h2.sender import Sender
from service.transports.grpc.h2.stream import Stream

# One client's lookups that are left for later write no more than this.
_MOST_BYTES = 1 << 20


class Streams(Protocol):
    """What makes streams where one is needed after all."""

    def call(self, route: Route, stream_id: int, message: bytes) -> None:
        """Has a call answer a request that is whole, and was asked for quickly in vain."""
        ...

    def answered_stream(self, stream_id: int) -> Stream:
        """Opens a stream whose request has come, and whose answer is there."""
        ...


class QuickAnswers:
    """Those of one connection. Event loop only.

    num_bytes: what the lookups write that are left for `send`.
    """

    __slots__ = ("num_bytes", "_routes", "_sender", "_begun")

    def __init__(self, routes: Routes, sender: Sender) -> None:
        self.num_bytes = 0
        self._routes = routes
        self._sender = sender
        # The stream, its route, what is begun, and the request's message.
        self._begun: list[tuple[int, Route, Begun, bytes]] = []

    def begin(self, streams: Streams, route: Route, stream_id: int, message: bytes) -> None:
        """Begins a request that a route takes quickly."""
        deadline_s = None if route.timeout_s is None else self._routes.now() + route.timeout_s
        try:
            begun = route.quickly.begin(message, deadline_s, stream_id)  # type: ignore[union-attr]
        except Exception as error:
            self._refuse(route, stream_id, error)
            return
        if begun is None:
            streams.call(route, stream_id, message)
            return
        self._begun.append((stream_id, route, begun, message))
        self.num_bytes += begun[0]
        if self.num_bytes >= _MOST_BYTES:
            self.send(streams)

    def send(self, streams: Streams) -> None:
        """Queues the answers to all that was begun."""
        if not self._begun:
            return
        all_begun, self._begun, self.num_bytes = self._begun, [], 0
        sender = self._sender
        for stream_id, route, begun, message in all_begun:
            try:
                answer = route.quickly.finish(begun)  # type: ignore[union-attr]
            except Exception as error:
                self._refuse(route, stream_id, error)
                continue
            if answer is None:
                streams.call(route, stream_id, message)
            elif isinstance(answer, tuple):
                if sender.takes_at_once(answer[1].num_counted):
                    sender.queue_frames(answer)
                else:
                    send_frames(streams.answered_stream(stream_id), answer)
            elif sender.takes_at_once(len(answer) + PREFIX_BYTES):
                frames = answer_frames(stream_id, route.head_block, answer, sender.frame_bytes)
                sender.queue_whole(frames, len(answer) + PREFIX_BYTES)
            else:
                send_answer(streams.answered_stream(stream_id), route.head_block, answer)

    def _refuse(self, route: Route, stream_id: int, error: Exception) -> None:
        block = self._routes.refusal_block(error, route.request_id)
        self._sender.queue(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream_id, block))
