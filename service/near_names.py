"""Suggests the name that a misspelt one probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Higher than difflib's 0.6: names of settings share prefixes, and would all be near each other.
_CUTOFF = 0.75
# A comparison takes time by the product of the lengths, and a client chooses the name.
_MAX_NAMES, _MAX_LENGTH = 200, 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error text that suggests the nearest known name; "" if no name is near.

    It compares no name of more than 100 characters, and nothing with more than 200 known names.

    >>> did_you_mean("Tabels", ["tables", "features"])
    '; did you mean tables?'
    >>> did_you_mean("x", ["tables", "features"])
    ''
    """
    spelt = {each.lower(): each for each in known}
    if len(name) > _MAX_LENGTH or len(spelt) > _MAX_NAMES:
        return ""
    near = get_close_matches(name.lower(), spelt, 1, _CUTOFF)
    return f"; did you mean {spelt[near[0]]}?" if near else ""
