"""Plants faults in the product's code, and says which of them the power cuts or the simulated clusters find.

mutations.txt lists the faults, one a line: the cases that must find it, the file, and what is done to the code. A fault
of a Python file is planted in memory; one of a Rust file in a copy of native/ that has only the module of its case, the
test of this name.

    drop STATEMENT          the line of this statement does nothing
    move STATEMENT ^ OTHER  it is done before another statement
    edit OLD => NEW         a text is replaced, and a further one behind " && "

A line break is written ⏎, and `N# STATEMENT` is the Nth line of this statement. A line that ends in " -- REASON" breaks
no promise: no cut may find it.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
# One copy of native/, so that cargo builds only what has changed since the last fault.
_COPY = _ROOT / "native" / "target" / "planted" / "native"
_copying = threading.Lock()


class _Planted(SourceFileLoader):
    """A loader of a module whose code is another than its file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """Returns the other code."""
        return self.source_to_code(self._source, self.path)


class Mutation(NamedTuple):
    """A planted fault. harmless: why it breaks no promise; "" if it does."""

    cases: Sequence[str]
    path: str
    change: str
    harmless: str

    def planted(self) -> str:
        """Returns the file's code with the fault; raises ValueError if a text of the change is not there once."""
        source = (_ROOT / self.path).read_text()
        how, what = self.change.split(" ", 1)
        if how == "edit":
            for pair in what.replace("⏎", "\n").split(" && "):
                old, _, new = pair.partition(" =>")
                source = _replaced(source, old, new.removeprefix(" "))
            return source
        statement, _, before = what.partition(" ^ ")
        source = _without(source, statement)
        if before:
            place = _line(source, before)
            indent = place[1]
            source = f"{source[: place.start()]}{indent}{statement.split('# ')[-1]}\n{source[place.start() :]}"
        return source


def _line(source: str, statement: str) -> re.Match[str]:
    number, _, text = statement.rpartition("# ")
    found = list(re.finditer(rf"^( *){re.escape(text)}$", source, re.MULTILINE))
    if not number and len(found) != 1:
        raise ValueError(f"{len(found)} lines are {text!r}")
    return found[int(number or 1) - 1]


def _without(source: str, statement: str) -> str:
    found = _line(source, statement)
    return f"{source[: found.start()]}{found[1]}pass{source[found.end() :]}"


def _replaced(source: str, old: str, new: str) -> str:
    if source.count(old) != 1:
        raise ValueError(f"{old!r} is there {source.count(old)} times")
    return source.replace(old, new)


def mutations() -> list[Mutation]:
    """Returns the faults of mutations.txt."""
    found, path = [], ""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.endswith((".py", ".rs")) and ": " not in line:
            path = line
        elif line:
            cases, _, change = line.strip().partition(": ")
            change, _, harmless = change.partition(" -- ")
            found.append(Mutation(cases.split(", "), path, change, harmless))
    return found


def first_found(number: int, case: str, num_seeds: int) -> int | None:
    """Plants a fault in this process, which has not imported the product yet; returns the first seed that finds it."""
    mutation = mutations()[number]
    name = mutation.path.removesuffix(".py").replace("/", ".")
    assert "loadtest.simulate.power" not in sys.modules
    loader = _Planted(name, str(_ROOT / mutation.path), mutation.planted())
    spec = spec_from_loader(name, loader)
    assert spec is not None
    importlib.import_module(name.rpartition(".")[0])
    sys.modules[name] = module = module_from_spec(spec)
    loader.exec_module(module)
    from loadtest.simulate import changes, power

    run = changes.run_seed if case == "changes" else partial(power.run_seed, case=case)
    return next((seed for seed in range(num_seeds) if run(seed).failure), None)


def plant(number: int, case: str, num_seeds: int) -> int | str | None:
    """Plants a fault in a new process; returns the first seed that finds it, or the history by hand, or None."""
    if mutations()[number].path.endswith(".rs"):
        with _copying:
            return _first_in_core(mutations()[number], case, num_seeds)
    code = (
        "import logging; logging.disable(logging.CRITICAL); "
        f"from {__name__} import first_found; print(first_found({number}, {case!r}, {num_seeds}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, stdout=subprocess.PIPE, check=True)
    return None if done.stdout.strip() == b"None" else int(done.stdout)


def _first_in_core(mutation: Mutation, case: str, num_seeds: int) -> int | str | None:
    shutil.rmtree(_COPY, ignore_errors=True)
    shutil.copytree(_ROOT / "native", _COPY, ignore=shutil.ignore_patterns("target"))
    (_COPY.parent / mutation.path).write_text(mutation.planted())
    (_COPY / "src" / "lib.rs").write_text(f"pub mod {case.partition('::')[0]};\nmod sync;\n")
    environ = {**os.environ, "SEEDS": f"0-{num_seeds}", "CARGO_TARGET_DIR": str(_COPY.parents[1])}
    # A run of seeds takes a fifth of the time of one that is not optimised. The dependencies are built already.
    profile = "profile.dev.package.embedding-server-native.opt-level=1"
    command = ["cargo", "test", "--locked", "--config", profile, "--lib", case, "--", "--nocapture"]
    done = subprocess.run(command, cwd=_COPY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "test result: " not in done.stdout:
        raise ValueError(f"the core can not be built with {mutation.change!r}: {done.stdout[-2000:]}")
    if found := re.search(r"^seed (\d+): ", done.stdout, re.MULTILINE):
        return int(found[1])
    by_hand = re.search(rf"^test ({case}::by_hand::\w+) \.\.\. FAILED$", done.stdout, re.MULTILINE)
    return by_hand[1] if by_hand else None


def tell(num_seeds: int, tell_line: Callable[[str], object]) -> bool:
    """Plants all faults and tells of each in a line of a Markdown table; says whether each that breaks a promise was
    found.
    """
    chosen = [(number, one, case) for number, one in enumerate(mutations()) for case in one.cases]
    tell_line("| file | change | case | found by seed |\n|---|---|---|---|")
    num_missed = num_found = 0
    with ThreadPoolExecutor(2) as threads:
        seeds = threads.map(lambda each: plant(each[0], each[2], num_seeds), chosen)
        for (_, one, case), seed in zip(chosen, seeds, strict=True):
            num_found += seed is not None
            num_missed += seed is None and not one.harmless
            found = (one.harmless or "**NOT FOUND**") if seed is None else seed
            tell_line(f"| {one.path} | `{one.change}` | {case} | {found} |")
    tell_line(f"\n{len(chosen)} faults planted, {num_found} found, {num_missed} missed")
    return num_missed == 0
