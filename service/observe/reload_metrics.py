"""Counts accepted and refused reloads of the --auth_config file."""

from __future__ import annotations

import threading

from service.observe.metric_text import family, labels, sample

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
        """Counts a reload of --auth_config that a fault in the file prevented; the former content stays in force."""
        self._count("refused")

    @property
    def is_current(self) -> bool:
        """Whether the last content of the --auth_config file is in force; True without such a file."""
        with self._lock:
            return self._is_current or not any(self._counts.values())

    def lines(self) -> list[str]:
        """Returns the lines of the reload metrics; none if the server has no --auth_config."""
        with self._lock:
            counts, is_current = dict(self._counts), self._is_current
        if not any(counts.values()):
            return []
        lines = family(RELOADS, "counter", "New contents of --auth_config: taken or refused.")
        lines += [sample(RELOADS, labels({"result": result}), float(count)) for result, count in counts.items()]
        lines += family(
            IS_CURRENT,
            "gauge",
            "1: the content of --auth_config is in force; 0: it was refused, and the content before it is.",
        )
        return [*lines, sample(IS_CURRENT, "", float(is_current))]

    def _count(self, result: str) -> None:
        with self._lock:
            self._counts[result] += 1
            self._is_current = result == "taken"
