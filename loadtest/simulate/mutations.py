"""Plants one fault after the other in what the product asks of the disk, and says which of them the cuts find.

A fault is one call at one place of the product: an fsync or a truncation that does nothing, or a rename that is on the
disk before what the last fsync wrote. The product's files are not changed: the recorder treats the call so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from loadtest.simulate.power import run_seed
from loadtest.simulate.syscalls import Site


class Found(NamedTuple):
    """A planted fault, and the seed that found it; None: no seed did. tried: seeds that reached the call."""

    site: Site
    case: str
    seed: int | None
    tried: int


def plant_all(seeds: Iterable[int], most_tried: int) -> list[Found]:
    """Plants a fault at each call that the first seeds reach, and runs seeds that reach it until one fails.

    Args:
      seeds: those that look for calls. most_tried: seeds that are tried for a fault.
    """
    reached: dict[tuple[Site, str], list[int]] = defaultdict(list)
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.failure:
            raise AssertionError(f"seed {seed} fails without a planted fault: {outcome.failure}")
        for site in outcome.sites:
            reached[site, outcome.case].append(seed)
    found = []
    for (site, case), reaching in sorted(reached.items()):
        tried = reaching[:most_tried]
        failing = next((seed for seed in tried if run_seed(seed, site).failure), None)
        found.append(Found(site, case, failing, len(tried) if failing is None else tried.index(failing) + 1))
    return found


def table(found: list[Found]) -> str:
    """Returns a Markdown table of the planted faults, and a last line with their numbers."""
    lines = ["| call | place in the product | case | found by seed | seeds tried |", "|---|---|---|---|---|"]
    for one in found:
        seed = "**not found**" if one.seed is None else one.seed
        lines.append(f"| {one.site[0]} | {one.site[1]} | {one.case} | {seed} | {one.tried} |")
    kinds = Counter(one.site[0] for one in found)
    num_found = sum(one.seed is not None for one in found)
    return "\n".join([*lines, "", f"{num_found} of {len(found)} planted faults found ({dict(kinds)})"])
