"""Counts requests by kind, samples the resources of the server, and writes the result as JSON and as Markdown."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.live_server import Held, header, held_by, row

# Texts of failures are cut to this length. Failures after the server has ended differ only beyond it, so they count as
# one kind of failure.
_MAX_LENGTH = 300


@dataclass
class Window:
    """Counts of requests and failures since the previous sample.

    seconds: response time of each small lookup.
    behind_s: the longest delay of a request behind its schedule, caused by the clients or the server.
    """

    requests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    behind_s: float = 0.0


class Tally:
    """Counter of requests and failures by kind. Concurrency: any thread.

    problems: text of a failure -> (how often, when first in seconds since the epoch).
    """

    def __init__(self, interrupted: threading.Event) -> None:
        self._lock = threading.Lock()
        self._interrupted = interrupted
        self._window = Window()
        self.problems: dict[str, tuple[int, float]] = {}

    def done(self, kind: str, outcome: str, seconds: float | None, behind_s: float) -> None:
        """Counts a request that had the expected outcome.

        Args:
          seconds: the response time; None if it shall not be recorded.
        """
        with self._lock:
            self._window.requests[kind] += 1
            self._window.outcomes[f"{kind}: {outcome}"] += 1
            self._window.behind_s = max(self._window.behind_s, behind_s)
            if seconds is not None:
                self._window.seconds.append(seconds)

    def failed(self, kind: str, why: str) -> None:
        """Counts a failed request, except after Ctrl-C, which interrupts the server too."""
        if self._interrupted.wait(0.3):
            return
        why = " ".join(f"{kind}: {why}".split())[:_MAX_LENGTH]
        with self._lock:
            self._window.requests[kind] += 1
            self._window.failures[kind] += 1
            count, first = self.problems.get(why, (0, time.time()))
            self.problems[why] = (count + 1, first)

    def next_window(self) -> Window:
        """Returns the counts of requests since the previous call, and starts new counts at 0."""
        with self._lock:
            window, self._window = self._window, Window()
        return window


_MAX_ROWS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Held):
    """The server's resources at one moment, and the requests and lookup times since the previous sample."""

    at_s: float
    requests: Mapping[str, int]
    failures: Mapping[str, int]
    outcomes: Mapping[str, int]
    p50_ms: float
    p99_ms: float
    max_ms: float
    behind_ms: float


def sampled(pid: int, at_s: float, window: Window) -> Sample:
    """Makes a Sample of a server's resources and a window's counts; raises OSError if the process has ended."""
    times = np.array(window.seconds or [0.0]) * 1e3
    return Sample(
        **asdict(held_by(pid)),
        at_s=at_s,
        requests=dict(window.requests),
        failures=dict(window.failures),
        outcomes=dict(window.outcomes),
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
        max_ms=float(times.max()),
        behind_ms=window.behind_s * 1e3,
    )


def slope_mib_per_hour(samples: list[Sample], what: str) -> float | None:
    """Returns memory's growth in MiB an hour in the second half of the samples; None if this has fewer than three."""
    later = samples[len(samples) // 2 :]
    if len(later) < 3:
        return None
    return float(np.polyfit([s.at_s / 3600 for s in later], [getattr(s, what) for s in later], 1)[0])


@dataclass
class Report:
    """The results of a soak test so far.

    problems: text of a failure -> (how often, when first); faults: errors that the server logged.
    """

    about: dict[str, Any]
    samples: list[Sample] = field(default_factory=list)
    problems: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the test took samples, no request failed, and the server logged no error."""
        return bool(self.samples) and not self.problems and not self.faults

    def write(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        document = {**self.about, "totals": self._totals(), "problems": self.problems, "faults": self.faults}
        document |= {"slopes_mib_per_hour": self._slopes(), "samples": [asdict(sample) for sample in self.samples]}
        (out / "soak.json").write_text(json.dumps(document, indent=1))
        (out / "soak.md").write_text(self.markdown())

    def _totals(self) -> dict[str, dict[str, int]]:
        names = ("requests", "failures", "outcomes")
        return {name: dict(sum((Counter(getattr(s, name)) for s in self.samples), Counter())) for name in names}

    def _slopes(self) -> dict[str, float | None]:
        return {what: slope_mib_per_hour(self.samples, what) for what in ("anonymous_mib", "private_mib", "pss_mib")}

    def markdown(self) -> str:
        """Returns a Markdown table of the samples, several in a row if there are many, and tables of the totals."""
        together = max(1, -(-len(self.samples) // _MAX_ROWS))
        lines: list[str] = []
        cpu_s = 0.0
        for first in range(0, len(self.samples), together):
            some = self.samples[first : first + together]
            last = some[-1]
            cells = {
                "minutes": f"{last.at_s / 60:.1f}",
                "PSS MiB": f"{last.pss_mib:.1f}",
                "private MiB": f"{last.private_mib:.1f}",
                "anonymous MiB": f"{last.anonymous_mib:.1f}",
                "descriptors": f"{last.descriptors}",
                "deleted maps": f"{last.deleted_maps}",
                "threads": f"{last.threads}",
                "CPU s": f"{last.cpu_s - cpu_s:.1f}",
                "requests": str(sum(sum(s.requests.values()) for s in some)),
                "failures": str(sum(sum(s.failures.values()) for s in some)),
                "p50 ms": f"{np.median([s.p50_ms for s in some]):.2f}",
                "p99 ms": f"{np.median([s.p99_ms for s in some]):.2f}",
                "max ms": f"{max(s.max_ms for s in some):.1f}",
                "sent late ms": f"{max(s.behind_ms for s in some):.0f}",
            }
            if not lines:
                lines = [header(*cells)]
            lines.append(row(*cells.values()))
            cpu_s = last.cpu_s
        totals = self._totals()
        lines += ["", "Times are of small lookups; of samples shown together: medians, the largest maximum.", ""]
        lines.append(header("kind", "requests", "failures", "ended"))
        for kind, count in sorted(totals["requests"].items()):
            outcomes = [(*k.partition(": ")[::2], n) for k, n in sorted(totals["outcomes"].items())]
            ended = [f"{outcome} {n}" for of, outcome, n in outcomes if of == kind]
            lines.append(row(kind, count, totals["failures"].get(kind, 0), ", ".join(ended)))
        lines += ["", f"All: {sum(totals['requests'].values())} requests, {sum(totals['failures'].values())} failures."]
        for what, slope in self._slopes().items():
            if slope is not None:
                lines.append(f"Growth in the second half, {what}: {slope:+.1f} MiB per hour.")
        lines += [f"FAILURE {count} times: {why}" for why, (count, _) in self.problems.items()]
        lines += [f"FAULT logged {count} times: {fault}" for fault, count in self.faults.items()]
        return "\n".join(lines) + "\n"
