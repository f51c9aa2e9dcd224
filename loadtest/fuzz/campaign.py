"""Sends many mutated requests over a few concurrent connections, counts them by status, and watches the server."""

from __future__ import annotations

import base64
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.fuzz.wires import Sent, Wire
from loadtest.live_server import Held, LiveServer, say

# A run of the fuzzer stops after this many wrong reactions of the server.
_ENOUGH = 20
_SHOWN_BYTES = 600
# The share of requests that are sent a second time, to find memory that the server does not free. At the first time,
# memory grows with the largest request and stays so, because the allocator keeps it for each thread (150 bytes may
# spread two tf.Examples to 65,536 rows). Growth by repeated requests is a leak.
_AGAIN_SHARE = 0.2


@dataclass(slots=True)
class Campaign:
    """A run of many mutated requests over one wire, and its results.

    start, once, again: the server's resources before, after all requests, and after some of them were repeated.
    """

    name: str
    server: LiveServer
    statuses: Counter[str] = field(default_factory=Counter)
    problems: int = 0
    seconds: float = 0.0
    start: Held | None = None
    once: Held | None = None
    again: Held | None = None

    def run(self, numbers: Sequence[int], connect: Callable[[], Wire], *, connections: int, seed: int) -> None:
        """Sends the requests with these numbers, then some again; ends early after many problems or with the server."""
        self.start = self.server.held()
        started_s = time.monotonic()
        self._send(numbers, connect, connections, seed)
        self.seconds = time.monotonic() - started_s
        self.once = self._held()
        self._send(numbers[: int(len(numbers) * _AGAIN_SHARE)], connect, connections, seed)
        self.again = self._held()
        if not self.server.is_alive:
            self.problems += 1
            say(f"FINDING {self.name}: the server is gone, exit status {self.server.exit_status}")

    def _held(self) -> Held | None:
        return self.server.held() if self.server.is_alive else None

    def _send(self, numbers: Sequence[int], connect: Callable[[], Wire], connections: int, seed: int) -> None:
        lock = threading.Lock()
        waiting = iter(numbers)

        def work() -> None:
            wire = connect()
            try:
                while self.problems < _ENOUGH:
                    with lock:
                        number = next(waiting, None)
                    if number is None:
                        return
                    sent = wire.send(number)
                    with lock:
                        self._count(sent, number, seed)
            except Exception as error:
                # Count the fuzzer's own failure as a problem: otherwise the run would end early and look successful.
                with lock:
                    self.problems += 1
                say(f"FINDING {self.name}: the fuzzer itself failed: {error!r}")
                raise
            finally:
                wire.close()

        threads = [threading.Thread(target=work, name=f"fuzz-{i}") for i in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _count(self, sent: Sent, number: int, seed: int) -> None:
        self.statuses[sent.verdict.status] += 1
        if not sent.verdict.problem:
            return
        self.problems += 1
        payload = base64.b64encode(sent.payload[:_SHOWN_BYTES]).decode()
        say(
            f"FINDING {self.name} {sent.target}: {sent.verdict.problem}\n"
            f"  again: --seed {seed} --wires {self.name} --only {number}\n"
            f"  {len(sent.payload)} bytes, base64: {payload}"
        )

    def grown_mib(self) -> float:
        """Returns how much the server's memory (PSS) grew while requests were sent a second time, in MiB."""
        return self.again.pss_mib - self.once.pss_mib if self.once and self.again else 0.0

    def grown_descriptors(self) -> int:
        return self.again.descriptors - self.start.descriptors if self.start and self.again else 0

    def print_figures(self) -> None:
        sent = self.statuses.total()
        say(f"{self.name}: {sent} requests, {self.seconds:.1f} s without those that were repeated")
        say("  " + ", ".join(f"{status} {count}" for status, count in self.statuses.most_common()))
        say(f"  server before: {self.start}")
        say(f"  after all:     {self.once}")
        say(f"  some repeated: {self.again}")
        say(f"  {self.problems} findings")
