"""From settings to what is done with memory."""

from __future__ import annotations

from service.configuration.settings import Settings
from service.lookup.residency import Residency


def residency_of(settings: Settings) -> Residency:
    """Returns what is done with tables' pages before a version answers."""
    return Residency(
        is_prefaulted=settings.table_prefault,
        bytes_per_s=settings.table_prefault_mib_per_s * 2**20,
        lock=settings.table_lock,
        advice=settings.table_pages,
        is_warmed=settings.warm,
    )
