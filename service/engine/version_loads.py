"""Runs the loads of one model's versions, each in a thread of its own, and gives up loads that take too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from service.artifact.completeness import Identity, identity
from service.engine.load_rules import LoadRules
from service.engine.patience import Attempt, TimeIsOver
from service.engine.servable import Servable
from service.errors import DeadlineExceeded


class Opened(NamedTuple):
    """The result of a load: the servable, and the files that lay in its folder when the load began."""

    identity: Identity
    servable: Servable


class VersionLoads:
    """The loads of one model's versions. Concurrency: one caller at a time; has_hanging from any thread.

    Args:
      on_late: called when a load that was given up has ended, so that the version may be loaded again.
    """

    def __init__(self, model: str, rules: LoadRules, on_late: Callable[[], None]) -> None:
        self._model = model
        self._rules = rules
        self._on_late = on_late
        # Loads that were given up after their timeout and may still hang, by version.
        self._late: dict[int, Attempt[Opened]] = {}

    @property
    def has_hanging(self) -> bool:
        """Whether a load still hangs after it was given up at its timeout."""
        return any(not attempt.is_over for attempt in tuple(self._late.values()))

    def is_hanging(self, version: int) -> bool:
        """Says whether a load of this version still hangs after it was given up at its timeout."""
        return version in self._late and not self._late[version].is_over

    def load(self, version: int, path: Path) -> Opened:
        """Loads a version, for as long as the rules allow; raises DeadlineExceeded, and any error of the loader."""
        rules = self._rules
        self._late.pop(version, None)

        def load() -> Opened:
            return Opened(identity(path), rules.load(self._model, version, path))

        attempt = Attempt(f"load-{self._model}-{version}", load, self._end_late)
        try:
            return attempt.result(rules.load_timeout_s)
        except TimeIsOver:
            self._late[version] = attempt
            raise DeadlineExceeded(
                f"{path} did not load within {rules.load_timeout_s:g} s (--load_timeout_s), so it was given up: check "
                "that its files can be read and its graph does not wait. It is tried again when that load has ended"
            ) from None

    def _end_late(self, opened: Opened | None) -> None:
        """Closes the servable of a load that ended after its timeout."""
        if opened is not None:
            opened.servable.close()
        self._on_late()
