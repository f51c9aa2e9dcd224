"""Declares a setting."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any, about: str, low: float | None = None, high: float | None = None, *, default_about: str = ""
) -> Any:
    """Returns a field of a settings class.

    Args:
      about: what `--help` says. low, high: what a number may be.
      default_about: the words for a default that depends on the machine.
    """
    return field(default=default, metadata={"about": about, "low": low, "high": high, "default_about": default_about})
