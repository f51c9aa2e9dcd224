"""Writes the metrics of pages of tables that the native core reads."""

from __future__ import annotations

from service.engine.page_counts import PageCounts
from service.observe.metric_text import Kind, family, labels, sample

_PREFIX = "embedding_server_paged_"
_FAMILIES: tuple[tuple[str, Kind, str, str], ...] = (
    ("cold_rows_total", "counter", "Ids of lookups whose row was not in memory and was read from the disk.", "rows"),
    ("reads_total", "counter", "Pages of tables that were read for lookups.", "reads"),
    ("drops_total", "counter", "Pages that the server dropped to keep to --paged_tables_mib.", "drops"),
    ("losses_total", "counter", "Pages that the kernel dropped, because memory was short.", "losses"),
    ("read_seconds_total", "counter", "Seconds that threads spent reading pages, all threads together.", "seconds"),
    ("resident_bytes", "gauge", "Bytes of pages of tables that are in memory.", "bytes"),
    ("max_bytes", "gauge", "Most bytes of pages of tables that stay in memory.", "max_bytes"),
)


def page_lines(counts: PageCounts) -> list[str]:
    """Returns the lines of metrics on pages of tables; none if the native core has read none."""
    lines: list[str] = []
    if not counts.reads and not counts.bytes:
        return lines
    for name, kind, about, field in _FAMILIES:
        lines += family(_PREFIX + name, kind, about)
        lines.append(sample(_PREFIX + name, labels({}), float(getattr(counts, field))))
    return lines
