"""Notes how many bytes of each object are safe on the disk, so that a fetch continues inside an object.

The notes are lines in a file beside the fetched files. A line is added when the bytes before it are synced, so each
line that survives a kill or a power failure is true. What a file has beyond its last line may be torn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from service.stores.object_store import StoredObject

PROGRESS = ".progress.jsonl"


class Step(NamedTuple):
    """The number and the CRC-32C of the bytes at an object's begin that are fetched and synced to the disk."""

    num_bytes: int = 0
    crc: int = 0


class Progress:
    """The file that notes how many bytes of each object of a version are fetched from the store. Concurrency: one
    caller at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        # (Path of an object, its ETag) -> how many of its first bytes are synced to the disk, and their checksum.
        self._steps: dict[tuple[str, str], Step] = {}
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in filter(None, lines):
            try:
                path, tag, num_bytes, crc = json.loads(line)
            except ValueError:
                # An incomplete line of the progress file is skipped: the process was killed, or the power failed, while
                # it was written.
                continue
            self._steps[path, tag] = Step(num_bytes, crc)

    def of(self, one: StoredObject) -> Step:
        """Returns the Step up to which an object is synced: 0 bytes without an ETag, by which a change is noticed."""
        return self._steps.get((one.path, one.tag), Step()) if one.tag else Step()

    def note(self, one: StoredObject, step: Step) -> None:
        """Writes to the progress file how many bytes of an object are synced to the disk; raises OSError."""
        self._steps[one.path, one.tag] = step
        with self._path.open("ab") as file:
            # A newline is written before a line of the progress file, too, because the file may end with an incomplete
            # line.
            file.write(b"\n" + json.dumps([one.path, one.tag, *step]).encode() + b"\n")
