"""Which requests are traced, decided before the direct path answers them and kept by the general one (ADR 28)."""

from __future__ import annotations

import threading
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler

_MAX_DRAWN = 10_000
# More requests are never on their way through the direct path of one thread.
_MAX_REFUSED = 64


class _Refused(threading.local):
    """Ids of the requests that this thread was told are not traced, the last one last; None: of a sender's trace."""

    def __init__(self) -> None:
        self.ids: deque[int | None] = deque(maxlen=_MAX_REFUSED)


class DrawnIds(IdGenerator):
    """Gives new traces the ids that they were drawn with.

    A sampler decides by a trace's id. The id that was drawn for a request, and what the sampler said, waits for the
    path that answers the request; where requests overtake each other each still has one draw, as with
    core.recording.Draw.

    Concurrency: any thread.
    """

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._drawn: deque[tuple[int, bool]] = deque(maxlen=_MAX_DRAWN)
        self._refused = _Refused()

    def takes_new(self, sampler: Sampler, name: str) -> bool:
        """Says whether a request without a parent is traced."""
        try:
            trace_id, is_sampled = self._drawn.popleft()
        except IndexError:
            trace_id = self._random.generate_trace_id()
            is_sampled = _samples(sampler, None, trace_id, name)
        if is_sampled:
            self._drawn.append((trace_id, True))
        else:
            self._refused.ids.append(trace_id)
        return is_sampled

    def takes_child(self, sampler: Sampler, name: str, parent: Context, trace_id: int) -> bool:
        """Says whether a request of a trace that its sender began is traced."""
        is_sampled = _samples(sampler, parent, trace_id, name)
        if not is_sampled:
            self._refused.ids.append(None)
        return is_sampled

    def put_back(self) -> None:
        """Leaves a refusal of this thread to the general path, one for each call."""
        trace_id = self._refused.ids.pop() if self._refused.ids else None
        if trace_id is not None:
            self._drawn.append((trace_id, False))

    def generate_trace_id(self) -> int:
        """See IdGenerator."""
        try:
            return self._drawn.popleft()[0]
        except IndexError:
            return self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        """See IdGenerator."""
        return self._random.generate_span_id()

    def is_trace_id_random(self) -> bool:
        """See IdGenerator."""
        return True


def _samples(sampler: Sampler, parent: Context | None, trace_id: int, name: str) -> bool:
    return sampler.should_sample(parent, trace_id, name).decision is Decision.RECORD_AND_SAMPLE
