"""One call's stream of a connection: what it is told, and where its answer goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from httpunk.http import HeaderMap

if TYPE_CHECKING:
    from service.transports.grpc.h2.connection import Connection


class Call(Protocol):
    """What a connection tells one call. All on the connection's event loop."""

    def data(self, payload: bytes) -> None:
        """Some bytes of the request arrived."""

    def end(self) -> None:
        """The request is complete."""

    def cancelled(self) -> None:
        """The client gave up, or is gone; nothing that is sent will arrive."""

    def batch_done(self) -> None:
        """All that arrived together has been handed over; the call goes on."""

    def draining(self) -> None:
        """The server stops once all calls have ended."""


class Stream:
    """Where one call's answer goes; methods do nothing after the stream has ended. Event loop only."""

    __slots__ = ("_connection", "id", "call", "_queue", "_offset", "_trailers", "is_open", "has_request")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.id = 0
        self.call: Call | None = None
        self._queue: list[bytes] = []
        self._offset = 0
        self._trailers: HeaderMap | None = None
        self.is_open = False
        # Whether all of it has come.
        self.has_request = False

    def head(self, headers: HeaderMap, status: int = 200) -> None:
        """Begins the answer."""
        if self.is_open:
            self._connection.send_head(self, headers, status, end_stream=False)

    def only_head(self, headers: HeaderMap, status: int = 200) -> None:
        """Answers with headers alone."""
        if self.is_open:
            self._connection.send_head(self, headers, status, end_stream=True)
            self._connection.close(self)

    def write(self, data: bytes) -> None:
        """Sends data, as fast as the client takes it."""
        if self.is_open:
            self._queue.append(data)
            if len(self._queue) == 1:
                self.resume()

    def trailers(self, trailers: HeaderMap) -> None:
        """Ends the answer once all of it is sent."""
        if self.is_open:
            self._trailers = trailers
            if not self._queue:
                self.resume()

    @property
    def is_flowing(self) -> bool:
        """Whether nothing waits for the client to read."""
        return not self._queue

    def resume(self) -> None:
        """Sends what the windows take now."""
        connection = self._connection
        while self._queue and self.is_open:
            sent, is_whole = connection.send_data(self.id, self._queue[0], self._offset)
            if is_whole:
                del self._queue[0]
                self._offset = 0
            elif sent:
                self._offset += sent
            else:
                return
        if self._trailers is not None and self.is_open:
            connection.send_trailers(self.id, self._trailers)
            connection.close(self)
