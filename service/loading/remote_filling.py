"""Fills the native core's cache with the hot rows of remote tables, before their version is AVAILABLE."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.engine.servable import Servable
from service.remote.core_clusters import CoreClusters
from service.tables.remote_table import RemoteTable
from service.tables.residency import hottest_rows
from service.types import Array

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteFilling:
    """The filler of the cache of remote tables' rows, for versions that are being loaded. Concurrency: any thread.

    seconds: longest time for one version; rows that are not read by then are
    left out.
    hot_rows: returns table -> its hot rows, [n] int64, the hottest first, of a model and version.
    """

    cache: CoreClusters
    seconds: float
    hot_rows: Callable[[str, int], Mapping[str, Array]]

    def __call__(self, servable: Servable, path: Path) -> None:
        """Reads rows of each remote table of a version into the native core's cache, the hottest first.

        Args:
          path: the version's folder. For tables that hot_rows lacks, the statistics in this folder name the hot rows.
        """
        tables = {name: table for name, table in servable.tables.items() if isinstance(table, RemoteTable)}
        if not self.cache.holds_rows or not tables or self.seconds <= 0:
            return
        end_s = time.monotonic() + self.seconds
        known = {**dict(hottest_rows(path)), **self.hot_rows(servable.name, servable.version)}
        for name, table in tables.items():
            begin_s = time.monotonic()
            if (ids := known.get(name)) is None or begin_s >= end_s:
                continue
            inside = ids[(ids >= 0) & (ids < table.info.vocabulary_size)]
            count = self.cache.fill(table.layout, servable.version, inside, end_s - begin_s)
            names = {"model": servable.name, "version": servable.version, "table": name}
            seconds = round(time.monotonic() - begin_s, 3)
            logger.info("hot rows are cached", extra={**names, "rows": count, "of": inside.size, "seconds": seconds})
