"""Decides how the native core reads the pages of a version's tables: whether they fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.configuration.settings import Settings
from service.loading.available_memory import memory_limit_bytes
from service.tables.backend import Paging
from service.tables.table import MappedTable

logger = logging.getLogger(__name__)

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
        """Returns how the native core reads pages of a version's tables; logs it if they are larger than memory."""
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
    """Returns the size in bytes of the mapped ones among the given tables, with their scales."""
    mapped = (table for table in tables.values() if isinstance(table, MappedTable))
    return sum(table.weights.nbytes + table.scales.nbytes for table in mapped)


def paged_tables(settings: Settings, other_bytes: Callable[[], int], root: Path = Path("/")) -> PagedTables:
    """Makes, from the settings, the rule by which the native core reads tables' pages. root: the folder above /proc and
    /sys.
    """
    limit = memory_limit_bytes(root)
    max_bytes = settings.paged_tables_mib << 20
    rule = settings.paged_tables
    if not max_bytes:
        max_bytes = int(limit * _SHARE) if limit is not None else 1 << 62
    if rule == "auto" and (settings.table_prefault or settings.table_lock != "off"):
        # With --table_prefault or --table_lock, all pages of the tables shall be in memory, so --paged_tables=auto does
        # not let the core read single pages.
        rule = "off"
    return PagedTables(rule, max_bytes, other_bytes)
