"""Joins the parts that read pages of tables: the rule, the core's pager, the compiler and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from service.configuration.settings import Settings
from service.engine.servable import LoadedServable
from service.loading.feature_lookups import CompileNative
from service.loading.paged_tables import mapped_bytes, paged_tables
from service.native.batches import Batcher
from service.native.clusters import Clusters
from service.native.native_servable import compile_native
from service.native.pages import Pages
from service.observe.page_metrics import page_lines


class TablePaging:
    """The parts by which the native core reads pages of tables. Concurrency: any thread.

    Args:
      clusters: the clusters of the core.
      loaded: returns the loaded versions.
      batcher: batches graph runs; None: each request runs by itself.

    rule: decides how the pages of a version are read. compile: compiles servables for the core.
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Clusters,
        loaded: Callable[[], Sequence[LoadedServable]],
        batcher: Batcher | None,
    ) -> None:
        self.rule = paged_tables(settings, lambda: sum(mapped_bytes(one.servable.tables) for one in loaded()))
        self._pages = Pages(self.rule.max_bytes)
        batches = None if batcher is None else batcher.core
        self.compile: CompileNative = partial(
            compile_native, clusters=clusters.core, pager=self._pages.core, batcher=batches
        )

    def lines(self) -> list[str]:
        """Returns the pager's counts as lines of metrics."""
        return page_lines(self._pages.counts())
