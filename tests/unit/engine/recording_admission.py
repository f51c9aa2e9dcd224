"""Keeps what an admission tells."""

from __future__ import annotations


class Told:
    """An AdmissionObserver that remembers."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.waits: list[tuple[str, float]] = []

    def refused(self, model: str, reason: str) -> None:
        """Keeps a refusal."""
        self.refusals.append((model, reason))

    def waited(self, model: str, seconds: float) -> None:
        """Keeps a wait."""
        self.waits.append((model, seconds))
