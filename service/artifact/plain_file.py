"""Reads the file at a path, and raises at once, without waiting, if a pipe, socket, device or folder is there.

Opening a pipe waits until somebody writes to it, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_plain_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Returns a file's bytes; raises OSError, also if the path leads to a pipe, a socket, a device or a folder.

    Args:
      max_bytes: a larger file is not read, and raises OSError, too.
    """
    # The file's type is checked before open(), because opening a device has effects: a tape drive rewinds, for example.
    _check(path, os.stat(path))
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb") as file:
        # The file's type is checked again after open(), because the path may have been replaced since the first check.
        found = os.fstat(descriptor)
        _check(path, found)
        if max_bytes is None:
            return file.read()
        # The buffer is as large as the file, because Python allocates all bytes that are asked for. A file that grows
        # while it is read has more.
        data = file.read(found.st_size + 1) if found.st_size <= max_bytes else b""
        if len(data) > found.st_size:
            data += file.read(max_bytes + 1 - len(data))
        if found.st_size > max_bytes or len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes, the most that are read", str(path))
        return data


def strange_kind(found: os.stat_result) -> str:
    """Returns the type of a path that is neither a plain file nor a folder, such as "a pipe"; else "".

    >>> strange_kind(os.stat("/dev/null"))
    'a device'
    """
    return _KINDS.get(stat.S_IFMT(found.st_mode), "")


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind := strange_kind(found):
        raise OSError(errno.EINVAL, f"it is {kind}, expected a file", str(path))
