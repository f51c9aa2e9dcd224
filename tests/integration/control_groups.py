"""Makes control groups with limits on memory or on the number of threads, in which processes of a test run (Linux, as
root).

Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and cgroup-v1/pids.rst (Linux 6.18).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
# Seconds to wait until the kernel notices that the last process of a control group has ended.
_PATIENCE_S = 30
# Controller -> the files of its limit and usage, in version 1 and in version 2 of control groups.
_FILES = {
    "memory": (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")),
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
}


class NoControlGroup(Exception):
    """Raised if this process can not make a control group; the message says why."""


def memory_group(max_bytes: int) -> ControlGroup:
    """Makes a control group with a limit on its bytes of memory, pages of files included."""
    return _made("memory", max_bytes)


def thread_group(max_threads: int) -> ControlGroup:
    """Makes a control group with a limit on the threads of its processes."""
    return _made("pids", max_threads)


def _made(controller: str, limit: int) -> ControlGroup:
    """Makes a control group, or skips the test with the reason why there can be none."""
    try:
        return ControlGroup(controller, limit)
    except NoControlGroup as error:
        pytest.skip(str(error))


class ControlGroup:
    """A control group whose processes together may use a limited amount; the `with` block removes it at the end.

    If the system allows, the group lies below this process's group, so the limits of that group still apply.

    Raises:
      NoControlGroup: the system has no such control groups, or lets this process make none.
    """

    def __init__(self, controller: str, limit: int) -> None:
        own, is_v2 = _own_group(controller)
        self._limit, self._usage = _FILES[controller][is_v2]
        name = f"embedding-server-{os.getpid()}-{time.monotonic_ns()}"
        # In version 2 of control groups, a group below one that has processes can have no limit, so the new group is a
        # sibling of this process's group.
        above = own.parent if is_v2 and own != _ROOT else own
        self.folder = above / name
        try:
            self.folder.mkdir()
        except OSError as error:
            raise NoControlGroup(f"no control group can be made in {above}: {error.strerror}") from error
        try:
            self.limit(limit)
        except OSError as error:
            self.folder.rmdir()
            raise NoControlGroup(f"the limit of {self.folder} can not be set: {error.strerror}") from error

    def limit(self, most: int) -> None:
        """Sets another limit."""
        (self.folder / self._limit).write_text(str(most))

    def add(self, pid: int) -> None:
        """Moves a process into the control group, or skips the test if the system does not let this process do it."""
        try:
            (self.folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            pytest.skip(f"no process can be moved to {self.folder}: {error.strerror}")

    @property
    def used(self) -> int:
        """Bytes or threads that the control group has now."""
        return int((self.folder / self._usage).read_text())

    def __enter__(self) -> ControlGroup:
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


def _own_group(controller: str) -> tuple[Path, bool]:
    """Returns the folder of this process's group, and whether it is one of version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = _ROOT / controller / path.lstrip("/")
            if (folder / "cgroup.procs").exists():
                return folder, False
        elif number == "0":
            folder = _ROOT / path.lstrip("/")
            found = folder / "cgroup.controllers"
            if found.exists() and controller in found.read_text().split():
                return folder, True
    raise NoControlGroup(f"this system has no control groups of {controller} in {_ROOT}")
