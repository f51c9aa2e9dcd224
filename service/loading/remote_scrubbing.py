"""Compares all remote tables of loaded versions with the versions' files in one thread, and tells what it finds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from service.remote.address import StoreAddress
from service.remote.core_clusters import CoreClusters
from service.remote.counts import Subject

if TYPE_CHECKING:
    # service.remote.scrub needs redis-py, an optional extra.
    from service.remote.scrub import Scrub

logger = logging.getLogger(__name__)

_STEP_S = 1.0
# A finding that changes is logged at most once in this many seconds for each table.
_TELL_S = 60.0


class RemoteScrubbing:
    """The scrubs of the remote tables of one server. Concurrency: any thread.

    Args:
      is_loaded: says whether a table's version is loaded. core: counts the reads of the native core.
      on_change: called when a table can answer no more, or can answer again.
    """

    def __init__(self, is_loaded: Callable[[Subject], bool], core: CoreClusters, on_change: Callable[[], None]) -> None:
        self._is_loaded = is_loaded
        self._core = core
        self._on_change = on_change
        self._scrubs: dict[Subject, tuple[StoreAddress, Scrub]] = {}
        # Table -> when its problem was logged last, and the problem then.
        self._told: dict[Subject, tuple[float, str]] = {}
        self._failing: frozenset[Subject] = frozenset()

    def add(self, subject: Subject, address: StoreAddress, scrub: Scrub) -> None:
        """Compares the table of a version from now on, until the version is unloaded."""
        self._scrubs[subject] = address, scrub

    def watch(self, stop: threading.Event) -> None:
        """Compares some blocks of each table each second, in a thread, until stop is set."""

        def run() -> None:
            while not stop.wait(_STEP_S):
                self.step()

        threading.Thread(target=run, name="remote-scrub", daemon=True).start()

    def step(self) -> None:
        """Compares some blocks of each table; logs a table whose rows are lost, or are whole again."""
        for subject, (address, scrub) in list(self._scrubs.items()):
            if not self._is_loaded(subject):
                self._scrubs.pop(subject, None)
                self._told.pop(subject, None)
                continue
            try:
                suspects, reads, errors = self._core.lost(subject)
                scrub.step(suspects, reads, errors)
            except Exception:
                # One thread compares all tables, so an error at one table must not end the thread.
                logger.exception("a remote table can not be compared", extra=_named(subject, address))
            self._tell(subject, address, scrub.problem)
        failing = frozenset(subject for subject, (_, scrub) in list(self._scrubs.items()) if not scrub.can_answer)
        if failing != self._failing:
            self._failing = failing
            self._on_change()

    def _tell(self, subject: Subject, address: StoreAddress, problem: str) -> None:
        told_s, told = self._told.get(subject, (float("-inf"), ""))
        now_s = time.monotonic()
        if problem == told or (problem and told and now_s < told_s + _TELL_S):
            return
        self._told[subject] = now_s, problem
        if problem:
            logger.warning("rows of a remote table are lost", extra=_named(subject, address) | {"reason": problem})
        else:
            logger.info("rows of a remote table are whole again", extra=_named(subject, address))

    def problem(self, model: str) -> str:
        """Returns one line on a table of the model with on_unavailable=error that can not answer; "" without one."""
        for (name, version, table), (address, scrub) in list(self._scrubs.items()):
            if name == model and address.on_unavailable == "error" and not scrub.can_answer:
                return f"rows of table {table!r} of version {version} are lost: {scrub.problem}"
        return ""

    def of(self, address: StoreAddress, refusals: Mapping[Subject, str]) -> list[dict[str, Any]]:
        """Returns the status of each table in a cluster, for the status page; refusals: why it takes no upserts."""
        return [
            {"model": model, "version": version, "table": table}
            | scrub.status()
            | {"refusal": refusals.get((model, version, table), "")}
            for (model, version, table), (its, scrub) in sorted(self._scrubs.items(), key=lambda item: item[0])
            if its == address
        ]

    def counts(self) -> Mapping[Subject, tuple[int, Mapping[str, int]]]:
        """Returns for each table the number of compared blocks, and of faulty blocks by fault."""
        return {subject: (scrub.num_checked, scrub.counts) for subject, (_, scrub) in list(self._scrubs.items())}


def _named(subject: Subject, address: StoreAddress) -> dict[str, Any]:
    model, version, table = subject
    return {"model": model, "version": version, "table": table, "cluster": str(address)}
