"""Suggests the name that a misspelt one probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Higher than difflib's 0.6: names of settings share prefixes, and would all be near each other.
_CUTOFF = 0.75


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error text that suggests the nearest known name; "" if no name is near.

    >>> did_you_mean("Tabels", ["tables", "features"])
    '; did you mean tables?'
    >>> did_you_mean("x", ["tables", "features"])
    ''
    """
    spelt = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), spelt, 1, _CUTOFF)
    return f"; did you mean {spelt[near[0]]}?" if near else ""
