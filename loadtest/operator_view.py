"""Looks at a server as an operator does, and notes what tells of a fault, and after how many seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.live_server import exchange
from loadtest.steady_load import SteadyLoad

# Within so many seconds, an operator must see each fault.
SEEN_WITHIN_S = 10.0
_PERIOD_S = 0.25
# How log lines of single requests begin, which the callers see too.
_OF_REQUEST = ("request ", "slow request")


class OperatorView(SteadyLoad):
    """Readiness, attention (named by its alert) and log of a server, from the beginning of the `with` block to its end.

    Args:
      records: the log's records so far; the server's reader appends more. models: what concerns them counts.
      within_s: what is seen later does not count.

    seen: model -> what was seen -> seconds after the beginning.
    """

    def __init__(
        self, http: str, records: Sequence[Mapping[str, Any]], models: Iterable[str], within_s: float = SEEN_WITHIN_S
    ) -> None:
        self._within_s = within_s
        self._http = http
        self._records = records
        self._num_read = len(records)
        self._began_s = time.monotonic()
        self.seen: dict[str, dict[str, float]] = {model: {} for model in models}
        super().__init__(self._watch)

    def wait(self) -> None:
        """Waits until something was seen of each model, or ought to have been seen."""
        while not all(self.seen.values()) and time.monotonic() < self._began_s + self._within_s:
            time.sleep(_PERIOD_S)

    def told_of(self, model: str) -> str:
        in_time = sorted((at_s, what) for what, at_s in self.seen[model].items() if at_s <= self._within_s)
        return ", ".join(f"{what} ({at_s:.1f} s)" for at_s, what in in_time)

    def _watch(self) -> None:
        while not self.is_over.wait(_PERIOD_S):
            self._look()

    def _look(self) -> None:
        # Pairs of a model, "" for all of them, and what was seen of it.
        found: list[tuple[str, str]] = []
        try:
            # /readyz answers 503 with the problems.
            told, ready = (json.loads(exchange(self._http, at, timeout_s=5)[1]) for at in ("/v1/statusz", "/readyz"))
            found += [(one["model"], one["alert"] or one["message"]) for one in told["attention"]]
            found += [(model, "not ready") for model in ready["problems"]]
        except OSError:
            found.append(("", "no answer"))
        records = self._records[self._num_read :]
        self._num_read += len(records)
        found += [
            (one.get("model", ""), f"log: {one['message']}")
            for one in records
            if not one["message"].startswith(_OF_REQUEST)
        ]
        after_s = time.monotonic() - self._began_s
        for model, what in found:
            for seen in self.seen.values() if not model else [self.seen.get(model, {})]:
                seen.setdefault(what, after_s)
