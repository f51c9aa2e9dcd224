"""Decides when tables are compared with their checksums: before a version answers, or beside its first answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.configuration.settings import Settings
from service.errors import DataLoss
from service.tables.guarded_files import GuardedFiles
from service.tables.verification import Stored, Verifier, nothing_before


@dataclass(frozen=True, slots=True)
class TableVerification:
    """Verifies the checksums of each version's tables when it is loaded. Concurrency: any thread.

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
        """Verifies the tables now or in a thread; raises DataLoss if a checksum differs, NotReady if it was stopped.

        Args:
          behind: waits for work that must be done before the verification in the thread.
        """
        # While another version answers, no request waits for this one; without another version, all do.
        if self.rule == "before_available" or (self.rule == "auto" and self.is_served(model)):
            self.verifier.verify(files, stored)
            if why := files.look():
                raise DataLoss(why)
        else:
            self.verifier.verify_later(files, stored, lambda: self.on_damage(model), behind)

    def stop(self) -> None:
        """Ends the verifications that run and wait, so that no shutdown waits for them."""
        self.verifier.stop()


def table_verification(
    settings: Settings, is_served: Callable[[str], bool], on_damage: Callable[[str], None]
) -> TableVerification | None:
    """Returns the verification that the settings ask for; None if they ask for none."""
    rule = settings.verify_tables
    verifier = Verifier(settings.verify_tables_mib_per_s * 2**20)
    return None if rule == "off" else TableVerification(rule, verifier, is_served, on_damage)
