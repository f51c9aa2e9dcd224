"""Writes the metrics of searches for nearest rows."""

from __future__ import annotations

from collections.abc import Mapping

from service.observe.metric_text import family, labels, sample

_NAME = "embedding_server_neighbor_rows_scanned_total"


def neighbor_lines(scanned: Mapping[str, int]) -> list[str]:
    """Returns the metrics of searches; none where nobody has searched.

    Args:
      scanned: model -> number of rows that searches compared with their queries.
    """
    if not scanned:
        return []
    lines = family(_NAME, "counter", "Rows of tables that searches for nearest rows compared with their queries.")
    return lines + [sample(_NAME, labels({"model": model}), float(count)) for model, count in sorted(scanned.items())]
