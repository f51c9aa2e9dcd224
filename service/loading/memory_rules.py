"""From settings to what is done with memory."""

from __future__ import annotations

from service.configuration.settings import Settings
from service.lookup.residency import Residency


def residency_of(settings: Settings) -> Residency:
    """Returns what is done with tables' pages before a version answers; table_pages has the rest of what "auto" is."""
    pages = settings.table_pages
    if pages == "auto":
        # What is read as a whole in any case is read in large pages at once.
        pages = "huge" if settings.table_prefault else "normal"
    return Residency(
        is_prefaulted=settings.table_prefault,
        bytes_per_s=settings.table_prefault_mib_per_s * 2**20,
        lock=settings.table_lock,
        advice=pages,
        is_warmed=settings.warm,
    )
