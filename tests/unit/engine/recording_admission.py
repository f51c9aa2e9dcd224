"""An observer of admission that tests can read."""

from __future__ import annotations


class RecordingAdmission:
    """An AdmissionObserver that records refusals and waits."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.waits: list[tuple[str, float]] = []

    def refused(self, model: str, reason: str) -> None:
        """Records a refusal."""
        self.refusals.append((model, reason))

    def waited(self, model: str, seconds: float) -> None:
        """Records a wait."""
        self.waits.append((model, seconds))
