"""Makes the memory pages of a version's tables huge, before the version answers or while it answers already."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service.configuration.settings import Settings
from service.loading.available_memory import available_bytes
from service.tables.guarded_files import GuardedFiles
from service.tables.huge_pages import HugePages

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TablePages:
    """The maker of huge pages for the tables of each version that is loaded. Concurrency: any thread.

    is_before: whether a load waits until its tables' pages are huge.
    """

    huge_pages: HugePages
    is_before: bool
    _waiting: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None

    def make(self, files: GuardedFiles) -> threading.Event:
        """Makes the pages of a version's files huge, at once or in a thread that serves one version after the other.

        Returns:
          An event that is set when the work is done or given up.
        """
        done = threading.Event()

        def run() -> None:
            try:
                self.huge_pages.make(files)
            finally:
                done.set()

        if self.is_before:
            run()
        else:
            self._waiting.put(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="huge-pages", daemon=True)
                self._thread.start()
        return done

    def stop(self) -> None:
        """Makes the work on huge pages end for all versions, so that it does not delay a shutdown."""
        self.huge_pages.stop()

    def _run(self) -> None:
        while True:
            task = self._waiting.get()
            try:
                task()
            except Exception:
                logger.exception("pages could not be made huge")
            # The reference to the finished task is dropped: it would keep its version's files mapped while this thread
            # waits for the next task.
            del task


def table_pages(settings: Settings) -> TablePages | None:
    """Returns the maker of huge pages for the settings; None if the settings leave pages as they are."""
    rule = settings.table_pages
    if rule not in ("auto", "huge"):
        return None
    if rule == "auto" and settings.table_lock != "off":
        reason = "--table_lock is set, and locked pages can not be read again; --table_pages=huge reads them before"
        logger.info("no huge pages", extra={"reason": reason})
        return None
    huge_pages = HugePages(
        is_whole=rule == "huge",
        bytes_per_s=settings.table_prefault_mib_per_s * 2**20,
        available=available_bytes,
    )
    return TablePages(huge_pages, is_before=rule == "huge")
