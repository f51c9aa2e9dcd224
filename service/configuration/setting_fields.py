"""Declares a dataclass field for one setting, with its help text and limits."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, TypeAlias

# Type of a setting of a TCP port: a number, 0 for no port, or "auto" for a free port that the system picks.
Port: TypeAlias = int | Literal["auto"]


def setting(
    default: Any, about: str, low: float | None = None, high: float | None = None, *, default_about: str = ""
) -> Any:
    """Returns a dataclass field that holds a setting's default, help text and limits.

    Args:
      about: help text. low, high: smallest and largest allowed number.
      default_about: text in place of a default that depends on the machine.
    """
    return field(default=default, metadata={"about": about, "low": low, "high": high, "default_about": default_about})
