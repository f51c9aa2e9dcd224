"""How deltas are taken by a server: where it keeps its journals, and what one delta may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from service.artifact.delta_file import DELTAS_FOLDER, DeltaFault, fingerprint_of
from service.artifact.delta_journal import Journal, journal_path
from service.deltas.overlay import Overlay
from service.deltas.version_deltas import Target, VersionDeltas


@dataclass(frozen=True, slots=True)
class DeltaRules:
    """Makes what follows the deltas of a version.

    journal_folder: None: no upserts are taken.
    max_rows: of an upsert; max_file_bytes: of a delta; max_journal_bytes: of a version's journal.
    wake: called when an upsert is on disk.
    """

    journal_folder: Path | None
    max_rows: int
    max_file_bytes: int
    max_journal_bytes: int
    wake: Callable[[], None]

    def follow(self, target: Target, overlay: Overlay) -> VersionDeltas:
        """Returns what follows one version's deltas; nothing is read yet."""
        return VersionDeltas(
            target,
            overlay,
            journal=None if self.journal_folder is None else partial(self._journal, target, self.journal_folder),
            max_rows=self.max_rows,
            max_bytes=self.max_file_bytes,
            wake=self.wake,
        )

    def may_have(self, model: str, version: int, artifact: Path) -> bool:
        """Says whether a version has deltas, or may have some that can not be read; raises ArtifactError.

        It looks for a journal and a folder, and into neither.
        """
        places = [artifact / DELTAS_FOLDER]
        if self.journal_folder is not None:
            places.append(journal_path(self.journal_folder, model, version, fingerprint_of(artifact)))
        return not all(map(_is_absent, places))

    def _journal(self, target: Target, folder: Path, refused: Callable[[DeltaFault, str], None]) -> Journal:
        return Journal(
            journal_path(folder, target.model, target.version, target.fingerprint),
            max_bytes=self.max_journal_bytes,
            max_record_bytes=self.max_file_bytes,
            refused=refused,
        )


def _is_absent(place: Path) -> bool:
    """Says whether there is certainly nothing at a path."""
    try:
        place.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
