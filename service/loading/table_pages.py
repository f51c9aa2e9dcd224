"""Handles the memory of tables: pages made huge, tables larger than memory, checksums verified."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from service.configuration.control_groups import available_bytes, memory_limit_bytes
from service.configuration.settings import Settings
from service.errors import DataLoss
from service.tables.backend import Paging
from service.tables.guarded_files import GuardedFiles, OneByOne, Stored, Verifier
from service.tables.huge_pages import HugePages
from service.tables.table import MappedTable

logger = logging.getLogger(__name__)

# Most seconds for which a version that shall follow another waits for its huge pages: some 50 GB of them.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class TablePages:
    """The maker of huge pages for the tables of each version that is loaded. Concurrency: any thread.

    is_before: whether a load waits until its tables' pages are huge.
    is_served: says whether a model has a version that answers. A load then waits for some time: a lookup in a page that
      is read again would wait too.
    """

    huge_pages: HugePages
    is_before: bool
    is_served: Callable[[str], bool] = lambda _: False
    _later: OneByOne = field(default_factory=lambda: OneByOne("huge-pages", "pages could not be made huge"))

    def make(self, model: str, files: GuardedFiles) -> threading.Event:
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
            self._later.add(run)
            if self.is_served(model):
                done.wait(_PATIENCE_S)
        return done

    def stop(self) -> None:
        self.huge_pages.stop()


def table_pages(settings: Settings, is_served: Callable[[str], bool]) -> TablePages | None:
    rule = settings.table_pages
    if rule not in ("auto", "huge"):
        return None
    if rule == "auto" and settings.table_lock != "off":
        reason = "--table_lock is set, and locked pages can not be read again; --table_pages=huge reads them before"
        logger.info("no huge pages", extra={"reason": reason})
        return None
    huge_pages = HugePages(is_whole=rule == "huge", available=available_bytes)
    return TablePages(huge_pages, rule == "huge", is_served)


# Share of the process's memory limit that pages of tables larger than memory may take. The rest is for the server
# itself (measured: 150 MB, with TensorFlow 600 MB), and for the page cache of other files that the server reads.
_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class PagedTables:
    """The rule that decides how the native core reads pages of a version's tables. Concurrency: any thread.

    rule: "on": all tables are larger than memory; "off": the core reads no pages; "auto": the tables of a version are
      larger than memory if the tables of all loaded versions together exceed max_bytes, else they fit.
    max_bytes: the most bytes of paged tables that stay in memory.
    other_bytes: returns the bytes of mapped tables of all loaded versions.
    """

    rule: Literal["auto", "on", "off"]
    max_bytes: int
    other_bytes: Callable[[], int] = lambda: 0

    def paging(self, path: Path, tables: Mapping[str, MappedTable]) -> Paging:
        num_bytes = mapped_bytes(tables)
        other = self.other_bytes()
        if self.rule == "off" or not num_bytes:
            return "off"
        if self.rule == "auto" and num_bytes + other <= self.max_bytes:
            return "fits"
        told = {"path": str(path), "table_bytes": num_bytes, "other_bytes": other, "max_bytes": self.max_bytes}
        logger.info("tables are larger than memory: their pages are read when lookups need them", extra=told)
        return "larger"


def mapped_bytes(tables: Mapping[str, object]) -> int:
    mapped = (table for table in tables.values() if isinstance(table, MappedTable))
    return sum(table.weights.nbytes + table.scales.nbytes for table in mapped)


def paged_tables(settings: Settings, other_bytes: Callable[[], int], root: Path = Path("/")) -> PagedTables:
    limit = memory_limit_bytes(root)
    max_bytes = settings.paged_tables_mib << 20
    rule = settings.paged_tables
    if not max_bytes:
        max_bytes = int(limit * _SHARE) if limit is not None else 1 << 62
    if rule == "auto" and (settings.warm == "tables" or settings.table_lock != "off"):
        # With --warm=tables or --table_lock, all pages of the tables shall be in memory, so --paged_tables=auto does
        # not let the core read single pages.
        rule = "off"
    return PagedTables(rule, max_bytes, other_bytes)


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The rule by which the tables of each version are verified at its load. Concurrency: any thread.

    rule: "background", "before_available" or "auto", as in Settings.
    is_served: says whether a model has a version that answers.
    on_damage: called with the model's name if tables are found wrong after the version has begun to answer.
    """

    rule: str
    verifier: Verifier
    is_served: Callable[[str], bool]
    on_damage: Callable[[str], None]

    def check(
        self,
        model: str,
        files: GuardedFiles,
        stored: Sequence[Stored],
        behind: Callable[[], object] | None = None,
    ) -> None:
        """Verifies a version's tables now or in a thread; raises DataLoss if a checksum differs.

        Args:
          behind: waits for work that must be done before the verification in the thread.

        Raises also what Verifier.verify() raises.
        """
        # --verify_tables=auto verifies a new version before it answers only if an older version answers meanwhile:
        # otherwise all requests would wait.
        if self.rule == "before_available" or (self.rule == "auto" and self.is_served(model)):
            self.verifier.verify(files, stored)
            if why := files.look():
                raise DataLoss(why)
        else:
            self.verifier.verify_later(files, stored, lambda: self.on_damage(model), behind)

    def stop(self) -> None:
        self.verifier.stop()


def table_verification(
    settings: Settings, is_served: Callable[[str], bool], on_damage: Callable[[str], None]
) -> TableVerification | None:
    rule = settings.verify_tables
    verifier = Verifier(settings.verify_tables_mib_per_s * 2**20)
    return None if rule == "off" else TableVerification(rule, verifier, is_served, on_damage)
