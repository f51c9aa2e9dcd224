"""Runs cases through power cuts, each from a seed, and plants faults to see whether the cuts find them."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from loadtest.simulate.cases import CASES
from loadtest.simulate.disk import Mark
from loadtest.simulate.syscalls import Killed, Recorder, Site

# Cuts of each life, at moments of their own; the program goes on from the last.
_CUTS = 8
_MAX_LIVES = 3


@dataclass
class Outcome:
    """The result of one seed. sites: calls of the product to the disk; failure: what was broken, "" if nothing."""

    case: str
    cuts: int = 0
    sites: Counter[Site] = field(default_factory=Counter)
    failure: str = ""
    history: list[str] = field(default_factory=list)


def run_seed(seed: int, planted: Site | None = None, case: str | None = None) -> Outcome:
    """Runs one case from a seed: up to three lives, with eight power cuts each.

    Args:
      planted: a call that the disk treats otherwise (syscalls.Recorder). case: None draws it from the seed.
    """
    rng = random.Random(seed)
    name = list(CASES)[seed % len(CASES)] if case is None else case
    outcome = Outcome(name)
    with _folder() as folder:
        root = folder / "root"
        root.mkdir()
        run = CASES[name](root, rng)
        run.prepare()
        marks: list[Mark] = []
        for life in range(rng.randint(1, _MAX_LIVES)):
            recorder = Recorder(root, rng, planted)
            try:
                with recorder:
                    for left in range(rng.randint(0, 2), -1, -1):
                        if left:
                            recorder.kill(after=rng.randint(0, 60))
                        with suppress(Killed):
                            run.live(recorder)
                        recorder.revive()
            except Exception as error:
                outcome.failure = f"life {life}: {type(error).__name__}: {error}"
            outcome.sites += recorder.sites
            for number in range(_CUTS):
                if outcome.failure:
                    return outcome
                steps = recorder.steps
                # The first cut comes at the end: the last answer was given, and nothing was written since.
                at = len(steps) if number == 0 else rng.randint(0, len(steps))
                outcome.history = [f"case {name}, life {life}, cut {number} before step {at} of {len(steps)}"]
                disk = recorder.base.after_cut(steps[:at], rng, outcome.history)
                shutil.rmtree(root)
                disk.write_to(root)
                before = [*marks, *(step for step in steps[:at] if isinstance(step, Mark))]
                outcome.cuts += 1
                try:
                    run.check(before)
                except Exception as error:
                    outcome.failure = f"{type(error).__name__}: {error}"
            # check() is a start of its own, so the next life begins from the disk, and not from what check() wrote.
            shutil.rmtree(root)
            disk.write_to(root)
            marks = before
    return outcome


@contextmanager
def _folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="simulate-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
