"""Counts reloads of TLS files and failed TLS handshakes, for HTTP and gRPC, and writes the metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from service.observe.metric_text import Kind, family, labels, sample

_PREFIX = "embedding_server_tls_"


class TlsCounter:
    """The counter of TLS reloads and failed handshakes; a port without TLS has no metrics. Concurrency: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends_s: dict[str, float] = {}
        self._reloads: dict[tuple[str, str], int] = {}
        self._failed: dict[str, int] = {}

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
                self._failed[api] = 0
            self._ends_s[api] = end_s

    def refused(self, api: str) -> None:
        with self._lock:
            self._reloads[api, "refused"] += 1

    def handshake_failed(self, api: str) -> None:
        """Counts a connection whose TLS handshake failed, if the port has TLS."""
        with self._lock:
            if api in self._failed:
                self._failed[api] += 1

    def ends_s(self) -> dict[str, float]:
        """Returns port -> when the first of its certificates expires, in seconds since 1970."""
        with self._lock:
            return self._ends_s.copy()

    def lines(self) -> list[str]:
        """Returns the lines of metrics on TLS reloads, failed handshakes and certificates; none if no port has TLS."""
        with self._lock:
            ends_s, reloads, failed = self._ends_s.copy(), self._reloads.copy(), self._failed.copy()
        if not ends_s:
            return []
        return [
            *_family(
                "certificate_end_timestamp_seconds",
                "gauge",
                "Seconds since 1970 at which the first of the certificates ends that the port shows.",
                {labels({"api": api}): end_s for api, end_s in ends_s.items()},
            ),
            *_family(
                "reloads_total",
                "counter",
                "Changed files with certificates: taken or refused.",
                {labels({"api": api, "outcome": outcome}): count for (api, outcome), count in reloads.items()},
            ),
            *_family(
                "handshakes_failed_total",
                "counter",
                "Connections that ended before they were secured; 0 where grpcio has the port.",
                {labels({"api": api}): count for api, count in failed.items()},
            ),
        ]


def _family(part: str, kind: Kind, about: str, series: Mapping[str, float]) -> list[str]:
    name = _PREFIX + part
    return family(name, kind, about) + [
        sample(name, labelled, float(value)) for labelled, value in sorted(series.items())
    ]
