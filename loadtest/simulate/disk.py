"""A model of what a disk holds after a power cut, given the operations that a program asked for until then.

The rules are those that POSIX gives, with the guarantees of ext4, xfs and btrfs where POSIX leaves everything open:

- Only fsync makes anything durable. fsync of a file keeps the file's bytes and its size, but not its name; fsync of a
  folder keeps the names in it, but no file's bytes.
- What was not synced may be on the disk or not, sector by sector and in any order. The sector that was being written
  may be torn. A size may be on the disk without the bytes: they are zeros, or whatever lay there.
- Names that were not synced may be there or not, in any order; each single operation on names is atomic, a rename in
  both of its folders. Operations on one folder, and renames of one file, keep their order.
- If fsync of a file fails, the kernel takes the file's pages for clean: some are on the disk, and no later fsync
  writes the others.

Source: Pillai et al., All File Systems Are Not Created Equal (OSDI 2014), table 1 (ALICE's abstract persistence model);
Rebello et al., Can Applications Recover from fsync Failures? (ATC 2020); the faults lost-data and torn-seq of LazyFS.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Names:
    """An operation on names: each effect sets the name in a folder to a node, or removes it (None).

    kind: "mkdir", "rename" and so on. node: of the file or folder that is named.
    """

    effects: tuple[tuple[int, str, int | None], ...]
    node: int
    kind: str

    @property
    def text(self) -> str:
        """The operation, in one line."""
        told = (f"{folder}/{name} {'removed' if node is None else f'is {node}'}" for folder, name, node in self.effects)
        return f"{self.kind}: {', '.join(told)}"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file cut to a size, or extended to it with zeros."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync of a file or a folder that returned, or that failed."""

    node: int
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A fact that the case knows from here on: an answer that the code gave to its caller, for example."""

    label: str
    value: object


Step = Names | Write | Resize | Sync | Mark


@dataclass
class Disk:
    """Folders (node -> name -> node) and files (node -> bytes) that are durable."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def after_cut(self, steps: Sequence[Step], rng: random.Random, lines: list[str]) -> Disk:
        """Returns what the disk holds if the power fails behind the last step; appends a line on each step to lines."""
        kept_names = _kept_names(steps, rng, set(self.folders))
        folders = {node: dict(names) for node, names in self.folders.items()}
        by_file: dict[int, list[Write | Resize | Sync]] = {}
        for number, step in enumerate(steps):
            if isinstance(step, Names):
                if step.kind == "mkdir":
                    folders[step.node] = {}
                fate = "kept" if number in kept_names else "LOST"
                lines.append(f"{fate}  {step.text}")
                for folder, name, node in step.effects if number in kept_names else ():
                    if node is None:
                        folders[folder].pop(name, None)
                    else:
                        folders[folder][name] = node
            elif isinstance(step, Mark):
                lines.append(f"====  {step.label}: {step.value!r}"[:200])
            else:
                lines.append(f"      {_told(step)}")
                by_file.setdefault(step.node, []).append(step)
        files = dict(self.files)
        for node, changes in by_file.items():
            files[node] = _kept_bytes(files.get(node, b""), changes, rng)
        return Disk(folders, files)

    def write_to(self, root: Path) -> None:
        """Makes the folder root, which does not exist, with all that can be reached on the disk."""
        made: dict[int, Path] = {}

        def make(node: int, path: Path, is_folder: bool) -> None:
            if is_folder:
                path.mkdir()
                for name, child in self.folders.get(node, {}).items():
                    make(child, path / name, child in self.folders)
            elif node in made:
                os.link(made[node], path)
            else:
                made[node] = path
                path.write_bytes(self.files.get(node, b""))

        make(0, root, is_folder=True)


def _told(step: Write | Resize | Sync) -> str:
    if isinstance(step, Write):
        return f"write {len(step.data)} bytes at {step.offset} of node {step.node}"
    if isinstance(step, Resize):
        return f"resize node {step.node} to {step.size}"
    return f"fsync of node {step.node}{' FAILS' if step.has_failed else ''}"


