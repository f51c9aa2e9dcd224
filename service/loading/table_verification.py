"""When tables are held against their checksums: before a version answers, or behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.configuration.settings import Settings
from service.errors import DataLoss
from service.tables.guarded_files import GuardedFiles
from service.tables.verification import Stored, Verifier, nothing_before


@dataclass(frozen=True, slots=True)
class TableVerification:
    """Verifies the checksums of a version's tables at its load. Concurrency: any thread.

    rule: "background", "before_available" or "auto", as in Settings.
    is_served: whether a model of that name has a version that answers.
    on_damage: told the model's name where tables are found wrong behind its back.
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
        """Verifies, or has it done; raises DataLoss where something is wrong, NotReady where it was stopped.

        Args:
          behind: waits for what must come first, where no load waits for the verification.
        """
        # While another version answers nobody waits for this one; without one everybody does.
        if self.rule == "before_available" or (self.rule == "auto" and self.is_served(model)):
            self.verifier.verify(files, stored)
            if why := files.look():
                raise DataLoss(why)
        else:
            self.verifier.verify_later(files, stored, lambda: self.on_damage(model), behind)

    def stop(self) -> None:
        """Ends what goes on and all that follows, so that no shutdown waits for it."""
        self.verifier.stop()


def table_verification(
    settings: Settings, is_served: Callable[[str], bool], on_damage: Callable[[str], None]
) -> TableVerification | None:
    """Returns what the settings ask for; None where that is nothing."""
    rule = settings.verify_tables
    verifier = Verifier(settings.verify_tables_mib_per_s * 2**20)
    return None if rule == "off" else TableVerification(rule, verifier, is_served, on_damage)
