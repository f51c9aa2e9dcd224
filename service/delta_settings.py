"""The settings of deltas as the rules that the loader takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.deltas.rules import DeltaRules
from service.settings import Settings


def delta_rules(settings: Settings, wake: Callable[[], None]) -> DeltaRules | None:
    """Returns what the settings ask for; None: no deltas are taken."""
    if not settings.delta_poll_wait_seconds:
        return None
    return DeltaRules(
        journal_folder=Path(settings.delta_journal_dir).absolute() if settings.delta_journal_dir else None,
        max_rows=settings.delta_max_rows,
        max_file_bytes=settings.delta_max_file_mib << 20,
        max_journal_bytes=settings.delta_journal_max_mib << 20,
        wake=wake,
    )
