"""Writes the metrics of reads from remote tables."""

from __future__ import annotations

from collections.abc import Mapping

from service.observe.metric_text import family, labels, sample
from service.remote.counts import ReadCounts

_PREFIX = "embedding_server_remote_table_"
_FAMILIES = (
    ("reads_total", "Reads of rows of one table for one request.", "reads"),
    ("rows_total", "Distinct rows that were read.", "rows"),
    ("read_bytes_total", "Bytes of these rows.", "bytes"),
    ("retries_total", "Further rounds of reads: another node was asked for rows that one did not give.", "retries"),
    ("errors_total", "Reads that lacked a row at their end.", "errors"),
    ("default_rows_total", "Rows that could not be read and were answered by a default row.", "default_rows"),
    ("seconds_total", "Seconds in reads.", "seconds"),
)


def remote_lines(counts: Mapping[tuple[str, int, str], ReadCounts]) -> list[str]:
    """Returns the lines of metrics on remote tables; none if no table is remote."""
    lines: list[str] = []
    for name, about, field in _FAMILIES if counts else ():
        lines += family(_PREFIX + name, "counter", about)
        lines += [
            sample(
                _PREFIX + name,
                labels({"model": model, "version": str(version), "table": table}),
                float(getattr(count, field)),
            )
            for (model, version, table), count in sorted(counts.items())
        ]
    return lines
