"""Sets of sequence numbers take them in any order, and agree with a Python set."""

from __future__ import annotations

import random

from service.deltas.version_deltas import Sequences


def test_as_a_set_would() -> None:
    chance = random.Random(3)
    for _ in range(50):
        seen, known = Sequences(), set[int]()
        for _ in range(60):
            number = chance.randint(1, 40)
            assert seen.add(number) == (number not in known)
            known.add(number)
            assert (seen.last, seen.missing) == (max(known), max(known) - len(known))
