"""Compares tables with their checksums, before a version answers or while it answers already, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.configuration.settings import Settings
from service.errors import DataLoss
from service.tables.guarded_files import GuardedFiles
from service.tables.verification import Stored, Verifier, nothing_before


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The rule by which the tables of each version are verified at its load. Concurrency: any thread.

    rule: "background", "before_available" or "auto", as in Settings.
    is_served: says whether a model has a version that answers.
    on_damage: called with the model's name if tables are found wrong after the version has begun to answer.
    """

    rule: str
    verifier: Verifier
    is_served: Callable[[str], bool]
    on_damage: Callable[[str], None]

    def check(
        self,
        model: str,
        files: GuardedFiles,
        stored: Sequence[Stored],
        behind: Callable[[], object] = nothing_before,
    ) -> None:
        """Verifies a version's tables now or in a thread; raises DataLoss if a checksum differs, NotReady if stopped.

        Args:
          behind: waits for work that must be done before the verification in the thread.
        """
        # --verify_tables=auto verifies a new version before it answers only if an older version answers meanwhile:
        # otherwise all requests would wait.
        if self.rule == "before_available" or (self.rule == "auto" and self.is_served(model)):
            self.verifier.verify(files, stored)
            if why := files.look():
                raise DataLoss(why)
        else:
            self.verifier.verify_later(files, stored, lambda: self.on_damage(model), behind)

    def stop(self) -> None:
        """Ends running and waiting verifications of table checksums, so that they do not delay a shutdown."""
        self.verifier.stop()


def table_verification(
    settings: Settings, is_served: Callable[[str], bool], on_damage: Callable[[str], None]
) -> TableVerification | None:
    """Returns the object that compares tables with their checksums; None if the settings turn this off."""
    rule = settings.verify_tables
    verifier = Verifier(settings.verify_tables_mib_per_s * 2**20)
    return None if rule == "off" else TableVerification(rule, verifier, is_served, on_damage)
