"""Writes metrics on how many lookups of a table read its hottest rows; the rows themselves are listed at `:hot`, not in
labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.engine.hot_rows import TableTraffic
from service.engine.servable import LoadedServable
from service.observe.metric_text import family, labels, sample

_DISTINCT = "embedding_server_table_sampled_rows"
_SHARE = "embedding_server_table_hot_share"
_TOPS = (1, 10, 100, 1000)


def hot_rows_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on the rows that lookups read most; none if the server samples no ids."""
    found = [
        traffic
        for one in loaded
        for table in sorted(one.servable.tables)
        if (traffic := one.servable.traffic(table, max(_TOPS), has_keys=False)) is not None
    ]
    if not found:
        return []
    lines = family(_DISTINCT, "gauge", "Different rows in the sample of a table's lookups, estimated.")
    lines += [sample(_DISTINCT, labels(_named(one)), float(one.distinct)) for one in found]
    lines += family(_SHARE, "gauge", "Share of a table's lookups that read one of its `top` hottest rows, sampled.")
    return lines + [
        sample(_SHARE, labels({**_named(one), "top": top}), one.top_share(top)) for one in found for top in _TOPS
    ]


def _named(one: TableTraffic) -> dict[str, object]:
    return {"model": one.model, "table": one.table, "version": one.version}
