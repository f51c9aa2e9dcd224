"""A servable compiled by the native core, and what it is on other tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from service.engine.servable import NativeServable, Servable, sums_of_counts
from service.graph.native_form import NativeGraph, PythonOnly
from service.native.description import Described, describe
from service.native.left_out import left_out
from service.tables.backend import OpenedLookups
from service.tables.table import MappedTable
from service.types import TableCounts

if TYPE_CHECKING:
    from service import _native

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompiledServable:
    """See engine.servable.NativeServable.

    compiled: the core's own object. It owns described.keep until the last request has let go, so this object must not
      be among that: no collection would ever find such a circle.
    earlier: answered lookups of the version while it was loading; what it has counted is a part of the counts.
    """

    compiled: _native.Servable
    described: Described
    earlier: NativeServable | None = None

    @property
    def num_holders(self) -> int:
        """See engine.servable.NativeServable."""
        return self.compiled.num_leases

    def table_counts(self) -> Mapping[str, TableCounts]:
        """See engine.servable.NativeServable."""
        counts = self.described.table_counts(self.compiled.counts(), self.compiled.unknown_keys())
        return counts if self.earlier is None else sums_of_counts(counts, self.earlier.table_counts())

    def on_tables(self, tables: Mapping[str, MappedTable]) -> CompiledServable:
        """See engine.servable.NativeServable."""
        keep = self.described.keep_with(tables)
        return replace(self, compiled=self.compiled.on_tables(self.described.addresses(tables), keep))


def compile_native(
    servable: Servable, lookups: OpenedLookups | None, graphs: Mapping[str, NativeGraph | PythonOnly]
) -> Servable:
    """Returns a version with what the native core answers from, and why it leaves signatures to Python.

    Where the version has such a thing already, it was compiled for its lookups alone, while it was loading.
    """
    from service import _native

    names = {"model": servable.name, "version": servable.version}
    earlier, servable = servable.native, replace(servable, native=None)
    forwarded = left_out(lookups, servable.signatures, graphs)
    if forwarded and not servable.is_loading:
        logger.info("signatures are left to the reference servers", extra=names | {"signatures": forwarded})
    servable = replace(servable, forwarded=forwarded)
    native_graphs = {name: graph for name, graph in graphs.items() if isinstance(graph, NativeGraph)}
    described = describe(servable.name, servable.version, lookups, servable.signatures, native_graphs)
    if described is None:
        return servable
    try:
        compiled = _native.Servable(described.text, described.keep)
    except ValueError as error:
        # A fault of ours, which costs speed and no answers: the reference servers have the version too.
        logger.error("the native core can not serve the version", extra=names | {"reason": str(error)})
        return replace(servable, forwarded=dict.fromkeys(servable.signatures, str(error)))
    return replace(servable, native=CompiledServable(compiled, described, earlier))
