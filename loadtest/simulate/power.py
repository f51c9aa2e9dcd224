"""Runs cases through power cuts, each from a seed."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.simulate.cases import CASES
from loadtest.simulate.disk import Mark
from loadtest.simulate.syscalls import Killed, Recorder

# Cuts of each life, at moments of their own; the program goes on from the last.
_CUTS = 8
_MAX_LIVES = 3


@dataclass
class Outcome:
    """The result of one seed. failure: what was broken, "" if nothing."""

    case: str
    cuts: int = 0
    failure: str = ""
    history: list[str] = field(default_factory=list)


def run_seed(seed: int, case: str | None = None) -> Outcome:
    """Runs one case from a seed: up to three lives, with eight power cuts each.

    Args:
      case: None draws it from the seed.
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
            recorder = Recorder(root, rng)
            try:
                with recorder:
                    for left in range(rng.randint(0, 2), -1, -1):
                        if left:
                            behind = rng.choice(("", "", "write", "rename", "unlink"))
                            recorder.kill(rng.randint(0, 5 if behind else 60), behind)
                        with suppress(Killed):
                            run.live(recorder)
                        recorder.revive()
            except Exception as error:
                outcome.failure = f"life {life}: {type(error).__name__}: {error}"
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
