"""The settings of deltas as the rules that the loader takes, and what tidies up behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.configuration.settings import Settings
from service.deltas.journal_pruning import JournalPruning
from service.deltas.rules import DeltaRules


def delta_rules(settings: Settings, wake: Callable[[], None]) -> DeltaRules | None:
    """Returns what the settings ask for; None: no deltas are taken."""
    if not settings.delta_poll_wait_seconds:
        return None
    return DeltaRules(
        journal_folder=_journal_folder(settings),
        max_rows=settings.delta_max_rows,
        max_file_bytes=settings.delta_max_file_mib << 20,
        max_journal_bytes=settings.delta_journal_max_mib << 20,
        wake=wake,
    )


def journal_pruning(settings: Settings) -> JournalPruning | None:
    """Returns what removes journals of versions that are gone; None: there are none."""
    folder = _journal_folder(settings)
    return JournalPruning(folder) if folder is not None and settings.delta_poll_wait_seconds else None


def _journal_folder(settings: Settings) -> Path | None:
    return Path(settings.delta_journal_dir).absolute() if settings.delta_journal_dir else None
