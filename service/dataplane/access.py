"""Writes --auth_config down for the native core: JSON that native/src/edge/access.rs reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.core.access import Caller


def describe_callers(callers: Sequence[Caller]) -> list[dict[str, Any]]:
    """Returns the callers, with the models on which they have the right "predict": all that the core answers needs it.

    >>> from service.core.access import Rule
    >>> rules = (Rule(("films", "news-*"), frozenset({"predict"})), Rule(("*",), frozenset({"metadata"})))
    >>> describe_callers([Caller("ranker", rules, certificates=("CN:ranker",))])
    [{'digests': [], 'certificates': ['CN:ranker'], 'models': ['films', 'news-*']}]
    """
    return [
        {
            "digests": [digest.hex() for digest in caller.digests],
            "certificates": list(caller.certificates),
            "models": [model for rule in caller.rules if "predict" in rule.rights for model in rule.models],
        }
        for caller in callers
    ]
