"""Reads the delta files that other programs put into a version's folder: scans the folder repeatedly, reads each file
once.

The folder is not trusted: a file's name is a number, the file is a plain file of bounded size, no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from service.artifact.delta_file import DELTAS_FOLDER, Delta, DeltaFault, decode, sequence_of

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK keeps open() from waiting for a writer if the path is a named pipe.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

# A delta file that was read before is checked for changes only in every 25th call of read(): a folder may hold
# thousands of delta files, which hardly ever change.
_LOOK_AGAIN_EVERY = 25

# Inode, size and change times of a delta file, kept to see later whether the file has changed.
_Look = tuple[int, int, int, int]


class Inbox:
    """The reader of delta files in a version's folder, each of which it reads once. Concurrency: one caller at a time.

    Args:
      max_bytes: largest size of one file.
      refused: called with the fault and the path of a file that can not be read, once for each state of the file.
    """

    def __init__(self, artifact: Path, *, max_bytes: int, refused: Callable[[DeltaFault, str], None]) -> None:
        self._folder = artifact / DELTAS_FOLDER
        self._max_bytes = max_bytes
        self._refused = refused
        self._seen: dict[str, _Look] = {}
        # Names of the refused delta files: each call of read() looks whether they have changed, because somebody may
        # replace them.
        self._bad: set[str] = set()
        self._calls = 0
        self._is_link = False

    def read(self, max_bytes: int) -> list[Delta]:
        """Returns the deltas in files that are new or have changed, lowest sequence numbers first; raises OSError.

        Args:
          max_bytes: after so many bytes the remaining files are left for the next call.
        """
        try:
            folder = os.open(self._folder, _FOLDER_FLAGS)
        except FileNotFoundError:
            self._seen = {}
            return []
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if not self._is_link:
                self._is_link = True
                self._refused(
                    DeltaFault("not_a_file", "it is no folder, and links are not followed"), str(self._folder)
                )
            return []
        self._is_link = False
        self._calls += 1
        try:
            return self._read(folder, max_bytes)
        finally:
            os.close(folder)

    def _read(self, folder: int, max_bytes: int) -> list[Delta]:
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                sequence = sequence_of(entry.name)
                if sequence is not None:
                    found[entry.name] = sequence
        self._seen = {name: look for name, look in self._seen.items() if name in found}
        self._bad &= found.keys()
        deltas, done = [], 0
        looks_at_all = self._calls % _LOOK_AGAIN_EVERY == 0
        for name, sequence in sorted(found.items(), key=lambda item: item[1]):
            if not looks_at_all and name in self._seen and name not in self._bad:
                continue
            try:
                look = _look(os.stat(name, dir_fd=folder, follow_symlinks=False))
            except FileNotFoundError:
                continue
            if self._seen.get(name) == look:
                continue
            if done >= max_bytes:
                break
            try:
                data, look = self._open(folder, name)
                self._seen[name] = look
                self._bad.discard(name)
                done += len(data)
                delta = decode(data)
                if delta.sequence != sequence:
                    raise DeltaFault("sequence", f"its name says {sequence}, its header {delta.sequence}")
                deltas.append(delta)
            except FileNotFoundError:
                continue
            except DeltaFault as fault:
                self._seen[name] = look
                self._bad.add(name)
                self._refused(fault, f"{self._folder / name}")
        return deltas

    def _open(self, folder: int, name: str) -> tuple[bytes, _Look]:
        try:
            descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DeltaFault("not_a_file", f"it can not be opened: {error.strerror}") from error
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DeltaFault("not_a_file", "it is no plain file")
            if found.st_size > self._max_bytes:
                raise DeltaFault("oversized", f"{found.st_size} bytes, the limit is {self._max_bytes}")
            try:
                return file.read(found.st_size), _look(found)
            except OSError as error:
                raise DeltaFault("not_a_file", f"it can not be read: {error.strerror}") from error


def _look(found: os.stat_result) -> _Look:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