def _kept_names(steps: Sequence[Step], rng: random.Random, folders: set[int]) -> set[int]:
    """Returns the numbers of the steps on names that are on the disk: all synced ones, and others as drawn."""
    kept: set[int] = set()
    open_steps: list[int] = []
    for number, step in enumerate(steps):
        if isinstance(step, Names):
            folders |= {step.node} if step.kind == "mkdir" else set()
            open_steps.append(number)
        elif isinstance(step, Sync) and step.node in folders and not step.has_failed:
            kept |= {one for one in open_steps if step.node in _folders_of(steps[one])}
            open_steps = [one for one in open_steps if one not in kept]
    way = rng.random()
    if way < 0.25:
        drawn: list[int] = []
    elif way < 0.5:
        drawn = open_steps[: rng.randint(0, len(open_steps))]
    else:
        luck = rng.choice((0.1, 0.5, 0.9, 1.0))
        drawn = [one for one in open_steps if rng.random() < luck]
    kept |= set(drawn)
    # A rename, and each operation on a folder itself, comes after the earlier ones on the same node.
    for number in sorted(kept, reverse=True):
        step = steps[number]
        if isinstance(step, Names) and (step.kind == "rename" or step.node in folders):
            kept |= {
                one for one in open_steps if one < number and isinstance(b := steps[one], Names) and b.node == step.node
            }
    return kept


def _folders_of(step: Step) -> set[int]:
    return {folder for folder, _, _ in step.effects} if isinstance(step, Names) else set()


def _kept_bytes(base: bytes, steps: Sequence[Write | Resize | Sync], rng: random.Random) -> bytes:
    """Returns a file's bytes on the disk; each fsync keeps what came before it."""
    volatile, durable, since = bytearray(base), bytes(base), []
    for step in steps:
        if isinstance(step, Sync):
            durable = _survived(durable, since, rng) if step.has_failed else _merged(durable, volatile, since)
            since = []
        else:
            _apply(volatile, step)
            since.append(step)
    return _survived(durable, since, rng)


def _apply(content: bytearray, step: Write | Resize) -> None:
    size = step.size if isinstance(step, Resize) else step.offset + len(step.data)
    if isinstance(step, Resize):
        del content[size:]
    content.extend(bytes(max(size - len(content), 0)))
    if isinstance(step, Write):
        content[step.offset : size] = step.data


def _merged(durable: bytes, volatile: bytearray, since: Sequence[Write | Resize]) -> bytes:
    """Applies all steps to the durable bytes, which differ from the file's after an fsync that failed."""
    content = bytearray(durable)
    for step in since:
        _apply(content, step)
    # The size in memory is the size that a successful fsync writes.
    del content[len(volatile) :]
    content.extend(bytes(len(volatile) - len(content)))
    return bytes(content)


def _survived(durable: bytes, since: Sequence[Write | Resize], rng: random.Random) -> bytes:
    if not since:
        return durable
    way = rng.random()
    if way < 0.2:
        return durable
    num_sized = rng.randint(0, len(since))
    luck = rng.choice((0.0, 0.3, 0.7, 1.0))
    if way < 0.4:
        num_sized, luck = len(since), 1.0
    torn = rng.randrange(len(since)) if rng.random() < 0.5 else -1
    content, size = bytearray(durable), len(durable)
    volatile_size = size
    for number, step in enumerate(since):
        if isinstance(step, Resize):
            volatile_size = step.size
            if number < num_sized:
                _apply(content, step)
        else:
            volatile_size = max(volatile_size, step.offset + len(step.data))
            sectors = list(_sectors(step))
            for place, one in enumerate(sectors):
                if rng.random() < luck:
                    data = one.data
                    if number == torn and place == len(sectors) - 1:
                        data = data[: rng.randrange(len(data))]
                    if data:
                        _apply(content, Write(step.node, one.offset, data))
                elif rng.random() < 0.1 and one.offset >= len(content):
                    _apply(content, Write(step.node, one.offset, rng.randbytes(len(one.data))))
        if number < num_sized:
            size = volatile_size
    del content[size:]
    content.extend(bytes(size - len(content)))
    return bytes(content)


def _sectors(step: Write) -> Iterator[Write]:
    at, end = step.offset, step.offset + len(step.data)
    while at < end:
        to = min(end, (at // SECTOR + 1) * SECTOR)
        yield Write(step.node, at, step.data[at - step.offset : to - step.offset])
        at = to
