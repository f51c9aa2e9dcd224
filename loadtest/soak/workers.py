"""The processes of a server, what they hold together, and the end of one of them now and then."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from loadtest.live_server import held_by
from loadtest.soak.tally import Tally

# Of a connection whose worker was killed, its client may learn a little later.
_NOTICE_S = 2.0
# What clients say of a connection that is gone: before an answer, within one, and as they write.
_LOST = ("UNAVAILABLE", "RemoteDisconnected", "IncompleteRead", "ConnectionReset", "BrokenPipe")
_MAX_START_S = 120.0


@dataclass(frozen=True, slots=True)
class HeldByAll:
    """What a server's processes hold together; see report.Sample for the fields."""

    pss_mib: float
    private_mib: float
    anonymous_mib: float
    descriptors: int
    deleted_maps: int
    threads: int
    cpu_s: float


def children(pid: int) -> list[int]:
    """Returns the processes that a server started, the oldest first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def anonymous_mib(pid: int) -> float:
    """Returns a process's memory that is no file's."""
    (line,) = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if "Anonymous:" in line]
    return int(line.split()[1]) / 1024


def held_by_all(pid: int) -> HeldByAll:
    """Reads what a server and its workers hold now; a worker that ends meanwhile is left out.

    Raises:
      OSError: the server is gone.
    """
    parts = [_held(pid)]
    for child in children(pid):
        try:
            parts.append(_held(child))
        except (OSError, KeyError, ValueError):
            continue
    return HeldByAll(*(sum(column) for column in zip(*parts, strict=True)))


def _held(pid: int) -> tuple[float, float, float, int, int, int, float]:
    held = held_by(pid)
    # After the name in parentheses, which may hold spaces: 12th and 13th the user and system time, 18th the threads.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (
        held.pss_mib,
        held.private_mib,
        anonymous_mib(pid),
        held.descriptors,
        Path(f"/proc/{pid}/maps").read_text().count(" (deleted)\n"),
        int(fields[17]),
        (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )


class Kills:
    """Ends workers by SIGKILL; all but the oldest, whose memory is then that of the whole run.

    Concurrency: any thread.

    at_s: when, monotonic.

    Args:
      pid: of the server.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.survivor = (children(pid) or [pid])[0]
        self.at_s: list[float] = []

    def run(self, tally: Tally, stop: threading.Event, interval_s: float) -> None:
        """Ends one every interval_s until stop is set, and sees that another one takes its place."""
        source = random.Random(1)
        while not stop.wait(interval_s):
            before = children(self._pid)
            victims = [pid for pid in before if pid != self.survivor]
            if not victims:
                tally.failed("worker kill", "no worker is there to be killed")
                continue
            self.at_s.append(time.monotonic())
            os.kill(source.choice(victims), signal.SIGKILL)
            end_s = time.monotonic() + _MAX_START_S
            while not stop.wait(0.1):
                now = children(self._pid)
                if len(now) == len(before) and set(now) - set(before):
                    tally.done("worker kill", "replaced", None, 0)
                    break
                if time.monotonic() > end_s:
                    tally.failed("worker kill", f"no other took its place in {_MAX_START_S:.0f} s")
                    break

    def tore(self, error: Exception, begun_s: float) -> bool:
        """Says whether a kill explains that a request got no answer; a wrong answer nothing explains."""
        text = f"{type(error).__name__} {error}"
        is_lost = any(word in text for word in _LOST)
        # For a moment after a kill the connections of its worker are still believed in.
        return is_lost and any(at_s >= begun_s - _NOTICE_S for at_s in self.at_s[-3:])
