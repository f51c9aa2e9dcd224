"""Sends many mutated requests over a few concurrent connections, counts them by status, and watches the server."""

from __future__ import annotations

import base64
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from loadtest.fuzz.wires import Sent, Wire
from loadtest.live_server import Held, LiveServer, say

# A run of the fuzzer stops after this many wrong reactions of the server.
_ENOUGH = 20
_SHOWN_BYTES = 600
# The share of requests that are sent a second time, to find memory that the server does not free. At the first time,
# memory grows with the largest request and stays so, because the allocator keeps it for each thread (150 bytes may
# spread two tf.Examples to 65,536 rows). Growth by repeated requests is a leak.
_AGAIN_SHARE = 0.2

Connect = Callable[[], Wire]


class Campaign:
    """A run of many mutated requests over one wire, and how many wrong reactions of the server it found.

    Args:
      seed: is told with each wrong reaction, so that its request can be sent again.
    """

    def __init__(self, name: str, server: LiveServer, connect: Connect, *, connections: int, seed: int) -> None:
        self._name, self._server, self._connect = name, server, connect
        self._connections, self._seed = connections, seed
        self._statuses: Counter[str] = Counter()
        self.problems = 0

    def run(self, numbers: Sequence[int], max_growth_mib: float) -> None:
        """Sends the requests with these numbers, then some again; ends early after many problems or with the server."""
        start, started_s = self._server.held(), time.monotonic()
        self._send(numbers)
        seconds, once = time.monotonic() - started_s, self._held()
        self._send(numbers[: int(len(numbers) * _AGAIN_SHARE)])
        again = self._held()
        if once is None or again is None:
            self._find(f": the server is gone, exit status {self._server.exit_status}")
        say(f"{self._name}: {self._statuses.total()} requests, {seconds:.1f} s without those that were repeated")
        say("  " + ", ".join(f"{status} {count}" for status, count in self._statuses.most_common()))
        say(f"  server before: {start}\n  after all:     {once}\n  some repeated: {again}\n  {self.problems} findings")
        if once is None or again is None:
            return
        grown_mib, more = again.pss_mib - once.pss_mib, again.descriptors - start.descriptors
        # The native core keeps its connections to the reference server open for two seconds, and the server holds a
        # descriptor for each end.
        if grown_mib > max_growth_mib or more > 3 * self._connections:
            self._find(f": grew by {grown_mib:.1f} MiB, {more} descriptors")

    def _held(self) -> Held | None:
        return self._server.held() if self._server.is_alive else None

    def _find(self, what: str) -> None:
        self.problems += 1
        say(f"FINDING {self._name}{what}")

    def _send(self, numbers: Sequence[int]) -> None:
        lock = threading.Lock()
        waiting = iter(numbers)

        def work() -> None:
            wire = self._connect()
            try:
                while self.problems < _ENOUGH:
                    with lock:
                        number = next(waiting, None)
                    if number is None:
                        return
                    sent = wire.send(number)
                    with lock:
                        self._count(sent, number)
            except Exception as error:
                # Count the fuzzer's own failure as a problem: otherwise the run would end early and look successful.
                with lock:
                    self._find(f": the fuzzer itself failed: {error!r}")
                raise
            finally:
                wire.close()

        threads = [threading.Thread(target=work, name=f"fuzz-{i}") for i in range(self._connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _count(self, sent: Sent, number: int) -> None:
        self._statuses[sent.verdict.status] += 1
        if sent.verdict.problem:
            payload = base64.b64encode(sent.payload[:_SHOWN_BYTES]).decode()
            self._find(
                f" {sent.target}: {sent.verdict.problem}\n"
                f"  again: --seed {self._seed} --wires {self._name} --only {number}\n"
                f"  {len(sent.payload)} bytes, base64: {payload}"
            )
