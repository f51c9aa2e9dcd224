"""What heads of requests mean that came before: a client writes the same bytes each time, but for the length."""

from __future__ import annotations

from service.transports.http.hot_answers import Asked

_END = b"\r\n\r\n"
# Heads that are remembered, and how long they may be.
_MAX_HEADS, _MAX_BYTES = 1024, 2048


class KnownHeads:
    """Heads as they were sent, of requests that were parsed and answered. Concurrency: event loop only."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Asked, int]] = {}

    def find(self, data: bytes) -> tuple[Asked, bytes] | None:
        """Returns what data asks and its body; None where it is not exactly one request whose head is known."""
        end = data.find(_END) + len(_END)
        known = self._known.get(data[:end])
        return (known[0], data[end:]) if known is not None and end + known[1] == len(data) else None

    def learn(self, data: bytes, asked: Asked, body: bytes) -> None:
        """Remembers the head of data that the parser took for one request with this body, if it is just that."""
        head = data[: data.find(_END) + len(_END)]
        if asked.request_id or asked.traceparent or len(head) > _MAX_BYTES or data[len(head) :] != body:
            # Ids do not come again.
            return
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        self._known[head] = (asked, len(body))
