"""Declares the server's rules for deltas: the folder of journals, and the limits on one delta."""

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
    """The rules for the deltas of all versions: the journals' folder and limits; makes the VersionDeltas of a version.

    journal_folder: None: upserts are refused.
    max_rows: of one upsert; max_file_bytes: of one delta; max_journal_bytes: of one version's journal.
    wake: called when an upsert is on disk.
    """

    journal_folder: Path | None
    max_rows: int
    max_file_bytes: int
    max_journal_bytes: int
    wake: Callable[[], None]

    def follow(self, target: Target, overlay: Overlay) -> VersionDeltas:
        """Returns a VersionDeltas that will read and apply one version's deltas; it has read none yet."""
        return VersionDeltas(
            target,
            overlay,
            journal=None if self.journal_folder is None else partial(self._journal, target, self.journal_folder),
            max_rows=self.max_rows,
            max_bytes=self.max_file_bytes,
            wake=self.wake,
        )

    def may_have(self, model: str, version: int, artifact: Path) -> bool:
        """Returns False only if a version surely has neither a folder of deltas nor a journal; raises ArtifactError.

        The check finds out whether a journal or a folder of deltas exists; it reads neither.
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
    """Says whether a path surely does not exist; False if an error hides whether it exists."""
    try:
        place.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
