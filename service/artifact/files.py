"""Reads files that may be strange without a wait, and writes files that survive a crash.

Opening a pipe waits until somebody writes to it, and a device such as /dev/zero has no end: neither is read. A power
cut leaves the old or the new state of a written file or folder, and nothing in between; a function that returns has
made its change durable. `python -m loadtest.simulate` cuts the power between any two calls.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from contextlib import suppress
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


def write_whole(path: Path, data: bytes, *, is_new: bool = False) -> None:
    """Writes a file, and its folder if it is missing; readers see the old file or the new one.

    Args:
      is_new: raise FileExistsError if the file exists, also if another program writes it at this moment.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The draft has a random name, because a killed process leaves its draft, and a process in a container often has the
    # process id of the one before.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            # Unlike a rename, os.link fails if another writer's file has the name.
            os.link(draft, path)
        else:
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_names(path.parent)


def publish_folder(staging: Path, target: Path, *, is_new: bool = False) -> None:
    """Syncs all that is in a folder, and gives the folder its name; a folder of that name is replaced.

    While a folder is replaced, it has the name outdated(target) for a moment, and restore_folders() gives it back.

    Args:
      is_new: raise OSError if there is a folder of that name that holds anything, also if another program has just
        made it.
    """
    for path in [staging, *staging.rglob("*")]:
        sync(path)
    old = outdated(target)
    if is_replaced := not is_new and target.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
    os.rename(staging, target)
    sync_names(target.parent)
    if is_replaced:
        shutil.rmtree(old)


def outdated(folder: Path) -> Path:
    return folder.with_name(f".outdated-{folder.name}")


def remove_folder(folder: Path) -> None:
    """Removes a folder; it loses its name first, so that nobody takes a part of it for the whole."""
    removed = folder.with_name(f".removed-{folder.name}")
    shutil.rmtree(removed, ignore_errors=True)
    os.rename(folder, removed)
    sync(folder.parent)
    shutil.rmtree(removed, ignore_errors=True)


def restore_folders(parent: Path) -> None:
    """Ends what a killed process began in a folder: removals, and replacements that lack the new folder."""
    for left in parent.glob(".outdated-*"):
        folder = left.with_name(left.name.removeprefix(".outdated-"))
        if not folder.exists():
            os.rename(left, folder)
    sync(parent)
    for left in [*parent.glob(".removed-*"), *parent.glob(".outdated-*")]:
        shutil.rmtree(left, ignore_errors=True)


def close_unwritten(descriptor: int) -> None:
    """Closes the descriptor of a file or folder to which nothing was written that is not synced.

    A network file system can report an error of its own then; the descriptor is closed all the same.
    """
    with suppress(OSError):
        os.close(descriptor)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(folder: Path) -> None:
    """Syncs the names in a folder, and in all folders above it on the same disk that this process may change.

    A folder above may be new: whoever made it may have been killed before its name was synced.
    """
    sync(folder)
    device = folder.stat().st_dev
    for above in folder.resolve().parents:
        if above.stat().st_dev != device or not os.access(above, os.R_OK | os.W_OK):
            return
        sync(above)
