"""Counts accepted and refused reloads of the --auth_config file and of TLS files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from service.observe.metric_text import series

RELOADS = "embedding_server_auth_config_reloads_total"
IS_CURRENT = "embedding_server_auth_config_is_current"


class ReloadCounter:
    """The counter of reloads of the --auth_config file. Concurrency: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"taken": 0, "refused": 0}
        self._is_current = False

    def accepted(self) -> None:
        self._count("taken")

    def refused(self) -> None:
        self._count("refused")

    @property
    def is_current(self) -> bool:
        with self._lock:
            return self._is_current or not any(self._counts.values())

    def lines(self) -> list[str]:
        with self._lock:
            counts, is_current = dict(self._counts), self._is_current
        if not any(counts.values()):
            return []
        reloads = [({"result": result}, count) for result, count in counts.items()]
        about = "1: the content of --auth_config is in force; 0: it was refused, and the content before it is."
        return [
            *series(RELOADS, "New contents of --auth_config: taken or refused.", reloads),
            *series(IS_CURRENT, about, [({}, is_current)]),
        ]

    def _count(self, result: str) -> None:
        with self._lock:
            self._counts[result] += 1
            self._is_current = result == "taken"


_TLS_PREFIX = "embedding_server_tls_"


class TlsCounter:
    """The counter of TLS reloads; a port without TLS has no metrics. Concurrency: any thread.

    handshakes_failed: returns the number of failed handshakes by port.
    """

    def __init__(self) -> None:
        self.handshakes_failed: Callable[[], Mapping[str, int]] = dict
        self._lock = threading.Lock()
        self._ends_s: dict[str, float] = {}
        self._reloads: dict[tuple[str, str], int] = {}

    def accepted(self, api: str, end_s: float) -> None:
        """Counts an accepted change of a port's TLS files; the first call is for the start, and is not counted.

        Args:
          end_s: when the first of the certificates expires, in seconds since 1970.
        """
        with self._lock:
            if api in self._ends_s:
                self._reloads[api, "taken"] += 1
            else:
                self._reloads |= {(api, "taken"): 0, (api, "refused"): 0}
            self._ends_s[api] = end_s

    def refused(self, api: str) -> None:
        with self._lock:
            self._reloads[api, "refused"] += 1

    def ends_s(self) -> dict[str, float]:
        """Returns port -> when the first of its certificates expires, in seconds since 1970."""
        with self._lock:
            return self._ends_s.copy()

    def lines(self) -> list[str]:
        with self._lock:
            ends_s, reloads = self._ends_s.copy(), self._reloads.copy()
        if not ends_s:
            return []
        failed = self.handshakes_failed()
        of_end = "Seconds since 1970 at which the first of the certificates ends that the port shows."
        ends = [({"api": api}, end_s) for api, end_s in sorted(ends_s.items())]
        of_reload = "Changed files with certificates: taken or refused."
        counts = [({"api": api, "outcome": outcome}, count) for (api, outcome), count in sorted(reloads.items())]
        of_failure = "Connections that ended before they were secured."
        failures = [({"api": api}, failed.get(api, 0)) for api in sorted(ends_s)]
        return [
            *series(_TLS_PREFIX + "certificate_end_timestamp_seconds", of_end, ends),
            *series(_TLS_PREFIX + "reloads_total", of_reload, counts),
            *series(_TLS_PREFIX + "handshakes_failed_total", of_failure, failures),
        ]
