"""Suggests, for error texts, the known name that was probably meant by a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Least similarity of a suggested name: higher than difflib's default 0.6, because names of settings share prefixes and
# would all look similar.
_CUTOFF = 0.75
# Limits on the work for a suggestion: comparing names takes time in proportion to the product of their lengths, and
# clients choose the name.
_MAX_NAMES, _MAX_LENGTH = 200, 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error text, which suggests the most similar known name; "" if no name is similar.

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
