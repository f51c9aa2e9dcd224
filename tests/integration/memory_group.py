"""Makes a memory control group with a limit, in which a process of a test runs (Linux, as root).

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst (Linux 6.18).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
# Seconds to wait until the kernel notices that the last process of a control group has ended.
_PATIENCE_S = 30


class NoMemoryGroup(Exception):
    """Raised if this process can not make a control group; the message says why."""


def memory_group(max_bytes: int) -> MemoryGroup:
    """Makes a control group, or skips the test with the reason why there can be none."""
    try:
        return MemoryGroup(max_bytes)
    except NoMemoryGroup as error:
        pytest.skip(str(error))


class MemoryGroup:
    """A control group whose processes together may use `max_bytes` of memory; the `with` block removes it at the end.

    If the system allows, the group lies below this process's group, so the limits of that group still apply.

    Raises:
      NoMemoryGroup: the system has no control groups of memory, or lets this process make none.
    """

    def __init__(self, max_bytes: int) -> None:
        own, limit, self._usage = _own_group()
        name = f"embedding-server-{os.getpid()}-{time.monotonic_ns()}"
        # In version 2 of control groups, a group below one that has processes can have no limit, so the new group is a
        # sibling of this process's group.
        above = own.parent if limit == "memory.max" and own != _ROOT else own
        self.folder = above / name
        try:
            self.folder.mkdir()
        except OSError as error:
            raise NoMemoryGroup(f"no control group can be made in {above}: {error.strerror}") from error
        try:
            (self.folder / limit).write_text(str(max_bytes))
        except OSError as error:
            self.folder.rmdir()
            raise NoMemoryGroup(f"the limit of {self.folder} can not be set: {error.strerror}") from error

    def add(self, pid: int) -> None:
        """Moves a process into the control group, or skips the test if the system does not let this process do it."""
        try:
            (self.folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            pytest.skip(f"no process can be moved to {self.folder}: {error.strerror}")

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that the control group uses, pages of files included."""
        return int((self.folder / self._usage).read_text())

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(self, *_: object) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)


def _own_group() -> tuple[Path, str, str]:
    """Returns the folder of this process's memory group, and the names of the files of its limit and usage."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = _ROOT / "memory" / path.lstrip("/")
            if (folder / "memory.limit_in_bytes").exists():
                return folder, "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif number == "0":
            folder = _ROOT / path.lstrip("/")
            if (folder / "cgroup.controllers").exists() and "memory" in (folder / "cgroup.controllers").read_text():
                return folder, "memory.max", "memory.current"
    raise NoMemoryGroup("this system has no control groups of memory in /sys/fs/cgroup")
