"""Writes the metrics of searches for nearest rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from service.engine.neighbor_indexes import IndexName
from service.engine.neighbors import RowIndex
from service.observe.metric_text import family, labels, sample

_INDEX_METRICS: tuple[tuple[str, str, Callable[[RowIndex], float]], ...] = (
    (
        "embedding_server_neighbor_index_recall",
        "Share of the ten nearest rows that the index of a table finds, measured when it was built.",
        lambda index: index.recall or 0.0,
    ),
    (
        "embedding_server_neighbor_index_build_seconds",
        "Seconds that the build of a table's index took.",
        lambda index: index.seconds,
    ),
    ("embedding_server_neighbor_index_bytes", "Bytes of memory of a table's index.", lambda index: index.nbytes),
)
_NAME = "embedding_server_neighbor_rows_scanned_total"


def neighbor_lines(scanned: Mapping[str, int], indexes: Mapping[IndexName, RowIndex]) -> list[str]:
    """Returns the lines of metrics on searches for nearest rows and on indexes; none before the first search.

    Args:
      scanned: model -> number of rows that searches compared with their queries.
    """
    if not scanned:
        return []
    lines = family(_NAME, "counter", "Rows of tables that searches for nearest rows compared with their queries.")
    lines += [sample(_NAME, labels({"model": model}), float(count)) for model, count in sorted(scanned.items())]
    for name, about, value in _INDEX_METRICS if indexes else ():
        lines += family(name, "gauge", about)
        for key, index in sorted(indexes.items()):
            told = labels({"model": key.model, "version": str(key.version), "table": key.table, "metric": key.metric})
            lines.append(sample(name, told, float(value(index))))
    return lines
